"""The ledger as members of a group see it, and what the death of one leaves."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import signal
import stat
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.unit.server import wire
from tests.unit.server.wire import RawClient

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.unit.server.conftest import Served

GIB = 1 << 30


def test_members_share_one_ledger_and_see_the_limit(serve: Callable[..., Served]) -> None:
    s = serve()
    s.server.set_group("g", memory=8 * GIB)
    a, b = RawClient(s.path).attach(), RawClient(s.path).attach()
    assert a.limits.get("memory_limit") == 8 * GIB
    a.ledger.put("slots", 3 * GIB, index=a.slot)
    assert b.ledger.get("slots", index=a.slot) == 3 * GIB
    assert s.groups()["g"]["memory_used"] == 3 * GIB
    s.server.set_group("g", memory=2 * GIB)  # live, and below what is in use
    assert b.limits.get("memory_limit") == 2 * GIB


def test_a_dead_member_leaves_nothing(serve: Callable[..., Served]) -> None:
    s = serve()
    a, b = RawClient(s.path, own_process=True).attach(), RawClient(s.path).attach()
    a.ledger.put("slots", 3 * GIB, index=a.slot)
    a.ledger.put("lock", a.slot + 1, size=4)  # died while it held the lock
    a.end()
    wire.eventually(lambda: b.ledger.get("slots", index=a.slot) == 0)
    wire.eventually(lambda: b.ledger.get("lock", size=4) == 0)
    assert s.groups()["g"]["memory_used"] == 0


def test_what_a_member_holds_counts_all_the_time_while_it_joins_again(serve: Callable[..., Served]) -> None:
    """Its connection was closed and it lives on: for its neighbours nothing becomes free, and nothing counts twice."""
    s = serve()
    s.server.set_group("g", memory=8 * GIB)
    s.server.add_device(bytes(16), 0, context_estimate=GIB)
    a, b = RawClient(s.path).attach(), RawClient(s.path).attach()
    a.send(wire.CONTEXT, value=1)
    wire.eventually(lambda: a.page.get("contexts", size=4) == 1)
    a.ledger.put("slots", 3 * GIB, index=a.slot)
    a.close()
    wire.eventually(lambda: a.page.get("attached", size=4) == 0)
    again = RawClient(s.path, flags=wire.AGAIN)
    assert (b.ledger.get("slots", index=a.slot), b.limits.get("untracked")) == (3 * GIB, GIB)
    again.attach()
    assert again.slot == a.slot
    assert again.page.get("contexts", size=4) == 1
    assert (b.ledger.get("slots", index=a.slot), b.limits.get("untracked")) == (3 * GIB, GIB)
    again.close()


def test_groups_do_not_see_each_other(serve: Callable[..., Served]) -> None:
    s = serve()
    a, b = RawClient(s.path, "a").attach(), RawClient(s.path, "b").attach()
    a.ledger.put("slots", 5, index=a.slot)
    assert b.ledger.get("slots", index=a.slot) == 0


def test_limits_cannot_be_written_and_no_page_can_be_shrunk(serve: Callable[..., Served]) -> None:
    s = serve()
    c = RawClient(s.path)
    page, limits, ledger, device = c.ask(wire.ATTACH, uuid=bytes(16)).descriptors
    with pytest.raises((PermissionError, OSError)):
        mmap.mmap(limits, 64, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    with pytest.raises((PermissionError, OSError)):  # only the class `latency` may
        mmap.mmap(device, 64, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    for descriptor in (page, limits, ledger, device):
        with pytest.raises(OSError, match=r"not permitted|denied|Invalid"):
            os.ftruncate(descriptor, 0)
        os.close(descriptor)


PAGES = ("page", "limits", "ledger", "device", "residency")
F_SEAL_FUTURE_WRITE = 0x0010  # not in fcntl before Python 3.13
FS_IOC_SETFLAGS, FS_IMMUTABLE_FL = 0x40086602, 0x10  # linux/fs.h
FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE = 1, 2  # linux/falloc.h
MADV_REMOVE, MADV_COLLAPSE = 9, 25  # linux/mman.h
MAP_FIXED = 0x10  # asm-generic/mman-common.h
HUGE = 2 << 20


def descriptors_of(s: Served, group: str, *, priority: str = "normal") -> dict[str, int]:
    """What a client of a new group gets for a device, by name; the caller closes them."""
    s.server.set_capacity(bytes(16), 8 * GIB)
    s.server.set_group(group, priority=priority)
    client = RawClient(s.path, group)
    return dict(zip(PAGES, client.ask(wire.ATTACH, uuid=bytes(16)).descriptors, strict=True))


@pytest.mark.parametrize("priority", ["normal", "latency"])
def test_no_page_can_be_sealed_further_or_opened_by_others(serve: Callable[..., Served], priority: str) -> None:
    s = serve()
    s.server.add_device(bytes(16), 0)
    for name, descriptor in descriptors_of(s, "g", priority=priority).items():
        assert stat.S_IMODE(os.fstat(descriptor).st_mode) == 0o600, name
        for seal in (fcntl.F_SEAL_WRITE, F_SEAL_FUTURE_WRITE, fcntl.F_SEAL_SEAL):
            with pytest.raises(PermissionError):
                fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seal)
        os.close(descriptor)


def can_keep_memory() -> bool:
    """Whether the kernel lets this process keep others from taking pages away."""
    descriptor = os.memfd_create("probe")
    try:
        fcntl.ioctl(descriptor, FS_IOC_SETFLAGS, struct.pack("l", FS_IMMUTABLE_FL))
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def mapped_for_a_large_page(libc: ctypes.CDLL, descriptor: int, protection: int) -> int:
    """The address of a mapping that begins where a large page may, of as much as one has."""
    reserved = libc.mmap(0, 2 * HUGE, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    address = -(-reserved // HUGE) * HUGE
    assert libc.mmap(address, HUGE, protection, mmap.MAP_SHARED | MAP_FIXED, descriptor, 0) == address
    return address


@pytest.mark.skipif(not can_keep_memory(), reason="needs Linux 6.6 and CAP_LINUX_IMMUTABLE")
@pytest.mark.parametrize("priority", ["normal", "latency"])
def test_nobody_takes_or_moves_pages_that_the_server_looks_at(serve: Callable[..., Served], priority: str) -> None:
    """The kernel lets all others wait meanwhile, which a program that gets no processor makes last as long as it likes:
    with the server's thread, everybody's turns stood still for seconds."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype, libc.mmap.argtypes = ctypes.c_size_t, [ctypes.c_size_t, ctypes.c_size_t, *[ctypes.c_long] * 4]
    libc.madvise.argtypes = [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]
    libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
    s = serve()
    s.server.add_device(bytes(16), 0)
    for name, descriptor in descriptors_of(s, "g", priority=priority).items():
        writable = name not in ("limits", "device") or (name == "device" and priority == "latency")
        address = mapped_for_a_large_page(libc, descriptor, mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0))
        assert libc.fallocate(descriptor, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, mmap.PAGESIZE) == -1, name
        assert libc.madvise(address, mmap.PAGESIZE, MADV_REMOVE) == -1, name
        assert libc.madvise(address, HUGE, MADV_COLLAPSE) == -1, name
        os.close(descriptor)


