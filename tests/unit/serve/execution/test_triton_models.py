"""Models written for Triton's Python backend: what they import, how they are asked, what they may ask of others."""

from __future__ import annotations

import asyncio
import logging
import queue
import sys
import threading

import msgspec
import numpy as np
import pytest

from gemlet.inference_protocol import tensors
from gemlet.serve.execution import backends, protocol
from gemlet.serve.execution.backend import BackendOptions, GpuLet
from gemlet.serve.execution.triton import backend_utils as pb_utils
from gemlet.serve.execution.worker import Worker
from gemlet.serve.models.specification import ModelError, TensorSpec, WarmUp
from tests.unit.serve.stand_in import model

HEAD = """
import json
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
"""
DOUBLE = (
    HEAD
    + """
    def execute(self, requests):
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            x *= 2  # it is this model's own
            if x[0, 0] < 0:
                error = pb_utils.TritonError("negative", pb_utils.TritonError.INVALID_ARG)
                responses.append(pb_utils.InferenceResponse(error=error))
            else:
                responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", x)]))
        return responses
"""
)


class Said:
    """The server's side of a worker."""

    def __init__(self):
        self.messages = queue.SimpleQueue()

    def send(self, message):
        self.messages.put(message)


class Full:
    """An arena without room: everything travels inside messages."""

    def allocate(self, _):
        return None


class Executor:
    """A worker with the CPU backend, without a process; ``models``: name -> code."""

    def __init__(self, tmp_path, together=(), **models):
        self.said = Said()
        self.worker = Worker(backends.create("cpu", BackendOptions()), self.said, None, Full())
        self.specs = {}
        for name, code in models.items():
            spec = code if not isinstance(code, str) else written(tmp_path / name, code, name=name)
            self.specs[name] = spec
            self.order(protocol.Load(1, spec))
        shared = {self.specs[name].key: 8 for name in together}
        gpu_lets = [GpuLet(name=name, sm=1.0, models=shared or {spec.key: 8}) for name, spec in self.specs.items()]
        self.order(protocol.Partition(2, tuple(gpu_lets)))

    def order(self, order):
        for each in (order, None):
            self.worker._orders.put(each)
        self.worker._obey()
        told = self.said.messages.get(timeout=60)
        assert not isinstance(told, protocol.Failed), told.message
        return told

    def ask(self, name, *requests):
        """Runs a batch of (info, array of X) and gives the message that comes back."""
        given = np.concatenate([array for _, array in requests])
        data = given.tobytes()
        tensor = protocol.ArenaTensor("X", "FP32", given.shape, -1, len(data), data)
        infos = tuple(info for info, _ in requests)
        self.worker._enqueue(protocol.Run(3, name, self.specs[name].key, len(given), (tensor,), infos))
        return self.said.messages.get(timeout=60)

    def close(self):
        for waiting in self.worker._gpu_lets.values():
            waiting.put(None)
        for thread in self.worker._threads:
            thread.join()
        self.worker._python.close()


def written(folder, code, **more):
    (folder / "1").mkdir(parents=True, exist_ok=True)
    (folder / "1" / "model.py").write_text(code)
    outputs = more.pop("outputs", (("Y", "FP32", (-1,)),))
    spec = model(platform="triton_python", outputs=outputs, **more)
    return msgspec.structs.replace(spec, directory=str(folder), configuration='{"max_batch_size": 8}')


@pytest.fixture(autouse=True)
def _clean(monkeypatch):
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    monkeypatch.setattr("sys.path", list(sys.path))
    monkeypatch.delitem(sys.modules, "triton_python_backend_utils", raising=False)


def info(rows=1, **more):
    return protocol.RequestInfo(rows, **more)


def rows(*values):
    return np.array([[each, each] for each in values], dtype=np.float32)


def arrays(answer):
    return {each.name: tensors.to_array(each.inline, each.datatype, each.shape) for each in answer.outputs}


