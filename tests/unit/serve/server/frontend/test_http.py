"""HTTP connections without sockets: order, limits, malformed input. Every request has exactly one reply."""

from __future__ import annotations

import asyncio
import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemlet.serve.dispatch.call import Answered, Tensor
from gemlet.serve.models.specification import ModelSpec
from gemlet.serve.server.frontend import http_connection, infer_json, limits
from gemlet.serve.server.frontend.http_server import HttpServer
from gemlet.serve.server.frontend.status import HTTP, PHRASES
from tests.unit.serve.stand_in import Service, connect, model, replies


def post(path, body, *headers):
    lines = [f"POST {path} HTTP/1.1", "Host: test", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


def described(values, **more):
    data = struct.pack(f"<{len(values)}f", *values)
    header = {
        "inputs": [
            {"name": "X", "datatype": "FP32", "shape": [1, len(values)], "parameters": {"binary_data_size": len(data)}}
        ],
        **more,
    }
    return json.dumps(header).encode(), data


def infer(values, name="echo", **more):
    header, data = described(values, **more)
    return post(f"/v2/models/{name}/infer", header + data, f"Inference-Header-Content-Length: {len(header)}")


def talk(*pieces, service=None):
    """The replies to these pieces of a stream, and the transport."""

    async def run():
        asked = service or Service()
        connection, transport = connect(asked)
        for piece in pieces:
            connection.data_received(piece)
            await asyncio.sleep(0)
        for _ in range(5):
            await asyncio.sleep(0)
        while connection._tasks:
            await asyncio.wait(connection._tasks)
        asked.unpacking.close()
        return replies(transport.written), transport

    return asyncio.run(run())


BINARY = {"parameters": {"binary_data_output": True}}


def test_a_binary_tensor_comes_back():
    ((status, headers, body),), _ = talk(infer([1.5, 2.5], **BINARY, id="x"))
    assert status == 200
    size = int(headers["Inference-Header-Content-Length"])
    told = json.loads(body[:size])
    assert told["id"] == "x"
    assert told["outputs"] == [
        {"name": "Y", "datatype": "FP32", "shape": [1, 2], "parameters": {"binary_data_size": 8}}
    ]
    assert struct.unpack("<2f", body[size:]) == (1.5, 2.5)


def test_the_same_json_is_read_once_and_each_request_has_its_own_data():
    infer_json._structure.cache_clear()
    found, _ = talk(*(infer([float(n)], **BINARY, outputs=[{"name": "Y"}]) for n in range(5)))
    assert [struct.unpack("<f", body[-4:]) for _, _, body in found] == [(float(n),) for n in range(5)]
    assert infer_json._structure.cache_info().misses == 1
    (again,), _ = talk(infer([2.0], **BINARY, outputs=[{"name": "Y"}]), service=Service(model(max_batch=0)))
    assert again[0] == 400  # the model has other shapes by now


def test_a_request_in_single_bytes():
    message = infer([1.0])
    ((status, _, body),), _ = talk(*(message[at : at + 1] for at in range(len(message))))
    assert status == 200
    assert json.loads(body)["outputs"][0]["data"] == [1.0]


def test_pipelined_requests_are_answered_in_order():
    stream = infer([1.0]) + b"GET /v2/health/live HTTP/1.1\r\nHost: test\r\n\r\n" + infer([2.0]) + infer([3.0], "no")
    found, _ = talk(stream)
    assert [status for status, _, _ in found] == [200, 200, 200, 404]
    assert json.loads(found[1][2]) == {"live": True}
    assert json.loads(found[2][2])["outputs"][0]["data"] == [2.0]


def test_too_many_pipelined_requests_are_not_read_until_some_are_answered():
    class Slow(Service):
        def __init__(self):
            super().__init__()
            self.calls = []
            self.engine.infer = self.calls.append

    async def run():
        service = Slow()
        connection, transport = connect(service)
        connection.data_received(infer([1.0]) * http_connection.MAX_PIPELINED)
        assert not transport.reading
        for call in service.calls:
            call.answer(Answered(model(), [Tensor("Y", "FP32", (1, 1), b"\0\0\0\0")]))
        assert transport.reading
        assert len(replies(transport.written)) == http_connection.MAX_PIPELINED

    asyncio.run(run())


def test_a_client_that_does_not_read_is_not_read_from():
    async def run():
        connection, transport = connect(Service())
        connection.pause_writing()
        assert not transport.reading
        connection.resume_writing()
        assert transport.reading

    asyncio.run(run())


def test_head_has_the_length_and_no_body():
    async def run():
        connection, transport = connect(Service())
        connection.data_received(b"HEAD /v2/health/live HTTP/1.1\r\nHost: test\r\n\r\n")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert bytes(transport.written).startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"Content-Length: 13\r\n" in transport.written
        assert transport.written.endswith(b"\r\n\r\n")

    asyncio.run(run())


def test_an_answer_that_cannot_be_written_is_still_an_answer():
    """A model was reloaded under a request, and has an output less."""

    class Forgetful(Service):
        def __init__(self):
            super().__init__()
            self.engine.infer = lambda call: call.answer(Answered(model(), []))

    asked = infer([1.0], outputs=[{"name": "Y"}])
    ((status, _, body),), _ = talk(asked, service=Forgetful())
    assert (status, json.loads(body)["reason"]) == (500, "failed")


def test_connection_close_is_honoured():
    found, transport = talk(
        post("/v2/models/echo/infer", b"{", "Connection: close"), infer([1.0])
    )  # the second comes too late
    assert [status for status, _, _ in found] == [400]
    assert found[0][1]["Connection"] == "close"
    assert transport.closed


@pytest.mark.parametrize(
    ("stream", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 70_000 + b"\r\n\r\n", 431),
        (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n", 431),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n", 413),
        (post("/v2/models/echo/infer", b"", "Inference-Header-Content-Length: -1"), 400),
        (post("/v2/models/echo/infer", b"{}", "Inference-Header-Content-Length: 3"), 400),
        (post("/v2/models/echo/infer", b"\xff\xff"), 400),
        (post("/v2/models/echo/infer", b"[" * 100_000), 400),
        (post("/v2/models/echo/infer", b"{}", "Content-Encoding: gzip"), 400),
        (post("/v2/models/echo/infer", b"{}", "Content-Encoding: br"), 400),
    ],
)
def test_invalid_http_is_refused_with_a_message(stream, status):
    found, _ = talk(stream)
    assert [each for each, _, _ in found] == [status]
    assert json.loads(found[0][2])["error"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "Z"}, "echo expects X"),
        ({"datatype": "FP64"}, "expected FP32"),
        ({"shape": [1, 3]}, "has 8 bytes; FP32 [1, 3] has 12"),
        ({"shape": [9, 2]}, "expected 1 to 8"),
        ({"shape": [1, -2]}, "is not a valid shape"),
        ({"shape": [0, 1 << 63]}, "a size above"),
        ({"shape": [0, 1 << 30, 1 << 30]}, "is not a valid shape"),
        ({"shape": [10**200] * 32}, "a size above"),
        ({"shape": [1] * 33}, "has 33 dimensions"),
        ({"shape": []}, "a batch of none"),
        ({"parameters": {"binary_data_size": 9}}, "9 bytes of binary data; 8 are there"),
        ({"parameters": {"binary_data_size": True}}, "True bytes"),
        ({"parameters": {"binary_data_size": 4}}, "4 bytes after the last tensor"),
        ({"parameters": {"shared_memory_region": "r"}}, "no shared memory region 'r'"),
        ({"parameters": {}, "data": [1.0]}, "1 elements; shape [1, 2] has 2"),
        ({"parameters": {}, "data": ["1", "2"]}, "not all FP32"),
        ({"parameters": {}, "data": [True, False]}, "not all FP32"),
    ],
)
def test_each_way_a_tensor_can_be_wrong_has_its_message(change, message):
    header, data = described([1.0, 2.0])
    document = json.loads(header)
    document["inputs"][0].update(change)
    header = json.dumps(document).encode()
    body = header + (data if "data" not in change else b"")
    ((status, _, told),), _ = talk(
        post("/v2/models/echo/infer", body, f"Inference-Header-Content-Length: {len(header)}")
    )
    assert status == (404 if message.startswith("no shared memory region") else 400)
    assert message in json.loads(told)["error"]


