"""The live view on a fixed status: what it shows, its keys, and the smallest terminal it must fit."""

from __future__ import annotations

import asyncio
import dataclasses
import signal
import subprocess

import msgspec
import pytest
from msgspec.structs import replace

from gemlet.daemon.audit import Outsider
from gemlet.daemon.events import Event
from gemlet.daemon.programs import look
from gemlet.daemon.status import SwapStatus
from gemlet.errors import DaemonUnreachable
from gemlet.monitor.top import Top, screenshot
from tests.unit.monitor.status_example import example

SMALLEST = (80, 24)


def drive(app, *, size=SMALLEST, steps=()):
    async def run():
        async with app.run_test(size=size) as pilot:
            while "q quit" not in shown(app):  # the keys come last; a test that waits for them in vain times out
                await pilot.pause(0.01)
            for step in steps:
                if callable(step):
                    step(app)
                else:
                    await pilot.press(step)
                    await pilot.pause()
            return shown(app)

    return asyncio.run(run())


def shown(app) -> str:
    strips = app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in strip) for strip in strips)


def test_shows_devices_groups_clients_and_events():
    text = drive(Top(example))
    for word in ("Fake H200", "team", "42.1%", "below its minimum", "train", "4242", "refused", "space", "pause"):
        assert word in text, word


def test_a_program_is_shown_as_people_know_it():
    text = drive(Top(example), size=(100, 24))
    for word in ("train.py", "ana", "2.5 GiB", "2023-11-1", "61 C", "1980 MHz"):
        assert word in text, word


def test_without_a_daemon_it_shows_who_uses_the_devices():
    who = Outsider(
        pid=77, uid=0, command="x", name="serve.py", device=0, memory=5 << 30, graphics=False, seconds=1.0, user="bo"
    )
    device = replace(example().devices[0], groups=(), share={})
    alone = replace(
        example(), daemon=None, devices=(device,), groups=(), events=(), outside=(who,), problem="no daemon at /x"
    )
    text = drive(Top(lambda: alone))
    for word in ("no daemon at /x", "Fake H200", "serve.py", "bo", "outside", "5 GiB", "gemlet run"):
        assert word in text, word


def test_an_event_is_told_once():
    left = Event(number=1, time=0.0, kind="leave", group="team", pid=4242, command="train", text="left")
    text = drive(Top(lambda: replace(example(), events=(left,))))
    assert "left" in text
    assert "left left" not in text


def swapping():
    swap = SwapStatus(resident=1 << 30, swapped=2 << 30, moved_out=0, moved_in=0, dropped=0, handover_s=None, reason="")
    found = example()
    device = found.devices[0]
    groups = [dataclasses.replace(g, clients=tuple(replace(c, swap=swap) for c in g.clients)) for g in device.groups]
    return replace(found, devices=(replace(device, groups=tuple(groups)),))


def test_columns_of_swap_are_shown_while_any_memory_can_move():
    answers = [example(), swapping(), example()]

    async def run():
        # A refresh of the timer's, in a thread of its own, may read after the last answer was taken.
        app, screens = Top(lambda: (answers or [example()])[0]), []
        async with app.run_test(size=(140, 30)) as pilot:
            while answers:
                await app.refresh_status()
                await pilot.pause()
                screens.append(shown(app))
                answers.pop(0)
                app.action_pause()
                if answers:
                    app.action_pause()
        return screens

    without, with_swap, again = asyncio.run(run())
    for word in ("RESIDENT", "SWAPPED", "HAND-OVER"):
        assert word not in without
        assert word in with_swap
        assert word not in again
    assert "4242" in without
    assert "2 GiB" in with_swap
    assert "4242" in again


def test_fits_the_smallest_terminal():
    lines = drive(Top(example)).splitlines()
    assert len(lines) == 24
    assert all(len(line) <= 80 for line in lines)
    assert any("4242" in line for line in lines)
    assert any("refused" in line for line in lines)


def test_says_simulated():
    simulated = msgspec.structs.replace(example(), simulated=True)
    assert "SIMULATED" in drive(Top(lambda: simulated))
    assert "SIMULATED" not in drive(Top(example))


def test_sort_changes_the_order():
    def order(text):
        return text.index("team ") < text.index("batch ")

    assert order(drive(Top(example)))
    assert not order(drive(Top(example), steps=["s", "s"]))


def test_a_filter_leaves_what_has_it_in_a_cell():
    narrowed = drive(Top(example), steps=["slash", *"Train.P", "enter"])
    assert "team" in narrowed
    assert "batch" not in narrowed
    everything = drive(Top(example), steps=["slash", *"Train.P", "escape"])
    assert "batch" in everything
    assert drive(Top(example), steps=["slash", *"q", "escape"])  # a letter of the filter is no command


def test_programs_are_below_their_group_and_fold():
    opened = drive(Top(example))
    assert "▾ team (1)" in opened
    assert "4242" in opened.split("▾ team (1)")[1].splitlines()[1]
    folded = drive(Top(example), steps=["enter"])
    assert "▸ team (1)" in folded
    assert "runs" not in folded
    assert "runs" in drive(Top(example), steps=["enter", "enter"])
    assert "runs" not in drive(Top(example), steps=["down", "enter"])  # of a program's row its group
    assert "runs" not in drive(Top(example), steps=["f"])
    assert "runs" in drive(Top(example), steps=["f", "f"])


