"""What a client may take from an HTTP server: bytes, time, connections; and that it gives all of it back."""

from __future__ import annotations

import asyncio
import gc
import gzip
import json
import math
import struct
import weakref
import zlib

import pytest

from gemlet.serve.dispatch.call import Answered, Tensor
from gemlet.serve.server.frontend import limits, unpacking
from gemlet.serve.server.frontend.access import Tokens
from gemlet.serve.server.frontend.http_exchange import Exchange
from gemlet.serve.server.frontend.http_server import HttpServer
from gemlet.serve.server.frontend.limits import Limits
from tests.unit.serve.server.frontend.test_http import BINARY, infer, post, talk
from tests.unit.serve.stand_in import Service, connect, model, replies

MIB = 1 << 20
BEGUN = b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 50000000\r\n\r\n"
UNHURRIED = model(slo_ms=1e6)  # the process that reads large requests starts first
SMALL = Limits(request_bytes=MIB, connections=2)
GZIP = "Content-Encoding: gzip"


def listed(values, **more):
    document = {"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, len(values)], "data": values}], **more}
    return json.dumps(document).encode()


def test_a_connection_that_is_lost_keeps_nothing_even_without_garbage_collection():
    async def run():
        server = HttpServer(Service())
        connection, _ = connect(server.service, server)
        connection.data_received(BEGUN + b"x" * 100_000)
        connection.data_received(b"x" * 100_000)
        assert server.holdings.total == 200_000
        gone = weakref.ref(connection)
        connection.connection_lost(None)
        assert server.holdings.total == 0
        del connection
        assert gone() is None

    gc.disable()
    try:
        asyncio.run(run())
    finally:
        gc.enable()


def test_clients_who_hoard_end_before_those_who_do_not():
    async def run():
        server = HttpServer(Service(), Limits(request_bytes=MIB))
        hoarders = [connect(server.service, server) for _ in range(6)]
        for connection, _ in hoarders:
            connection.data_received(BEGUN.replace(b"50000000", b"1048576") + b"x" * (MIB - 1))
        assert server.holdings.total <= server.limits.held_bytes == 4 * MIB
        ended = [replies(transport.written)[0] for _, transport in hoarders if transport.written]
        assert [status for status, _, _ in ended] == [503, 503]
        good, transport = connect(server.service, server)
        whole = infer([1.0] * 100_000, **BINARY)
        good.data_received(whole[:200_000])
        good.data_received(whole[200_000:])
        assert [status for status, _, _ in replies(transport.written)] == [200]
        assert server.holdings.total <= 4 * MIB

    asyncio.run(run())


def test_answers_that_nobody_reads_are_within_the_same_budget():
    async def run():
        server = HttpServer(Service(), Limits(request_bytes=MIB))
        clients = [connect(server.service, server) for _ in range(6)]
        for connection, transport in clients:
            transport.unread = MIB
            connection.pause_writing()
        assert sum(transport.closed for _, transport in clients) == 2
        assert server.holdings.total == 4 * MIB
        open_ = [(connection, transport) for connection, transport in clients if not transport.closed]
        for connection, transport in open_:
            transport.unread = 0
            connection.resume_writing()
        assert server.holdings.total == 0

    asyncio.run(run())


def kept_in(transport, connection):
    """What is written stays there: nobody reads it yet."""
    write = transport.write

    def kept(data):
        write(data)
        transport.unread += len(data)
        if transport.unread > 65_536:
            connection.pause_writing()

    transport.write = kept


async def done(connection):
    """What large answers wait for."""
    while connection._tasks:
        await asyncio.wait(connection._tasks)


async def answered_to_one_who_reads_later(nbytes, budget):
    """What a client has from an answer of so many bytes, all of which its transport keeps; and whether it is open."""
    service = Service()
    calls = []
    service.engine.infer = calls.append
    connection, transport = connect(service, HttpServer(service, Limits(request_bytes=budget // 4)))
    kept_in(transport, connection)
    connection.data_received(infer([1.0], **BINARY))
    calls[0].answer(Answered(model(), [Tensor("Y", "FP32", (1, nbytes // 4), bytes(nbytes))]))
    await done(connection)
    return replies(transport.written), not transport.closed


def test_an_answer_within_the_budget_arrives():
    async def run():
        (((status, _, body),), opened) = await answered_to_one_who_reads_later(3 * MIB, 4 * MIB)
        assert (status, len(body) > 3 * MIB, opened) == (200, True, True)

    asyncio.run(run())


def test_an_answer_beyond_the_budget_is_refused_before_its_first_byte():
    async def run():
        (((status, _, body),), opened) = await answered_to_one_who_reads_later(5 * MIB, 4 * MIB)
        assert (status, opened) == (500, True)
        assert "the answer has 5" in json.loads(body)["error"]

    asyncio.run(run())


def test_of_two_large_answers_at_once_the_second_is_refused_and_none_is_cut_off():
    async def run():
        service = Service()
        calls = []
        service.engine.infer = calls.append
        server = HttpServer(service, Limits(request_bytes=64 * MIB))
        clients = [connect(service, server) for _ in range(2)]
        for connection, transport in clients:
            kept_in(transport, connection)
            connection.data_received(infer([1.0], **BINARY))
        for call in calls:
            data = bytes(200 * MIB)
            call.answer(Answered(model(), [Tensor("Y", "FP32", (1, len(data) // 4), data)]))
        for connection, _ in clients:
            await done(connection)
        first, second = [replies(transport.written)[0] for _, transport in clients]
        assert (first[0], len(first[2]) > 200 * MIB) == (200, True)
        assert (second[0], json.loads(second[2])["reason"]) == (503, "overload")
        assert not any(transport.closed for _, transport in clients)

    asyncio.run(run())


def test_large_requests_are_not_pipelined_into_memory():
    class Slow(Service):
        def __init__(self):
            super().__init__()
            self.calls = []
            self.engine.infer = self.calls.append

    async def run():
        service = Slow()
        connection, transport = connect(service)
        connection.data_received(infer([1.0] * 400_000))  # 1.6 MB
        assert not transport.reading
        service.calls[0].answer(Answered(model(), [Tensor("Y", "FP32", (1, 1), b"\0\0\0\0")]))
        assert transport.reading

    asyncio.run(run())


class Held(Service):
    """Whose models do not answer."""

    def __init__(self):
        super().__init__()
        self.engine.infer = lambda call: None
        self.engine.cancel = lambda call: None


def test_requests_that_wait_count_by_their_number():
    async def run():
        server = HttpServer(Held(), Limits(request_bytes=MIB // 4))
        clients = [connect(server.service, server) for _ in range(12)]
        for connection, _ in clients:
            for _ in range(limits.FREE_CALLS):
                connection.data_received(infer([1.0]))
        assert server.holdings.total == 0
        for connection, _ in clients:
            for _ in range(32):
                connection.data_received(infer([1.0]))
        assert server.holdings.total <= MIB
        assert any(transport.closed for _, transport in clients)
        for connection, _ in clients:
            connection.connection_lost(None)
        assert server.holdings.total == 0

    asyncio.run(run())


def test_requests_that_are_answered_count_no_more():
    async def run():
        server = HttpServer(Service())
        calls = []
        server.service.engine.infer = calls.append
        connection, _ = connect(server.service, server)
        for _ in range(limits.FREE_CALLS + 2):
            connection.data_received(infer([1.0]))
        assert server.holdings.total > 0
        for call in calls[:2]:
            call.answer(Answered(model(), [Tensor("Y", "FP32", (1, 1), bytes(4))]))
        assert server.holdings.total == 0

    asyncio.run(run())


def test_where_all_connections_wait_for_answers_another_is_told_so():
    class Slow(Service):
        def __init__(self):
            super().__init__()
            self.engine.infer = lambda _call: None

    async def run():
        server = HttpServer(Slow(), SMALL)
        for _ in range(2):
            connection, _ = connect(server.service, server)
            connection.data_received(infer([1.0]))
        _, transport = connect(server.service, server)
        ((status, _, body),) = replies(transport.written)
        assert (status, json.loads(body)["reason"]) == (503, "overload")
        assert transport.closed

    asyncio.run(run())


@pytest.mark.parametrize("sent", [b"GET / HT", BEGUN, BEGUN + b"x"])
def test_a_request_that_does_not_go_on_ends_its_connection(sent):
    async def run():
        connection, transport = connect(Service())
        connection.data_received(sent)
        began = connection.began
        limit = connection._limits.request_s if sent.startswith(BEGUN) else limits.HEADER_S
        assert not connection.too_slow(began + limit)
        assert connection.too_slow(began + limit + 1)
        connection.server.loop = type("Later", (), {"time": lambda _: began + limit + 1})()
        connection.server.close_slow()
        assert transport.closed

    asyncio.run(run())


def test_a_client_that_does_not_read_ends_too():
    async def run():
        connection, transport = connect(Service())
        transport.unread = 5
        connection.pause_writing()
        now = connection._full_since
        assert not connection.too_slow(now + connection._limits.request_s)
        assert connection.too_slow(now + connection._limits.request_s + 1)
        connection.resume_writing()
        assert not connection.too_slow(now + 1e9)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("url", "status"),
    [
        ("/v2/logs?lines=1&" + "a=1&" * 14, 200),
        ("/v2/logs?" + "a&" * 16, 400),
        ("/v2/models/" + "a" * (limits.URL_BYTES - 11), 404),
        ("/v2/models/" + "%41" * 3000, 414),
        ("/v2/logs?" + "a&" * 30_000, 414),
    ],
)
def test_addresses_are_short(url, status):
    found, _ = talk(f"GET {url} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    assert [each for each, _, _ in found] == [status]


def test_what_is_not_for_inference_has_a_small_body():
    for path, length in (("/v2/repository/index", limits.CONTROL_BYTES + 1), ("/v2/models/echo/infer", 64 * MIB + 1)):
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n".encode()
        ((status, _, body),), transport = talk(head)
        assert status == 413
        assert "expected at most" in json.loads(body)["error"]
        assert transport.closed
    chunk = b"%x\r\n%s\r\n" % (MIB, b"x" * MIB)
    chunked = b"POST /v2/repository/index HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk + chunk
    ((status, _, _),), _ = talk(chunked)
    assert status == 413


@pytest.mark.parametrize("size", [10, 30_000])
@pytest.mark.parametrize("kind", ["gzip", "deflate"])
def test_compressed_data_must_be_whole(kind, size):
    pack = gzip.compress if kind == "gzip" else zlib.compress
    packed = pack(listed([0.5] * size))
    header = f"Content-Encoding: {kind}"
    found, _ = talk(
        *(post("/v2/models/echo/infer", body, header) for body in (packed, packed[:-5], packed + b"\0\0", b"nonsense")),
        service=Service(UNHURRIED),
    )
    assert [status for status, _, _ in found] == [200, 400, 400, 400]
    assert json.loads(found[0][2])["outputs"][0]["data"] == [0.5] * size
    assert "ends within" in json.loads(found[1][2])["error"]
    assert "2 bytes follow" in json.loads(found[2][2])["error"]


def test_what_inflates_beyond_the_limit_is_refused():
    bomb = gzip.compress(b" " * (65 * MIB))
    ((status, _, body),), _ = talk(post("/v2/models/echo/infer", bomb, GZIP))
    assert status == 400
    assert "more than 67108864 bytes when decompressed" in json.loads(body)["error"]
    ((status, _, _),), _ = talk(post("/v2/repository/index", gzip.compress(b" " * MIB), GZIP))
    assert status == 400


@pytest.mark.parametrize("more", [{"id": "i" * MIB}, {"parameters": {"x": "y" * MIB, "z": float("nan")}}])
def test_a_request_is_small_beside_its_tensors(more):
    """All of it waits while its tensors do, which alone are counted."""
    tensor = {"name": "X", "datatype": "FP32", "shape": [1, MIB // 8], "data": [1.5] * (MIB // 8)}
    large = {"inputs": [tensor]}
    ((status, _, _),), _ = talk(post("/v2/models/echo/infer", json.dumps(large).encode()), service=Service(UNHURRIED))
    assert status == 200
    ((status, _, body),), _ = talk(post("/v2/models/echo/infer", json.dumps(large | more).encode()))
    assert status == 400
    assert "bytes beside its tensors" in json.loads(body)["error"]


def test_text_that_is_more_as_a_tensor_than_a_request_may_have_is_refused_before_it_is_read():
    tensor = {"name": "X", "datatype": "FP64", "shape": [1, 9 * MIB], "data": [0]}
    ((status, _, body),), _ = talk(post("/v2/models/echo/infer", json.dumps({"inputs": [tensor]}).encode()))
    assert status == 400
    assert "75497472 bytes as a tensor: expected at most 67108864" in json.loads(body)["error"]


def test_large_requests_and_answers_come_back_as_small_ones_do():
    values = [float(number % 251) for number in range(50_000)]
    texts = [f"text {number}" for number in range(20_000)]
    from tests.unit.serve.stand_in import model

    bytes_model = model("texts", inputs=(("X", "BYTES", (-1,)),), outputs=(("Y", "BYTES", (-1,)),), slo_ms=1e6)
    service = Service(UNHURRIED, bytes_model)
    document = {"inputs": [{"name": "X", "datatype": "BYTES", "shape": [1, len(texts)], "data": texts}]}
    packed = b"".join(struct.pack("<I", len(text)) + text.encode() for text in texts)
    tensor = {"name": "X", "datatype": "BYTES", "shape": [1, len(texts)]}
    head = json.dumps({"inputs": [tensor | {"parameters": {"binary_data_size": len(packed)}}]}).encode()
    wrong = json.dumps({"inputs": [tensor | {"parameters": {"binary_data_size": len(packed) - 1}}]}).encode()
    found, _ = talk(
        post("/v2/models/echo/infer", listed(values, id="large")),
        infer(values),
        post("/v2/models/texts/infer", json.dumps(document).encode()),
        post("/v2/models/texts/infer", head + packed, f"Inference-Header-Content-Length: {len(head)}"),
        post("/v2/models/texts/infer", wrong + packed[:-1], f"Inference-Header-Content-Length: {len(wrong)}"),
        service=service,
    )
    assert [status for status, _, _ in found] == [200, 200, 200, 200, 400]
    answers = [json.loads(body) for _, _, body in found]
    assert answers[0]["id"] == "large"
    assert answers[0]["outputs"][0]["data"] == answers[1]["outputs"][0]["data"] == values
    assert answers[2]["outputs"][0]["data"] == answers[3]["outputs"][0]["data"] == texts
    assert "BYTES end within element" in answers[4]["error"]


def test_numbers_that_json_has_not_come_and_go_as_with_triton():
    odd = [math.nan, math.inf, -math.inf, 1.0]
    for values in (odd, odd * 10_000):
        ((status, _, body),), _ = talk(
            post("/v2/models/echo/infer", listed(values, id="NaN")), service=Service(UNHURRIED)
        )
        assert status == 200
        answer = json.loads(body)
        assert answer["id"] == "NaN"
        assert [repr(value) for value in answer["outputs"][0]["data"]] == [repr(value) for value in values]
    halves = [listed([math.nan], id="half"), listed(["NaN half"]).replace(b"FP32", b"BYTES")]
    found, _ = talk(*(post("/v2/models/echo/infer", each.replace(b"half", rb"\ud800")) for each in halves))
    assert [(status, b"half a character" in body) for status, _, body in found] == [(400, True)] * 2
    bare, _ = talk(*(post("/v2/models/echo/infer", each.replace(b"half", b"\xed\xa0\x80")) for each in halves))
    assert [(status, b"can't decode" in body) for status, _, body in bare] == [(400, True)] * 2
    found, _ = talk(infer([math.nan]), post("/v2/models/echo/infer", b'{"inputs": NaN}'))
    assert [status for status, _, _ in found] == [200, 400]
    assert b"[NaN]" in found[0][2]


def test_what_follows_a_body_in_chunks_is_no_header_of_it():
    body = listed([1.0])
    request = b"POST /v2/models/echo/infer HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n%s\r\n\r\n"
    trailers = b"Content-Encoding: gzip", b"Inference-Header-Content-Length: 3"
    found, _ = talk(*(request % (len(body), body, each) for each in trailers))
    assert [status for status, _, _ in found] == [200, 200]


def test_without_a_token_only_probes_are_answered(tmp_path):
    path = tmp_path / "tokens"
    path.write_text("# for the tests\n0123456789abcdef\n")
    path.chmod(0o600)

    def ask(head, *headers):
        async def run():
            server = HttpServer(Service(), tokens=Tokens(path))
            connection, transport = connect(server.service, server)
            connection.data_received("\r\n".join([head, "Host: x", *headers, "", ""]).encode())
            while connection._tasks:
                await asyncio.wait(connection._tasks)
            ((status, told, _),) = replies(transport.written)
            return status, told.get("WWW-Authenticate"), transport.closed

        return asyncio.run(run())

    assert ask("GET /v2/health/live HTTP/1.1") == (200, None, False)
    assert ask("GET /v2 HTTP/1.1") == (401, "Bearer", True)
    assert ask("POST /v2/models/echo/infer HTTP/1.1", "Content-Length: 500000") == (401, "Bearer", True)
    for wrong in ("Bearer 0123456789abcdee", "Basic 0123456789abcdef", "Bearer # for the tests", "Bearer"):
        assert ask("GET /v2 HTTP/1.1", f"Authorization: {wrong}")[0] == 401
    assert ask("GET /v2 HTTP/1.1", "Authorization: bearer 0123456789abcdef")[0] == 200


def test_the_event_loop_reads_and_inflates_nothing_long(monkeypatch):
    """A deflated block of nothing takes its time as well, and there may be millions in a body."""
    inflate, lengths = unpacking.inflate, []

    def noted(body, encoding, limit):
        lengths.append((len(body), limit))
        return inflate(body, encoding, limit)

    monkeypatch.setattr(unpacking, "inflate", noted)  # in this process only
    nothing = gzip.compress(b"")[:10] + b"\0\0\0\xff\xff" * 200_000
    ((status, _, _),), _ = talk(post("/v2/models/echo/infer", nothing, GZIP), service=Service(UNHURRIED))
    assert status == 400
    for body in (gzip.compress(b" " * 100_000), b'{"a":[' + b"[]," * 30_000 + b"[]]}"):
        more = (GZIP,) if body[:1] == b"\x1f" else ()
        ((status, _, _),), _ = talk(post("/v2/repository/index", body, *more))
        assert status in {400, 413}
    assert all(length <= 65536 >= limit for length, limit in lengths)


def test_an_answer_over_tls_is_encrypted_as_the_client_reads_it():
    """TLS encrypts what it is given at once, 64 MiB in 0.1 s, and keeps that until the client has it."""

    async def run():
        connection, transport = connect(Service())
        connection._most_written = 1000  # as over TLS
        written = []

        def write(data):
            written.append(bytes(data))
            connection.pause_writing()

        transport.write = write
        connection.data_received(b"GET /v2/models/echo HTTP/1.1\r\n\r\n" + b"GET /v2/health/live HTTP/1.1\r\n\r\n")
        while not written:  # noqa: ASYNC110
            await asyncio.sleep(0)
        exchange = Exchange(connection)
        connection._exchanges.append(exchange)
        exchange.answer(200, b"text/plain", [b"x" * 4500])
        for _ in range(20):
            connection.resume_writing()
            await asyncio.sleep(0)
        assert max(map(len, written)) == 1000
        answers = replies(b"".join(written))
        assert [status for status, *_ in answers] == [200, 200, 200]
        assert answers[-1][2] == b"x" * 4500
        assert (connection._out_bytes, connection.idle) == (0, True)

    asyncio.run(run())


def test_others_have_turns_while_a_client_takes_a_large_answer_over_tls_at_once():
    async def run():
        connection, transport = connect(Service())
        connection._most_written = 1000
        exchange = Exchange(connection)
        connection._exchanges.append(exchange)
        exchange.answer(200, b"text/plain", [b"x" * 10_000])
        for turn in range(1, 9):
            assert len(transport.written) <= 1000 * turn
            await asyncio.sleep(0)
        while not connection.idle:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert replies(transport.written)[0][2] == b"x" * 10_000

    asyncio.run(run())
