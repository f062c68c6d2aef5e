"""A client of the webhook, and the webhook that it asks."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import ssl

import aiohttp

from gemlet.kube import webhook, webhook_limits
from gemlet.kube.admission import Cluster
from gemlet.kube.translate import Defaults
from gemlet.kube.webhook import application

SHARE = {"gemlet.dev/memory": "16Gi", "gemlet.dev/compute": "25"}


def write(authority, directory):
    directory.mkdir(exist_ok=True)
    pair = authority.issue_cert("localhost")
    pair.private_key_pem.write_to_path(directory / "tls.key")
    (directory / "tls.crt").write_bytes(b"".join(blob.bytes() for blob in pair.cert_chain_pems))
    return pair


def review(annotations, kind="Pod", **more):
    pod = {"metadata": {"name": "p", "annotations": annotations}, "spec": {"containers": [{"name": "c"}]}}
    return {"request": {"uid": "r1", "kind": {"kind": kind}, "namespace": "default", "object": pod, **more}}


class Client:
    def __init__(self, authority, port, session):
        self.context = ssl.create_default_context()
        authority.configure_trust(self.context)
        self.url = f"https://localhost:{port}/mutate-v1-pod"
        self.session = session

    async def post(self, body):
        data = io.BytesIO(body if isinstance(body, bytes) else json.dumps(body).encode())
        # A connection a request, as after the apiserver's idle time-out.
        headers = {"Connection": "close"}
        async with self.session.post(self.url, data=data, ssl=self.context, headers=headers) as reply:
            return reply.status, await reply.text()

    async def review(self, annotations, **more):
        status, text = await self.post(review(annotations, **more))
        assert status == 200
        return json.loads(text)["response"]


def serve(scenario, authority, directory, *, face="slots", maker=None):
    async def whole():
        certificate = webhook.certificate(directory)
        runner = webhook_limits.runner(application(Cluster(face=face), Defaults(), maker))
        await runner.setup()
        listening = webhook_limits.listen(runner.server, "127.0.0.1", 0, certificate.context())
        port = listening.sockets[0].getsockname()[1]
        connector = aiohttp.TCPConnector(force_close=True)
        try:
            async with aiohttp.ClientSession(connector=connector) as session, asyncio.timeout(30):
                await scenario(Client(authority, port, session), certificate)
        finally:
            listening.close()
            await listening.wait_closed()
            await runner.cleanup()

    asyncio.run(whole())


async def connected(client, **more):
    port = int(client.url.rsplit(":", 1)[1].split("/")[0])
    return await asyncio.open_connection("localhost", port, ssl=client.context, **more)


async def until_the_end(reader):
    with contextlib.suppress(ConnectionError):
        await reader.read()
