"""Ways around a limit, all closed: without the daemon, with a daemon that refuses, without the variables, past the
hook."""

from __future__ import annotations

import contextlib
import resource
import shutil
import socket
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gemlet import paths
from gemlet.kube.names import SHARE_SUFFIX
from tests.compiled import compiled, compiled_text, cuda_include
from tests.sim.robustness.hurt_machine import CONTEXT, MIB, PATIENCE, eventually
from tests.unit.server import wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.sim.robustness.hurt_machine import Machine, Served

LIMIT = CONTEXT + 1024 * MIB
EVERYTHING = 8192  # MiB; what `fill` takes of a device without a limit
STRICT = {"GEMLET_STRICT": "1"}
OUT_OF_MEMORY, NOT_READY = 2, 802


@pytest.fixture(scope="session")
def around() -> Path:
    options = ("-O1", "-g", f"-isystem{cuda_include()}", "-ldl", "-rdynamic", "-pthread")
    return compiled("cc", *options, sources=(Path(__file__).parent / "around.c",))


class Attempt:
    """A program that takes the steps; what came of each, by its name."""

    def __init__(self, machine: Machine, program: Path, *steps: str, group: str | None = "g", **changes: str) -> None:
        self.running = machine.start(group, *steps, command=str(program), **changes)
        self.seen: list[str] = []

    def reaches(self, step: str) -> None:
        while (line := self.running.line()) != f"{step} 0":
            assert line, self.running.end()
            self.seen.append(line)

    def go_on(self) -> None:
        self.running.tell("")

    def results(self) -> tuple[dict[str, int], str]:
        code, out, err = self.running.end()
        assert code == 0, (code, out, err)
        lines = (line.split() for line in (*self.seen, *out.splitlines()))
        return {step: int(result) for step, result in lines}, err


@pytest.fixture
def attempt(machine: Machine, around: Path) -> Callable[..., Attempt]:
    return lambda *steps, **changes: Attempt(machine, around, *steps, **changes)


# --- the daemon goes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strict", [{}, STRICT], ids=["", "strict"])
def test_limits_of_memory_outlive_the_daemon(
    served: Served, attempt: Callable[..., Attempt], strict: dict[str, str]
) -> None:
    served.server.set_group("g", memory=LIMIT)
    program = attempt("init", "context", "wait", "fill", "contexts", **strict)
    program.reaches("wait")
    served.server.stop()
    program.go_on()
    results, _ = program.results()
    assert (results["fill"], results["contexts"]) == (1024, 0)


@pytest.mark.parametrize("strict", [{}, STRICT], ids=["", "strict"])
def test_members_of_a_group_share_its_limit_without_a_daemon(
    served: Served, attempt: Callable[..., Attempt], strict: dict[str, str]
) -> None:
    served.server.set_group("g", memory=LIMIT + CONTEXT)
    programs = [attempt("init", "context", "wait", "fill", "wait", **strict) for _ in range(2)]
    for program in programs:
        program.reaches("wait")
    served.server.stop()
    for program in programs:
        program.go_on()
    filled = []
    for program in programs:
        filled.append(int(program.running.line().split()[1]))
        program.reaches("wait")
    assert sum(filled) == 1024
    for program in programs:
        program.go_on()
        program.results()


def test_a_context_that_is_made_without_a_daemon_counts(served: Served, attempt: Callable[..., Attempt]) -> None:
    served.server.set_group("g", memory=LIMIT + CONTEXT)
    program = attempt("init", "context", "wait", "contexts", "fill")
    program.reaches("wait")
    served.server.stop()
    program.go_on()
    results, _ = program.results()
    assert (results["contexts"], results["fill"]) == (3, 0)


# --- nobody lets it in -----------------------------------------------------------------------------------------------


WELCOME = wire.pack(wire.WELCOME, status=wire.OK, group=b"g")
REFUSALS = {
    "no daemon": None,
    "no answer": (),
    "too many clients": (wire.pack(wire.WELCOME, status=wire.FULL, text=b"too many clients"),),
    "no answer for the device": (WELCOME,),
    "too many processes": (WELCOME, wire.pack(wire.ATTACHED, status=wire.FULL, text=b"too many processes")),
    "no descriptors": (WELCOME, wire.pack(wire.ATTACHED, status=wire.OK)),
    "rubbish": (WELCOME, bytes(8)),
}


