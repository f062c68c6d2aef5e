"""The apiserver's client against a server on the loopback interface."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import ssl

import pytest
from aiohttp import web

from gemlet.errors import GemletError
from gemlet.kube import api_server, foreign_json
from gemlet.kube.api_server import Access, ApiError, ApiServer
from gemlet.kube.foreign_json import decoded

LONG = "x" * 300_000


async def pods(request):
    if request.query.get("watch"):
        reply = web.StreamResponse()
        await reply.prepare(request)
        for text in ("a", LONG):
            line = json.dumps({"type": "MODIFIED", "object": {"name": text}}) + "\n"
            half = len(line) // 2
            await reply.write(line[:half].encode())
            await asyncio.sleep(0.01)
            await reply.write(line[half:].encode())
        if request.query["resourceVersion"] == "old":
            await reply.write(b'{"type": "ERROR", "object": {"message": "too old resource version"}}\n')
        return reply
    if "limit" in request.query:
        return web.json_response(page(int(request.query.get("continue", 0)), int(request.query["limit"])))
    return web.json_response({"items": [], "token": request.headers.get("Authorization"), "query": dict(request.query)})


def page(at, limit):
    """Of a hundred objects, every tenth of which is long."""
    numbers = range(at, min(100, at + limit))
    meta = {"resourceVersion": "7"} | ({"continue": str(at + limit)} if at + limit < 100 else {})
    return {"items": [{"n": number, "text": "" if number % 10 else LONG} for number in numbers], "metadata": meta}


DEEP = b'{"metadata": {"name": "deep"}, "spec": ' + b'[{"a":' * 5_000 + b"1" + b"}]" * 5_000 + b"}"
ODD = b'{"metadata": {"name": "odd \xff"}}'


async def foreign(request):
    """Objects of a user's: claims, their templates and managedFields may have anything in them, and Go reads it."""
    if request.query.get("watch"):
        lines = [b'{"type": "ADDED", "object": ' + each + b"}\n" for each in (DEEP, ODD)]
        return web.Response(body=b"".join(lines))
    return web.Response(body=b'{"metadata": {"resourceVersion": "7"}, "items": [' + DEEP + b", " + ODD + b"]}")


async def forbidden(request):
    return web.json_response({"message": "events is forbidden"}, status=403)


async def created(request):
    return web.json_response(await request.json(), status=201)


async def gone(request):
    return web.Response(status=404, text="not json")


def with_server(scenario, token=None, **pages):
    async def whole():
        app = web.Application()
        app.add_routes([web.get("/pods", pods), web.get("/forbidden", forbidden), web.get("/foreign", foreign)])
        app.add_routes(web.get(f"/{name}", answer) for name, answer in pages.items())
        app.add_routes([web.post("/pods", created), web.delete("/pods", gone)])
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = site._server.sockets[0].getsockname()[1]
        try:
            access = Access(url=f"http://127.0.0.1:{port}", token=token)
            async with api_server.connected(access) as api, asyncio.timeout(120):
                await scenario(api)
        finally:
            await runner.cleanup()

    asyncio.run(whole())


def test_objects_are_read_and_made_with_a_token_that_may_change(tmp_path):
    token = tmp_path / "token"
    token.write_text("one\n")

    async def scenario(api):
        assert (await api.get("/pods", fieldSelector="a=b"))["query"] == {"fieldSelector": "a=b"}
        assert (await api.get("/pods"))["token"] == "Bearer one"
        token.write_text("two")
        assert (await api.get("/pods"))["token"] == "Bearer two"
        assert await api.create("/pods", {"a": 1}) == {"a": 1}
        await api.delete("/pods")
        for damaged in (b"tok\0en", b"to\nken", b"\xff\xfe", b"t\xc3\xb6ken", b"x" * 100_000):
            token.write_bytes(damaged)
            with pytest.raises(ApiError, match="/pods"):
                await api.get("/pods")
            with pytest.raises(ApiError, match="/pods"):
                async for _ in api.watch("/pods"):
                    pass
        token.unlink()
        with pytest.raises(ApiError, match="cannot be read"):
            await api.get("/pods")

    with_server(scenario, token)


def test_refusals_carry_the_servers_message():
    async def scenario(api):
        with pytest.raises(ApiError, match="403 events is forbidden") as caught:
            await api.get("/forbidden")
        assert caught.value.status == 403
        assert "ClusterRole" in caught.value.hint

    with_server(scenario)


