"""Access to `gemlet serve`: TLS, tokens, Unix sockets, and addresses on which it refuses to listen."""

from __future__ import annotations

import contextlib
import http.client
import json
import queue
import socket
import ssl
import stat
import subprocess
from contextlib import ExitStack, closing
from pathlib import Path

import grpc
import pytest
import trustme

from gemlet.inference_protocol import inference_pb2 as messages
from tests.e2e.serve_process import COMMAND, serving, write_model
from tests.waiting import eventually

ECHO = (
    "platform: noop\nmax_batch: 4\nslo: 60s\ninputs: [{name: X, datatype: FP32, shape: [-1]}]\n"
    "outputs: [{name: Y, datatype: FP32, shape: [-1]}]\n"
)
ONE_BY_ONE = ECHO.replace("platform: noop\nmax_batch: 4", "max_batch: 1")
SLOW = "import time\ndef infer(inputs): time.sleep(0.03); return {'Y': inputs['X']}\n"
OWN = [("grpc.use_local_subchannel_pool", 1)]  # a connection of its own
TOKEN = "correct-horse-battery"
BODY = json.dumps({"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 2], "data": [1.0, 2.0]}]})


@pytest.fixture
def repository(tmp_path):
    folder = tmp_path / "models"
    write_model(folder, "echo", ECHO)
    return folder


@pytest.fixture
def secured(tmp_path):
    """Arguments for TLS and tokens, and the authority's certificate."""
    authority = trustme.CA()
    issued = authority.issue_cert("localhost")
    root, chain, key, tokens = (tmp_path / name for name in ("root.pem", "chain.pem", "key.pem", "tokens"))
    authority.cert_pem.write_to_path(root)
    for pem in issued.cert_chain_pems:
        pem.write_to_path(chain, append=True)
    issued.private_key_pem.write_to_path(key)
    tokens.write_text(f"# who may ask\n{TOKEN}\n")
    tokens.chmod(0o600)
    return ["--tls-certificate", str(chain), "--tls-key", str(key), "--token-file", str(tokens)], root


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=60)
        self._path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(60)
        self.sock.connect(self._path)


def ask(connection, headers=None):
    connection.request("POST", "/v2/models/echo/infer", BODY, headers or {})
    response = connection.getresponse()
    return response.status, json.loads(response.read())


def ask_over_grpc(channel, metadata=()):
    request = messages.ModelInferRequest(model_name="echo")
    request.inputs.add(name="X", datatype="FP32", shape=[1, 1])
    request.raw_input_contents.append(bytes(4))
    call = channel.unary_unary(
        "/inference.GRPCInferenceService/ModelInfer",
        request_serializer=messages.ModelInferRequest.SerializeToString,
        response_deserializer=messages.ModelInferResponse.FromString,
    )
    return call.future(request, metadata=metadata, timeout=60, wait_for_ready=True)


def infer_over_grpc(channel, metadata=()):
    return ask_over_grpc(channel, metadata).result()


def test_tls_and_tokens_on_every_address(repository, secured, tmp_path):
    given, certificate = secured
    bearer = f"Bearer {TOKEN}"
    with serving(repository, tmp_path / "log", "--host", "0.0.0.0", *given) as server:
        context = ssl.create_default_context(cafile=str(certificate))
        port = int(server.http.rpartition(":")[2])
        with closing(http.client.HTTPSConnection("localhost", port, timeout=60, context=context)) as connection:
            assert ask(connection, {"Authorization": bearer})[0] == 200
            assert ask(connection)[0] == 401
        assert "https://" in server.log
        credentials = grpc.ssl_channel_credentials(certificate.read_bytes())
        with grpc.secure_channel(f"localhost:{server.grpc.rpartition(':')[2]}", credentials) as channel:
            assert infer_over_grpc(channel, [("authorization", bearer)]).model_name == "echo"
            for metadata in ((), [("authorization", "Bearer correct-horse-batterz")]):
                with pytest.raises(grpc.RpcError) as refused:
                    infer_over_grpc(channel, metadata)
                assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED
            live = channel.unary_unary(
                "/inference.GRPCInferenceService/ServerLive",
                response_deserializer=messages.ServerLiveResponse.FromString,
            )
            assert live(b"", timeout=60).live


def test_tokens_are_those_of_the_file_also_without_http(repository, tmp_path):
    tokens = tmp_path / "tokens"
    tokens.write_text(f"{TOKEN}\n")
    tokens.chmod(0o600)
    with (
        serving(repository, tmp_path / "log", "--http-port", "none", "--token-file", str(tokens)) as server,
        grpc.insecure_channel(server.grpc) as channel,
    ):

        def answered(token):
            try:
                infer_over_grpc(channel, [("authorization", f"Bearer {token}")])
            except grpc.RpcError as error:
                assert error.code() is grpc.StatusCode.UNAUTHENTICATED  # noqa: PT017  both are answers
                return False
            return True

        assert answered(TOKEN)
        tokens.write_text("another-horse-battery\n")
        eventually(lambda: answered("another-horse-battery"))
        assert not answered(TOKEN)


def test_what_goes_on_ends_with_its_token(repository, tmp_path):
    tokens = tmp_path / "tokens"
    tokens.write_text(f"{TOKEN}\nanother-horse-battery\n")
    tokens.chmod(0o600)

    def stream(channel, token, asked):
        call = channel.stream_stream(
            "/inference.GRPCInferenceService/ModelStreamInfer",
            request_serializer=messages.ModelInferRequest.SerializeToString,
            response_deserializer=messages.ModelStreamInferResponse.FromString,
        )
        return call(iter(asked.get, None), metadata=[("authorization", f"Bearer {token}")], timeout=60)

    with (
        serving(repository, tmp_path / "log", "--token-file", str(tokens)) as server,
        grpc.insecure_channel(server.grpc) as channel,
        closing(http.client.HTTPConnection(*server.http.split("//")[-1].split(":"), timeout=60)) as follower,
    ):
        follower.request("GET", "/v2/logs?lines=0&follow", headers={"Authorization": f"Bearer {TOKEN}"})
        log = follower.getresponse()
        queues = queue.SimpleQueue(), queue.SimpleQueue()
        ends, stays = [
            stream(channel, token, asked) for token, asked in zip((TOKEN, "another-horse-battery"), queues, strict=True)
        ]
        for call, asked in zip((ends, stays), queues, strict=True):
            asked.put(messages.ModelInferRequest(model_name="none"))
            assert "none" in next(call).error_message
        tokens.write_text("another-horse-battery\n")
        with pytest.raises(grpc.RpcError) as refused:
            next(ends)
        assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED
        with contextlib.suppress(http.client.IncompleteRead):
            log.read()
        queues[1].put(messages.ModelInferRequest(model_name="none"))
        assert "none" in next(stays).error_message
        for asked in queues:
            asked.put(None)


def test_a_request_does_not_wait_for_all_that_another_token_has_sent(tmp_path):
    """Both clients come from this machine, as all do that come by one proxy."""
    folder, tokens, requests = tmp_path / "models", tmp_path / "tokens", 120
    write_model(folder, "echo", ONE_BY_ONE, SLOW)
    first, second = TOKEN, f"another-{TOKEN}"
    tokens.write_text(f"{first}\n{second}\n")
    tokens.chmod(0o600)
    with serving(folder, tmp_path / "log", "--token-file", str(tokens)) as server, ExitStack() as channels:
        both = [channels.enter_context(grpc.insecure_channel(server.grpc, options=OWN)) for _ in range(2)]
        infer_over_grpc(both[1], [("authorization", f"Bearer {first}")])
        sent = [ask_over_grpc(both[0], [("authorization", f"Bearer {first}")]) for _ in range(requests)]
        eventually(lambda: any(each.done() for each in sent))
        infer_over_grpc(both[1], [("authorization", f"Bearer {second}")])
        waiting = sum(not each.done() for each in sent)
        assert all(each.result().model_name == "echo" for each in sent)
        assert waiting > requests / 4  # nearly all: this client's request was the next one


def test_unix_sockets_are_for_this_user(repository, tmp_path):
    paths = [str(tmp_path / name) for name in ("http", "grpc")]
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as left_behind:
        left_behind.bind(paths[0])
    given = ("--http-socket", paths[0], "--grpc-socket", paths[1])
    with serving(repository, tmp_path / "log", *given) as server:
        assert (server.http, server.grpc) == (f"unix:{paths[0]}", f"unix:{paths[1]}")
        assert [stat.S_IMODE(Path(path).stat().st_mode) for path in paths] == [0o600, 0o600]
        with closing(UnixConnection(paths[0])) as connection:
            assert ask(connection)[1]["outputs"][0]["data"] == [1.0, 2.0]
        with grpc.insecure_channel(f"unix:{paths[1]}") as channel:
            assert infer_over_grpc(channel).model_name == "echo"
        again = subprocess.run(
            [*COMMAND, str(repository), "--http-socket", paths[0], "--grpc-port", "none"],
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert again.returncode != 0
        assert "another process listens there" in again.stderr


@pytest.mark.parametrize("given", [[], ["tls"], ["tokens"]])
def test_nothing_is_open_beyond_this_machine(repository, secured, given):
    arguments = {"tls": secured[0][:4], "tokens": secured[0][4:]}
    chosen = [each for name in given for each in arguments[name]]
    refused = subprocess.run(
        [*COMMAND, str(repository), "--host", "0.0.0.0", *chosen],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert refused.returncode == 2
    assert "expected TLS and tokens" in refused.stderr


def test_tokens_that_others_may_read_are_refused(repository, secured, tmp_path):
    (tmp_path / "tokens").chmod(0o644)
    refused = subprocess.run(
        [*COMMAND, str(repository), *secured[0]], capture_output=True, text=True, timeout=120, check=False
    )
    assert refused.returncode != 0
    assert "other users may read the tokens" in refused.stderr