@pytest.fixture
def unwilling(machine: Machine) -> Iterator[Callable[[str], str]]:
    """A daemon for each refusal, which answers each connection's messages so and then hangs up; its socket."""
    listeners: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def start(refusal: str) -> str:
        path = str(machine.folder / str(list(REFUSALS).index(refusal)))
        answers = REFUSALS[refusal]
        if answers is None:
            return path
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listeners.append(listener)
        listener.bind(path)
        listener.listen()

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection, contextlib.suppress(OSError):
                        for answer in answers:
                            connection.recv(4096)
                            connection.send(answer)
                        connection.recv(4096)

        threads.append(threading.Thread(target=serve))
        threads[-1].start()
        return path

    yield start
    for listener in listeners:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
    for thread in threads:
        thread.join(5)


def test_a_strict_program_gets_nothing_that_nobody_governs(
    attempt: Callable[..., Attempt], unwilling: Callable[[str], str]
) -> None:
    """All at once, for each waits ten seconds for a daemon."""
    steps = ("init", "context", "contexts", "fill")
    attempts = [attempt(*steps, **STRICT, GEMLET_SOCKET=unwilling(refusal)) for refusal in REFUSALS]
    for refusal, program in zip(REFUSALS, attempts, strict=True):
        results, said = program.results()
        assert results == {"init": 0, "context": NOT_READY, "contexts": 0, "fill": 0}, refusal
        assert "--strict" in said


@pytest.mark.parametrize("refusal", REFUSALS)
def test_any_other_program_runs_and_says_that_it_has_no_limits(
    attempt: Callable[..., Attempt], unwilling: Callable[[str], str], refusal: str
) -> None:
    results, said = attempt("init", "context", "fill", "launch", GEMLET_SOCKET=unwilling(refusal)).results()
    assert results == {"init": 0, "context": 0, "fill": EVERYTHING, "launch": 0}
    assert said.count("running without limits") == 1, said


@pytest.mark.parametrize("refusal", REFUSALS)
def test_a_program_whose_limits_were_granted_keeps_to_them(
    attempt: Callable[..., Attempt], unwilling: Callable[[str], str], refusal: str
) -> None:
    granted = f"memory={LIMIT},max=200000"
    program = attempt("init", "context", "fill", "work", GEMLET_SOCKET=unwilling(refusal), GEMLET_LIMITS=granted)
    results, said = program.results()
    assert 0 < results["fill"] <= 1024
    assert results["work"] > 700  # ms, at a fifth of the time, for 300 ms of work
    assert said.count("keeping to the limits that it was started with") == 1, said


def test_a_program_that_was_granted_no_memory_has_none(
    attempt: Callable[..., Attempt], unwilling: Callable[[str], str]
) -> None:
    program = attempt("init", "context", GEMLET_SOCKET=unwilling("no daemon"), GEMLET_LIMITS="memory=0")
    assert program.results()[0] == {"init": 0, "context": OUT_OF_MEMORY}


def test_signals_do_not_shorten_the_wait_for_an_answer(machine: Machine, attempt: Callable[..., Attempt]) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as daemon:
        daemon.bind(machine.socket)
        daemon.listen()
        program = attempt("alarms", "init")
        program.reaches("alarmed")
        connection, _ = daemon.accept()
        connection.recv(4096)
        connection.send(wire.pack(wire.WELCOME, status=wire.FULL, text=b"after all"))
        connection.close()
        _, said = program.results()
    assert "after all" in said


def test_a_device_that_is_first_used_without_the_daemon(served: Served, attempt: Callable[..., Attempt]) -> None:
    served.server.set_group("g", memory=LIMIT)
    program = attempt("init", "context", "wait", "second", "fill", GEMLET_SIM_DEVICES="2")
    program.reaches("wait")
    served.server.stop()
    program.go_on()
    results, _ = program.results()
    assert results["second"] == 0
    assert 0 < results["fill"] <= 1024


# --- the program makes it so -----------------------------------------------------------------------------------------


def test_variables_that_a_program_removes(served: Served, attempt: Callable[..., Attempt]) -> None:
    served.server.set_group("g", memory=LIMIT)
    results, _ = attempt("forget", "init", "context", "fill").results()
    assert results == {"forget": 0, "init": 0, "context": 0, "fill": 1024}


@pytest.fixture
def in_a_share(machine: Machine, around: Path, tmp_path: Path) -> Callable[..., Attempt]:
    """A program with a hook beside which a file says what the environment must not: no variable of gemlet's is set."""
    hook = tmp_path / paths.HOOK_LIBRARY
    shutil.copy(paths.hook_path(), hook)

    def start(said: str | None, **changes: str) -> Attempt:
        beside = hook.with_name(f"{hook.name}{SHARE_SUFFIX}")
        beside.mkdir() if said is None else beside.write_text(said)
        steps = ("init", "context", "fill")
        return Attempt(machine, around, *steps, group=None, LD_PRELOAD=str(hook), **changes)

    return start