@pytest.mark.parametrize("value", [[], {}, [1], 10**100, -(10**100), 1.5, "x"])
@pytest.mark.parametrize("name", ["sequence_id", "priority", "timeout", "x"])
def test_no_value_of_a_parameter_is_a_failure_of_the_server(monkeypatch, name, value):
    monkeypatch.setattr(ModelSpec, "by_request", property(lambda _: True))  # a model that is told of it
    header, data = described([1.0, 2.0])
    header = json.dumps(json.loads(header) | {"parameters": {name: value}}).encode()
    request = post("/v2/models/echo/infer", header + data, f"Inference-Header-Content-Length: {len(header)}")
    ((status, _, _),), _ = talk(request, service=Service())
    assert status in {200, 400, 501}


UPGRADE = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA")


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
@pytest.mark.parametrize("chunked", [False, True])
def test_an_offer_of_another_protocol_is_ignored(size, chunked):
    given = {"name": "X", "datatype": "FP32", "shape": [1, 1], "data": [1.0]}
    body = json.dumps({"inputs": [given]}).encode()
    plain = post("/v2/models/echo/infer", body, *UPGRADE)
    if chunked:
        head, _, _ = plain.partition(b"Content-Length")
        more = "".join(f"{line}\r\n" for line in UPGRADE).encode()
        plain = head + more + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    stream = b"".join([
        b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
        plain,
        post("/v2/models/echo/infer", body),
    ])  # fmt: skip
    found, transport = talk(*[stream[at : at + size] for at in range(0, len(stream), size)])
    assert [status for status, _, _ in found] == [200] * 3
    assert [json.loads(told)["outputs"][0]["data"] for _, _, told in found[1:]] == [[1.0], [1.0]]
    assert not transport.closed


