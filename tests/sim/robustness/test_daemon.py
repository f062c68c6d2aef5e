"""The daemon stops, dies, freezes or comes back under programs that run."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.sim.robustness.hurt_machine import CONTEXT, MIB, PATIENCE, eventually
from tests.unit.server.wire import RawClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.sim.robustness.hurt_machine import Machine, Running

SERVER = """
import json, os, sys
from gemlet import _native
path, uuid, groups = sys.argv[1], bytes.fromhex(sys.argv[2]), json.loads(sys.argv[3])
server = _native.Server()
server.add_device(uuid, 0, context_estimate=500 << 20)
for name, limits in groups.items():
    server.set_group(name, **limits)
server.listen(path)
server.start()
print("ready", flush=True)
for line in sys.stdin:
    if line.strip() == "stop":
        server.stop()
        break
    if line.strip() == "denied":
        print(server.snapshot()["denied"], flush=True)
        continue
    found = {g["name"]: [g["memory_used"], len(g["clients"]), g["used_ns"]]
             for d in server.snapshot()["devices"] for g in d["groups"]}
    print(json.dumps(found), flush=True)
"""


class Daemon:
    """A server in a process of its own, to be killed and started again at the same place."""

    def __init__(self, machine: Machine, groups: str) -> None:
        self.machine, self.groups = machine, groups
        self.uuid = machine.run(None, "uuid")
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVER, self.machine.socket, self.uuid, self.groups],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def ask(self, what: str) -> Any:
        import json

        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def groups_now(self) -> dict[str, Any]:
        return dict(self.ask(""))

    def denied(self) -> int:
        return int(self.ask("denied"))

    def end(self, how: str) -> None:
        if how == "stopped":
            self.process.communicate("stop\n", timeout=60)
        else:
            self.process.kill()
            self.process.communicate(timeout=60)


@pytest.fixture
def daemon(machine: Machine) -> Iterator[Callable[[str], Daemon]]:
    made: list[Daemon] = []

    def make(groups: str = "{}") -> Daemon:
        made.append(Daemon(machine, groups))
        return made[-1]

    yield make
    for one in made:
        one.process.kill()
        one.process.communicate()


def says(program: Running, mib: int) -> list[str]:
    """What comes of one more allocation: result, free and total."""
    program.tell(str(mib))
    return program.line().split()


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_programs_run_on_and_rejoin(daemon: Callable[[str], Daemon], machine: Machine, how: str) -> None:
    d = daemon('{"a": {"memory": 2147483648, "max": 0.3}, "b": {}}')
    a = machine.start("a", "grow", 0, 300)
    b = machine.start("b", "work", 60, 50)
    c = machine.start("a", "work", 60)
    assert (a.line(), b.line(), c.line()) == ("ready",) * 3
    held = [2 * CONTEXT + 300 * MIB, CONTEXT + 50 * MIB]
    assert eventually(lambda: [d.groups_now().get(g, [0])[0] for g in "ab"] == held)
    assert says(a, 300)[0] == "0"
    held[0] += 300 * MIB
    for before, after in ((2048, 1024), (1024, 4096)):  # limits in MiB
        d.end(how)
        n = b.rounds(), c.rounds()
        eventually(lambda n=n: b.rounds() > n[0] + 20 and c.rounds() > n[1] + 20)
        assert says(a, 1500) == ["2", str(max(0, before * MIB - held[0])), str(before * MIB)]  # nobody need be there
        d.groups = d.groups.replace(str(before * MIB), str(after * MIB))
        d.start()
        # Exactly what they hold is in the books again, although it may be more than the limit ...
        eventually(lambda: [d.groups_now().get(g, [0])[0] for g in "ab"] == held)
        # ... which is the new one, and the group's share binds again.
        assert says(a, 1500)[0] == ("0" if after == 4096 else "2")
        held[0] += 1500 * MIB * (after == 4096)
        used, since = d.groups_now()["a"][2], time.monotonic_ns()
        n = c.rounds(), b.rounds()
        eventually(lambda n=n: c.rounds() > n[0] + 20 and b.rounds() > n[1] + 20)
        time.sleep(1)  # at least: the maximum holds for any second, however long this one is
        assert d.groups_now()["a"][2] - used < 0.42 * (time.monotonic_ns() - since)
    for program in (b, c):
        program.kill()
        _, _, said = program.end()
        assert said.count("the daemon is gone") <= 2, said  # once each time
    d.end(how)


def test_turns_go_on_while_a_daemon_lets_programs_wait_for_its_answer(
    daemon: Callable[[str], Daemon], machine: Machine
) -> None:
    """A program's own turns, by the last shares, do not wait for the successor of its daemon, which hangs."""
    d = daemon('{"a": {"max": 0.5}}')
    program = machine.start("a", "work", 600)
    eventually(lambda: program.rounds() > 5)
    d.end("killed")
    Path(machine.socket).unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as hung:
        hung.bind(machine.socket)
        hung.listen()
        hung.settimeout(PATIENCE)
        for _ in range(3):  # at least one of the times: the machine may be busy
            with hung.accept()[0] as joining:
                joining.settimeout(PATIENCE)
                assert joining.recv(4096)
                begin = time.monotonic(), program.rounds()
                assert not joining.recv(4096)  # after ten seconds it gives up
                rounds = program.rounds() - begin[1]  # of a millisecond
                assert rounds < 0.7 * 1000 * (time.monotonic() - begin[0])
                if rounds > 100:
                    return
    raise AssertionError("it waited for the answer")


