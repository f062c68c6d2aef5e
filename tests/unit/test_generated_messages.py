"""The committed messages are those of the .proto files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import gemlet
from gemlet import inference_protocol as inference
from gemlet.kube import protocol as kubelet


@pytest.mark.parametrize(("package", "files_made"), [(kubelet, 10), (inference, 4)], ids=["kube", "inference"])
def test_the_messages_are_generated_from_the_files(tmp_path, package, files_made):
    pytest.importorskip("grpc_tools", reason="grpcio-tools is a tool of development")
    folder = Path(next(iter(package.__path__)))
    root = Path(gemlet.__file__).parents[1]
    files = [str(path.relative_to(root)) for path in sorted(folder.glob("*.proto"))]
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", f"--python_out={tmp_path}", f"--pyi_out={tmp_path}"]
    subprocess.run([*command, *files], cwd=root, check=True)
    fresh = list(tmp_path.rglob("*_pb2.py*"))
    assert len(fresh) == files_made
    for path in fresh:
        # The first lines name the version of the generator.
        assert body(path.read_text()) == body((folder / path.name).read_text()), f"{path.name} is old: make protocol"


def body(text):
    telling = ("DESCRIPTOR = ", "class ", "    def ")
    return [line for line in text.splitlines() if line.startswith(telling)]