@pytest.mark.parametrize("coding", ["gzip", "xchunked", "chunked, identity"])
def test_a_body_of_unknown_length_is_refused_also_where_another_protocol_is_offered(coding):
    head = "POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\n"
    more = "".join(f"{line}\r\n" for line in (*UPGRADE, f"Transfer-Encoding: {coding}"))
    found, transport = talk(f"{head}{more}\r\n2\r\n{{}}\r\n0\r\n\r\n".encode())
    assert [status for status, _, _ in found] == [400]
    assert transport.closed


def test_tunnels_are_refused_once():
    found, transport = talk(b"CONNECT a:1 HTTP/1.1\r\nHost: x\r\n\r\n")
    assert [status for status, _, _ in found] == [501]
    assert transport.closed


@pytest.mark.parametrize(
    "begin",
    [
        b"GET / HTTP/1.1\r\nX: ",
        b"GET / HTTP/1.1\r\nX",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1;",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: ",
    ],
)
def test_a_header_that_never_ends_is_not_kept(begin):
    found, transport = talk(begin, *[b"a" * 8192] * 20)
    assert [status for status, _, _ in found] == [431]
    assert transport.closed


def test_a_large_body_is_not_a_header():
    header, data = described([1.0] * 100_000)
    message = post("/v2/models/echo/infer", header + data, f"Inference-Header-Content-Length: {len(header)}")
    pieces = (message[:200_000], message[200_000:] + infer([1.0])[:50], infer([1.0])[50:])
    found, _ = talk(*pieces, service=Service(model(slo_ms=1e6)))
    assert [status for status, _, _ in found] == [200, 200]


def test_waiting_for_a_slow_model_does_not_make_a_slow_client(monkeypatch):
    monkeypatch.setattr(limits, "HEADER_S", -1.0)

    async def run():
        service = Service()
        calls = []
        service.engine.infer = calls.append
        connection, transport = connect(service)
        connection.server.connections = {connection}
        connection.data_received(infer([1.0]))
        connection.data_received(infer([2.0])[:30])
        connection.server.close_slow()
        assert not transport.closed
        calls[0].answer(Answered(model(), [Tensor("Y", "FP32", (1, 1), b"\0\0\0\0")]))
        assert len(replies(transport.written)) == 1
        connection.server.close_slow()
        assert transport.closed

    asyncio.run(run())