@pytest.mark.parametrize("how", ["stopped", "killed"])
@pytest.mark.parametrize("limits", ['"memory": 2147483648', '"max": 0.3'], ids=["memory", "time"])
def test_nobody_is_rid_of_a_limit_by_joining_a_daemon_that_does_not_know_it(
    daemon: Callable[[str], Daemon], machine: Machine, how: str, limits: str
) -> None:
    """A program that is frozen for long may find its group gone."""
    group = "a b;rm"
    known = f'{{"{group}": {{{limits}}}}}'
    d = daemon(known)
    a = machine.start(group, "grow", 0, 300)
    assert a.line() == "ready"
    a.send_signal(signal.SIGSTOP)
    d.end(how)
    d.groups = "{}"
    d.start()
    a.send_signal(signal.SIGCONT)
    assert eventually(lambda: d.denied() or d.groups_now())
    assert d.groups_now() == {}
    assert says(a, 1000)[0] == "0"
    assert says(a, 1000)[0] == ("2" if "memory" in limits else "0")
    d.end(how)
    d.groups = known
    d.start()
    held = CONTEXT + (1300 if "memory" in limits else 2300) * MIB
    eventually(lambda: d.groups_now().get(group, [0])[0] == held)
    assert says(a, 1000)[0] == ("2" if "memory" in limits else "0")
    _, _, said = a.end()
    assert said.count(f"does not know group '{group}' any more: running on within the last limits") == 1, said
    hint = said.partition("make the group again with `")[2].partition("`")[0]
    typed = ["gemlet", "run", "--group", group, "--memory", "SIZE", "--", "sleep", "9"]
    assert [word for word in shlex.split(hint) if word != "--simulate"] == typed


def test_a_daemon_killed_again_and_again(daemon: Callable[[str], Daemon], machine: Machine) -> None:
    d = daemon("{}")
    programs = [machine.start(g, "work", 60, 20) for g in "abc"]
    eventually(lambda: all(p.rounds() > 3 for p in programs))
    for _ in range(4):
        d.end("killed")
        n = [p.rounds() for p in programs]
        eventually(lambda n=n: all(p.rounds() > m + 3 for p, m in zip(programs, n, strict=True)))
        d.start()
    eventually(lambda: [d.groups_now().get(g, [0, 0])[:2] for g in "abc"] == [[CONTEXT + 20 * MIB, 1]] * 3)
    n = [p.rounds() for p in programs]
    eventually(lambda: all(p.rounds() > m + 10 for p, m in zip(programs, n, strict=True)))


def test_strict_programs_wait_and_go_on(daemon: Callable[[str], Daemon], machine: Machine) -> None:
    d = daemon('{"a": {}}')
    program = machine.start("a", "work", 60, GEMLET_STRICT="1")
    eventually(lambda: program.rounds() > 3)
    d.end("killed")

    def stands_still() -> bool:  # once what was queued has ended; half a second is many rounds
        n = program.rounds()
        time.sleep(0.5)
        return program.rounds() <= n + 1

    eventually(stands_still)
    n = program.rounds()
    d.start()
    eventually(lambda: program.rounds() > n + 10)