@pytest.mark.parametrize("changes", [{}, {"GEMLET_SOCKET": "/nowhere", "GEMLET_STRICT": "0"}], ids=["none", "other"])
def test_variables_that_a_program_of_a_share_does_not_have(
    served: Served, in_a_share: Callable[..., Attempt], changes: dict[str, str]
) -> None:
    served.server.set_group(socket.gethostname(), memory=LIMIT)
    results, _ = in_a_share(f"{served.machine.socket}\n", **changes).results()
    assert results == {"init": 0, "context": 0, "fill": 1024}


@pytest.mark.parametrize("said", ["", "/nowhere\n1\n", None], ids=["empty", "no daemon", "unreadable"])
def test_a_share_without_its_daemon_runs_nothing(in_a_share: Callable[..., Attempt], said: str | None) -> None:
    """Within the patience that the file says; ten seconds if it says none."""
    results, told = in_a_share(said).results()
    assert results == {"init": 0, "context": NOT_READY, "fill": 0}
    assert f"trying for {1 if said else 10} s, then refusing to run" in told


def test_descriptors_that_a_program_closes(served: Served, attempt: Callable[..., Attempt]) -> None:
    """Before it uses a device, and while it does. It joins again at once, without a message to anyone."""
    served.server.set_group("g", memory=LIMIT)
    results, said = attempt("init", "close", "context", "close", "launch", "close", "fill").results()
    assert results == {"init": 0, "close": 0, "context": 0, "fill": 1024, "launch": 0}
    assert "gemlet: " not in said or "limit of group" in said


@pytest.mark.parametrize("call", ["connect-1", "send-1", "send-2", "recvmsg-1", "recvmsg-2"])
@pytest.mark.parametrize("before", ["init", "context", "close"])
def test_descriptors_that_a_program_closes_while_it_joins(
    served: Served, attempt: Callable[..., Attempt], call: str, before: str
) -> None:
    """In another thread, right after any call that the hook makes for it."""
    served.server.set_group("g", memory=LIMIT)
    steps = {"init": (call, "init", "context"), "context": ("init", call, "context")}
    again = ("init", "context", call, "close", "launch")
    results, said = attempt(*steps.get(before, again), "fill").results()
    assert results["fill"] == 1024
    assert "running without limits" not in said
    assert "another version" not in said


def test_files_of_the_program_under_the_numbers_of_the_pages(
    served: Served, attempt: Callable[..., Attempt], tmp_path: Path
) -> None:
    """They are neither believed nor written, and the daemon's pages are asked for again."""
    served.server.set_group("g", memory=LIMIT)
    own = tmp_path / "own"
    own.write_bytes(bytes(1 << 16))
    results, said = attempt("init", "other-1", "context", "launch", "fill", OWN_FILE=str(own)).results()
    assert results == {"init": 0, "context": 0, "launch": 0, "fill": 1024}
    assert own.read_bytes() == bytes(1 << 16)
    assert "running without limits" not in said


def test_a_program_that_closes_its_descriptors_and_cannot_come_back(
    served: Served, attempt: Callable[..., Attempt]
) -> None:
    """What it has, and what it takes from then on, counts for its group as long as it lives."""
    served.server.set_group("g", memory=LIMIT + CONTEXT)
    other = attempt("init", "context", "wait", "fill")
    other.reaches("wait")
    program = attempt("init", "context", "wait", "close", "wait", "fill", "wait")
    program.reaches("wait")
    Path(served.machine.socket).rename(served.machine.folder / "elsewhere")
    program.go_on()
    program.reaches("wait")
    eventually(lambda: [one["pid"] for one in served.group("g")["awaited"]] == [program.running.pid])
    time.sleep(2.5)  # the daemon has looked at it more than once
    assert served.used("g") == 2 * CONTEXT
    program.go_on()
    program.reaches("wait")
    assert program.seen[-1] == "fill 1024"
    eventually(lambda: served.used("g") == LIMIT + CONTEXT)
    other.go_on()
    assert other.results()[0]["fill"] == 0
    program.go_on()
    _, said = program.results()
    assert "running on within its limits of memory" in said
    assert "running without limits" not in said
    eventually(lambda: served.used("g") == 0)


def test_a_program_that_says_hello_by_itself(served: Served, attempt: Callable[..., Attempt]) -> None:
    """As one with a second hook does: its place in the ledger stays its own, for it is the program that it was."""
    served.server.set_group("g", memory=LIMIT)
    hello = wire.pack(wire.HELLO, group=b"g").hex()
    results, _ = attempt("init", "context", "greet", "fill", HELLO=hello).results()
    assert results == {"init": 0, "context": 0, "greet": 0, "fill": 1024}


