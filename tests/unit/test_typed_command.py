"""What a hint says to type does, in a shell, what it says."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from gemlet.typed_command import command, on_group, quoted

NAMES = ["team", "default/pod/main", "a b;rm", "it's", "$(rm -rf ~)", "`rm`", "x\\", "-x", "--save", "größe", "a~b"]


@pytest.mark.parametrize("name", NAMES)
def test_a_shell_reads_back_the_name(name):
    assert {*shlex.split(on_group("set", name, "--max", "50%"))} - {"--"} == {"gemlet", "set", name, "--max", "50%"}
    typed = ["run", "--group", name, "--", "COMMAND"]
    assert shlex.split(command(*typed)) == ["gemlet", *typed]
    assert shlex.split(quoted(name)) == [name]


def test_a_plain_command_is_plain():
    assert command("mps", "start") == "gemlet mps start"
    assert on_group("set", "team/a-1", "--memory", "2GiB") == "gemlet set team/a-1 --memory 2GiB"


def test_the_simulated_machine_is_asked_for_before_the_program():
    assert command("top", simulated=True) == "gemlet top --simulate"
    assert command("run", "--", "COMMAND", simulated=True) == "gemlet run --simulate -- COMMAND"
    assert on_group("set", "a b", "--max", "5%", simulated=True) == "gemlet set 'a b' --max 5% --simulate"


def test_a_name_like_an_option_is_an_argument():
    assert on_group("set", "-x", "--max", "5%", simulated=True) == "gemlet set --max 5% --simulate -- -x"


def test_the_option_is_written_here_and_nowhere_else_in_hints():
    """It was built in a dozen places, of which some forgot it, and some the quotes of the group's name."""
    source = Path(__file__).parents[2] / "src" / "gemlet"
    built = re.compile(r'" --simulate"|\' --simulate\'|"gemlet [a-z ]*--simulate"')
    found = {
        str(path.relative_to(source))
        for path in source.rglob("*.py")
        if built.search(path.read_text()) and path.name != "overview.py"
    }
    assert found == set()
