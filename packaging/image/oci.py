"""Writes container images as OCI archives, without a Docker daemon. Standard library only.

The same content gives the same bytes: names sorted, times 0, everything owned by root. Read by `ctr images import`,
`docker load`, `podman load` and `skopeo copy oci-archive:`.
Source: the OCI image format 1.0 (image-layout, manifest, config) and containerd's annotation for names.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """One image. ``name``: with registry and tag; ``layers``: uncompressed tar archives, lowest first."""

    name: str
    layers: list[bytes]
    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)


class Layer:
    """A layer that is being put together."""

    def __init__(self) -> None:
        self._buffer = io.BytesIO()
        self._tar = tarfile.open(fileobj=self._buffer, mode="w")  # noqa: SIM115  closed by bytes()

    def file(self, name: str, content: bytes, *, mode: int = 0o644) -> None:
        _add(self._tar, name, content, mode=mode)

    def link(self, name: str, target: str) -> None:
        """A symbolic link."""
        entry = tarfile.TarInfo(name)
        entry.type, entry.linkname = tarfile.SYMTYPE, target
        self._tar.addfile(entry)

    def directory(self, path: Path) -> None:
        """All that is below ``path``, as the image's root."""
        for each in sorted(path.rglob("*")):
            entry = self._tar.gettarinfo(each, str(each.relative_to(path)))
            entry.uid = entry.gid = entry.mtime = 0
            entry.uname = entry.gname = "root"
            if entry.islnk():  # two names of one file: as two files, whichever comes first
                entry.type, entry.size = tarfile.REGTYPE, each.stat().st_size
            if entry.isreg():
                with each.open("rb") as content:
                    self._tar.addfile(entry, content)
            else:
                self._tar.addfile(entry)

    def bytes(self) -> bytes:
        """The layer, whole; nothing can be added after."""
        self._tar.close()
        return self._buffer.getvalue()


def write(archive: Path, *images: Image) -> None:
    """One archive with all ``images``; a layer they share is in it once. Raises OSError."""
    blobs: dict[str, bytes] = {}
    manifests = [_manifest(image, blobs) for image in images]
    with tarfile.open(archive, "w") as tar:
        for digest, content in sorted(blobs.items()):
            _add(tar, f"blobs/sha256/{digest.removeprefix('sha256:')}", content)
        _add(tar, "oci-layout", json.dumps({"imageLayoutVersion": "1.0.0"}).encode())
        _add(tar, "index.json", json.dumps({"schemaVersion": 2, "manifests": manifests}).encode())


def _manifest(image: Image, blobs: dict[str, bytes]) -> dict[str, object]:
    config = {
        "architecture": ARCHITECTURES[platform.machine()],
        "os": "linux",
        "config": {
            "Env": [f"{name}={value}" for name, value in image.environment.items()],
            "Cmd": image.command,
            "Labels": image.labels,
        },
        "rootfs": {"type": "layers", "diff_ids": [_digest(layer) for layer in image.layers]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": _media("manifest.v1+json"),
        "config": _blob("config.v1+json", json.dumps(config).encode(), blobs),
        "layers": [_blob("layer.v1.tar", layer, blobs) for layer in image.layers],
    }
    annotations = {"io.containerd.image.name": image.name, "org.opencontainers.image.ref.name": image.name}
    return _blob("manifest.v1+json", json.dumps(manifest).encode(), blobs) | {"annotations": annotations}


def _blob(kind: str, content: bytes, blobs: dict[str, bytes]) -> dict[str, object]:
    digest = _digest(content)
    blobs[digest] = content
    return {"mediaType": _media(kind), "digest": digest, "size": len(content)}


def _add(tar: tarfile.TarFile, name: str, content: bytes, *, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    tar.addfile(entry, io.BytesIO(content))


def _media(kind: str) -> str:
    return f"application/vnd.oci.image.{kind}"


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"
