"""Every way in which editors, scripts and Kubernetes change a file, with real inotify."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import gc
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gemlet.config import watch
from gemlet.config.watch import Change, changes
from gemlet.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

PATIENCE = 60.0  # seconds, for what hangs


async def expect(watcher: watch.Changes, change: Change) -> None:
    assert await asyncio.wait_for(anext(watcher), PATIENCE) is change


async def expect_silence(watcher: watch.Changes, seconds: float = 0.15) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(watcher), seconds)


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await scenario()

    asyncio.run(main())


def rename_over(path: Path, text: str) -> None:
    new = path.with_name(".new")
    new.write_text(text)
    new.replace(path)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "etc" / "gemlet.toml"
    path.parent.mkdir()
    path.write_text("old")
    return path


@pytest.mark.parametrize(
    ("act", "change"),
    [
        pytest.param(lambda file: file.write_text("new"), Change.WRITTEN, id="in place"),
        pytest.param(lambda file: rename_over(file, "new"), Change.WRITTEN, id="rename"),
        pytest.param(lambda file: file.unlink(), Change.GONE, id="delete"),
        pytest.param(lambda file: file.rename(file.with_name("other")), Change.GONE, id="moved away"),
        pytest.param(lambda file: file.parent.rename(file.parent.with_name("x")), Change.GONE, id="directory moved"),
        pytest.param(lambda file: os.truncate(file, 0), Change.WRITTEN, id="truncate"),
        pytest.param(lambda file: file.chmod(0o600), Change.WRITTEN, id="made readable"),
    ],
)
def test_one_act_is_one_change(
    file: Path, act: Callable[[Path], object], change: Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "UNCLOSED", 0.025)  # truncate(2) closes nothing

    async def scenario() -> None:
        with changes(file) as watcher:
            act(file)
            await expect(watcher, change)
            await expect_silence(watcher)

    run(scenario)


def test_a_kernel_without_watches_is_asked_again(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "AGAIN", 0.2)

    async def scenario() -> None:
        with changes(file) as watcher:
            with monkeypatch.context() as exhausted:
                exhausted.setattr(watch._libc, "inotify_add_watch", lambda *_: (ctypes.set_errno(errno.ENOSPC), -1)[1])
                rename_over(file, "a")
                await expect(watcher, Change.WRITTEN)
                await expect_silence(watcher, 0.5)
            await expect(watcher, Change.WRITTEN)  # for what nobody saw meanwhile
            for text in ("b", "c"):
                rename_over(file, text)
                await expect(watcher, Change.WRITTEN)
                file.write_text(text * 2)
                await expect(watcher, Change.WRITTEN)
            await expect_silence(watcher)

    run(scenario)


def test_rename_is_followed_to_the_new_file(file: Path) -> None:
    async def scenario() -> None:
        with changes(file) as watcher:
            for text in ("a", "b"):
                rename_over(file, text)
                await expect(watcher, Change.WRITTEN)
            file.write_text("c")
            await expect(watcher, Change.WRITTEN)

    run(scenario)


def test_vanishing_is_not_an_error_and_coming_back_is_reported(file: Path) -> None:
    async def scenario() -> None:
        with changes(file) as watcher:
            file.unlink()
            await expect(watcher, Change.GONE)
            file.parent.rmdir()
            await expect(watcher, Change.GONE)
            file.parent.mkdir()
            await expect(watcher, Change.GONE)
            file.write_text("back")
            await expect(watcher, Change.WRITTEN)

    run(scenario)


def test_path_that_does_not_exist_yet(tmp_path: Path) -> None:
    async def scenario() -> None:
        file = tmp_path / "a" / "b" / "gemlet.toml"
        with changes(file) as watcher:
            file.parent.mkdir(parents=True)
            file.write_text("new")
            while await asyncio.wait_for(anext(watcher), PATIENCE) is not Change.WRITTEN:
                pass
            file.write_text("newer")
            await expect(watcher, Change.WRITTEN)

    run(scenario)


def test_configmap_swap(tmp_path: Path) -> None:
    # What the kubelet does: a new directory, a new link beside ..data, one rename.
    def publish(version: str) -> None:
        (tmp_path / version).mkdir()
        (tmp_path / version / "gemlet.toml").write_text(version)
        (tmp_path / "..data_tmp").symlink_to(version)
        (tmp_path / "..data_tmp").rename(tmp_path / "..data")

    async def scenario() -> None:
        publish("..1")
        file = tmp_path / "gemlet.toml"
        file.symlink_to("..data/gemlet.toml")
        with changes(file) as watcher:
            for version in ("..2", "..3"):
                publish(version)
                await expect(watcher, Change.WRITTEN)
                assert file.read_text() == version
            (tmp_path / "..1" / "gemlet.toml").write_text("nobody looks here any more")
            await expect_silence(watcher)

    run(scenario)


def test_target_of_an_absolute_link_in_another_directory(tmp_path: Path, file: Path) -> None:
    async def scenario() -> None:
        link = tmp_path / "link.toml"
        link.symlink_to(file)
        with changes(link) as watcher:
            rename_over(file, "new")
            await expect(watcher, Change.WRITTEN)

    run(scenario)


def test_link_loop_is_a_missing_file(tmp_path: Path) -> None:
    async def scenario() -> None:
        link = tmp_path / "loop"
        link.symlink_to("loop")
        with changes(link) as watcher:
            link.unlink()
            await expect(watcher, Change.GONE)

    run(scenario)


def test_hard_link_under_another_name(file: Path, tmp_path: Path) -> None:
    # A file bind-mounted into a container is changed through a directory that is not watched; so is a hard link.
    async def scenario() -> None:
        (tmp_path / "elsewhere").mkdir()
        other = tmp_path / "elsewhere" / "name"
        other.hardlink_to(file)
        with changes(file) as watcher:
            other.write_text("new")
            await expect(watcher, Change.WRITTEN)

    run(scenario)


def test_neighbours_are_not_news(file: Path) -> None:
    async def scenario() -> None:
        with changes(file) as watcher:
            file.with_name("other").write_text("x")
            file.with_name(".gemlet.toml.1.new").write_text("x")
            await expect_silence(watcher)

    run(scenario)


def test_many_writes_are_one_change(file: Path) -> None:
    async def scenario() -> None:
        with changes(file) as watcher:
            for number in range(100):
                file.write_text(str(number))
            await expect(watcher, Change.WRITTEN)
            await expect_silence(watcher)

    run(scenario)


def test_a_file_that_is_written_all_the_time_is_still_reported(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "UNCLOSED", 0.1)

    async def scenario() -> None:
        async def write() -> None:
            with file.open("w") as stream:
                while True:
                    stream.write("x")
                    stream.flush()
                    await asyncio.sleep(0.002)

        writer = asyncio.create_task(write())
        with changes(file) as watcher:
            for _ in range(3):
                await expect(watcher, Change.WRITTEN)
        writer.cancel()

    run(scenario)


def test_slow_writer_that_closes_is_not_read_half_way(file: Path) -> None:
    async def scenario() -> None:
        with changes(file) as watcher:
            with file.open("w") as stream:  # opening truncates: an event of its own
                watcher._take_events(asyncio.get_running_loop().time())
                stream.write("whole")
            await expect(watcher, Change.WRITTEN)
            assert file.read_text() == "whole"
            await expect_silence(watcher)

    run(scenario)


def test_what_is_not_closed_is_waited_for_and_what_is_closed_is_reported_within_50_ms(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How long it waits is what it asks the loop for: how late the loop is, is the machine's.

    The half of a file may be a valid one, and memory had no limit until the writer had come to it.
    """

    async def scenario() -> None:
        waits: list[float] = []
        begin = 0.0
        loop = asyncio.get_running_loop()
        call_at = loop.call_at

        def noted(when: float, *arguments: Any, **more: Any) -> asyncio.TimerHandle:
            waits.append(when - begin)
            return call_at(when, *arguments, **more)

        with changes(file) as watcher:
            with file.open("w") as stream:
                stream.write("half")
                stream.flush()
                watcher._take_events(begin := loop.time())
                assert watcher._due == begin + watch.UNCLOSED
                await expect_silence(watcher)
                stream.write(" and half")
            monkeypatch.setattr(loop, "call_at", noted)
            watcher._take_events(begin := loop.time())
            assert await anext(watcher) is Change.WRITTEN
            assert all(wait < 0.050 for wait in waits)

    run(scenario)