@pytest.mark.parametrize(
    ("status", "said", "gone"),
    [
        (404, {"message": "x not found", "details": {"name": "x", "kind": "resourceclaims"}}, True),
        (404, {"message": "the server could not find the requested resource", "details": {}}, False),
        (404, {"message": "not found"}, False),
        (404, {"message": "not found", "details": [1]}, False),
        (404, "404 page not found", False),
        (410, {"message": "x", "details": {"name": "x"}}, False),
    ],
)
def test_what_is_not_served_is_not_gone(status, said, gone):
    assert api_server._refusal(status, json.dumps(said).encode(), "GET /x").gone == gone


def test_an_object_that_cannot_be_read_keeps_no_other_from_being_read():
    """A pod with managedFields of 2000 levels, and neither the pods of its node nor the cluster's were followed."""

    async def scenario(api):
        seen = [entry async for entry in api.listed("/foreign")]
        seen += [entry async for _, entry in api.watch_once("/foreign", resourceVersion="7")]
        assert [entry["metadata"]["name"] for entry in seen] == ["deep", "odd \ufffd"] * 2
        assert 90 < json.dumps(seen[0]).count("[") * 2 < 100

    with_server(scenario)


@pytest.mark.parametrize(
    ("text", "read"),
    [
        (rb'{"priority": "\ud800 \ud83d\ude00", "\uDFFF": 1}', {"priority": "\ufffd \U0001f600", "\ufffd": 1}),
        (rb'["\\ud800", "\\\udc00\ud800x\ud800\ud83d\ude00\n"]', [r"\ud800", "\\\ufffd\ufffdx\ufffd\U0001f600\n"]),
        (b'["' + rb"\ud800" + b'", ' + b"[" * 990 + b"]" * 990 + b"]", None),
    ],
)
def test_what_python_cannot_send_on_is_something_else(text, read):
    """Half a character in a claim's parameters was an error that ended the agent."""
    found = decoded(text)
    assert read in (None, found)
    json.dumps(found, ensure_ascii=False).encode()


def test_escapes_of_megabytes_are_not_looked_at_one_by_one(monkeypatch):
    """A pod of 3 MB, most of it backslashes, took two seconds at each change, in which nothing else was answered."""
    calls, escapes = [], foreign_json._ESCAPE

    class Counting:
        def sub(self, replace, text):
            return escapes.sub(lambda found: calls.append(found) or replace(found), text)

    monkeypatch.setattr(foreign_json, "_ESCAPE", Counting())
    value = "\\" * 10_000 + r"ud800 \ud800" + "<\n" * 10_000
    text = json.dumps([value]).replace("<", r"\u003c")[:-1] + r', "\ud800"]'
    assert decoded(text.encode()) == [value, "\ufffd"]
    assert len(calls) == 1


@pytest.mark.parametrize("text", ['"[{\\"[{\\\\"', '{"[": [{"]": "}"}, "\\\\"], "}": "{\\""}'])
def test_brackets_in_texts_are_no_depth(text):
    """Of what is beside something that is too deep."""
    deep = b"[" * 5_000 + b"]" * 5_000
    read = decoded(b"[" + text.encode() + b", " + deep + b", " + text.encode() + b"]")
    assert (read[0], read[2]) == (json.loads(text), json.loads(text))


def test_a_watch_gives_whole_objects_however_long():
    async def scenario(api):
        seen = [entry["name"] async for _, entry in api.watch_once("/pods", resourceVersion="1")]
        assert seen == ["a", LONG]
        with pytest.raises(ApiError, match="too old"):
            async for _ in api.watch("/pods", resourceVersion="old"):
                pass

    with_server(scenario)


def test_a_list_comes_in_pages_that_fit_into_memory(monkeypatch):
    monkeypatch.setattr(api_server, "PAGE_BYTES", 1_000_000)
    read, whole = [], api_server._whole

    async def measured(connection, most):
        text = await whole(connection, most)
        read.append(len(text))
        return text

    monkeypatch.setattr(api_server, "_whole", measured)

    async def scenario(api):
        pods = api.listed("/pods")
        assert [pod["n"] async for pod in pods] == list(range(100))
        assert pods.version == "7"
        assert len(read) > 2
        assert max(read) <= 1_000_000
        read.clear()
        monkeypatch.setattr(api_server, "PAGE_BYTES", 1000)
        assert [pod["n"] async for pod in api.listed("/pods")] == list(range(100)), "one that is longer comes alone"
        assert max(read) < 2 * len(LONG)

    with_server(scenario)


