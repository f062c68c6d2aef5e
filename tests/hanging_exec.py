"""Programs in exec(2) for as long as a test likes: the kernel lets nobody look at them meanwhile.

A program closes files there, and waits for their file system. This one is of one file, and does not answer.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

USER = 70001

_HEADER = struct.Struct("<IIQQIIII")
_LOOKUP, _FORGET, _GETATTR, _OPEN, _FLUSH, _INIT, _BATCH_FORGET = 1, 2, 3, 14, 25, 26, 42
_DIRECTORY, _FILE = 1, 2
_NO_SUCH_CALL = 38


def _attributes(node: int) -> bytes:
    mode = 0o40777 if node == _DIRECTORY else 0o100666
    return struct.pack("<6Q10I", node, 0, 0, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


def _answer(operation: int, node: int) -> bytes | None:
    if operation == _INIT:
        return struct.pack("<4I2H2I2H8I", 7, 31, 1 << 16, 0, 16, 12, 1 << 16, 1, 0, 0, *[0] * 8)
    if operation == _LOOKUP:
        return struct.pack("<4Q2I", _FILE, 0, 1, 1, 0, 0) + _attributes(_FILE)
    if operation == _GETATTR:
        return struct.pack("<Q2I", 1, 0, 0) + _attributes(node)
    if operation == _OPEN:
        return struct.pack("<Q2I", 1, 0, 0)
    return None


def serve(directory: str) -> None:
    """The file system, until it is unmounted; says when it is mounted, and when a file is closed."""
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    if ctypes.CDLL(None).mount(b"hanging", directory.encode(), b"fuse", 0, options) != 0:
        sys.exit("no file system can be mounted")
    print("mounted", flush=True)
    while True:
        try:
            _, operation, number, node, *_ = _HEADER.unpack_from(os.read(device, 1 << 20))
        except InterruptedError:
            continue
        except OSError:
            return
        if operation == _FLUSH:
            print("closing", flush=True)
        elif operation not in (_FORGET, _BATCH_FORGET):
            answer = _answer(operation, node)
            error = 0 if answer is not None else -_NO_SUCH_CALL
            answer = answer or b""
            os.write(device, struct.pack("<IiQ", 16 + len(answer), error, number) + answer)


_PROGRAM = """
import os, sys
from tests.unit.server.wire import RawClient
os.setgroups([])
os.setgid({user})
os.setuid({user})
if sys.argv[2:]:
    client = RawClient(sys.argv[2], "hangs").attach()
    client.socket.close()
    again = RawClient(sys.argv[2], "hangs", join=False)
    os.set_inheritable(again.socket.fileno(), True)
os.open(sys.argv[1] + "/file", os.O_RDWR | os.O_CLOEXEC)
os.execv("/bin/sleep", ["sleep", "600"])
"""


@contextlib.contextmanager
def hanging(*arguments: str) -> Iterator[int]:
    """The pid of a program of USER's that is in exec(2). ``arguments``: the socket of a server whose client it was."""
    if os.geteuid() != 0 or not Path("/dev/fuse").exists():
        pytest.skip("mounts a file system of its own, which takes root and FUSE")
    directory = tempfile.mkdtemp()
    command = [sys.executable, "-c", "import sys; from tests.hanging_exec import serve; serve(sys.argv[1])"]
    try:
        with subprocess.Popen([*command, directory], stdout=subprocess.PIPE) as files:
            assert files.stdout
            if files.stdout.readline() != b"mounted\n":
                pytest.skip("the system has no FUSE")
            program = [sys.executable, "-c", _PROGRAM.format(user=USER), directory, *arguments]
            with subprocess.Popen(program) as hangs:
                try:
                    while not select.select([files.stdout], [], [], 0.1)[0]:
                        assert hangs.poll() is None
                    yield hangs.pid
                finally:
                    files.kill()  # what waits for it is told that it has ended
                    hangs.kill()
                    subprocess.run(["umount", "--lazy", directory], check=False)
    finally:
        Path(directory).rmdir()
