"""What NVIDIA's examples of clients do, by tritonclient unmodified over HTTP and gRPC: calls, and what came of each.

Each probe gives a plain value, or the status of the error, which has to be the same from Triton and from gemlet.
"""

from __future__ import annotations

import json
import queue
import time
import uuid

import numpy as np
import tritonclient.grpc
import tritonclient.http
import tritonclient.utils.shared_memory as shm
from tritonclient import utils

LOOK_S, SETTLED = 0.1, 10  # statistics that are the same in so many looks
MODELS = ("simple", "simple_string")
KITS = {"http": tritonclient.http, "grpc": tritonclient.grpc}
NUMBERS = np.arange(16, dtype=np.int32).reshape(1, 16)
ONES = np.ones((1, 16), dtype=np.int32)
NBYTES = NUMBERS.nbytes
# Where gemlet does otherwise, and why. docs/serving/coming-from-triton.md tells people.
DIFFERENCES = {
    "name of the server": "a server says its own name",
    "extensions": "parameters, sequences, traces and log settings are none of gemlet's",
    "load with another configuration": "a model is loaded as its files say",
    "region of a key that there is not": "the client named it: 400, not 500",
    "trace settings": "gemlet has a request log instead",
    "log settings": "the level of the log is an option of the server",
}


class Ask:
    """Probes of one server by one protocol. Methods whose names begin with a letter are probes."""

    def __init__(self, kind, client):
        self._kind, self._kit, self._client = kind, KITS[kind], client

    def _pair(self, datatype="INT32", first=NUMBERS, second=ONES):
        given = [self._kit.InferInput(name, [1, 16], datatype) for name in ("INPUT0", "INPUT1")]
        for each, values in zip(given, (first, second), strict=True):
            each.set_data_from_numpy(values)
        return given

    def _plain(self, message):
        if isinstance(message, dict | list):
            return message
        return self._client_json(message)

    @staticmethod
    def _client_json(message):
        from google.protobuf.json_format import MessageToDict

        return MessageToDict(message, preserving_proto_field_name=True)

    @staticmethod
    def _values(result, names=("OUTPUT0", "OUTPUT1")):
        found = {name: result.as_numpy(name) for name in names}
        return {name: None if each is None else each.astype(str).tolist() for name, each in found.items()}

    def live_and_ready(self):
        client = self._client
        headers = {"test": "1", "dummy": "2"}
        return [
            client.is_server_live(headers=headers),
            client.is_server_ready(),
            client.is_model_ready("simple"),
            client.is_model_ready("simple", "1"),
        ]

    def name_of_the_server(self):
        return self._plain(self._client.get_server_metadata())["name"]

    def extensions(self):
        return sorted(self._plain(self._client.get_server_metadata())["extensions"])

    def metadata(self):
        return self._plain(self._client.get_model_metadata("simple"))

    def configuration(self):
        found = self._plain(self._client.get_model_config("simple"))
        found = found.get("config", found)
        return [found["name"], found["max_batch_size"], [each["name"] for each in found["output"]]]

    def metadata_of_nobody(self):
        try:
            self._client.get_model_metadata("wrong_model_name")
        except utils.InferenceServerException as error:
            return "Request for unknown model" in error.message()
        return "no error"

    def inference_of_nobody(self):
        try:
            self._client.infer("wrong_model_name", self._pair())
        except utils.InferenceServerException as error:
            return error.message().startswith("Request for unknown model")
        return "no error"

    def sum_and_difference(self):
        wanted = [self._kit.InferRequestedOutput(name) for name in ("OUTPUT0", "OUTPUT1")]
        result = self._client.infer("simple", self._pair(), outputs=wanted, request_id="my id", headers={"test": "1"})
        answer = self._plain(result.get_response())
        return [self._values(result), answer["id"], answer["model_name"], answer["model_version"]]

    def one_output(self):
        wanted = [self._kit.InferRequestedOutput("OUTPUT1")]
        return self._values(self._client.infer("simple", self._pair(), outputs=wanted))

    def again_with_the_same_objects(self):
        given = self._pair()
        first = self._values(self._client.infer("simple", given))
        given[0].set_data_from_numpy(NUMBERS + 1)
        return [first, self._values(self._client.infer("simple", given))]

    def compressed(self):
        if self._kind == "grpc":
            return self._values(self._client.infer("simple", self._pair(), compression_algorithm="gzip"))
        more = {"request_compression_algorithm": "gzip", "response_compression_algorithm": "deflate"}
        return self._values(self._client.infer("simple", self._pair(), **more))

    def asynchronous(self):
        if self._kind == "http":
            results = [self._client.async_infer("simple", self._pair()) for _ in range(5)]
            return [self._values(each.get_result()) for each in results]
        found = queue.Queue()
        for _ in range(5):
            self._client.async_infer("simple", self._pair(), callback=lambda result, error: found.put((result, error)))
        answered = [found.get(timeout=60) for _ in range(5)]
        return [self._values(result) if error is None else str(error) for result, error in answered]

    def stream(self):
        if self._kind == "http":
            return None
        found = queue.Queue()
        self._client.start_stream(callback=lambda result, error: found.put((result, error)))
        for number in range(5):
            self._client.async_stream_infer("simple", self._pair(first=NUMBERS * number), request_id=str(number))
        answered = [found.get(timeout=60) for _ in range(5)]
        self._client.stop_stream()
        return sorted((result.get_response().id, self._values(result)["OUTPUT0"]) for result, _ in answered)

    def texts(self):
        given = [np.array([[str(each).encode() for each in row[0]]], dtype=object) for row in (NUMBERS, ONES)]
        return self._values(self._client.infer("simple_string", self._pair("BYTES", *given)))

    def classes(self):
        wanted = [self._kit.InferRequestedOutput("OUTPUT0", class_count=2)]
        return self._values(self._client.infer("simple", self._pair(), outputs=wanted), ["OUTPUT0"])

    def statistics(self):
        before = self._settled()
        self._client.infer("simple", self._pair())
        return [after - count for after, count in zip(self._settled(), before, strict=True)]

    def _settled(self):
        """Triton counts a request after its answer has left."""
        last, same = self._counted(), 0
        while same < SETTLED:
            time.sleep(LOOK_S)
            now = self._counted()
            last, same = now, same + 1 if now == last else 0
        return last

    def _counted(self):
        (found,) = self._plain(self._client.get_inference_statistics("simple"))["model_stats"]
        spans = found["inference_stats"]
        return [
            int(found["inference_count"]),
            *(int(spans[each]["count"]) for each in ("success", "queue", "compute_infer")),
        ]

    def index(self):
        found = self._plain(self._client.get_model_repository_index())
        found = found if isinstance(found, list) else found["models"]
        return sorted([each["name"], each["state"]] for each in found if each["name"] in MODELS)

    def unload_and_load(self):
        client = self._client
        client.unload_model("simple_string")
        gone = client.is_model_ready("simple_string")
        client.load_model("simple_string")
        return [gone, client.is_model_ready("simple_string"), self.texts()]

    def load_of_nobody(self):
        try:
            self._client.load_model("wrong_model_name")
        except utils.InferenceServerException as error:
            return "failed to load" in error.message()
        return "no error"

    def load_with_another_configuration(self):
        found = self._plain(self._client.get_model_config("simple"))
        own = found.get("config", found)
        self._client.load_model("simple", config=json.dumps(own | {"max_batch_size": 16}))
        found = self.configuration()
        self._client.load_model("simple", config=json.dumps(own))  # else it keeps the other one
        return found

    def load_with_what_is_no_configuration(self):
        try:
            self._client.load_model("simple", config='"parameters": {')
        except utils.InferenceServerException as error:
            return "failed to load" in error.message()
        return "no error"

    def system_shared_memory(self):
        return self._shared("simple", "INT32", [NUMBERS], [ONES], NBYTES)

    def system_shared_memory_of_texts(self):
        texts = [np.array([str(each).encode() for each in row[0]], dtype=object) for row in (NUMBERS, ONES)]
        first, second = map(utils.serialize_byte_tensor, texts)
        return self._shared("simple_string", "BYTES", [first], [second], utils.serialized_byte_size(first))

    def _shared(self, model, datatype, first, second, nbytes):
        """Regions, the outputs in them, and what is left when they are unregistered."""
        client, key = self._client, f"gemlet-{uuid.uuid4().hex}"
        client.unregister_system_shared_memory()
        client.unregister_cuda_shared_memory()
        regions = {name: shm.create_shared_memory_region(name, f"/{key}-{name}", 8 * nbytes) for name in ("in", "out")}
        try:
            shm.set_shared_memory_region(regions["in"], first)
            shm.set_shared_memory_region(regions["in"], second, offset=2 * nbytes)
            for name in regions:
                client.register_system_shared_memory(name, f"/{key}-{name}", 8 * nbytes)
            sizes = [nbytes, nbytes if datatype != "BYTES" else utils.serialized_byte_size(second[0])]
            given, wanted = [], []
            for at, size in enumerate(sizes):
                given.append(self._kit.InferInput(f"INPUT{at}", [1, 16], datatype))
                given[-1].set_shared_memory("in", size, offset=2 * nbytes * at)
                wanted.append(self._kit.InferRequestedOutput(f"OUTPUT{at}"))
                wanted[-1].set_shared_memory("out", 2 * nbytes, offset=2 * nbytes * at)
            result = client.infer(model, given, outputs=wanted)
            found = []
            for at in range(2):
                told = result.get_output(f"OUTPUT{at}")
                told = told if isinstance(told, dict) else {"datatype": told.datatype, "shape": list(told.shape)}
                kind = utils.triton_to_np_dtype(told["datatype"])
                values = shm.get_contents_as_numpy(regions["out"], kind, told["shape"], offset=2 * nbytes * at)
                found.append([told["datatype"], told["shape"], values.astype(str).tolist()])
            names = sorted(self._regions())
            client.unregister_system_shared_memory("in")
            found += [names, sorted(self._regions())]
            client.unregister_system_shared_memory()
            return [*found, sorted(self._regions())]
        finally:
            client.unregister_system_shared_memory()
            for handle in regions.values():
                shm.destroy_shared_memory_region(handle)

    def _regions(self):
        found = self._plain(self._client.get_system_shared_memory_status())
        return [each["name"] for each in found] if isinstance(found, list) else list(found.get("regions", {}))

    def region_that_there_is_not(self):
        given = self._pair()
        given[0].set_shared_memory("nowhere", NBYTES)
        return self._values(self._client.infer("simple", given))

    def region_of_a_key_that_there_is_not(self):
        self._client.register_system_shared_memory("lost", "/gemlet-there-is-no-such-key", NBYTES)

    def CUDA_shared_memory(self):
        self._client.register_cuda_shared_memory("c", b"0" * 88, 0, NBYTES)

    def trace_settings(self):
        return sorted(self._plain(self._client.get_trace_settings()))

    def log_settings(self):
        return sorted(self._plain(self._client.get_log_settings()))

    def wrong_shape(self):
        given = [self._kit.InferInput(name, [1, 15], "INT32") for name in ("INPUT0", "INPUT1")]
        for each in given:
            each.set_data_from_numpy(np.zeros((1, 15), dtype=np.int32))
        return self._values(self._client.infer("simple", given))

    def wrong_datatype(self):
        return self._values(self._client.infer("simple", self._pair("FP32", *[np.zeros((1, 16), np.float32)] * 2)))

    def wrong_input(self):
        given = self._pair()
        other = self._kit.InferInput("OTHER", [1, 16], "INT32")
        other.set_data_from_numpy(ONES)
        return self._values(self._client.infer("simple", [given[0], other]))

    def too_many_rows(self):
        given = [self._kit.InferInput(name, [9, 16], "INT32") for name in ("INPUT0", "INPUT1")]
        for each in given:
            each.set_data_from_numpy(np.zeros((9, 16), dtype=np.int32))
        return self._values(self._client.infer("simple", given))

    def own_parameters(self):
        return self._values(self._client.infer("simple", self._pair(), parameters={"mine": 1, "word": "x"}))

    def priority_and_timeout(self):
        return self._values(self._client.infer("simple", self._pair(), priority=1, timeout=5_000_000))


NAMES = [name for name in vars(Ask) if not name.startswith("_")]
PROBES = [f"{kind}: {name.replace('_', ' ')}" for kind in KITS for name in NAMES]


def reason(probe):
    """Why gemlet answers it otherwise; None: it must not."""
    return DIFFERENCES.get(probe.partition(": ")[2])


def ask_all(http, grpc):
    """Every probe by both protocols, by name. Addresses: HOST:PORT."""
    found = {}
    for kind, address in (("http", http), ("grpc", grpc)):
        with KITS[kind].InferenceServerClient(address) as client:
            asking = Ask(kind, client)
            for name in NAMES:
                try:
                    answer = getattr(asking, name)()
                except utils.InferenceServerException as error:
                    answer = f"error {error.status()}"
                found[f"{kind}: {name.replace('_', ' ')}"] = answer
    return found