REOPENS = """
import os, sys
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
for descriptor in map(int, sys.argv[1:]):
    for mode in (os.O_RDWR, os.O_WRONLY, os.O_RDONLY):
        try:
            os.open(f"/proc/self/fd/{descriptor}", mode)
        except PermissionError:
            continue
        print(descriptor, mode)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("priority", ["normal", "latency"])
def test_another_user_gets_no_more_rights_from_what_it_was_given(serve: Callable[..., Served], priority: str) -> None:
    s = serve()
    s.server.add_device(bytes(16), 0)
    given = list(descriptors_of(s, "g", priority=priority).values())
    arguments = [sys.executable, "-c", REOPENS, *map(str, given)]
    other = subprocess.run(arguments, pass_fds=given, capture_output=True, text=True, check=True)
    for descriptor in given:
        os.close(descriptor)
    assert other.stdout == ""


def test_what_the_driver_holds_beyond_the_ledger_counts(serve: Callable[..., Served]) -> None:
    s = serve()
    a = RawClient(s.path).attach()
    a.ledger.put("slots", GIB, index=a.slot)
    a.send(wire.CONTEXT, value=1)
    wire.eventually(lambda: s.groups()["g"]["clients"][0]["contexts"])  # type: ignore[index]
    s.server.set_memory_of_processes(bytes(16), [(os.getpid(), GIB + 500_000_000, None)])
    assert a.limits.get("untracked") == 500_000_000
    assert s.groups()["g"]["memory_used"] == GIB + 500_000_000


def test_room_for_a_context_is_not_taken_for_its_memory(serve: Callable[..., Served]) -> None:
    """NVML may be asked before the client gives back the room that it kept; its memory is the context nevertheless."""
    s = serve()
    s.server.add_device(bytes(16), 0, context_estimate=500_000_000)
    a = RawClient(s.path).attach()
    a.page.put("room", 500_000_000)
    a.ledger.put("slots", 500_000_000, index=a.slot)
    a.send(wire.CONTEXT, value=1)
    wire.eventually(lambda: a.page.get("contexts", size=4) == 1)
    s.server.set_memory_of_processes(bytes(16), [(os.getpid(), 500_000_000, (500_000_000, 1, 0))])
    a.ledger.put("slots", 0, index=a.slot)
    a.page.put("room", 0)
    assert s.groups()["g"]["memory_used"] == 500_000_000


def test_what_a_context_takes_is_learned_from_one_without_memory(serve: Callable[..., Served]) -> None:
    """Managed memory is charged as a whole and the driver counts what is on the device: the rest is not a context."""
    s = serve()
    a = RawClient(s.path).attach()
    a.send(wire.CONTEXT, value=1)
    wire.eventually(lambda: s.groups()["g"]["clients"][0]["contexts"])  # type: ignore[index]
    learned = []
    for charged, held in ((GIB, GIB + 100_000_000), (0, 500_000_000), (400_000_000, 502_000_000), (0, 480_000_000)):
        a.ledger.put("slots", charged, index=a.slot)
        s.server.set_memory_of_processes(bytes(16), [(os.getpid(), held, None)])
        learned.append(a.limits.get("context_estimate"))
    assert learned == [0, 500_000_000, 500_000_000, 480_000_000]
    b = RawClient(s.path).attach()
    assert b.limits.get("context_estimate") == 480_000_000


def with_a_context(serve: Callable[..., Served]) -> tuple[Served, RawClient]:
    """A client with one, of which it is known what it takes."""
    s = serve()
    s.server.add_device(bytes(16), 0, context_estimate=500_000_000)
    a = RawClient(s.path).attach()
    a.send(wire.CONTEXT, value=1)
    wire.eventually(lambda: a.page.get("contexts", size=4) == 1)
    return s, a


def test_an_allocation_that_the_driver_has_yet_to_make_hides_no_context(serve: Callable[..., Served]) -> None:
    """It is charged before; the driver was asked in between, and another took as much beyond the limit."""
    s, a = with_a_context(serve)
    a.ledger.put("slots", 40_000_000, index=a.slot)
    for _ in range(3):
        s.server.set_memory_of_processes(bytes(16), [(os.getpid(), 500_000_000, (40_000_000, 1, 0))])
        assert s.groups()["g"]["memory_used"] == 540_000_000


def test_what_modules_take_goes_when_two_looks_miss_it(serve: Callable[..., Served]) -> None:
    s, a = with_a_context(serve)
    used = []
    for charged, held in ((0, 600), (40, 600), (40, 640), (40, 640), (0, 500), (0, 500)):  # MB; the second is in flight
        a.ledger.put("slots", charged * 1_000_000, index=a.slot)
        s.server.set_memory_of_processes(bytes(16), [(os.getpid(), held * 1_000_000, (charged * 1_000_000, 1, 0))])
        used.append(s.groups()["g"]["memory_used"] // 1_000_000)
    assert used == [600, 640, 640, 640, 600, 500]


def test_the_first_context_on_a_measured_device_waits_for_the_measurement(serve: Callable[..., Served]) -> None:
    s = serve()
    s.server.add_device(bytes(16), 0)
    first = RawClient(s.path).attach()
    first.send(wire.CONTEXT, value=1)
    wire.eventually(lambda: s.groups()["g"]["clients"][0]["contexts"])  # type: ignore[index]
    assert first.page.get("contexts", size=4) == 0
    s.server.set_memory_of_processes(bytes(16), [(os.getpid(), 500_000_000, None)])
    assert first.page.get("contexts", size=4) == 1
    assert first.limits.get("untracked") == 500_000_000


ROOT = Path(__file__).resolve().parents[3]
MEMBER = """
import sys, time
from tests.unit.server.wire import RawClient
client = RawClient(sys.argv[1]).attach()
client.ledger.put("slots", 3 << 30, index=client.slot)
print("ready", flush=True)
sys.stdin.readline()
if sys.argv[2] == "exec":
    import os
    os.execlp("sleep", "sleep", "600")