def test_each_request_of_a_batch_gets_its_own_answer(tmp_path):
    executor = Executor(tmp_path, double=DOUBLE)
    done = executor.ask("double", (info(), rows(1)), (info(2), rows(2, 3)), (info(), rows(-1)))
    executor.close()
    first, second, third = done.answers
    np.testing.assert_array_equal(arrays(first)["Y"], rows(2))
    np.testing.assert_array_equal(arrays(second)["Y"], rows(4, 6))
    assert third == protocol.FailedRequest("negative", "INVALID_ARG")


KNOWS = (
    HEAD
    + """
    def initialize(self, args):
        self.args, self.folder = args, pb_utils.get_model_dir()

    def execute(self, requests):
        (request,) = requests
        told = {
            "args": self.args, "folder": self.folder, "config": json.loads(self.args["model_config"]),
            "id": request.request_id(), "parameters": request.parameters(), "timeout": request.timeout(),
            "outputs": request.requested_output_names(), "inputs": [each.name() for each in request.inputs()],
        }
        text = np.array([[json.dumps(told)]], dtype=object)
        z = pb_utils.Tensor("Z", np.zeros((5, 3)))
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", text), z, pb_utils.Tensor("other", text)])]
"""
)


def test_a_model_knows_itself_and_its_request_and_shapes_its_outputs_as_it_likes(tmp_path):
    knows = written(tmp_path / "knows", KNOWS, name="knows", outputs=(("Y", "BYTES", (1,)), ("Z", "FP32", (-1,))))
    executor = Executor(tmp_path, knows=knows)
    asked = info(1, id="seven", timeout_us=5, parameters='{"a":1}')
    (answer,) = executor.ask("knows", (asked, rows(1))).answers
    (without,) = executor.ask("knows", (info(1, outputs=("Z",)), rows(1))).answers
    executor.close()
    got = arrays(answer)
    told = msgspec.json.decode(got["Y"][0, 0])
    assert told["folder"] == str(tmp_path / "knows" / "1")
    assert (told["id"], told["timeout"], told["parameters"], told["outputs"]) == ("seven", 5, '{"a":1}', ["Y", "Z"])
    assert told["config"] == {"max_batch_size": 8}
    assert told["args"]["model_instance_kind"] == "CPU"
    assert (told["args"]["model_name"], told["args"]["model_version"]) == ("knows", "1")
    assert list(got) == ["Y", "Z"]
    assert (got["Z"].shape, got["Z"].dtype) == ((5, 3), np.float64)
    assert list(arrays(without)) == ["Z"]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("    def execute(self, requests): return []", "execute gave 0 responses for 1 requests"),
        ("    def execute(self, requests): return None", "execute gave 0 responses for 1 requests"),
        ("    def execute(self, requests): return [None]", "a NoneType in place of an InferenceResponse"),
        ("    def execute(self, requests): raise KeyError('k')", "m failed: KeyError: 'k'"),
        ("    def execute(self, requests): requests[0].get_response_sender()", "decoupled models are not served"),
    ],
)
def test_what_execute_must_not_do_fails_the_batch(tmp_path, code, message):
    executor = Executor(tmp_path, m=HEAD + code)
    told = executor.ask("m", (info(), rows(1)))
    executor.close()
    assert (told.kind, message in told.message) == ("model", True)


def test_finalize_comes_when_a_model_goes(tmp_path):
    code = DOUBLE + "    def finalize(self):\n        with open({!r}, 'a') as file: file.write('x')\n"
    marks = [tmp_path / "first", tmp_path / "second"]
    executor = Executor(tmp_path, a=code.format(str(marks[0])), b=code.format(str(marks[1])))
    executor.order(protocol.Unload(4, executor.specs["a"].key))
    assert [mark.exists() for mark in marks] == [True, False]
    executor.close()
    assert [mark.read_text() for mark in marks] == ["x", "x"]


ASKS = (
    HEAD
    + """
    def execute(self, requests):
        responses = []
        for request in requests:
            asked = pb_utils.InferenceRequest(
                model_name="double", requested_output_names=["Y"], inputs=request.inputs(), timeout=9
            )
            answer = asked.exec()
            if answer.has_error():
                responses.append(pb_utils.InferenceResponse(error=answer.error()))
            else:
                y = pb_utils.get_output_tensor_by_name(answer, "Y").as_numpy()
                responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", y + 1)]))
        return responses
"""
)


