"""What the webhook keeps for clients: connections and reviews, and lines of its log."""

from __future__ import annotations

import asyncio
import gc
import gzip
import json
import socket
import struct
import tracemalloc
from types import SimpleNamespace

import pytest

from gemlet import decoding
from gemlet.kube import webhook, webhook_limits
from tests.unit.kube.webhook_client import SHARE, connected, review, serve, until_the_end, write


def test_connections_that_ask_nothing_make_room(authority, tmp_path, monkeypatch):
    monkeypatch.setattr(webhook_limits, "MOST_CONNECTIONS", 4)
    write(authority, tmp_path)

    async def scenario(client, _):
        idle = [await connected(client) for _ in range(12)]
        assert (await client.review(SHARE))["allowed"]
        for reader, _ in idle[:9]:
            await until_the_end(reader)
        for _, writer in idle:
            writer.transport.abort()

    serve(scenario, authority, tmp_path)


def test_reviews_that_do_not_end_make_room(authority, tmp_path):
    write(authority, tmp_path)
    begun = b"POST /mutate-v1-pod HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n{" % webhook_limits.MAX_REVIEW_BYTES

    async def scenario(client, _):
        coming = [await connected(client) for _ in range(12)]
        for _, writer in coming:
            writer.write(begun)
        assert (await client.review(SHARE))["allowed"]
        ended = [asyncio.create_task(until_the_end(reader)) for reader, _ in coming]
        while sum(task.done() for task in ended) < 8:
            await asyncio.wait([task for task in ended if not task.done()], return_when=asyncio.FIRST_COMPLETED)
        for _, writer in coming:
            writer.transport.abort()
        await asyncio.gather(*ended)

    serve(scenario, authority, tmp_path)


def test_a_review_that_does_not_end_is_not_waited_for(authority, tmp_path, monkeypatch):
    monkeypatch.setattr(webhook_limits, "REVIEW_SECONDS", 0.1)
    write(authority, tmp_path)

    async def scenario(client, _):
        reader, writer = await connected(client)
        writer.write(b"POST /mutate-v1-pod HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{")
        assert await reader.readline() == b"HTTP/1.1 408 Request Timeout\r\n"
        writer.transport.abort()

    serve(scenario, authority, tmp_path)


def test_a_review_of_countless_parts_is_not_made_into_objects(authority, tmp_path, monkeypatch):
    write(authority, tmp_path)
    read = []
    monkeypatch.setattr(
        webhook, "from_json", lambda body, kind: read.append(len(body)) or decoding.from_json(body, kind)
    )

    async def scenario(client, _):
        part, most = b"[],", webhook_limits.MAX_REVIEW_BYTES - 1000
        body = b'{"request": {"uid": "r", "kind": {}, "object": [' + part * (most // len(part)) + b"0]}}"
        assert (await client.post(body))[0] == 413
        assert read == []
        large = {f"large{number}": "x" * 200_000 for number in range(30)}
        assert (await client.review(SHARE | large))["allowed"]

    serve(scenario, authority, tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        lambda request, texts: request.update(uid=texts),
        lambda request, texts: request.update(uid="u" * 300),
        lambda request, texts: request.update(namespace=texts),
        lambda request, texts: request["object"]["metadata"].update(name=texts),
        lambda request, texts: request["object"]["metadata"]["annotations"].update({"gemlet.dev/memory": texts}),
        lambda request, texts: request["object"]["metadata"]["annotations"].update({"gemlet.dev/priority": texts}),
        lambda request, texts: request["object"]["spec"]["containers"][0].update(
            resources={"limits": {"gemlet.dev/share": texts}}
        ),
        lambda request, texts: request["object"]["spec"]["containers"][0].update(
            resources={"requests": {"nvidia.com/gpu": texts}}
        ),
        lambda request, texts: request["object"]["spec"].update(schedulerName=texts),
    ],
)
def test_a_list_in_the_place_of_a_text_is_not_quoted(authority, tmp_path, change):
    """A refusal made copies of it, with escapes: 450 MB of a review of 8 MB."""
    write(authority, tmp_path)
    asked = review(dict(SHARE))
    change(asked["request"], ["x" * 100] * 10)

    async def scenario(client, _):
        status, text = await client.post(asked)
        assert (status, len(text) < 300) == (400, True)
        client.url = client.url.replace(webhook.PATH, webhook.TRANSLATE_PATH)
        assert (await client.post(asked))[0] == 400

    serve(scenario, authority, tmp_path)