client.close()  # and cannot come back, or has not yet died of what closed it
time.sleep(600)
"""


@pytest.mark.parametrize("end", ["killed", "exec", "closed"])
def test_a_slot_is_booked_until_its_process_has_ended(serve: Callable[..., Served], end: str) -> None:
    """Or has become another program, which the driver takes for an end."""
    s = serve()
    survivor = RawClient(s.path).attach()
    member = subprocess.Popen(
        [sys.executable, "-c", MEMBER, s.path, end],
        cwd=ROOT,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with member:
        assert member.stdout
        assert member.stdin
        assert member.stdout.readline() == "ready\n"
        (slot,) = (i for i in range(4) if survivor.ledger.get("slots", index=i))
        if end == "killed":
            member.send_signal(signal.SIGKILL)
        else:
            member.stdin.write("go\n")
            member.stdin.flush()
        if end == "closed":
            wire.eventually(lambda: [a["pid"] for a in s.groups()["g"]["awaited"]] == [member.pid])
            time.sleep(2.5)  # the daemon has looked at it more than once
            assert s.groups()["g"]["memory_used"] == 3 * GIB
            assert not s.server.remove_group("g")
            member.kill()
        wire.eventually(lambda: survivor.ledger.get("slots", index=slot) == 0)
        assert (member.poll() is None) == (end == "exec")  # it lives on, or had ended
        assert s.groups()["g"]["awaited"] == []
        member.kill()