def reply(asked, array):
    data = array.tobytes()
    return protocol.Reply(asked.number, (protocol.ArenaTensor("Y", "FP32", array.shape, -1, len(data), data),))


def test_a_model_asks_another_through_the_server(tmp_path):
    executor = Executor(tmp_path, asks=ASKS)
    asked = executor.ask("asks", (info(), rows(3)))
    assert (asked.model, asked.version, asked.timeout_us) == ("double", "", 9)
    executor.worker._python.answered(reply(asked, rows(6)))
    (answer,) = executor.said.messages.get(timeout=60).answers
    np.testing.assert_array_equal(arrays(answer)["Y"], rows(7))
    asked = executor.ask("asks", (info(), rows(3)))
    executor.worker._python.answered(protocol.Reply(asked.number, error="there is none"))
    assert executor.said.messages.get(timeout=60).answers == (protocol.FailedRequest("there is none", "INTERNAL"),)
    executor.close()


@pytest.mark.parametrize("kind", ["triton", "ours"])
def test_a_model_that_takes_turns_with_the_one_it_asks_runs_that_itself(tmp_path, kind):
    double = DOUBLE
    if kind == "ours":
        double = written(tmp_path / "double", "def infer(inputs): return {'Y': 2 * inputs['X']}", name="double")
        double = msgspec.structs.replace(double, platform="python")
    executor = Executor(tmp_path, ("asks", "double"), asks=ASKS, double=double)
    (answer,) = executor.ask("asks", (info(), rows(3))).answers
    executor.close()
    np.testing.assert_array_equal(arrays(answer)["Y"], rows(7))


def test_execute_may_be_a_coroutine(tmp_path):
    code = ASKS.replace("def execute", "async def execute").replace("asked.exec()", "await asked.async_exec()")
    executor = Executor(tmp_path, asks=code)
    asked = executor.ask("asks", (info(), rows(3)))
    executor.worker._python.answered(reply(asked, rows(6)))
    (answer,) = executor.said.messages.get(timeout=60).answers
    executor.close()
    np.testing.assert_array_equal(arrays(answer)["Y"], rows(7))


def test_a_coroutine_may_ask_one_that_takes_turns_with_it(tmp_path):
    code = ASKS.replace("def execute", "async def execute").replace("asked.exec()", "await asked.async_exec()")
    double = DOUBLE.replace("def execute", "async def execute")
    executor = Executor(tmp_path, ("asks", "double"), asks=code, double=double)
    (answer,) = executor.ask("asks", (info(), rows(3))).answers
    executor.close()
    np.testing.assert_array_equal(arrays(answer)["Y"], rows(7))


def test_a_request_to_another_model_has_the_types_that_the_server_reads(tmp_path):
    code = ASKS.replace("timeout=9", "timeout=9e6").replace(
        "inputs=request.inputs()", "inputs=[pb_utils.Tensor(7, request.inputs()[0].as_numpy())]"
    )
    executor = Executor(tmp_path, asks=code)
    asked = executor.ask("asks", (info(), rows(3)))
    assert protocol.to_server.decode(protocol.frame(asked)[protocol.LENGTH_BYTES :]) == asked
    assert (asked.timeout_us, asked.inputs[0].name) == (9_000_000, "7")
    executor.worker._python.answered(protocol.Reply(asked.number, error="no input 7"))
    executor.said.messages.get(timeout=60)
    executor.close()


@pytest.mark.parametrize("code", [99, -9, "NONE", None])
def test_an_error_of_a_code_that_is_none_fails_its_own_request_only(code):
    assert pb_utils.TritonError("no", code).code_name() == "UNKNOWN"


GIVES_UP = (
    ASKS.replace("def execute", "async def execute")
    .replace("asked.exec()", "await given_up(asked)")
    .replace(
        "class TritonPythonModel",
        """\
import asyncio

async def given_up(asked):
    waiting = asyncio.ensure_future(asked.async_exec())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    return pb_utils.InferenceResponse(error="gave up")

class TritonPythonModel""",
    )
)


