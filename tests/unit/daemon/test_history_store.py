"""The file of the recorded history: three tiers, bounded, and what damage and a full disk do to it."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
import tracemalloc

import pytest

from gemlet.daemon.history_moment import DEVICE_COLUMNS, GROUP_COLUMNS
from gemlet.daemon.history_recorder import Question, Recorder, answer
from gemlet.daemon.history_store import DAY, HOUR, TIERS, Store, tier_for
from gemlet.errors import Refused
from tests.waiting import eventually

GPU = "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"
START = 1_700_000_100  # a multiple of 300


def values(share=0.5, columns=GROUP_COLUMNS):
    return tuple({"share": share, "min": 0.25, "memory": 2.0**30}.get(column.name, 0.0) for column in columns)


def seconds(first, last, share=0.5, name="g"):
    return {
        at: ({(GPU, name): values(share)}, {(GPU, ""): values(share, DEVICE_COLUMNS)}) for at in range(first, last + 1)
    }


def times(store, tier):
    return [at for at, _ in store.moments(TIERS[tier], 0, 2**40)]


@pytest.fixture
def store(tmp_path):
    made = Store(tmp_path / "history.db")
    yield made
    made.close()


def test_moments_become_coarser_and_keep_their_mean(store):
    store.add(seconds(START + 1, START + 150, 0.25))
    store.add(seconds(START + 151, START + 301, 0.75))
    assert len(times(store, 0)) == 301
    assert times(store, 1) == list(range(START + 10, START + 311, 10))
    (at, moment), _ = store.moments(TIERS[2], 0, 2**40)
    assert at == START + 300
    [number] = (number for number, key in store.series().items() if key == (GPU, "g"))
    assert moment.groups[number][0] == pytest.approx(0.5, abs=0.001)


@pytest.mark.parametrize("tier", [1, 2])
def test_a_coarse_tier_ends_with_what_there_is_of_its_last_interval(store, tier):
    store.add(seconds(START + 1, START + 4, 0.25))
    store.add(seconds(START + 5, START + 8, 0.75))
    [(at, moment)] = store.moments(TIERS[tier], 0, 2**40)
    assert at == START + TIERS[tier].step
    [values_of_g] = moment.groups.values()
    assert values_of_g[0] == pytest.approx(0.5, abs=0.001)


def test_what_a_killed_daemon_left_becomes_coarser_later(tmp_path):
    first = Store(tmp_path / "history.db")
    first.add(seconds(START + 1, START + 9))
    first.close()
    second = Store(tmp_path / "history.db")
    second.add(seconds(START + 400, START + 400))
    assert times(second, 1) == [START + 10, START + 400]
    assert times(second, 2) == [START + 300, START + 600]
    second.close()


def test_each_tier_forgets(store):
    store.add(seconds(START, START + 20))
    store.add(seconds(START + HOUR + 90, START + HOUR + 90))
    assert times(store, 0) == [START + HOUR + 90]
    assert times(store, 1)[0] == START  # of the second START itself
    store.add(seconds(START + 2 * DAY, START + 2 * DAY))
    assert START + 20 not in times(store, 1)
    assert times(store, 2)[0] == START
    store.add(seconds(START + 200 * DAY, START + 200 * DAY, name="other"))
    assert times(store, 2) == [START + 200 * DAY]
    assert (GPU, "g") not in store.series().values()


def test_a_clock_that_is_set_back(store):
    store.add(seconds(START + DAY, START + DAY + 300))
    store.add(seconds(START + 1, START + 20, 0.75))
    assert START + 20 in times(store, 1)


@pytest.mark.parametrize("jump", [400 * DAY, -400 * DAY])
def test_a_clock_that_jumps_and_is_set_right_again_costs_little(store, jump):
    store.add(
        {at: moment for hour in range(48) for at, moment in seconds(START + hour * HOUR, START + hour * HOUR).items()}
    )
    last = START + 48 * HOUR
    store.add(seconds(last - 200, last))
    before = times(store, 2)
    for at in range(last, last + 600, 5):  # ten minutes of it
        store.add(seconds(at + jump + 1, at + jump + 5, name="other"))
    store.add(seconds(last + 601, last + 1200, name="other"))
    kept = [at for at in times(store, 2) if at in before]
    assert len(kept) >= len(before) - 30
    assert {(GPU, "g"), (GPU, "other")} <= set(store.series().values())
    found = {at: moment for at, moment in store.moments(TIERS[2], 0, 2**40) if at in kept}
    [g] = (number for number, key in store.series().items() if key == (GPU, "g"))
    assert all(g in moment.groups for moment in found.values())


def test_the_file_stays_within_its_bound(tmp_path):
    path = tmp_path / "history.db"
    bound = 400_000
    store = Store(path, max_bytes=bound)
    for block in range(40):
        first = START + 50 * block
        store.add(
            {at: ({(GPU, f"g{at}-{n}"): values(n / 20) for n in range(10)}, {}) for at in range(first, first + 50)}
            if block < 1
            else seconds(first, first + 49)
            | {first: ({(GPU, f"g{n}"): values((n * block % 97) / 97) for n in range(200)}, {})}
        )
    assert path.stat().st_size <= bound
    assert times(store, 0)[-1] == START + 1999  # the newest are there
    store.close()


@pytest.mark.parametrize("content", [b"this is no database" * 1000, b"SQLite format 3\0" + os.urandom(8000)])
def test_a_damaged_file_is_moved_aside(tmp_path, content, caplog):
    path = tmp_path / "history.db"
    path.write_bytes(content)
    store = Store(path)
    store.add(seconds(START, START))
    store.close()
    assert (tmp_path / "history.db.damaged").read_bytes() == content
    assert "begun anew" in caplog.text
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_file_of_another_format_is_moved_aside(tmp_path):
    path = tmp_path / "history.db"
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    Store(path).close()
    assert (tmp_path / "history.db.damaged").exists()


def test_a_second_daemon_does_not_share_the_file(store, tmp_path):
    store.add(seconds(START, START))
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        Store(tmp_path / "history.db")


def run(program, *arguments, wrap=()):
    return subprocess.Popen(
        [*wrap, sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)], stdout=subprocess.PIPE, text=True
    )


def test_a_killed_daemon_loses_nothing_that_was_written(tmp_path):
    writer = run(
        """
        import sys
        from pathlib import Path
        from gemlet.daemon.history_store import Store
        from tests.unit.daemon.test_history_store import START, seconds
        store = Store(Path(sys.argv[1]))
        for at in range(START, START + 10**6):
            store.add(seconds(at, at))
            print(at, flush=True)
        """,
        tmp_path / "history.db",
    )
    assert writer.stdout is not None
    written = [int(next(writer.stdout)) for _ in range(700)]
    writer.send_signal(signal.SIGKILL)
    written += [int(line) for line in writer.stdout if line.endswith("\n")]
    writer.wait()
    writer.stdout.close()
    store = Store(tmp_path / "history.db")
    assert set(written) <= set(times(store, 0))
    store.close()
    assert not (tmp_path / "history.db.damaged").exists()


def test_tiers_by_how_far_they_reach():
    ages = (60, HOUR + 1, 2 * HOUR, DAY + 1, 2 * DAY, 1000 * DAY)
    assert [tier_for(age).step for age in ages] == [1, 1, 10, 10, 300, 300]


# --- the thread ------------------------------------------------------------------------------------------------------


def question(**changes):
    now = int(time.time())
    return Question(**({"group": None, "since": now - 60, "until": now, "points": 100} | changes))


def ask(recorder, **changes):
    return asyncio.run(recorder.ask(question(**changes), simulated=False))


def test_the_answer_has_a_value_for_each_step(store):
    now = int(time.time())
    store.add(seconds(now - 30, now - 25))
    found = answer(store, question(since=now - 60, until=now, group="g"))
    assert found.step_s == 1
    [series] = found.series
    shares = dict(zip(found.time, series.values["share"], strict=True))
    assert [at for at, share in shares.items() if share is not None] == list(range(now - 30, now - 24))
    coarser = answer(store, question(since=now - 60, until=now, points=6, columns=frozenset({"share"})))
    assert coarser.step_s == 10
    assert {s.group for s in coarser.series} == {"g", None}
    assert all(set(s.values) == {"share"} and len(s.values["share"]) == len(coarser.time) for s in coarser.series)


def test_the_chosen_columns_are_those_of_the_whole_answer(store):
    now = int(time.time())
    store.add(seconds(now - 30, now - 25))
    asked = {"since": now - 60, "until": now, "group": "g", "points": 6}
    [whole] = answer(store, question(**asked)).series
    [part] = answer(store, question(**asked, columns=frozenset({"memory", "min", "none"}))).series
    assert part.values == {name: whole.values[name] for name in ("min", "memory")}


def many(first, last, groups):
    return {
        at: ({(GPU, f"g{n}"): values((at + n) % 10 / 10) for n in range(groups)}, {}) for at in range(first, last + 1)
    }


@pytest.mark.parametrize("columns", [frozenset(), frozenset({"share"})])
def test_an_answer_about_many_moments_takes_what_its_points_take(store, columns):
    now = int(time.time())
    store.add(many(now - 599, now, groups=80))
    asked = question(since=now - 600, until=now, points=1, columns=columns)
    answer(store, asked)
    tracemalloc.start()
    try:
        found = answer(store, asked)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(found.series) == 80
    assert peak < 3_000_000  # each value at each of the 48,000 moments took 24 bytes, all of them 30 MB


@pytest.mark.parametrize(("points", "reads"), [(1, 12), (40, 127), (360, 127), (3600, 1206)])
def test_of_many_rows_as_few_are_read_as_the_points_need(store, monkeypatch, points, reads):
    now = START + 1206
    monkeypatch.setattr("gemlet.daemon.history_recorder.time.time", lambda: float(now))
    store.add(many(START + 1, now, groups=3))
    asked = question(since=now - 3600, until=now, points=points, columns=frozenset({"share", "min"}))
    read = []
    moments = store.moments

    def counted(*arguments):
        for found in moments(*arguments):
            read.append(found)
            yield found

    exact = answer(store, asked)
    monkeypatch.setattr("gemlet.daemon.history_recorder.MOST_ROWS", 100)
    monkeypatch.setattr(store, "moments", counted)
    found = answer(store, asked)
    assert len(read) == reads  # with those that the unfinished moments are made of
    assert (found.step_s, found.time) == (exact.step_s, exact.time)
    for one, other in zip(found.series, exact.series, strict=True):
        assert (one.device, one.group) == (other.device, other.group)
        for name in ("share", "min"):
            assert one.values[name] == pytest.approx(other.values[name], abs=0.001)


def test_a_moment_that_is_not_over_counts_as_long_as_it_lasted(store, monkeypatch):
    monkeypatch.setattr("gemlet.daemon.history_recorder.MOST_ROWS", 1)
    monkeypatch.setattr("gemlet.daemon.history_recorder.time.time", lambda: START + 606.0)
    store.add(seconds(START + 1, START + 600, 0.0))
    store.add(seconds(START + 601, START + 606, 1.0))
    found = answer(store, question(since=START, until=START + 606, points=1, group="g", columns=frozenset({"share"})))
    assert found.series[0].values["share"][-1] == pytest.approx(6 / 606, abs=0.001)


def test_a_group_that_was_not_there_used_nothing(store):
    now = int(time.time())
    store.add(seconds(now - 30, now - 25) | seconds(now - 20, now - 18, name="other"))
    [series] = answer(store, question(group="g")).series
    found = answer(store, question(group="g"))
    shares = dict(zip(found.time, series.values["share"], strict=True))
    assert shares[now - 19] == 0
    assert dict(zip(found.time, series.values["memory"], strict=True))[now - 19] is None


def test_the_recorder_writes_and_answers(tmp_path):
    recorder = Recorder(lambda: Store(tmp_path / "history.db"))
    recorder.start()
    now = int(time.time())
    for at, (groups, devices) in seconds(now - 10, now).items():
        recorder.add(at, groups, devices)
    assert ask(recorder, group="g").series[0].values["share"][-1] == pytest.approx(0.5, abs=0.001)
    assert recorder.failure is None
    recorder.stop()
    store = Store(tmp_path / "history.db")
    assert len(times(store, 0)) == 11
    store.close()


def test_a_disk_that_hangs_holds_nobody_up(tmp_path):
    go = threading.Event()

    def slow():
        go.wait()
        return Store(tmp_path / "history.db")

    recorder = Recorder(slow)
    recorder.start()
    for at, (groups, devices) in seconds(START, START + 1000).items():
        recorder.add(at, groups, devices)  # returns, and keeps no more than a minute
    go.set()
    recorder.stop()
    store = Store(tmp_path / "history.db")
    assert 0 < len(times(store, 0)) <= 60
    store.close()


def test_a_file_that_cannot_be_made_turns_recording_off(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    recorder = Recorder(lambda: Store(tmp_path / "file" / "history.db"))
    recorder.start()
    assert eventually(lambda: recorder.failure)
    assert "goes on without" in caplog.text
    with pytest.raises(Refused, match="there is no history"):
        ask(recorder)
    recorder.stop()


@pytest.mark.skipif(shutil.which("unshare") is None, reason="unshare is missing")
def test_a_full_disk_turns_recording_off_and_on_again(tmp_path):
    if subprocess.run(["unshare", "-rm", "mount", "-t", "tmpfs", "none", str(tmp_path)], check=False).returncode:
        pytest.skip("file systems cannot be mounted here")
    program = """
        import sys
        from pathlib import Path
        from gemlet.daemon import history_recorder
        from gemlet.daemon.history_store import Store
        from tests.unit.daemon.test_history_store import START, ask, seconds, times
        from tests.waiting import eventually
        history_recorder.AGAIN_SECONDS = 0
        directory = Path(sys.argv[1])
        made = history_recorder.Recorder(lambda: Store(directory / "history.db"))
        made.start()
        ballast = directory / "ballast"
        at = START
        def feed():
            global at
            for moment in range(5):
                made.add(at, *seconds(at, at)[at])
                at += 1
            return made.failure
        with ballast.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass
        print("full:", eventually(feed), flush=True)
        ballast.unlink()
        eventually(lambda: feed() is None)
        last = at
        made.stop()
        store = Store(directory / "history.db")
        print("again:", last - 1 in times(store, 0), flush=True)
        store.close()
    """
    script = tmp_path / "full.py"
    script.write_text(textwrap.dedent(program))
    small = tmp_path / "small"
    small.mkdir()
    words = [sys.executable, str(script), str(small)]
    mount = f"mount -t tmpfs -o size=512k none {shlex.quote(str(small))} && exec {shlex.join(words)}"
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", mount],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in ["", *sys.path])},
    )
    assert done.stdout.splitlines() == ["full: database or disk is full", "again: True"], done.stderr


def test_an_answer_about_everything_has_fewer_points(store, monkeypatch):
    now = int(time.time())
    store.add(seconds(now - 30, now - 25))
    assert len(answer(store, question(since=now - 60, until=now, group="g")).time) >= 60
    monkeypatch.setattr("gemlet.daemon.history_recorder.MOST_INTERVALS", 24)
    found = answer(store, question(since=now - 60, until=now, group=None))
    assert len(found.series) * len(found.time) <= 36  # intervals are whole seconds


def test_more_groups_than_there_is_room_for_cost_moments_and_do_not_end_the_recording(tmp_path):
    store = Store(tmp_path / "history.db", max_bytes=400_000)
    for second in range(1, 200):
        groups = {(GPU, f"{second}-{number}".ljust(255, "x")): values() for number in range(16)}
        store.add({START + second: (groups, {(GPU, ""): values(columns=DEVICE_COLUMNS)})})
    assert times(store, 0)[-1] == START + 199
    store.close()