def test_a_file_that_is_made_is_waited_for_and_a_link_is_not(file: Path) -> None:
    async def scenario() -> None:
        with changes(file) as watcher:
            kept = file.rename(file.with_name("kept"))
            await expect(watcher, Change.GONE)
            with file.open("w"):
                await expect_silence(watcher)
            await expect(watcher, Change.WRITTEN)
            for link in (file.hardlink_to, file.symlink_to):
                file.unlink()
                await expect(watcher, Change.GONE)
                link(kept)
                watcher._take_events(now := asyncio.get_running_loop().time())
                assert watcher._due is not None
                assert watcher._due <= now + watch.SETTLED
                await expect(watcher, Change.WRITTEN)

    run(scenario)


def test_change_before_the_first_iteration_is_not_lost(file: Path) -> None:
    async def scenario() -> None:
        with changes(file) as watcher:
            file.write_text("new")
            await asyncio.sleep(0.1)
            await expect(watcher, Change.WRITTEN)

    run(scenario)


def test_cancelled_iteration_loses_nothing(file: Path) -> None:
    async def scenario() -> None:
        with changes(file) as watcher:
            task = asyncio.create_task(anext(watcher))
            await asyncio.sleep(0)
            file.write_text("new")
            await asyncio.sleep(0.005)  # the event has been read, the change not yet reported
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await expect(watcher, Change.WRITTEN)

    run(scenario)


def test_async_for_ends_when_closed_and_leaks_no_descriptor(file: Path) -> None:
    async def scenario() -> None:
        gc.collect()  # what earlier tests left
        before = len(list(Path("/proc/self/fd").iterdir()))
        for _ in range(3):
            async for _change in _written_once(file):
                break
        gc.collect()
        assert len(list(Path("/proc/self/fd").iterdir())) == before
        watcher = changes(file)
        watcher.close()
        assert [change async for change in watcher] == []

    def _written_once(file: Path) -> watch.Changes:
        watcher = changes(file)
        file.write_text("new")
        return watcher

    run(scenario)


def test_overflow_of_the_queue_is_a_change(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        with changes(file) as watcher:
            file.with_name("other").write_text("wakes it")
            overflow = watch._EVENT.pack(-1, watch._IN_Q_OVERFLOW, 0, 0)
            monkeypatch.setattr(watch.os, "read", lambda *_: overflow)
            await asyncio.wait_for(anext(watcher), PATIENCE)

    run(scenario)


def test_no_more_instances_says_which_limit() -> None:
    # In a process of its own: the limit of descriptors gives the same EMFILE as the limit of instances.
    code = (
        "import resource\n"
        "from gemlet.config.watch import changes\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))\n"
        "try: changes('x')\n"
        "except Exception as error: print(type(error).__name__, error.hint)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert result.stdout.split(maxsplit=1)[0] == ConfigError.__name__
    assert "max_user_instances" in result.stdout