def test_an_answer_that_a_coroutine_does_not_wait_for_any_more_harms_nobody(tmp_path):
    executor = Executor(tmp_path, asks=GIVES_UP)
    asked = executor.ask("asks", (info(), rows(3)))
    assert executor.said.messages.get(timeout=60) == protocol.Cancel(asked.number)
    assert executor.said.messages.get(timeout=60).answers == (protocol.FailedRequest("gave up", "INTERNAL"),)
    executor.worker._python.answered(reply(asked, rows(6)))
    executor.close()


def test_an_answer_that_is_none_is_the_error_of_who_asked(tmp_path):
    executor = Executor(tmp_path, asks=ASKS)
    asked = executor.ask("asks", (info(), rows(3)))
    executor.worker._python.answered(
        protocol.Reply(asked.number, (protocol.ArenaTensor("Y", "FP32", (3,), -1, 1, b"?"),))
    )
    (answer,) = executor.said.messages.get(timeout=60).answers
    executor.close()
    assert isinstance(answer, protocol.FailedRequest)


def test_a_request_to_another_model_that_no_message_can_have_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(protocol, "MAX_NESTED", 7)
    executor = Executor(tmp_path, asks=ASKS)
    (answer,) = executor.ask("asks", (info(), rows(3))).answers
    executor.close()
    assert "a request to double has 8 bytes: expected at most 7" in answer.message


THREADS = (
    "import asyncio\n"
    + HEAD
    + """
    async def execute(self, requests):
        given = {"inputs": requests[0].inputs(), "model_name": "alone", "requested_output_names": ["Y"]}
        asked = [pb_utils.InferenceRequest(**given) for _ in "abcd"]
        answers = await asyncio.gather(*(asyncio.to_thread(each.exec) for each in asked))
        most = max(answer.output_tensors()[0].as_numpy().max() for answer in answers)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.full((1, 2), most, np.float32))])]
"""
)
ALONE = (
    "import time\n"
    + HEAD
    + """
    at_once = 0

    def execute(self, requests):
        self.at_once += 1
        time.sleep(0.05)
        at_once, self.at_once = self.at_once, self.at_once - 1
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.full((1, 2), at_once, np.float32))])]
"""
)


def test_a_model_whose_threads_ask_another_one_does_not_run_that_twice_at_once(tmp_path):
    executor = Executor(tmp_path, ("threads", "alone"), threads=THREADS, alone=ALONE)
    (answer,) = executor.ask("threads", (info(), rows(3))).answers
    executor.close()
    np.testing.assert_array_equal(arrays(answer)["Y"], rows(1))


KEEPS = (
    "import contextvars, threading\n"
    + HEAD
    + """
    def execute(self, requests):
        x = requests[0].inputs()[0]
        asked = pb_utils.InferenceRequest(model_name="alone", inputs=[x], requested_output_names=["Y"])
        context = contextvars.copy_context()
        threading.Thread(target=lambda: (self.over.wait(60), context.run(asked.exec)), daemon=True).start()
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", x.as_numpy())])]

    over = threading.Event()
    finalize = over.set
"""
)


def test_a_thread_that_a_model_leaves_behind_asks_as_anybody_does(tmp_path):
    executor = Executor(tmp_path, ("keeps", "alone"), keeps=KEEPS, alone=ALONE)
    executor.ask("keeps", (info(), rows(3)))
    executor.worker._python._python[executor.specs["keeps"].key]._model.over.set()
    asked = executor.said.messages.get(timeout=60)
    executor.close()
    assert (type(asked), asked.model) == (protocol.Ask, "alone")


def test_a_model_that_asks_itself_without_end_is_told_so(tmp_path):
    executor = Executor(tmp_path, ("double",), double=ASKS)
    (answer,) = executor.ask("double", (info(), rows(3))).answers
    executor.close()
    assert "16 models deep: double -> double -> double" in answer.message