def test_too_few_descriptors(served: Served, attempt: Callable[..., Attempt]) -> None:
    """Whichever step fails for lack of a descriptor: strict refuses, and a program that runs without limits says so."""
    served.server.set_group("g", memory=100 * LIMIT)
    served.server.set_group("strict", memory=100 * LIMIT)
    counts = range(8)
    steps = ("init", "context", "launch", "wait")
    programs = [attempt(f"leave{left}", *steps) for left in counts]
    strict = [attempt(f"leave{left}", *steps, group="strict", **STRICT) for left in counts]
    for program in (*programs, *strict):
        program.reaches("wait")
    managed = {client["pid"] for client in served.clients()}
    # Those that came as far as the daemon show there; they try again, so now and then they seem to be governed.
    eventually(lambda: any("descriptor" in one["why"] for one in served.server.snapshot()["unmanaged"]))
    ends = []
    for program in (*programs, *strict):
        program.go_on()
        ends.append(program.results())
    ordinary = zip(programs, ends[: len(programs)], strict=True)
    without = [said for program, (_, said) in ordinary if program.running.pid not in managed]
    assert without
    assert all("running without limits" in said for said in without), without
    for program, (results, said) in zip(strict, ends[len(programs) :], strict=True):
        if program.running.pid not in managed:
            assert results["context"] == NOT_READY
            assert "--strict" in said


def test_a_driver_in_another_namespace(served: Served, attempt: Callable[..., Attempt]) -> None:
    served.server.set_group("g", memory=LIMIT)
    results, _ = attempt("elsewhere", "init", "context", "fill").results()
    assert results == {"elsewhere": 1, "init": 0, "context": 0, "fill": 1024}


def test_a_library_in_another_namespace_that_brings_the_driver(served: Served, attempt: Callable[..., Attempt]) -> None:
    driver = Path(paths.sim_dir()) / "libcuda.so.1"
    text = "extern int cuInit(unsigned);\nint start(void) { return cuInit(0); }\n"
    plugin = compiled_text("cc", "-shared", "-fPIC", driver, text=text)
    results, said = attempt("plugin", PLUGIN=str(plugin), **STRICT).results()
    assert results == {"plugin": 0}
    assert "--strict" in said
    results, said = attempt("plugin", PLUGIN=str(plugin)).results()
    assert results == {"plugin": 1}
    assert "running without limits" in said


DEEP = """
#include <dlfcn.h>
#include <stddef.h>
int cuMemAlloc_v2(unsigned long long*, size_t);
static unsigned long long p;
int linked(void) { return cuMemAlloc_v2(&p, (size_t)2 << 30); }
int looked_up(void) {
    return ((int (*)(unsigned long long*, size_t))dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuMemAlloc_v2"))(
        &p, (size_t)2 << 30);
}
"""


def test_a_library_that_prefers_what_it_brings_along(served: Served, attempt: Callable[..., Attempt]) -> None:
    served.server.set_group("g", memory=LIMIT)
    driver = Path(paths.sim_dir()) / "libcuda.so.1"
    plugin = compiled_text("cc", "-shared", "-fPIC", driver, "-ldl", text=DEEP)
    results, _ = attempt("init", "context", "deep", PLUGIN=str(plugin)).results()
    assert results == {"init": 0, "context": 0, "linked": OUT_OF_MEMORY, "looked_up": OUT_OF_MEMORY}


# --- calls that take memory in another way ---------------------------------------------------------------------------


def test_memory_that_only_a_descriptor_holds(served: Served, attempt: Callable[..., Attempt]) -> None:
    served.server.set_group("g", memory=CONTEXT + 2048 * MIB)
    results, _ = attempt("init", "context", "descriptors").results()
    assert 0 < results["descriptors"] <= 2048


def test_children_that_were_forked_past_libc(served: Served, attempt: Callable[..., Attempt]) -> None:
    served.server.set_group("g", memory=LIMIT)
    results, _ = attempt("children").results()
    assert results["children"] == 1024


def test_a_program_takes_turns_where_the_system_allows_no_thread(
    served: Served, machine: Machine, attempt: Callable[..., Attempt]
) -> None:
    served.server.set_group("g", max=0.2)
    program = attempt("threadless", "init", "context", "wait", "work")
    program.reaches("wait")
    machine.start("other", "work", 60)
    eventually(lambda: served.group("other").get("used_ns"))
    program.go_on()
    results, _ = program.results()
    assert results["work"] > 0  # else it hangs


