"""The hook that runs inside PyTorch programs, with a double of PyTorch and of the preloaded library."""

from __future__ import annotations

import ast
import importlib.util
import json
import socket
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from gemlet import paths

if TYPE_CHECKING:
    from types import ModuleType

MIB = 1 << 20
DEFAULT_POOL, GRAPH_POOL = (0, 0), (0, 1)


def loaded() -> ModuleType:
    """By its path, as in programs."""
    spec = importlib.util.spec_from_file_location("hook", Path(paths.injected_dir()) / "_gemlet_torch_hook.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


hook = loaded()


def segment(address, *blocks, pool=DEFAULT_POOL, **more):
    listed = [{"size": size * MIB, "state": state} for size, state in blocks]
    return {"address": address, "segment_pool_id": pool, "is_expandable": False, "blocks": listed} | more


TRAINING = [
    segment(0x1000_0000, (4, "active_allocated"), (8, "inactive"), (4, "active_pending_free"), (16, "inactive")),
    segment(0x9000_0000, (2, "inactive")),
]


def test_only_inactive_blocks_are_unused():
    starts, sizes = hook.unused(TRAINING)
    assert starts == [0x1000_0000 + 4 * MIB, 0x1000_0000 + 16 * MIB, 0x9000_0000]
    assert sizes == [8 * MIB, 16 * MIB, 2 * MIB]


def test_a_graphs_pool_is_in_use():
    # The output of one graph, its tensor gone, may be the input of another of the same pool.
    pool = [segment(0x1000_0000, (64, "inactive"), pool=GRAPH_POOL)]
    assert hook.unused(pool) == ([], [])
    assert hook.unused(pool + TRAINING) == hook.unused(TRAINING)


def test_segments_that_grow_are_like_others():
    assert hook.unused([segment(0x1000_0000, (64, "inactive"), is_expandable=True)]) == ([0x1000_0000], [64 * MIB])


def test_small_holes_are_left_out():
    assert hook.unused([segment(0x1000_0000, (0.25, "inactive"), (1, "inactive"))])[1] == [MIB]


class Library:
    """Notes the calls; answers ``use``."""

    def __init__(self, use: int) -> None:
        self.calls: list[str] = []
        self.declared: list[tuple[int, list[int], list[int]]] = []

        def ends() -> int:
            return self.use

        def begin() -> int:
            self.calls.append("begin")
            return 7

        def declare(ticket: int, starts: Any, sizes: Any, count: int) -> int:
            self.calls.append("declare")
            self.declared.append((ticket, list(starts[:count]), list(sizes[:count])))
            return 0

        self.use = use
        self.gemlet_iteration_ends = ends
        self.gemlet_dead_begin = begin
        self.gemlet_declare_dead = declare


class Clock:
    """Each look at the allocator takes ``look`` seconds."""

    def __init__(self, look: float = 0.001) -> None:
        self.now, self.look = 1000.0, look

    def __call__(self) -> float:
        return self.now


def torch_with(segments, *, clock=None, library=None, backend="native"):
    def memory_snapshot():
        if clock:
            clock.now += clock.look
        if library:
            library.calls.append("look")
        return segments

    cuda = SimpleNamespace(
        is_initialized=lambda: True,
        is_current_stream_capturing=lambda: False,
        get_allocator_backend=lambda: backend,
        memory_snapshot=memory_snapshot,
    )
    return SimpleNamespace(cuda=cuda, compiler=SimpleNamespace(is_compiling=lambda: False))


def dead(use: int, segments=TRAINING, look: float = 0.001):
    library, clock = Library(use), Clock(look)
    return hook.Dead(torch_with(segments, clock=clock, library=library), library, clock), library, clock


def test_without_a_use_for_it_the_allocator_is_not_inspected():
    act, library, _ = dead(hook.USELESS)
    act()
    assert library.calls == []


def test_a_waiting_client_is_answered_each_time():
    act, library, _ = dead(hook.WANTED)
    act()
    act()
    assert library.calls == ["begin", "look", "declare"] * 2  # the ticket first
    assert library.declared[1] == (7, *hook.unused(TRAINING))


def test_a_client_that_does_not_wait_costs_a_part_of_the_time_at_most():
    act, library, clock = dead(hook.USEFUL)
    act()
    act()
    assert library.calls.count("look") == 1
    clock.now += 0.001 * hook.SHARE
    act()
    assert library.calls.count("look") == 2


def test_a_look_that_takes_long_is_not_waited_for_twice():
    act, library, clock = dead(hook.WANTED, look=2.0)
    act()
    act()
    assert library.calls == ["begin", "look", "declare", "begin", "declare"]
    assert library.declared[1] == (7, [], [])  # so that nobody waits on
    clock.now += 2.0 * hook.SHARE
    act()
    assert library.calls[-3:] == ["begin", "look", "declare"]


def test_a_look_that_fails_does_not_keep_anybody_waiting():
    act, library, _ = dead(hook.WANTED, segments=[{}])
    with pytest.raises(KeyError):
        act()
    assert library.declared == [(7, [], [])]


def test_another_allocator_is_not_looked_at():
    library = Library(hook.WANTED)
    act = hook.Dead(torch_with([], backend="cudaMallocAsync"), library)
    with pytest.raises(hook.Off, match="cudaMallocAsync"):
        act()
    assert library.declared == [(7, [], [])]


def test_a_library_without_these_functions():
    with pytest.raises(hook.Off, match="version"):
        hook.Dead(torch_with([]), SimpleNamespace())


def test_the_history_of_allocations_is_left_out_where_that_is_possible():
    asked = []

    def recent(mempool_id=None, include_traces=True):
        asked.append(include_traces)
        return TRAINING

    def old():
        return TRAINING

    assert hook._cheapest(recent)() is hook._cheapest(old)() is TRAINING
    assert asked == [False]


@pytest.fixture
def told(monkeypatch):
    said: list[str] = []
    monkeypatch.setattr(hook, "tell", lambda error: said.append(str(error)))
    return said


def test_after_a_failure_it_is_off_and_said_once(told):
    acted = []

    def act():
        acted.append(1)
        raise hook.Off("reason")

    after = hook.after_step(torch_with([]), act)
    for _ in range(3):
        after(None, (), {})
    assert (len(acted), told) == (1, ["reason"])


@pytest.mark.parametrize("state", ["compiling", "capturing", "no CUDA yet"])
def test_a_step_that_does_not_run_now_does_nothing(told, state):
    torch = torch_with([])
    torch.compiler.is_compiling = lambda: state == "compiling"
    torch.cuda.is_current_stream_capturing = lambda: state == "capturing"
    torch.cuda.is_initialized = lambda: state != "no CUDA yet"
    after = hook.after_step(torch, lambda: pytest.fail("acted"))
    after(None, (), {})
    assert told == []


def test_the_cache_is_emptied():
    torch, emptied = torch_with([]), []
    torch.cuda.empty_cache = lambda: emptied.append(1)
    hook.after_step(torch, hook.action("empty-cache", torch))(None, (), {})
    assert emptied == [1]


def test_a_wish_of_another_version():
    with pytest.raises(hook.Off, match="'juggle'"):
        hook.action("juggle", torch_with([]))


def test_an_old_pytorch_is_reported(told, monkeypatch):
    monkeypatch.setitem(hook.sys.modules, "torch", torch_with([]))
    hook.install(SimpleNamespace(), "dead")
    assert len(told) == 1
    assert "too old" in told[0]


def test_the_daemon_hears_it_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("GEMLET_SOCKET", str(tmp_path / "gemlet.sock"))
    hook.tell(ValueError("nobody listens"))  # says nothing and does not fail
    heard: list[bytes] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(tmp_path / "api.sock"))
        server.listen()

        def answer():
            connection, _ = server.accept()
            with connection:
                heard.append(connection.makefile("rb").readline())
                connection.sendall(b"{}\n")

        thread = threading.Thread(target=answer)
        thread.start()
        hook.tell(ValueError("bad\nluck\x1b"))
        thread.join()
    request = json.loads(heard[0])
    assert request == {"v": 1, "op": "note", "topic": "torch hook is off", "text": "ValueError: bad luck"}


def test_pythons_of_programs_can_read_it():
    source = (Path(paths.injected_dir()) / "_gemlet_torch_hook.py").read_text()
    ast.parse(source, feature_version=(3, 8))
    ast.parse((Path(paths.injected_dir()) / "sitecustomize.py").read_text(), feature_version=(3, 4))