def test_a_model_is_warm_before_its_first_request_and_refused_if_that_fails(tmp_path):
    seen = HEAD + (
        "    seen = []\n"
        "    def execute(self, requests):\n"
        "        x = requests[0].inputs()[0].as_numpy()\n"
        "        self.seen.append(x.tolist())\n"
        "        if x.any(): raise ValueError('no ones')\n"
        "        return [pb_utils.InferenceResponse([pb_utils.Tensor('Y', np.array([[len(self.seen)]]))])]\n"
    )
    zeros = WarmUp("zeros", 2, 3, ((TensorSpec("X", "FP32", (2,)), "zero"),))
    spec = msgspec.structs.replace(written(tmp_path / "m", seen), warm_up=(zeros,))
    executor = Executor(tmp_path, m=spec)
    (answer,) = executor.ask("m", (info(), rows(0))).answers
    executor.close()
    assert arrays(answer)["Y"].item() == 4
    (tmp_path / "m" / "warmup").mkdir()
    (tmp_path / "m" / "warmup" / "ones").write_bytes(np.ones(2, dtype=np.float32).tobytes())
    ones = WarmUp("ones", 2, 1, ((TensorSpec("X", "FP32", (2,)), "ones"),))
    executor = Executor(tmp_path)
    with pytest.raises(ModelError, match="warm-up 'ones' failed: ValueError: no ones"):
        executor.worker._python.load(msgspec.structs.replace(spec, warm_up=(ones,)))


def test_a_model_of_ours_is_warmed_up_too(tmp_path):
    code = "def infer(inputs): raise ValueError(str(inputs['X'].dtype))"
    spec = msgspec.structs.replace(written(tmp_path / "m", code), platform="python")
    sample = WarmUp("one", 1, 1, ((TensorSpec("X", "INT8", (2,)), "random"),))
    with pytest.raises(ModelError, match="warm-up 'one' failed: ValueError: int8"):
        backends.create("cpu", BackendOptions()).load(msgspec.structs.replace(spec, warm_up=(sample,)))


def test_the_module_is_known_only_once_such_a_model_is_loaded(tmp_path):
    assert "triton_python_backend_utils" not in sys.modules
    with pytest.raises(ModuleNotFoundError):
        import triton_python_backend_utils  # noqa: F401
    Executor(tmp_path, double=DOUBLE).close()
    assert sys.modules["triton_python_backend_utils"] is pb_utils


def test_modelled_time_takes_such_a_model_as_any(tmp_path):
    said = Said()
    worker = Worker(backends.create("modelled", BackendOptions()), said, None, Full())
    spec = msgspec.structs.replace(written(tmp_path / "m", DOUBLE), parameters={"profile": "resnet50"})
    for order in (
        protocol.Load(1, spec),
        protocol.Partition(2, (GpuLet(name="l", sm=1.0, models={spec.key: 8}),)),
        None,
    ):
        worker._orders.put(order)
    worker._obey()
    worker._enqueue(protocol.Run(3, "l", spec.key, 1, (), (info(),)))
    told = [said.messages.get(timeout=60) for _ in range(3)]
    worker._gpu_lets["l"].put(None)
    assert [type(each) for each in told] == [protocol.Loaded, protocol.Finished, protocol.Done]


# The module itself


def test_tensors():
    array = np.arange(6, dtype=np.int16).reshape(2, 3)
    tensor = pb_utils.Tensor("T", array)
    assert (tensor.name(), tensor.shape(), tensor.is_cpu()) == ("T", [2, 3], True)
    np.testing.assert_array_equal(pb_utils.Tensor.from_dlpack("D", tensor).as_numpy(), array)
    np.testing.assert_array_equal(pb_utils.Tensor.from_dlpack("D", tensor.to_dlpack()).as_numpy(), array)
    array.flags.writeable = False
    own = tensor.as_numpy()
    own[0, 0] = 7
    assert array[0, 0] == 0
    with pytest.raises(TypeError, match="expected a numpy array"):
        pb_utils.Tensor("T", [1])