def test_nothing_of_a_review_that_is_refused_waits_for_the_collector(authority, tmp_path):
    write(authority, tmp_path)
    large = {"large": "x" * 250_000}
    wrong = [review(SHARE | large, uid=5), review(SHARE | large | {"gemlet.dev/compute": "0"})]
    parts = json.dumps(review(SHARE | large)).encode() + b"," * webhook_limits.MOST_PARTS

    async def scenario(client, _):
        await client.post(wrong[0])
        gc.collect()
        gc.disable()
        tracemalloc.start()
        try:
            for body in (*wrong, parts) * 8:
                await client.post(body)
            kept, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
            gc.enable()
        assert kept < 8 * 250_000

    serve(scenario, authority, tmp_path)


@pytest.mark.parametrize(
    "said", [None, b"GET / HTTP/1.0\r\n\r\n", b"\0 garbage\r\n\r\n"], ids=["nothing", "no TLS", "no HTTP"]
)
def test_connections_that_end_in_errors_do_not_pile_up(authority, tmp_path, monkeypatch, said):
    """Each kept TLS's buffer of a quarter of a megabyte until Python's collector ran: 1 GB of 6000 in 3 s."""
    monkeypatch.setattr(webhook_limits, "MOST_CONNECTIONS", 16)
    write(authority, tmp_path)

    async def scenario(client, _):
        port = int(client.url.rsplit(":", 1)[1].split("/")[0])
        gc.collect()
        gc.disable()
        try:
            for _ in range(60):
                secure = client.context if said and said.startswith(b"\0") else None
                reader, writer = await asyncio.open_connection("localhost", port, ssl=secure)
                if said:
                    writer.write(said)
                    await until_the_end(reader)
                writer.transport.abort()
                del reader, writer
            assert (await client.review(SHARE))["allowed"]
            there = sum(isinstance(each, asyncio.sslproto.SSLProtocol) for each in gc.get_objects())
        finally:
            gc.enable()
        assert there < 45  # of both ends

    serve(scenario, authority, tmp_path)


async def asking(client, body):
    """A connection whose review has been sent, and whose answer nobody takes."""
    port = int(client.url.rsplit(":", 1)[1].split("/")[0])
    narrow = socket.socket()
    narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    narrow.setblocking(False)
    await asyncio.get_running_loop().sock_connect(narrow, ("127.0.0.1", port))
    reader, writer = await asyncio.open_connection(
        sock=narrow, ssl=client.context, server_hostname="localhost", limit=1024
    )
    writer.write(b"POST /mutate-v1-pod HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    await writer.drain()
    return reader, writer


def with_a_large_answer():
    asked = review(dict(SHARE))
    asked["request"]["object"]["spec"]["containers"][0]["resources"] = {"x": ["y" * 250_000] * 4}
    return json.dumps(asked).encode()


def test_answers_that_nobody_takes_make_room(authority, tmp_path, monkeypatch):
    monkeypatch.setattr(webhook_limits, "MOST_BYTES", 3_000_000)  # of two
    write(authority, tmp_path)
    body = with_a_large_answer()

    async def scenario(client, _):
        waiting = [await asking(client, body) for _ in range(6)]
        assert (await client.review(SHARE))["allowed"]
        for reader, _ in waiting[:4]:
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await reader.readexactly(len(body))
        for _, writer in waiting:
            writer.transport.abort()

    serve(scenario, authority, tmp_path)


def test_an_answer_that_nobody_takes_is_not_waited_for(authority, tmp_path, monkeypatch):
    monkeypatch.setattr(webhook_limits, "ANSWER_SECONDS", 0.1)
    write(authority, tmp_path)

    async def scenario(client, _):
        body = with_a_large_answer()
        reader, writer = await asking(client, body)
        await asyncio.sleep(0.5)  # the server is in this loop, and its time is over before
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await reader.readexactly(len(body))
        writer.transport.abort()

    serve(scenario, authority, tmp_path)


def test_a_pod_that_would_be_changed_by_megabytes_is_refused(authority, tmp_path):
    write(authority, tmp_path)
    asked = review(dict(SHARE))
    asked["request"]["object"]["spec"]["containers"][0]["resources"] = {"x": ["y" * 250_000] * 5}

    async def scenario(client, _):
        status, text = await client.post(asked)
        assert (status, json.loads(text)["response"]["allowed"]) == (200, False)

    serve(scenario, authority, tmp_path)


def test_a_client_that_hangs_up_is_no_error_of_ours(authority, tmp_path, caplog):
    """Each was thirty lines of the log."""
    write(authority, tmp_path)

    async def scenario(client, _):
        for _ in range(3):
            _, writer = await connected(client)
            writer.write(b"POST /mutate-v1-pod HTTP/1.1\r\nHost: x\r\nContent-Length: 900000\r\n\r\n" + b"x" * 300_000)
            await writer.drain()
            writer.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            )  # a reset
            writer.transport.abort()
        assert (await client.review(SHARE))["allowed"]

    serve(scenario, authority, tmp_path)
    assert "Traceback" not in caplog.text