def test_every_status_has_a_phrase():
    assert set(HTTP.values()) <= PHRASES.keys()


def test_json_numbers_of_every_datatype_are_what_they_were():
    cases = [
        ("BOOL", [True, False]), ("INT8", [-128, 127]), ("UINT64", [0, 2**64 - 1]), ("INT64", [-(2**63), 5]),
        ("FP16", [0.5, -2]), ("FP64", [1e300, 3]), ("BYTES", ["a", "ü"]),
    ]  # fmt: skip
    for datatype, values in cases:
        service = Service(model(inputs=(("X", datatype, (-1,)),), outputs=(("Y", datatype, (-1,)),)))
        body = {"inputs": [{"name": "X", "datatype": datatype, "shape": [1, 2], "data": [values]}]}
        ((status, _, told),), _ = talk(post("/v2/models/echo/infer", json.dumps(body).encode()), service=service)
        assert status == 200, told
        assert json.loads(told)["outputs"][0]["data"] == values
    body = {"inputs": [{"name": "X", "datatype": "INT8", "shape": [1, 1], "data": [200]}]}
    service = Service(model(inputs=(("X", "INT8", (-1,)),)))
    ((status, _, _),), _ = talk(post("/v2/models/echo/infer", json.dumps(body).encode()), service=service)
    assert status == 400


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.sampled_from(["name", "datatype", "shape", "parameters", "data"])
PARAMETERS = st.sampled_from(
    ["binary_data_size", "shared_memory_region", "shared_memory_offset", "shared_memory_byte_size"]
)


@given(body=st.binary(max_size=300), header=st.none() | st.integers(0, 400))
def test_any_bytes_have_one_reply(body, header):
    lines = [] if header is None else [f"Inference-Header-Content-Length: {header}"]
    found, _ = talk(post("/v2/models/echo/infer", body, *lines))
    assert [status for status, _, _ in found] in ([400], [200] if header == 0 else [400])  # 0: X as it is


@given(
    change=st.dictionaries(FIELDS, ANYTHING, max_size=2),
    parameters=st.dictionaries(PARAMETERS, ANYTHING, max_size=2),
    top=st.dictionaries(st.sampled_from(["id", "parameters", "outputs", "inputs"]), ANYTHING, max_size=1),
    cut=st.integers(-3, 3),
)
def test_requests_that_are_nearly_right_have_one_reply(change, parameters, top, cut):
    header, data = described([1.0, 2.0])
    document = json.loads(header)
    document["inputs"][0].update(change)
    if isinstance(document["inputs"][0].get("parameters"), dict):
        document["inputs"][0]["parameters"].update(parameters)
    document.update(top)
    header = json.dumps(document).encode()
    length = max(0, len(header) + cut)
    found, _ = talk(
        post("/v2/models/echo/infer", header + data, f"Inference-Header-Content-Length: {length}"), infer([7.0])
    )
    assert len(found) == 2
    assert found[0][0] in {200, 400, 404, 501}  # 404: of a region
    assert json.loads(found[1][2])["outputs"][0]["data"] == [7.0]


@given(st.lists(st.binary(max_size=60), max_size=4))
def test_any_stream_leaves_the_server_standing(pieces):
    found, _ = talk(*pieces)
    assert len(found) <= 1  # at most the words why the connection ends


def test_urls_are_taken_apart():
    async def run():
        server = HttpServer(Service())
        assert server.target(b"/v2/models/a%20b/infer?x=1") == ("a b", "")
        assert server.target(b"/v2/models/m/versions/3/infer") == ("m", "3")
        for other in (b"/v2/models/m", b"/v2/models/m/x/3/infer", b"/v3/models/m/infer", b"\xff"):
            assert server.target(other) is None

    asyncio.run(run())


def test_a_drained_server_closes_connections_after_their_answers():
    async def run():
        service = Service()
        connection, transport = connect(service)
        server = connection.server
        server.draining = True
        connection.data_received(infer([1.0]))
        ((status, headers, _),) = replies(transport.written)
        assert (status, headers["Connection"]) == (200, "close")
        assert transport.closed

    asyncio.run(run())