def test_a_few_large_objects_do_not_make_every_other_a_request_of_its_own():
    """Three pods of 1.5 MB made the list of a cluster's 10,000 one of 10,000 requests, which took longer than the
    apiserver keeps a list for."""
    asked = []

    async def many(request):
        at, limit = int(request.query.get("continue", 0)), int(request.query["limit"])
        asked.append(limit)
        numbers = range(at, min(5000, at + limit))
        meta = {"resourceVersion": "7"} | ({"continue": str(at + limit)} if at + limit < 5000 else {})
        items = [{"n": number, "text": "x" * 1_500_000 if number in (3, 4, 5, 6) else ""} for number in numbers]
        return web.json_response({"items": items, "metadata": meta})

    async def scenario(api):
        assert [pod["n"] async for pod in api.listed("/many")] == list(range(5000))
        assert max(asked) == api_server.PAGE_OBJECTS
        assert len(asked) < 40

    with_server(scenario, many=many)


@pytest.mark.parametrize("page", ["{}", "[]", "null", '{"items": []}', '{"items": 5, "metadata": {}}', '{"items"'])
def test_what_is_no_list_is_an_error(page):
    async def odd(request):
        return web.Response(text=page)

    async def scenario(api):
        with pytest.raises(ApiError, match="GET /odd"):
            async for _ in api.listed("/odd"):
                pass

    with_server(scenario, odd=odd)


def test_a_list_of_nothing_may_be_null():
    async def empty(request):
        return web.json_response({"items": None, "metadata": {"resourceVersion": "7"}})

    async def scenario(api):
        assert [pod async for pod in api.listed("/empty")] == []

    with_server(scenario, empty=empty)


@pytest.mark.parametrize("line", ["{}", "[]", "5", '{"type": "ADDED", "object": []}', '{"type": "ERROR", "object": 1}'])
def test_what_is_no_event_is_an_error(line):
    async def odd(request):
        return web.Response(text=f"{line}\n")

    async def scenario(api):
        with pytest.raises(ApiError, match="watch /odd"):
            async for _ in api.watch("/odd"):
                pass

    with_server(scenario, odd=odd)


def test_a_watch_that_ends_goes_on_where_it_was_and_not_at_once(monkeypatch):
    """Each end was a new list of the whole, and an apiserver that ends watches at once was asked without a pause."""
    versions, pauses, sleep = [], [], asyncio.sleep

    async def ending(request):
        versions.append(request.query["resourceVersion"])
        meta = {"resourceVersion": str(len(versions) * 10)}
        events = [{"type": "BOOKMARK", "object": {"metadata": meta}}] if len(versions) < 3 else []
        return web.Response(text="".join(json.dumps(event) + "\n" for event in events))

    async def paused(seconds):
        pauses.append(seconds)
        await sleep(0)

    monkeypatch.setattr(api_server.asyncio, "sleep", paused)

    async def scenario(api):
        seen = []
        async with asyncio.TaskGroup() as tasks:

            async def follow():
                async for kind, _ in api.watch("/ending", resourceVersion="1"):
                    seen.append(kind)

            task = tasks.create_task(follow())
            while len(versions) < 5:
                await sleep(0.001)
            task.cancel()
        assert seen == ["BOOKMARK"] * 2
        assert versions[:5] == ["1", "10", "20", "20", "20"]
        assert sum(pause > api_server.AGAIN_SECONDS / 2 for pause in pauses) >= 4

    with_server(scenario, ending=ending)


def test_an_authority_that_is_replaced_is_trusted(tmp_path):
    """As when a cluster's is rotated: both are in the file for a while, and the agent began with the old one alone."""
    trustme = pytest.importorskip("trustme")
    old, new = trustme.CA(), trustme.CA()
    file, presented = tmp_path / "ca.crt", ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    new.issue_cert("127.0.0.1").configure_cert(presented)

    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
        await writer.drain()
        writer.close()

    async def whole():
        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=presented)
        port = server.sockets[0].getsockname()[1]
        file.write_bytes(old.cert_pem.bytes())
        access = api_server.in_cluster("127.0.0.1", str(port), tmp_path)
        (tmp_path / "token").write_text("t")
        async with server, api_server.connected(access) as api, asyncio.timeout(120):
            for content in (None, b"half a certif"):
                if content is not None:
                    file.write_bytes(content)
                with pytest.raises(ApiError, match=r"certificate verify failed"):
                    await api.get("/pods")
            file.write_bytes(old.cert_pem.bytes() + new.cert_pem.bytes())
            assert await api.get("/pods") == {}

    asyncio.run(whole())


