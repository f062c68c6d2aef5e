from __future__ import annotations

import dataclasses

import msgspec
import pytest

from gemlet.daemon.audit import Outsider
from gemlet.daemon.mps_state import MpsControl, MpsStatus
from gemlet.daemon.status import UnmanagedStatus
from gemlet.monitor.columns import memory_text
from gemlet.monitor.tables import bar, mps_text, table, text
from tests.unit.monitor.status_example import example, mps_example


@pytest.mark.parametrize(
    ("share", "drawn"), [(0.0, "·" * 10), (0.5, "█████·····"), (1.0, "█" * 10), (7.0, "█" * 10), (-1.0, "·" * 10)]
)
def test_bar(share, drawn):
    assert bar(share, width=10) == drawn


def test_bar_marks_promise_and_limit():
    assert bar(0.2, promise=0.5, limit=0.8, width=10) == "██··|··]··"
    assert bar(0.2, promise=0.0, limit=1.0, width=10) == "██·······]"


def test_table_aligns():
    assert table(["A", "BB"], [["long", "1"], ["x", "22"]], right=frozenset({"BB"})) == [
        "A     BB",
        "long   1",
        "x     22",
    ]


def test_text_has_everything():
    shown = text(example())
    for word in ("Fake H200", "93%", "10 GiB / 150 GiB", "30%..60%", "below its minimum", "4242", "batch"):
        assert word in shown, word
    assert "SIMULATED" not in shown


def test_what_counts_for_a_group_is_shown_without_programs_too():
    """As of a frozen one that the daemon before this one had: what it holds is missing when another asks for memory."""
    device = example().devices[0]
    team = dataclasses.replace(device.groups[1], clients=(), memory_used=3 << 30, reason="no clients")
    for used, shown in ((3 << 30, "3 GiB"), (0, "0 B")):
        empty = dataclasses.replace(team, memory_used=used)
        status = msgspec.structs.replace(example(), devices=(msgspec.structs.replace(device, groups=(empty,)),))
        (row,) = [line for line in text(status).splitlines() if line.startswith(f"{team.name} ")]
        assert shown in row
        assert row.endswith("no clients")


def test_a_program_has_its_name_user_start_and_container():
    shown = text(example())
    for word in ("train.py", "ana", "2023-11-1", "2.5 GiB", "61 C", "512 W", "1980 MHz"):
        assert word in shown, word
    assert "python" not in shown
    device = example().devices[0]
    team = device.groups[1]
    inside = dataclasses.replace(team, clients=(msgspec.structs.replace(team.clients[0], container="trainer-0"),))
    other = msgspec.structs.replace(example(), devices=(msgspec.structs.replace(device, groups=(inside,)),))
    assert "train.py in trainer-0" in text(other)


def test_programs_outside_stand_in_the_same_columns():
    who = Outsider(pid=77, uid=0, command="x", device=0, memory=None, graphics=False, seconds=1.0, user="bo")
    lines = text(msgspec.structs.replace(example(), outside=(who,))).splitlines()
    header = next(line for line in lines if line.split()[:1] == ["PID"])
    row = next(line for line in lines if line.split()[:1] == ["77"])
    for name, word in (("USER", "bo"), ("PROGRAM", "x"), ("STATE", "outside")):
        assert row.index(word, header.index(name)) == header.index(name), name


def test_text_says_simulated():
    assert "SIMULATED" in text(msgspec.structs.replace(example(), simulated=True))


def test_empty_sections_say_so():
    shown = text(msgspec.structs.replace(example(), devices=(), groups=(), events=()))
    for words in ("no devices", "no groups", "no program"):
        assert words in shown


def test_a_group_without_clients_is_listed_once():
    assert text(example()).count("batch") == 1


def test_mps_is_shown_where_there_is_something_to_say():
    assert "MPS" not in text(example())
    assert "MPS on: control daemon 815, 1 program" in text(msgspec.structs.replace(example(), mps=mps_example()))
    foreign = MpsStatus(foreign=(MpsControl(pid=7, uid=0, pipe_directory="/tmp/nvidia-mps"),))
    assert "MPS of others: pid 7 in /tmp/nvidia-mps" in text(msgspec.structs.replace(example(), mps=foreign))


@pytest.mark.parametrize(
    ("state", "words"),
    [("off", "MPS off"), ("stopping", "takes no new programs"), ("failed", "ended unexpectedly")],
)
def test_states_of_mps(state, words):
    assert words in mps_text(MpsStatus(state=state), simulated=False)


def test_mps_text_has_everything():
    shown = mps_text(mps_example(), simulated=True)
    for word in ("SIMULATED", "815", "/run/mps/pipe", "ACTIVE", "4242", "train", "team"):
        assert word in shown, word
    broken = msgspec.structs.replace(mps_example(), problem="it does not answer")
    assert "it does not answer" in mps_text(broken, simulated=False)


def test_a_fraction_in_name_only_says_so():
    status = example()
    device = status.devices[0]

    def with_fraction(in_force):
        group = dataclasses.replace(device.groups[1], sm=0.3, sm_in_force=in_force)
        return text(msgspec.structs.replace(status, devices=(msgspec.structs.replace(device, groups=(group,)),)))

    assert "30% (off)" in with_fraction(False)
    assert "30%" in with_fraction(True)
    assert "(off)" not in with_fraction(True)


def test_memory_text():
    assert memory_text(None, 5) == "-"
    assert memory_text(1 << 30, None) == "1 GiB"


def test_programs_that_are_not_governed_stand_with_the_reason():
    who = UnmanagedStatus(
        pid=77, uid=0, command="train", group="team", strict=True, state="refused", seconds=3.0, why="no place is left"
    )
    shown = text(msgspec.structs.replace(example(), unmanaged=(who,)))
    assert "UNMANAGED" in shown
    assert next(line for line in shown.splitlines() if line.lstrip().startswith("77")).endswith(
        "refused  no place is left"
    )
    assert "UNMANAGED" not in text(example())


def test_what_a_daemon_could_not_read_or_write_is_said():
    status = example()
    troubled = msgspec.structs.replace(
        status.daemon,
        config_error="gemlet.toml:2: 30 is more than 1",
        state_error="groups.json cannot be written: No space left on device",
    )
    shown = text(msgspec.structs.replace(status, daemon=troubled))
    assert "configuration not applied, the last good one holds: gemlet.toml:2: 30 is more than 1" in shown
    assert "would not know these groups: groups.json cannot be written: No space left on device" in shown
    assert "would not know" not in text(status)