def test_a_strict_program_that_goes_on_waits_for_a_dead_daemon_once(
    daemon: Callable[[str], Daemon], machine: Machine
) -> None:
    d = daemon('{"a": {}}')
    program = machine.start("a", "insist", 60, GEMLET_STRICT="1")  # ten seconds for each launch would be ten minutes
    eventually(lambda: program.rounds() > 3)
    d.end("killed")
    code, _, err = program.end()
    assert code == 0
    assert "work waits for it to come back, and fails after 10 s (--strict)" in err


def test_a_strict_program_whose_group_is_not_there_fails(daemon: Callable[[str], Daemon], machine: Machine) -> None:
    daemon('{"a": {}}')
    err = machine.start("b", "launch-one", GEMLET_STRICT="1").end()[2]
    assert "there is no such group" in err
    assert "cuDevicePrimaryCtxRetain(&context, device): 802" in err  # CUDA_ERROR_SYSTEM_NOT_READY


def test_a_strict_program_without_a_daemon_fails_in_the_end(machine: Machine) -> None:
    begin = time.monotonic()
    err = machine.start("a", "launch-one", GEMLET_STRICT="1").end()[2]
    assert time.monotonic() - begin > 8
    assert "cuDevicePrimaryCtxRetain(&context, device): 802" in err  # CUDA_ERROR_SYSTEM_NOT_READY
    assert "no daemon at" in err


def test_a_frozen_daemon_does_not_slow_allocations_down(daemon: Callable[[str], Daemon], machine: Machine) -> None:
    """The daemon is told of each refusal. If it does not read, telling must not block, or it would block for ever."""
    d = daemon('{"a": {"memory": 1073741824}}')
    a = machine.start("a", "grow", 0, 300)
    assert a.line() == "ready"
    d.process.send_signal(signal.SIGSTOP)
    for _ in range(600):
        a.tell("1000")
        assert a.line().split()[0] == "2"
    d.process.send_signal(signal.SIGCONT)
    assert eventually(lambda: d.groups_now()["a"][:2] == [CONTEXT + 300 * MIB, 1])


ROUND = 0.001  # seconds of the device's time in one round of `work`


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_programs_run_on_by_the_last_shares_while_the_daemon_is_silent(
    daemon: Callable[[str], Daemon], machine: Machine, how: str
) -> None:
    d = daemon('{"capped": {"memory": 1073741824, "max": 0.2}}')
    programs = {name: machine.start(name, "work", 120) for name in ("capped", "a", "b")}
    eventually(lambda: all(p.rounds() > 20 for p in programs.values()))
    d.process.send_signal(signal.SIGSTOP if how == "stopped" else signal.SIGKILL)
    for _ in range(2):
        begin, n = time.monotonic(), {name: p.rounds() for name, p in programs.items()}
        eventually(lambda n=n: all(p.rounds() > n[name] + 150 for name, p in programs.items()))
        used = (programs["capped"].rounds() - n["capped"]) * ROUND
        # However long this took: nobody has more of any second than its maximum, and a part more at either end.
        assert used < 0.3 * (time.monotonic() - begin) + 0.1
    if how == "stopped":
        d.process.send_signal(signal.SIGCONT)
    else:
        d.process.communicate()
        d.start()
    # It decides again: what it charges grows.
    eventually(lambda: len(d.groups_now()) == 3)
    before = {name: group[2] for name, group in d.groups_now().items()}
    eventually(lambda: all(group[2] > before[name] + 10_000_000 for name, group in d.groups_now().items()))
    for name, program in programs.items():
        program.kill()
        _, _, said = program.end()
        count = said.count("running on by the last shares")
        # Those that share the device without turns may never have needed the daemon while it was stopped.
        assert count == 1 if name == "capped" or how == "killed" else count <= 1, (name, said)


def test_one_whose_turn_has_no_end_leaves_the_others_their_part(
    daemon: Callable[[str], Daemon], machine: Machine
) -> None:
    """Its turn has none while the others have had all that they may have, so it waits for nothing."""
    d = daemon('{"a": {"memory": 1073741824}, "b": {"memory": 1073741824, "min": 0.3, "max": 0.4}}')
    programs = {name: machine.start(name, "work", 120) for name in "ab"}
    eventually(lambda: all(p.rounds() > 20 for p in programs.values()))
    for _ in range(6):
        time.sleep(0.5)  # the daemon says how they divide the device ten times a second
        d.process.send_signal(signal.SIGSTOP)
        time.sleep(0.6)  # until they follow what was agreed
        begin, n = time.monotonic(), programs["a"].rounds()
        eventually(lambda n=n: programs["a"].rounds() > n + 1000)
        used = (programs["a"].rounds() - n) * ROUND
        assert used < 0.68 * (time.monotonic() - begin)  # 0.6 of each period is its part
        d.process.send_signal(signal.SIGCONT)
        before = d.groups_now()["b"][2]
        eventually(lambda before=before: d.groups_now()["b"][2] > before + 100_000_000)
    for program in programs.values():
        program.kill()
        program.end()


