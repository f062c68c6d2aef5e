"""Container images without a registry: an OCI archive with busybox, the test's program and the C library it needs."""

from __future__ import annotations

import hashlib
import io
import json
import re
import subprocess
import tarfile
from pathlib import Path

IMAGES = ("docker.io/local/app:1", "docker.io/local/pause:1")


def compile_probe(directory: Path) -> Path:
    """The program of probe.c."""
    program = directory / "probe"
    subprocess.run(["cc", "-O1", "-w", Path(__file__).with_name("probe.c"), "-o", program, "-ldl"], check=True)
    return program


def write(archive: Path, busybox: Path, program: Path) -> None:
    """One layer under both names; the pause image is a busybox that sleeps."""
    layer = _layer(busybox, program)
    with tarfile.open(archive, "w") as tar:
        digest = _blob(tar, layer)
        entries = []
        for name in IMAGES:
            command = ["/bin/sleep", "1000000"] if "pause" in name else ["/bin/sh"]
            config = {
                "architecture": "amd64",
                "os": "linux",
                "config": {"Env": ["PATH=/bin"], "Cmd": command},
                "rootfs": {"type": "layers", "diff_ids": [digest]},
            }
            manifest = {
                "schemaVersion": 2,
                "config": _descriptor("config.v1+json", config_bytes := json.dumps(config).encode()),
                "layers": [{"mediaType": _media("layer.v1.tar"), "digest": digest, "size": len(layer)}],
            }
            _blob(tar, config_bytes)
            manifest_bytes = json.dumps(manifest).encode()
            _blob(tar, manifest_bytes)
            annotations = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name}
            entries.append(_descriptor("manifest.v1+json", manifest_bytes) | {"annotations": annotations})
        _file(tar, "oci-layout", json.dumps({"imageLayoutVersion": "1.0.0"}).encode())
        _file(tar, "index.json", json.dumps({"schemaVersion": 2, "manifests": entries}).encode())


def unpack(directory: Path, busybox: Path, program: Path) -> Path:
    """The same as a directory."""
    with tarfile.open(fileobj=io.BytesIO(_layer(busybox, program))) as tar:
        tar.extractall(directory, filter="tar")
    for name in ("proc", "sys", "dev", "tmp", "run", "etc", "opt"):
        (directory / name).mkdir(exist_ok=True)
    return directory


def _layer(busybox: Path, program: Path) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        _file(tar, "bin/busybox", busybox.read_bytes(), mode=0o755)
        for name in ("sh", "sleep", "cat", "env", "true"):
            link = tarfile.TarInfo(f"bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(link)
        _file(tar, "bin/probe", program.read_bytes(), mode=0o755)
        for library in _libraries(program):
            _file(tar, str(library).lstrip("/"), library.resolve().read_bytes(), mode=0o755)
    return buffer.getvalue()


def _libraries(program: Path) -> list[Path]:
    text = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    return [Path(path) for path in re.findall(r"(/\S+) \(0x", text)]


def _media(kind: str) -> str:
    return f"application/vnd.oci.image.{kind}"


def _descriptor(kind: str, content: bytes) -> dict[str, object]:
    return {"mediaType": _media(kind), "digest": _digest(content), "size": len(content)}


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _blob(tar: tarfile.TarFile, content: bytes) -> str:
    _file(tar, f"blobs/sha256/{_digest(content).removeprefix('sha256:')}", content)
    return _digest(content)


def _file(tar: tarfile.TarFile, name: str, content: bytes, *, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    tar.addfile(entry, io.BytesIO(content))
