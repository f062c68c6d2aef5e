"""The processes that read large requests: one that is killed is replaced."""

from __future__ import annotations

import asyncio
import os
import signal
import struct
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

from gemlet.errors import GemletError
from gemlet.serve.dispatch.call import Refusal
from gemlet.serve.server.frontend.unpacking import Unpacking

PATIENCE_S = 60  # a limit for what never comes


def test_a_process_that_was_killed_while_idle_is_replaced():
    async def run():
        processes = Unpacking()
        try:
            first = await processes(0, os.getpid)
            os.kill(first, signal.SIGKILL)
            async with asyncio.timeout(PATIENCE_S):
                while not processes._processes[True].pool._broken:  # noqa: ASYNC110  the pool tells nobody
                    await asyncio.sleep(0.01)
            with pytest.raises(Refusal, match="was killed"):
                await processes(0, os.getpid)
            assert await processes(0, os.getpid) != first
        finally:
            processes.close()

    asyncio.run(run())


@pytest.fixture
def no_shared_locks(monkeypatch):
    """As in a container whose /dev/shm is read-only."""

    def refuse(*_given):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("_multiprocessing.SemLock", refuse)


@pytest.mark.usefixtures("no_shared_locks")
def test_a_system_without_shared_locks_is_said_at_the_start_and_in_answers():
    async def run():
        processes = Unpacking()
        with pytest.raises(GemletError, match=r"/dev/shm: .*Permission denied") as error:
            await processes.warm()
        assert "--tmpfs /dev/shm" in error.value.hint
        with pytest.raises(Refusal, match="/dev/shm"):
            await processes(0, os.getpid)

    asyncio.run(run())


def test_a_process_that_cannot_start_yet_does_not_end_the_server(monkeypatch, caplog):
    async def run():
        processes = Unpacking()
        try:
            with monkeypatch.context() as full:
                full.setattr("multiprocessing.popen_spawn_posix.Popen", mock.Mock(side_effect=OSError(11, "none")))
                await processes.warm()
            assert await processes(0, os.getpid)
        finally:
            processes.close()

    asyncio.run(run())
    assert "failed: none" in caplog.text


def test_the_next_request_waits_for_one_that_was_cancelled_twice(tmp_path):
    """As one is whose connection is refused what it asked for, and then ends: both have the same files."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    async def run():
        processes = Unpacking()
        try:
            first = asyncio.ensure_future(processes(0, Path.read_bytes, pipe))
            await asyncio.to_thread(pipe.write_bytes, b"")  # it is there, and done
            assert await first == b""
            first = asyncio.ensure_future(processes(0, Path.read_bytes, pipe))
            with await asyncio.to_thread(pipe.open, "wb"):  # it is there
                second = asyncio.ensure_future(processes(0, len, b"x"))
                for _ in range(2):
                    first.cancel()
                    for _ in range(4):
                        await asyncio.sleep(0)
                assert not first.done()
            assert await second == 1
            assert first.cancelled()
        finally:
            processes.close()

    asyncio.run(run())


def die_within_a_result():
    """As a process does that is killed while it writes one."""
    frame = sys._getframe()
    while "result_queue" not in frame.f_locals:
        frame = frame.f_back
    os.write(frame.f_locals["result_queue"]._writer.fileno(), struct.pack("!i", 1 << 20) + b"some")
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_that_is_killed_within_a_result_is_replaced():
    async def run():
        processes = Unpacking()
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(Refusal, match="was killed"):
                await processes(0, die_within_a_result)
            assert await processes(0, os.getpid) != os.getpid()
        processes.close()

    asyncio.run(run())


LIMITED = """
import resource
from gemlet.serve.server.frontend import unpacking
resource.setrlimit(resource.RLIMIT_DATA, (2**32, 2**32))
unpacking.MEMORY_BYTES = 2**40
unpacking._prepare()
print(resource.getrlimit(resource.RLIMIT_DATA))
"""


def test_a_process_starts_where_the_server_itself_may_have_less_memory():
    told = subprocess.run([sys.executable, "-c", LIMITED], capture_output=True, text=True, check=False, timeout=60)
    assert told.stdout == f"{(2**32, 2**32)}\n", told.stderr