def test_a_log_says_how_many_lines_were_left_out(caplog, monkeypatch):
    """Else who looks for a refusal could not know that there were more."""
    now = [0.0]
    monkeypatch.setattr(webhook_limits, "LINES_PER_MINUTE", 2)
    monkeypatch.setattr(webhook_limits, "time", SimpleNamespace(monotonic=lambda: now[0]))
    few = webhook_limits.FewLines()
    webhook_limits.logger.addFilter(few)
    try:
        for now[0] in (0.0, 0.0, 0.0, 0.0, 60.0, 60.0):
            webhook_limits.logger.warning("pod=%s refused", "p")
    finally:
        webhook_limits.logger.removeFilter(few)
    said = "pod=p refused"
    assert caplog.messages == [said, said, f"{said} (after 2 of this kind that were left out)", said]


def test_what_is_no_http_does_not_fill_the_log(authority, tmp_path, caplog, monkeypatch):
    """Each such request was a traceback: 140 KB a second from a few clients."""
    monkeypatch.setattr(webhook_limits, "LINES_PER_MINUTE", 5)
    few = webhook_limits.FewLines()
    webhook_limits.logger.addFilter(few)
    write(authority, tmp_path)

    async def scenario(client, _):
        port = int(client.url.split(":")[2].split("/")[0])
        for _ in range(8):
            reader, writer = await asyncio.open_connection("localhost", port, ssl=client.context)
            writer.write(b"GET /healthz HTTP/1.1\r\nno header\r\n\r\n")
            assert b"400" in await reader.read()
            writer.close()
            await writer.wait_closed()

    try:
        serve(scenario, authority, tmp_path)
    finally:
        webhook_limits.logger.removeFilter(few)
    assert [record.name for record in caplog.records if record.exc_info] == ["gemlet.kube.webhook_limits"] * 5


def test_chunks_are_not_waited_for(authority, tmp_path):
    """A processor's whole time went into chunks of one byte from four connections: others waited 3 s."""
    write(authority, tmp_path)

    async def scenario(client, _):
        for path in (webhook.PATH, "/healthz", "/none"):
            reader, writer = await connected(client)
            writer.write(b"POST %b HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n" % path.encode())
            status = (await reader.readline()).split()[1]
            assert status == (b"411" if path == webhook.PATH else status)
            await until_the_end(reader)  # while more may come
            writer.transport.abort()

    serve(scenario, authority, tmp_path)


def test_a_compressed_review_is_not_inflated(authority, tmp_path):
    write(authority, tmp_path)

    async def scenario(client, _):
        data = gzip.compress(json.dumps(review(SHARE)).encode())
        headers = {"Connection": "close", "Content-Encoding": "gzip"}
        async with client.session.post(client.url, data=data, ssl=client.context, headers=headers) as reply:
            assert reply.status == 400

    serve(scenario, authority, tmp_path)
