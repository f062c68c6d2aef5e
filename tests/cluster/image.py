"""The images of the tests' pods: busybox, the test's program and the C library it needs."""

from __future__ import annotations

import io
import re
import subprocess
import tarfile
from pathlib import Path

from tests.oci import oci

APPLICATION, PAUSE = "docker.io/local/app:1", "docker.io/local/pause:1"


def compile_probe(directory: Path) -> Path:
    """The program of probe.c."""
    program = directory / "probe"
    subprocess.run(["cc", "-O1", "-w", Path(__file__).with_name("probe.c"), "-o", program, "-ldl"], check=True)
    return program


def write(archive: Path, busybox: Path, program: Path) -> None:
    """One layer under both names; the pause image is a busybox that sleeps."""
    layers, path = [_layer(busybox, program)], {"PATH": "/bin"}
    oci.write(
        archive,
        oci.Image(name=APPLICATION, layers=layers, command=["/bin/sh"], environment=path),
        oci.Image(name=PAUSE, layers=layers, command=["/bin/sleep", "1000000"], environment=path),
    )


def unpack(directory: Path, busybox: Path, program: Path) -> Path:
    """The same as a directory."""
    with tarfile.open(fileobj=io.BytesIO(_layer(busybox, program))) as tar:
        tar.extractall(directory, filter="tar")
    for name in ("proc", "sys", "dev", "tmp", "run", "etc", "opt"):
        (directory / name).mkdir(exist_ok=True)
    return directory


def _layer(busybox: Path, program: Path) -> bytes:
    layer = oci.Layer()
    layer.file("bin/busybox", busybox.read_bytes(), mode=0o755)
    for name in ("sh", "sleep", "cat", "env", "true"):
        layer.link(f"bin/{name}", "busybox")
    layer.file("bin/probe", program.read_bytes(), mode=0o755)
    for library in _libraries(program):
        layer.file(str(library).lstrip("/"), library.resolve().read_bytes(), mode=0o755)
    return layer.bytes()


def _libraries(program: Path) -> list[Path]:
    text = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    return [Path(path) for path in re.findall(r"(/\S+) \(0x", text)]