@pytest.mark.parametrize("signal", ["SIGPIPE", "SIGXFSZ"])
def test_a_line_of_the_hooks_does_not_end_the_program(
    served: Served, machine: Machine, around: Path, tmp_path: Path, signal: str
) -> None:
    """To a pipe that nobody reads, or to a file that may not grow."""
    script = 'exec "$0" "$@"' + (f" 2> {tmp_path}/errors" if signal == "SIGXFSZ" else "")
    steps = ("init", "context", "fill", "wait", "fill", "work")
    program = machine.start("g", "-c", script, around, *steps, command="/bin/sh")
    while (line := program.line()) != "wait 0":
        assert line
    assert program.stderr is not None
    program.stderr.close()
    if signal == "SIGXFSZ":
        resource.prlimit(program.pid, resource.RLIMIT_FSIZE, (0, 0))
    served.server.set_group("g", memory=LIMIT)
    program.tell("")
    assert program.line() == "fill 0"
    assert program.line().startswith("work ")
    assert program.wait(PATIENCE) == 0


@pytest.mark.parametrize("jump", ["jump", "jump-deeper"])
def test_a_jump_out_of_a_call_leaves_nothing_open(served: Served, attempt: Callable[..., Attempt], jump: str) -> None:
    served.server.set_group("g", memory=LIMIT)
    results, _ = attempt("init", "context", "fill", jump, "fill").results()
    assert results[jump] == 0
    assert results["fill"] == 0, "the last one"


def test_memory_that_another_process_made(served: Served, attempt: Callable[..., Attempt]) -> None:
    """Its maker may end at any time, so the process that opens it pays for it, too."""
    served.server.set_group("g", memory=2 * CONTEXT + 1536 * MIB)
    program = attempt("open", "fill")
    assert program.results()[0] == {"open": 0, "fill": 512}


def test_a_full_group_is_refused_what_only_the_driver_can_size(served: Served, attempt: Callable[..., Attempt]) -> None:
    served.server.set_group("g", memory=LIMIT)
    results, _ = attempt("init", "context", "fill", "little-known").results()
    assert results == {"init": 0, "context": 0, "fill": 1024, "little-known": 16}


def test_memory_of_a_graph_is_refused_before_it_is_taken(served: Served, attempt: Callable[..., Attempt]) -> None:
    """By what its nodes may have at a time, and once only, however often it is launched."""
    served.server.set_group("g", memory=LIMIT)
    results, _ = attempt("init", "context", "big-graph", "big-upload", "graph", "fill").results()
    assert results == {"init": 0, "context": 0, "big-graph": 2, "big-upload": 2, "graph": 0, "fill": 256}


# --- its threads end where they are -----------------------------------------------------------------------------------


def test_a_thread_that_is_cancelled_while_it_waits_wants_no_more_time(
    served: Served, machine: Machine, attempt: Callable[..., Attempt]
) -> None:
    program = attempt("init", "context", "wait", "cancelled", "launch", "wait")
    program.reaches("wait")
    other = wire.RawClient(machine.socket, "other").attach(served.uuid)
    other.send(wire.REQUEST)
    other.await_state(wire.RUN)
    program.go_on()
    program.reaches("wait")
    assert program.seen[-2:] == ["cancelled 0", "launch 0"]
    other.close()
    eventually(lambda: not served.group("g")["holding"])
    program.go_on()
    program.results()


BUILT_WITH_A_SANITIZER = """
#include <dlfcn.h>
#include <stdio.h>
int main(void) {
    void* driver = dlopen("libcuda.so.1", RTLD_NOW);
    int (*init)(unsigned) = (int (*)(unsigned))dlsym(driver, "cuInit");
    int (*retain)(void**, int) = (int (*)(void**, int))dlsym(driver, "cuDevicePrimaryCtxRetain");
    void* context;
    const int begun = init(0);
    printf("%d %d\\n", begun, retain(&context, 0));
    return 0;
}
"""


def test_a_program_that_was_built_with_the_address_sanitizer(served: Served, machine: Machine) -> None:
    """Its runtime wants to be the first library, and the hook is in front of it."""
    program = compiled_text("cc", "-fsanitize=address", "-ldl", text=BUILT_WITH_A_SANITIZER)
    served.server.set_group("g", memory=CONTEXT // 2)
    for group, result in (("g", OUT_OF_MEMORY), ("other", 0)):
        code, out, err = machine.start(group, command=str(program), ASAN_OPTIONS="detect_leaks=0").end()
        assert (code, out) == (0, f"0 {result}\n"), err
