"""Changed requests over HTTP and gRPC, from a corpus: one reply each, no failure of the server, and nothing kept.

`make test` tries a few of each seed; GEMLET_FUZZ_SECONDS (`make fuzz`) goes on for so long, and GEMLET_FUZZ_SEED
repeats a run. An input that once found something belongs into the corpus.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from pathlib import Path

import grpc
import pytest

from gemlet.inference_protocol import inference_pb2 as messages
from gemlet.serve.dispatch.call import Refusal
from gemlet.serve.server.frontend import limits
from gemlet.serve.server.frontend.grpc_server import GrpcServer
from gemlet.serve.server.frontend.http_server import HttpServer
from gemlet.serve.server.frontend.unpacking import Refused, work
from tests.unit.serve.stand_in import Service, connect, model, replies

CORPUS = Path(__file__).parent / "corpus"
EACH = 150  # changed inputs of a seed, where no time is given
SECONDS = float(os.environ.get("GEMLET_FUZZ_SECONDS", "0"))
SEED = int(os.environ.get("GEMLET_FUZZ_SEED", "1"))
PIECES = (
    b"0", b"-1", b"99999999999999999999", b"NaN", b"Infinity", b"null", b"[[", b"]]", b"\\u0000", b"\xff", b"\r\n",
    b"\r\n\r\n", b"chunked", b"Content-Length: 3\r\n", b"Transfer-Encoding: chunked\r\n", b"Expect: 100-continue\r\n",
    b"Upgrade: h2c\r\n", b"Content-Encoding: gzip\r\n", b"Inference-Header-Content-Length: 7\r\n",
    b"shared_memory_region", b"BYTES", b"\x80\x80\x80\x80",
)  # fmt: skip


class Here:
    """What other processes would do, done here."""

    async def __call__(self, _nbytes, act, *given):
        result = work(act, *given)
        if isinstance(result, Refused):
            raise Refusal(result.reason, result.message)
        return result

    def close(self):
        pass


def service():
    texts = model("texts", inputs=(("T", "BYTES", (-1,)),), outputs=(("U", "BYTES", (-1,)),))
    found = Service(model(), texts)
    found.unpacking = Here()
    return found


def changed(data, others, rng):
    """The input with a few changes: bits, cuts, repeats, known words, parts of other seeds."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 5)):
        at = rng.randrange(len(out) + 1)
        end = min(len(out), at + rng.randint(0, 16))
        kind = rng.randrange(6)
        if kind == 0 and at < len(out):
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del out[at:end]
        elif kind == 2:
            out[at:at] = out[at:end] * rng.randint(1, 50)
        elif kind == 3:
            out[at:end] = rng.choice(PIECES)
        elif kind == 4:
            other = rng.choice(others)
            start = rng.randrange(len(other))
            out[at:end] = other[start : start + rng.randint(1, 64)]
        else:
            out[at:end] = rng.randbytes(rng.randint(1, 8))
    return bytes(out)


def inputs(folder):
    """The seeds as they are, then changed ones, with what is needed to make each again."""
    seeds = [path.read_bytes() for path in sorted((CORPUS / folder).iterdir())]
    assert seeds
    yield from seeds
    end, number = time.monotonic() + SECONDS, 0
    while time.monotonic() < end if SECONDS else number < EACH * len(seeds):
        rng = random.Random(f"{SEED}/{folder}/{number}")
        yield changed(seeds[number % len(seeds)], seeds, rng)
        number += 1


@pytest.mark.timeout(3600 if SECONDS else 300)
def test_any_stream_of_http_has_replies_and_leaves_nothing(caplog):
    async def run():
        server = HttpServer(service())
        for data in inputs("http"):
            rng = random.Random(data)
            connection, transport = connect(server.service, server)
            cut = rng.randrange(len(data) + 1)
            for piece in (data[:cut], data[cut:]):
                if piece:
                    connection.data_received(piece)
                    await asyncio.sleep(0)
            while connection._tasks:
                await asyncio.wait(connection._tasks)
            written = bytes(transport.written).replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"")
            for status, _, body in replies(written) if b"HEAD " not in data else ():
                assert status < 500 or status in {501, 503, 504}, (data, body)
            connection.connection_lost(None)
            assert server.holdings.total == 0, data
            assert not server.connections, data

    with caplog.at_level(logging.ERROR):
        asyncio.run(run())
    assert not caplog.records


class Context:
    def __init__(self):
        self.aborted = None

    def peer(self):
        return "ipv4:192.0.2.1:1"

    def time_remaining(self):
        return None

    async def abort(self, code, message, *_):
        self.aborted = code, message
        raise grpc.aio.AbortError


@pytest.mark.timeout(3600 if SECONDS else 300)
def test_any_message_of_grpc_has_a_reply(caplog, monkeypatch):
    async def run(here_bytes):
        monkeypatch.setattr(limits, "HERE_BYTES", here_bytes)
        server = GrpcServer(service())
        found = []
        for data in inputs("grpc"):
            context = Context()
            try:
                answer = await server._infer(data, context)
                found.append(answer.SerializeToString())
            except grpc.aio.AbortError:
                code, message = context.aborted
                assert code not in {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN}, (data, message)
                found.append(code)
        return found

    with caplog.at_level(logging.ERROR):
        at_once, elsewhere = asyncio.run(run(1 << 30)), asyncio.run(run(0))
    assert not caplog.records
    if not SECONDS:  # else the two had different inputs
        assert at_once == elsewhere
    assert any(isinstance(each, bytes) for each in at_once)


def test_the_corpus_is_read_as_it_was_meant():
    assert messages.ModelInferRequest.FromString((CORPUS / "grpc" / "raw").read_bytes()).model_name == "echo"
