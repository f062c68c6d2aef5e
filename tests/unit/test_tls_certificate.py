"""The certificate of a server that runs is renewed."""

from __future__ import annotations

import contextlib
import os
import shutil
import ssl
import subprocess

import pytest

from gemlet.errors import ConfigError
from gemlet.tls_certificate import Certificate


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """Two certificates with their keys, and a key with a password."""
    folder = tmp_path_factory.mktemp("pairs")
    for name in ("old", "new"):
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}", "-days", "2",
             "-keyout", folder / f"{name}.key", "-out", folder / f"{name}.pem"],
            check=True, capture_output=True,
        )  # fmt: skip
    subprocess.run(
        ["openssl", "rsa", "-aes128", "-passout", "pass:secret", "-in", folder / "new.key",
         "-out", folder / "locked.key"],
        check=True, capture_output=True,
    )  # fmt: skip
    return folder


@pytest.fixture
def files(pairs, tmp_path):
    """What a server is given: a certificate and a key."""
    chain, key = tmp_path / "chain.pem", tmp_path / "key.pem"
    shutil.copy(pairs / "old.pem", chain)
    shutil.copy(pairs / "old.key", key)
    return chain, key


def shown(context):
    """Whose certificate a client gets."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(to_client, to_server), context.wrap_bio(to_server, to_client, server_side=True)]
    for _ in range(3):
        for end in ends:
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
    return ssl.DER_cert_to_PEM_cert(ends[0].getpeercert(binary_form=True))


def put(source, target):
    """As who renews certificates does: the name leads to another file at once."""
    new = target.with_suffix(".new")
    shutil.copy(source, new)
    new.replace(target)


def test_new_connections_get_the_certificate_that_the_files_have(pairs, files, caplog):
    certificate = Certificate(*files)
    contexts = [certificate.context("h2"), certificate.context("http/1.1")]
    certificate.refresh()
    assert {shown(each) for each in contexts} == {(pairs / "old.pem").read_text()}
    put(pairs / "new.pem", files[0])  # and its key only later
    certificate.refresh()
    certificate.refresh()
    assert {shown(each) for each in contexts} == {(pairs / "old.pem").read_text()}
    assert caplog.text.count("not taken") == 1
    put(pairs / "new.key", files[1])
    assert certificate.refresh()
    assert {shown(each) for each in contexts} == {(pairs / "new.pem").read_text()}
    assert shown(certificate.context()) == (pairs / "new.pem").read_text()


@pytest.mark.parametrize("kind", ["gone", "pipe", "large"])
def test_what_is_no_such_file_any_more_is_not_read(pairs, files, kind, caplog):
    certificate = Certificate(*files)
    context = certificate.context("h2")
    files[0].unlink()
    if kind == "pipe":
        os.mkfifo(files[0])
    elif kind == "large":
        files[0].touch()
        os.truncate(files[0], 1 << 30)
    assert not certificate.refresh()
    assert not certificate.refresh()
    assert caplog.text.count("not taken") == 1
    assert shown(context) == (pairs / "old.pem").read_text()


def test_a_key_with_a_password_is_refused_and_not_asked_for(pairs, files):
    shutil.copy(pairs / "new.pem", files[0])
    shutil.copy(pairs / "locked.key", files[1])
    with pytest.raises(ConfigError, match=r"not a valid certificate and key") as caught:
        Certificate(*files)
    assert "without a password" in str(caught.value.hint)
