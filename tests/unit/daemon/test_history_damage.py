"""Damage of the recorded history's file that SQLite itself reads without a word, or blames on something else."""

import sqlite3
import time

import pytest

from gemlet.daemon.history_recorder import Recorder, answer
from gemlet.daemon.history_store import Store
from tests.unit.daemon.test_history_store import ask, question, seconds, times

DAMAGE = {
    "a name that is no text": "UPDATE series SET name = CAST(x'67fc' AS TEXT) WHERE name = 'g'",
    "a name that is missing": "UPDATE series SET device = NULL WHERE name = 'g'",
    "a table without its column": "ALTER TABLE every_1 RENAME COLUMN data TO dat",
    "names without their column": "ALTER TABLE series RENAME COLUMN seen TO seem",
}


def change(path, statement):
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(statement)
    connection.close()


def recorded(path):
    store = Store(path)
    now = int(time.time())
    store.add(seconds(now - 30, now - 11))
    store.close()
    return now


@pytest.mark.parametrize("statement", DAMAGE.values(), ids=DAMAGE)
def test_what_cannot_be_used_is_moved_aside(tmp_path, statement):
    path = tmp_path / "history.db"
    now = recorded(path)
    change(path, statement)
    store = Store(path)
    store.add(seconds(now - 5, now))
    assert len(times(store, 0)) == 6
    store.close()
    assert (tmp_path / "history.db.damaged").exists()


def test_an_index_that_has_lost_its_names_is_moved_aside(tmp_path):
    path = tmp_path / "history.db"
    now = recorded(path)
    content = path.read_bytes()
    at = content.index(b"0e0fg")  # in the table; the index has another copy
    assert b"0e0fg" in content[at + 1 :]
    path.write_bytes(content[:at] + b"0e0fh" + content[at + 5 :])
    store = Store(path)
    store.add(seconds(now - 5, now))
    store.close()
    assert (tmp_path / "history.db.damaged").exists()


@pytest.mark.parametrize("data", ["NULL", "5", "'text'", "CAST(x'fcfc' AS TEXT)", "x'00'"])
def test_a_moment_that_cannot_be_read_is_left_out(tmp_path, data):
    path = tmp_path / "history.db"
    now = recorded(path)
    change(path, f"UPDATE every_1 SET data = {data} WHERE time = {now - 20}")
    store = Store(path)
    assert now - 20 not in times(store, 0)
    store.add(seconds(now - 5, now + 600))  # makes the coarser ones
    found = answer(store, question(since=now - 60, until=now))
    assert len(found.series) == 2
    store.close()
    assert not (tmp_path / "history.db.damaged").exists()


def test_the_recording_outlives_an_error_that_nobody_thought_of(tmp_path, monkeypatch):
    recorder = Recorder(lambda: Store(tmp_path / "history.db"))
    with monkeypatch.context() as broken:
        broken.setattr(Store, "add", lambda *_: [].pop())
        recorder.start()
        with pytest.raises(Exception, match="history"):
            ask(recorder)
        assert recorder.failure
    monkeypatch.setattr(recorder, "_not_before", 0.0)
    assert ask(recorder).kept is None
    recorder.stop()
