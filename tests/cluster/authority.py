"""The certificates and kubeconfigs of the tests' cluster."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING

import trustme
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path


class Authority:
    """One authority, in ``directory``, for the apiserver at ``url`` with ``names``."""

    def __init__(self, directory: Path, url: str, names: tuple[str, ...]) -> None:
        directory.mkdir()
        self.directory = directory
        self._url = url
        self._names = names
        self.ca = trustme.CA(organization_name="gemlet-test")
        self.ca.cert_pem.write_to_path(directory / "ca.crt")
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        encoding, none = serialization.Encoding.PEM, serialization.NoEncryption()
        (directory / "sa.key").write_bytes(
            key.private_bytes(encoding, serialization.PrivateFormat.TraditionalOpenSSL, none)
        )

    def pair(
        self, *names: str, common: str, organization: str | None = None, until: datetime | None = None
    ) -> tuple[bytes, bytes]:
        """A certificate and its key, in PEM."""
        made = self.ca.issue_cert(*names, common_name=common, organization_name=organization, not_after=until)
        return b"".join(blob.bytes() for blob in made.cert_chain_pems), made.private_key_pem.bytes()

    def issue(self, name: str, common: str, organization: str | None = None) -> None:
        """NAME.crt and NAME.key."""
        certificate, key = self.pair(*self._names, common=common, organization=organization)
        (self.directory / f"{name}.crt").write_bytes(certificate)
        (self.directory / f"{name}.key").write_bytes(key)

    def kubeconfig(self, name: str) -> Path:
        """A kubeconfig as JSON, which is YAML too."""

        def data(file: str) -> str:
            return base64.b64encode((self.directory / file).read_bytes()).decode()

        cluster = {"server": self._url, "certificate-authority-data": data("ca.crt")}
        user = {"client-certificate-data": data(f"{name}.crt"), "client-key-data": data(f"{name}.key")}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": user}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        path = self.directory / f"{name}.kubeconfig"
        path.write_text(json.dumps(content))
        return path