@pytest.mark.parametrize("name", sorted(pb_utils.TRITON_STRING_TO_NUMPY))
def test_datatypes_go_there_and_back(name):
    kind = pb_utils.triton_string_to_numpy(name)
    assert np.dtype(pb_utils.triton_to_numpy_type(pb_utils.numpy_to_triton_type(kind))) == np.dtype(kind)
    array = np.zeros(2, dtype=kind)
    assert tensors.datatype_of(array) == name.removeprefix("TYPE_").replace("STRING", "BYTES")


def test_datatypes_have_the_numbers_of_tritons_api():
    assert [pb_utils.numpy_to_triton_type(kind) for kind in (bool, np.float16, np.float32, np.object_)] == [
        1,
        10,
        11,
        13,
    ]
    assert pb_utils.numpy_to_triton_type(np.bytes_) == 13


def test_text_is_packed_and_unpacked_as_on_the_wire():
    words = np.array([b"a", "zwölf", b""], dtype=object)
    (packed,) = pb_utils.serialize_byte_tensor(words)
    assert packed[:5] == b"\x01\0\0\0a"
    assert pb_utils.deserialize_bytes_tensor(packed).tolist() == [b"a", "zwölf".encode(), b""]
    assert pb_utils.serialize_byte_tensor(np.array([], dtype=object)) is None


def test_a_configuration_is_completed_and_not_contradicted():
    config = pb_utils.ModelConfig({"input": [{"name": "A", "dims": [3]}], "max_batch_size": 2})
    config.add_input({"name": "A", "data_type": "TYPE_INT8", "dims": [3]})
    config.set_max_batch_size(8)
    config.set_dynamic_batching()
    config.set_model_transaction_policy({"decoupled": True})
    told = config.as_dict()
    assert told["input"] == [{"name": "A", "dims": [3], "data_type": "TYPE_INT8"}]
    assert (told["max_batch_size"], told["dynamic_batching"]) == (2, {})
    assert pb_utils.using_decoupled_model_transaction_policy(told)
    assert pb_utils.get_input_config_by_name(told, "A")["dims"] == [3]
    assert pb_utils.get_output_config_by_name(told, "A") is None
    with pytest.raises(ValueError, match="has dims \\[3\\] in the configuration, \\[4\\] in the model"):
        config.add_input({"name": "A", "dims": [4]})


def test_the_log_and_the_numbers_of_a_model(caplog):
    with caplog.at_level(logging.DEBUG, logger="gemlet.serve.executor"):
        pb_utils.Logger.log_info("one")
        pb_utils.Logger.log("two", pb_utils.Logger.ERROR)
        pb_utils.Logger.log_warn("three")
        pb_utils.Logger.log_verbose("four")
        family = pb_utils.MetricFamily(name="mine", description="of mine", kind=pb_utils.MetricFamily.COUNTER)
    assert [(record.levelname, record.getMessage()[:5]) for record in caplog.records] == [
        ("INFO", "one"), ("ERROR", "two"), ("WARNING", "three"), ("DEBUG", "four"), ("WARNING", "the m"),
    ]  # fmt: skip
    metric = family.Metric(labels={"a": "b"})
    metric.increment(2)
    assert metric.value() == 2
    with pytest.raises(pb_utils.TritonModelException):
        metric.set(3)


def test_what_is_known_only_to_the_models_thread_says_so():
    failed = []

    def elsewhere():
        try:
            pb_utils.get_model_dir()
        except pb_utils.TritonModelException as error:
            failed.append(str(error))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert "call it in initialize or execute" in failed[0]


def test_what_is_not_served_raises_with_the_reason():
    request = pb_utils.InferenceRequest(model_name="m")
    for call in (
        lambda: request.exec(decoupled=True),
        lambda: asyncio.run(request.async_exec(decoupled=True)),
        lambda: request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE),
        lambda: pb_utils.load_model("m"),
        lambda: pb_utils.unload_model("m"),
        lambda: pb_utils.InferenceRequest().exec(),
    ):
        with pytest.raises(pb_utils.TritonModelException):
            call()