@pytest.mark.parametrize("verb", ["come-and-go", "gates"])
def test_no_way_to_use_a_device_waits_for_a_stopped_daemon(
    daemon: Callable[[str], Daemon], machine: Machine, verb: str
) -> None:
    """Neither does one that comes back from a pause, nor one whose work waits for the thread that submits it."""
    d = daemon('{"b": {"max": 0.5}}')
    busy, other = machine.start("a", "work", 120), machine.start("b", verb, 120)
    eventually(lambda: busy.rounds() > 20 and other.rounds() >= 3)
    for number in (signal.SIGSTOP, signal.SIGCONT):
        d.process.send_signal(number)
        n = busy.rounds(), other.rounds()
        eventually(lambda n=n: busy.rounds() > n[0] + 50 and other.rounds() > n[1] + 5)


def test_a_program_without_room_is_told_so(machine: Machine) -> None:
    from gemlet import _native

    server = _native.Server(connections=2)
    server.listen(machine.socket)
    server.start()
    first, second = RawClient(machine.socket, "a"), RawClient(machine.socket, "b")
    try:
        code, out, err = machine.start("a", "launch-one").end()
    finally:
        first.close()
        second.close()
        server.stop()
    assert (code, out) == (0, "0\n")
    assert f"user {os.getuid()} has 2 of 2 connections" in err
    assert "version" not in err


def test_without_a_daemon(machine: Machine, tmp_path: Path) -> None:
    """Every wrong place ends in one line and a program that runs."""
    file = tmp_path / "file"
    file.touch()
    with contextlib.ExitStack() as open_sockets:
        for name, kind in (("silent", socket.SOCK_SEQPACKET), ("stream", socket.SOCK_STREAM)):
            listening = open_sockets.enter_context(socket.socket(socket.AF_UNIX, kind))
            listening.bind(str(tmp_path / name))
            listening.listen()
        _programs_run(machine, tmp_path)


def _programs_run(machine: Machine, tmp_path: Path) -> None:
    file = tmp_path / "file"
    for place in (tmp_path / "nothing", file, tmp_path, tmp_path / "stream", "/" + "x" * 300, tmp_path / "silent"):
        code, out, err = machine.start("a", "launch-one", GEMLET_SOCKET=str(place)).end()
        assert (code, out) == (0, "0\n"), place
        assert sum(line.startswith("gemlet: ") for line in err.splitlines()) == 1, err
        assert "running without limits" in err


@pytest.mark.parametrize(
    "command", [["/bin/ls", "/"], ["/bin/sh", "-c", "echo a; echo b >&2; exit 3"], [sys.executable, "-c", "pass"]]
)
def test_programs_without_cuda_notice_nothing(machine: Machine, command: list[str]) -> None:
    plain, hooked = (machine.start(g, *command[1:], command=command[0]) for g in (None, "a"))
    assert plain.end() == hooked.end()


def test_without_a_driver_and_beside_another_preload(machine: Machine, tmp_path: Path) -> None:
    environment = machine.environment("a", LD_LIBRARY_PATH="")
    script = "import ctypes, sys\ntry: ctypes.CDLL('libcuda.so.1')\nexcept OSError: sys.exit(5)"
    if subprocess.run([sys.executable, "-c", script], env=environment, check=False).returncode not in (0, 5):
        pytest.fail("the hook without a driver")
    source = tmp_path / "other.c"
    source.write_text(
        "#define _GNU_SOURCE\n#include <dlfcn.h>\n#include <unistd.h>\n"
        'int close(int fd) { static int (*next)(int); if (!next) next = (int (*)(int))dlsym(RTLD_NEXT, "close");'
        " return next(fd); }\n"
    )
    other = tmp_path / "other.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", other, source, "-ldl"], check=True)
    hook = environment["LD_PRELOAD"]
    for both in (f"{hook}:{other}", f"{other}:{hook}"):
        assert machine.run("a", "launch-one", LD_PRELOAD=both, GEMLET_SOCKET=os.devnull) == "0\n"