def test_the_cursor_stays_on_its_program_when_others_come():
    answers = [example(), beside(example(), pid=4000)]

    async def run():
        app = Top(lambda: answers[0])
        async with app.run_test(size=(100, 30)) as pilot:
            await pilot.press("down")
            answers.pop(0)
            await app.refresh_status()
            await pilot.press("k")
            await pilot.pause()
            return shown(app)

    assert "train.py (4242)" in asyncio.run(run())


def beside(status, *, pid):
    """``status`` with another program before each."""
    device = status.devices[0]
    groups = [
        dataclasses.replace(g, clients=(*(replace(c, pid=pid) for c in g.clients), *g.clients)) for g in device.groups
    ]
    return replace(status, devices=(replace(device, groups=tuple(groups)),))


def running(program):
    """The example with a living process in its group."""
    known = look(program.pid)
    status = example()
    device = status.devices[0]
    groups = [
        dataclasses.replace(g, clients=tuple(replace(c, pid=program.pid, started=known.started) for c in g.clients))
        for g in device.groups
    ]
    return replace(status, devices=(replace(device, groups=tuple(groups)),))


@pytest.fixture
def sleeper():
    with subprocess.Popen(["sleep", "1000"]) as program:
        yield program
        program.kill()


@pytest.mark.parametrize("rows_down", [[], ["down"]])
@pytest.mark.parametrize(("key", "number"), [("t", signal.SIGTERM), ("K", signal.SIGKILL)])
def test_kill_asks_and_then_ends(sleeper, rows_down, key, number):
    status = running(sleeper)
    asked = drive(Top(lambda: status), steps=[*rows_down, "k"])
    assert f"End train.py ({sleeper.pid})?" in asked
    drive(Top(lambda: status), steps=[*rows_down, "k", "escape"])
    assert sleeper.poll() is None
    drive(Top(lambda: status), steps=[*rows_down, "k", key])
    assert sleeper.wait(timeout=60) == -number


def test_kill_leaves_a_pid_that_another_process_has_now(sleeper):
    status = running(sleeper)
    device = status.devices[0]
    groups = [
        dataclasses.replace(g, clients=tuple(replace(c, started=c.started - 100) for c in g.clients))
        for g in device.groups
    ]
    other = replace(status, devices=(replace(device, groups=tuple(groups)),))
    text = drive(Top(lambda: other), steps=["k", "t"])
    assert "has ended" in text
    assert sleeper.poll() is None


def test_kill_says_whose_a_program_is_that_this_user_may_not_end(sleeper, monkeypatch):
    def refused(*_):
        raise PermissionError

    monkeypatch.setattr(signal, "pidfd_send_signal", refused)
    status = running(sleeper)
    text = drive(Top(lambda: status), steps=["k", "t"])
    assert "belongs to ana: only that user and root may end it" in text
    assert "SIGTERM" not in text.split("belongs to")[1]


def test_the_last_refreshes_are_a_line():
    text = drive(Top(example))
    assert "last 30 s" in text
    assert "▇" in text  # busy 93 %


def test_pause_stops_reading():
    calls = []

    def read():
        calls.append(1)
        return example()

    app = Top(read)
    text = drive(app, steps=["space"])
    assert "paused" in text
    before = len(calls)
    asyncio.run(app.refresh_status())
    assert len(calls) == before


def test_help_opens_and_closes():
    assert "policy's own reason" in drive(Top(example), steps=["question_mark"])
    assert "policy's own reason" not in drive(Top(example), steps=["question_mark", "escape"])


def test_refreshing_goes_on_behind_the_help():
    calls = []

    def read():
        calls.append(1)
        return example()

    async def run():
        app = Top(read)
        async with app.run_test(size=SMALLEST) as pilot:
            await pilot.press("question_mark")
            before = len(calls)
            await app.refresh_status()
            await app.refresh_status()
            assert len(calls) >= before + 2
            await pilot.press("escape")
            await pilot.pause()
            return shown(app)

    assert "team" in asyncio.run(run())


def test_an_answer_after_the_end_does_no_harm():
    async def run():
        app = Top(example)
        async with app.run_test(size=SMALLEST):
            pass
        await app.refresh_status()

    asyncio.run(run())


@pytest.mark.parametrize("steps", [["q"], ["ctrl+c"], ["slash", "ctrl+c"], ["question_mark", "ctrl+c"]])
def test_quit(steps):
    app = Top(example)
    drive(app, steps=steps)
    assert app.return_code == 0


def test_a_lost_daemon_is_said_and_the_screen_stays():
    answers = [example()]

    def read():
        if answers:
            return answers.pop()
        raise DaemonUnreachable("no daemon at /x")

    app = Top(read)
    text = drive(app, steps=[lambda _: None])
    assert "team" in text

    async def lose():
        async with app.run_test(size=SMALLEST) as pilot:
            answers.append(example())
            await app.refresh_status()
            await app.refresh_status()
            await pilot.pause()
            return shown(app)

    app = Top(read)
    answers.append(example())
    text = asyncio.run(lose())
    assert "no daemon at /x" in text
    assert "team" in text


@pytest.mark.parametrize("size", [(80, 24), (100, 26), (200, 60)])
def test_screenshot_is_svg(size):
    svg = asyncio.run(screenshot(example, size=size, seconds=0.05))
    assert svg.startswith("<svg")
    assert "team" in svg
