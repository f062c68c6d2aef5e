"""Nobody stalls the server by what comes along with messages, nor by leaving it unread."""

from __future__ import annotations

import contextlib
import platform
import select
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.lingering import is_cut_off, let_go, send_lingering
from tests.unit.server import wire
from tests.unit.server.wire import RawClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.unit.server.conftest import Served

ROOT = Path(__file__).parents[3]
ROUNDS = 20  # the server may be faster than the end of the sender's own descriptor, or than the second message

native = pytest.importorskip("gemlet._native", reason="the native module is not built")

# False: as where the kernel cannot refuse it.
pytestmark = pytest.mark.parametrize("refuse_files", [True, False])


@pytest.fixture(autouse=True)
def _receivers(serve: Callable[..., Served]) -> Iterator[None]:
    yield
    let_go()  # before the server ends, which would wait for them where this fails


def descriptors(link: str) -> int:
    """The most that a thread has of this file."""

    def of(task: Path) -> int:
        found = 0
        for descriptor in (task / "fd").iterdir():
            with contextlib.suppress(OSError):
                found += str(descriptor.readlink()) == link
        return found

    most = 0
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            most = max(most, of(task))
    return most


def hello() -> bytes:
    return wire.pack(wire.HELLO, group=b"g", flags=wire.CREATE_GROUP)


def test_with_its_first_message(serve: Callable[..., Served], refuse_files: bool) -> None:
    s = serve(refuse_files=refuse_files)
    for _ in range(ROUNDS):
        hostile = RawClient(s.path, join=False)
        if send_lingering(hostile.socket, hello()):
            assert is_cut_off(hostile.socket)
    RawClient(s.path).attach()


def test_with_a_message_of_no_bytes(serve: Callable[..., Served], refuse_files: bool) -> None:
    s = serve(refuse_files=refuse_files)
    for _ in range(ROUNDS):
        send_lingering(RawClient(s.path, join=False).socket, b"")
    RawClient(s.path).attach()


@pytest.mark.parametrize("between", [b"", hello()])
def test_behind_one_that_ends_the_connection(serve: Callable[..., Served], refuse_files: bool, between: bytes) -> None:
    s = serve(refuse_files=refuse_files, connections=4)
    polite = RawClient(s.path)
    for _ in range(ROUNDS):
        hostile = RawClient(s.path, join=False)
        try:
            hostile.socket.send(b"rubbish")
            hostile.socket.send(between)
            send_lingering(hostile.socket, hello())
        except OSError:
            pass  # the end was faster
        hostile.close()
    polite.attach()


def test_from_one_that_is_turned_away(serve: Callable[..., Served], refuse_files: bool) -> None:
    s = serve(refuse_files=refuse_files, connections=1)
    polite = RawClient(s.path)
    for _ in range(ROUNDS):
        hostile = RawClient(s.path, join=False)
        try:
            send_lingering(hostile.socket, hello())
        except OSError:
            continue
    polite.attach()


def test_the_socket_of_one_that_left_in_peace_is_closed(serve: Callable[..., Served], refuse_files: bool) -> None:
    s = serve(refuse_files=refuse_files)
    RawClient(s.path).attach().close()
    wire.eventually(lambda: not s.groups() or not s.groups()["g"]["clients"])


def test_a_server_that_ends_waits_for_nobody(serve: Callable[..., Served], refuse_files: bool, tmp_path: Path) -> None:
    s = serve(refuse_files=refuse_files)
    s.server.hand_over()  # its thread reads no more
    for _ in range(3):
        send_lingering(RawClient(s.path, join=False).socket, hello())
    s.server.stop()
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("goes_on", [True, False])
def test_from_one_that_is_gone_without_having_read_all(
    serve: Callable[..., Served], refuse_files: bool, goes_on: bool
) -> None:
    """The kernel says first that the connection was reset, and nothing of what is unread."""
    s = serve(refuse_files=refuse_files)
    polite = RawClient(s.path)
    hostile = RawClient(s.path, join=False)
    hostile.socket.send(hello())
    select.select([hostile.socket], [], [])
    s.server.hand_over()  # its thread reads no more
    send_lingering(hostile.socket, hello(), unread=True)
    hostile.close()
    if goes_on:
        s.server.start()
        polite.attach()
    else:
        s.server.stop()


def test_from_one_whom_a_successor_has_cut_off(serve: Callable[..., Served], refuse_files: bool) -> None:
    s = serve(refuse_files=refuse_files)
    hostile = RawClient(s.path, join=False)
    RawClient(s.path)  # after it
    (caller,) = (one for one in s.server.hand_over()["callers"] if not one["group"])
    passed = send_lingering(hostile.socket, hello(), unread=True)
    successor = native.Server(refuse_files=refuse_files)
    successor.inherit_caller(caller)
    link = str(Path(f"/proc/self/fd/{caller['fd']}").readlink())
    successor.start()
    if passed:
        assert is_cut_off(hostile.socket)
        wire.eventually(lambda: descriptors(link) == 1)  # the elder's
    s.server.leave()
    successor.stop()


CONFINED = """
import ctypes, os, platform, struct, sys
from pathlib import Path
from gemlet import _native as native
from tests.lingering import send_lingering
from tests.unit.server import wire
from tests.unit.server.wire import RawClient

# What the usual profiles of containers do: unshare(2) fails.
number = {"x86_64": 272, "aarch64": 97}[platform.machine()]
steps = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x50001), (0x06, 0, 0, 0x7FFF0000)]
code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
program = ctypes.create_string_buffer(struct.pack("@HP", len(steps), ctypes.addressof(code)))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, program) == 0
assert libc.unshare(0x400) == -1

server = native.Server(open=False, refuse_files=False)
server.listen(sys.argv[1])
server.start()
server.hand_over()  # its thread reads no more
for _ in range(5):
    send_lingering(RawClient(sys.argv[1], join=False).socket, b"", unread=True)
server.start()
RawClient(sys.argv[1]).attach()
def name_of(thread):
    try:
        return thread.joinpath("comm").read_text()
    except OSError:  # it has ended
        return ""

threads = Path("/proc/self/task")
wire.eventually(lambda: [name_of(each) for each in threads.iterdir()].count("gemlet-arbiter\\n") == 1)
os._exit(0)
"""


def test_no_thread_waits_in_a_container(refuse_files: bool, tmp_path: Path) -> None:
    if refuse_files:
        pytest.skip("a kernel that refuses descriptors leaves none to be closed")
    if platform.machine() not in ("x86_64", "aarch64"):
        pytest.skip(f"the number of unshare(2) on {platform.machine()} is not known here")
    command = [sys.executable, "-c", CONFINED, str(tmp_path / "s")]
    run = subprocess.run(command, cwd=ROOT, timeout=100, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
