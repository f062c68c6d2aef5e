"""The apiserver's client against a server on the loopback interface."""

from __future__ import annotations

import asyncio
import base64
import json

import aiohttp
import pytest
from aiohttp import web

from gemlet.errors import GemletError
from gemlet.kube import api_server
from gemlet.kube.api_server import Access, ApiError, ApiServer

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
    return web.json_response({"items": [], "token": request.headers.get("Authorization"), "query": dict(request.query)})


async def forbidden(request):
    return web.json_response({"message": "events is forbidden"}, status=403)


async def created(request):
    return web.json_response(await request.json(), status=201)


async def gone(request):
    return web.Response(status=404, text="not json")


def with_server(scenario, token=None):
    async def whole():
        app = web.Application()
        app.add_routes([web.get("/pods", pods), web.get("/forbidden", forbidden)])
        app.add_routes([web.post("/pods", created), web.delete("/pods", gone)])
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = site._server.sockets[0].getsockname()[1]
        try:
            async with aiohttp.ClientSession() as session, asyncio.timeout(20):
                await scenario(ApiServer(Access(url=f"http://127.0.0.1:{port}", token=token), session))
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
        token.unlink()
        with pytest.raises(ApiError, match="cannot be read"):
            await api.get("/pods")

    with_server(scenario, token)


def test_refusals_carry_the_servers_words():
    async def scenario(api):
        with pytest.raises(ApiError, match="403 events is forbidden") as caught:
            await api.get("/forbidden")
        assert caught.value.status == 403
        assert "ClusterRole" in caught.value.hint

    with_server(scenario)


def test_a_watch_gives_whole_objects_however_long():
    async def scenario(api):
        seen = [entry["name"] async for _, entry in api.watch("/pods", resourceVersion="1")]
        assert seen == ["a", LONG]
        with pytest.raises(ApiError, match="too old"):
            async for _ in api.watch("/pods", resourceVersion="old"):
                pass

    with_server(scenario)


def test_nobody_there_is_an_error():
    async def scenario():
        async with aiohttp.ClientSession() as session:
            api = ApiServer(Access(url="http://127.0.0.1:9"), session)
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


def test_outside_a_cluster_there_is_no_service_account(tmp_path):
    with pytest.raises(GemletError, match=r"ca.crt cannot be read"):
        api_server.in_cluster("10.0.0.1", "443", tmp_path)
