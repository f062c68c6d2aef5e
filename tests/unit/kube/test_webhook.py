"""The webhook over HTTPS, and its certificate changed under load."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import subprocess
import sys

import pytest

from gemlet.errors import GemletError
from gemlet.kube import templates, webhook, webhook_limits
from gemlet.kube.admission import Cluster
from gemlet.kube.translate import Defaults
from gemlet.kube.webhook import application
from tests.unit.kube.webhook_client import SHARE, connected, review, serve, write

serialization = pytest.importorskip("cryptography.hazmat.primitives.serialization")


def test_pods_are_patched_or_refused_with_a_message(authority, tmp_path):
    write(authority, tmp_path)

    async def scenario(client, _):
        patched = await client.review(SHARE)
        assert (patched["uid"], patched["allowed"], patched["patchType"]) == ("r1", True, "JSONPatch")
        (operation,) = json.loads(base64.b64decode(patched["patch"]))
        assert operation["value"]["limits"] == {"gemlet.dev/share": "1"}
        refused = await client.review(SHARE | {"gemlet.dev/compute": "0"})
        assert not refused["allowed"]
        assert refused["status"]["code"] == 403
        assert "metadata.annotations[gemlet.dev/compute]: 0 is not from 1 to 100; write" in refused["status"]["message"]
        assert await client.review({}) == {"uid": "r1", "allowed": True}
        assert await client.review(SHARE, kind="Deployment") == {"uid": "r1", "allowed": True}

    serve(scenario, authority, tmp_path)


def test_a_refusal_that_quotes_megabytes_is_short(authority, tmp_path):
    write(authority, tmp_path)

    async def scenario(client, _):
        refused = await client.review(SHARE | {"gemlet.dev/memory": "x" * 200_000})
        message = refused["status"]["message"]
        assert message.startswith("gemlet: metadata.annotations[gemlet.dev/memory]: ")
        assert message.endswith("such as 16Gi")
        assert len(message) < 5000

    serve(scenario, authority, tmp_path)


class Objects:
    """An apiserver that takes what is made, or hangs."""

    def __init__(self, *, hangs=False):
        self.made = []
        self.hangs = hangs

    async def create(self, path, body):
        if self.hangs:
            await asyncio.Event().wait()
        self.made.append((path, body["metadata"]["name"]))


def test_the_template_is_there_before_the_pod(authority, tmp_path):
    write(authority, tmp_path)
    api = Objects()

    async def scenario(client, _):
        await client.review(SHARE, dryRun=True)
        assert api.made == [], "a dry run has no effects"
        patch = json.loads(base64.b64decode((await client.review(SHARE))["patch"]))
        name = patch[0]["value"][0]["resourceClaimTemplateName"]
        await client.review(SHARE)
        await client.review(SHARE | {"gemlet.dev/compute": "0"})
        assert api.made == [(templates.templates_path("default"), name)]

    serve(scenario, authority, tmp_path, face="dra", maker=templates.TemplateMaker(api))


def test_an_apiserver_that_hangs_does_not_hold_up_admission(authority, tmp_path, monkeypatch):
    write(authority, tmp_path)
    monkeypatch.setattr(templates, "AHEAD_SECONDS", 0.05)

    async def scenario(client, _):
        assert "patch" in await client.review(SHARE)

    serve(scenario, authority, tmp_path, face="dra", maker=templates.TemplateMaker(Objects(hangs=True)))


def test_reviews_alone_make_few_templates(authority, tmp_path, monkeypatch):
    """Every pod may send any number of them, for any namespace, and each template stays for an hour."""
    monkeypatch.setattr(templates, "AHEAD_PER_MINUTE", 3)
    write(authority, tmp_path)
    api = Objects()

    async def scenario(client, _):
        for memory in range(1, 9):
            assert "patch" in await client.review(SHARE | {"gemlet.dev/memory": f"{memory}Gi"})
        assert len(api.made) == 3

    serve(scenario, authority, tmp_path, face="dra", maker=templates.TemplateMaker(api))


@pytest.mark.parametrize("namespace", ["a/../b", "a?b", "", "A", "a" * 64, "a\n"])
def test_a_namespace_that_is_none_is_no_path(authority, tmp_path, namespace):
    write(authority, tmp_path)
    api = Objects()

    async def scenario(client, _):
        await client.review(SHARE, namespace=namespace)
        assert api.made == []

    serve(scenario, authority, tmp_path, face="dra", maker=templates.TemplateMaker(api))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b'{"request": 5}',
        b'{"request": {}}',
        b'{"request": {"uid": "1", "kind": {"kind": "Pod"}, "object": 5}}',
        json.dumps(review(SHARE | {"gemlet.dev/memory": "x" * 300_000})).encode(),
        json.dumps(review(SHARE | {"x" * 300_000: "1"})).encode(),
    ],
)
def test_a_body_that_is_not_a_review_is_not_answered_as_one(authority, tmp_path, body):
    write(authority, tmp_path)

    async def scenario(client, _):
        status, _ = await client.post(body)
        assert status == 400

    serve(scenario, authority, tmp_path)


def test_a_cluster_of_ipv6_alone_reaches_the_webhook(authority, tmp_path):
    write(authority, tmp_path)

    async def scenario():
        runner = webhook_limits.runner(application(Cluster(), Defaults()))
        await runner.setup()
        listening = webhook_limits.listen(runner.server, None, 0, webhook.certificate(tmp_path).context())
        try:
            for address in ("127.0.0.1", "::1") if socket.has_dualstack_ipv6() else ("127.0.0.1",):
                _, writer = await asyncio.open_connection(address, listening.sockets[0].getsockname()[1])
                writer.close()
                await writer.wait_closed()
        finally:
            listening.close()
            await listening.wait_closed()
            await runner.cleanup()

    asyncio.run(scenario())


def test_a_certificate_is_changed_without_a_failed_admission(authority, tmp_path):
    write(authority, tmp_path)

    async def scenario(client, certificate):
        served = set()
        stop = asyncio.Event()

        async def load():
            while not stop.is_set():
                assert (await client.review(SHARE))["allowed"]
                served.add(await serial(client))

        loads = [asyncio.create_task(load()) for _ in range(4)]
        refreshing = asyncio.create_task(certificate.keep_fresh(look=0.01))
        try:
            for number in range(4):
                if number:
                    write(authority, tmp_path)
                while len(served) <= number and not any(task.done() for task in loads):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        finally:
            stop.set()
            refreshing.cancel()
            await asyncio.gather(*loads)

    serve(scenario, authority, tmp_path)


async def serial(client):
    _, writer = await connected(client)
    found = writer.get_extra_info("peercert")["serialNumber"]
    writer.transport.abort()  # closing politely waits for the server, which waits for a request
    return found


def test_a_key_with_a_password_is_not_waited_for(authority, tmp_path):
    """OpenSSL would ask for it, on a terminal or on standard input."""
    pair = write(authority, tmp_path)
    key = serialization.load_pem_private_key(pair.private_key_pem.bytes(), None)
    (tmp_path / "tls.key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    code = "import sys, pathlib; from gemlet.kube import webhook; webhook.certificate(pathlib.Path(sys.argv[1]))"
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as asked:
        try:
            assert asked.wait(60) != 0
            assert "not a valid certificate and key" in asked.stderr.read()
        finally:
            asked.kill()


def test_no_certificate_is_an_error_with_a_hint(tmp_path):
    with pytest.raises(GemletError) as caught:
        webhook.certificate(tmp_path)
    assert "kubernetes.io/tls" in caught.value.hint