def test_a_connection_is_used_again_and_one_that_was_closed_is_replaced():
    """A server that answers each connection twice, and then closes it without a word."""
    connections = []

    async def serve(reader, writer):
        connections.append(writer)
        for _ in range(2):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        await writer.drain()
        writer.close()

    async def whole():
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server, api_server.connected(Access(url=url)) as api, asyncio.timeout(120):
            for _ in range(6):
                assert await api.get("/pods") == {}
                await asyncio.sleep(0.01)

    asyncio.run(whole())
    assert len(connections) == 3


@pytest.mark.parametrize("answer", [b"", b"SSH-2.0\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}"])
def test_an_incomplete_answer_is_an_error(answer):
    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    async def whole():
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server, api_server.connected(Access(url=url)) as api, asyncio.timeout(120):
            with pytest.raises(ApiError, match="GET /pods"):
                await api.get("/pods")

    asyncio.run(whole())


def test_a_watch_that_falls_silent_ends_and_a_slow_reader_of_it_does_not(monkeypatch):
    monkeypatch.setattr(api_server, "WATCH_SECONDS", -29.8)  # 0.2 s of patience

    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for name in ("a", "b"):
            line = json.dumps({"type": "ADDED", "object": {"name": name}}).encode() + b"\n"
            writer.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
        await writer.drain()
        await reader.read()  # never ends the answer
        writer.close()

    async def whole():
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        seen = []
        async with server, api_server.connected(Access(url=url)) as api, asyncio.timeout(120):
            watch = api.watch_once("/pods")
            for _ in range(2):
                seen.append((await anext(watch))[1]["name"])
                await asyncio.sleep(0.5)
            with pytest.raises(ApiError, match="TimeoutError"):
                await anext(watch)
        assert seen == ["a", "b"]

    asyncio.run(whole())


def test_a_server_that_is_lost_without_a_word_ends_a_connection_soon():
    """A watch heard nothing for five minutes, and containers wait a minute and a half for what it tells."""

    async def scenario(api):
        await api.get("/pods")
        (connection,) = api._free
        there = connection._writer.get_extra_info("socket")
        assert there.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        idle, step, steps = (
            there.getsockopt(socket.IPPROTO_TCP, option)
            for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        )
        assert idle + step * steps <= 30

    with_server(scenario)


def test_no_server_is_an_error():
    async def scenario():
        api = ApiServer(Access(url="http://127.0.0.1:9"))
        with pytest.raises(ApiError) as caught:
            await api.get("/pods")
        assert caught.value.status == 0
        with pytest.raises(ApiError):
            async for _ in api.watch("/pods"):
                pass

    asyncio.run(scenario())


def test_a_kubeconfig_is_json_with_certificates_in_it(tmp_path):
    trustme = pytest.importorskip("trustme")
    authority = trustme.CA()
    pair = authority.issue_cert("localhost")

    def data(blob):
        return base64.b64encode(blob.bytes()).decode()

    path = tmp_path / "kubeconfig"
    user = {"client-certificate-data": data(pair.cert_chain_pems[0]), "client-key-data": data(pair.private_key_pem)}
    cluster = {"server": "https://localhost:6443", "certificate-authority-data": data(authority.cert_pem)}
    path.write_text(json.dumps({"clusters": [{"cluster": cluster}], "users": [{"user": user}]}))
    assert api_server.from_kubeconfig(path).url == "https://localhost:6443"
    for text in ("{", "apiVersion: v1", '{"clusters": []}'):
        path.write_text(text)
        with pytest.raises(GemletError) as caught:
            api_server.from_kubeconfig(path)
        assert "kubectl config view" in caught.value.hint
        assert "Error" not in caught.value.message  # names of Python's exceptions say nothing to people
    path.unlink()
    with pytest.raises(GemletError, match=r"no such file$"):
        api_server.from_kubeconfig(path)


def test_outside_a_cluster_there_is_no_service_account(tmp_path):
    with pytest.raises(GemletError, match=r"ca.crt cannot be read"):
        api_server.in_cluster("10.0.0.1", "443", tmp_path)
