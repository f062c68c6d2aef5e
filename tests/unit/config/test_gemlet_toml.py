"""gemlet.toml: what it means, and where and how its errors are reported."""

from __future__ import annotations

from textwrap import dedent

import pytest

from gemlet.config.files import parse
from gemlet.errors import ConfigError
from gemlet.model import Configuration, DeviceSpec, GroupSpec, Priority, Workload


def read(text: str) -> Configuration:
    return parse(dedent(text), "gemlet.toml")


def errors(text: str) -> list[ConfigError]:
    with pytest.raises(ConfigError) as caught:
        read(text)
    return [caught.value, *caught.value.others]


def test_everything() -> None:
    configuration = read("""
        [daemon]
        policy = "gemini"

        [groups.training]
        min = "30%"
        max = 0.6
        memory = "8GiB"
        weight = 2
        sm = 0.5
        priority = "latency"
        workload = "compute"
        users = ["ana", "ben"]

        [groups."team-a/notebook ü"]
        memory = 1048576

        [[devices]]
        index = 0
        policy = "fifo"
        capacity = "40GB"

        [[devices]]
        uuid = "GPU-1"
        """)
    assert configuration == Configuration(
        groups=(
            GroupSpec(
                name="training", min=0.3, max=0.6, memory=8 * 2**30, weight=2.0, sm=0.5, priority=Priority.LATENCY,
                workload=Workload.COMPUTE,
                users=("ana", "ben"),
            ),
            GroupSpec(name="team-a/notebook ü", memory=1048576),
        ),
        devices=(DeviceSpec(index=0, policy="fifo", capacity=40 * 10**9), DeviceSpec(uuid="GPU-1")),
        policy="gemini",
        source="gemlet.toml",
    )  # fmt: skip
    assert isinstance(configuration.groups[0].weight, float)


@pytest.mark.parametrize(
    "text", ["", "# only a comment\n", "\ufeff[groups.a]\n", "[groups.a]\r\nmin = 0.1\r\n", "groups = {}"]
)
def test_little_is_enough(text: str) -> None:
    read(text)


@pytest.mark.parametrize(
    ("text", "line", "column", "message", "hint"),
    [
        # a key or section nobody knows
        ("[groups.a]\nmemroy = 1", 2, 1, "unknown key 'memroy'", "did you mean memory?"),
        ("[groups.a]\nMaxUtil = 1", 2, 1, "unknown key 'MaxUtil'", "did you mean max?"),
        ("[groups.a]\nxyz = 1", 2, 1, "unknown key 'xyz'", "known here: min, max"),
        ("[group.a]\nmin = 0", 1, 1, "unknown section 'group'", "did you mean groups?"),
        ("[training]\nmin = 0", 1, 1, "unknown section 'training'", "[groups.training]"),
        ("[daemon]\npolcy = 'fair'", 2, 1, "unknown key 'polcy'", "did you mean policy?"),
        ("[[devices]]\nindex = 0\ncapcity = 1", 3, 1, "unknown key 'capcity'", "did you mean capacity?"),
        # values
        ("[groups.a]\nmin = 30", 2, 7, "more than 1", '"30%"'),
        ("[groups.a]\nmin = nan", 2, 7, "not between 0 and 1", None),
        ("[groups.a]\nmin = -0.1", 2, 7, "not between 0 and 1", None),
        ("[groups.a]\nmin = true", 2, 7, "expected a share such as 0.3 or \"30%\", found true or false", None),
        ("[groups.a]\nmin = 1979-05-27 07:32:00", 2, 7, "found a date or time", None),
        ("[groups.a]\nmin = [1]", 2, 7, "found a list", None),
        ("[groups.a]\nmax =\t'50%%'", 2, 7, "not a share", None),
        ("[groups.a]\nmemory = -1", 2, 10, "negative", None),
        ("[groups.a]\nmemory = 9223372036854775808", 2, 10, "2^63", None),
        ("[groups.a]\nmemory = 1.5", 2, 10, "whole number", '"1.5GiB"'),
        ("[groups.a]\nmemory = '8 Gigs'", 2, 10, "not a size", "8GiB"),
        ("[groups.a]\nweight = 0", 2, 10, "positive", None),
        ("[groups.a]\nweight = inf", 2, 10, "positive", None),
        ("[groups.a]\nsm = 0", 2, 6, "above 0", None),
        ("[groups.a]\npriority = 'high'", 2, 12, "unknown value 'high'", "best-effort, normal, latency"),
        ("[groups.a]\npriority = 1", 2, 12, "expected a text", None),
        ("[groups.a]\nusers = 'ana'", 2, 9, "list of user names", None),
        ("[groups.a]\nusers = [1]", 2, 9, "list of user names", None),
        ("[daemon]\npolicy = 'fare'", 2, 10, "unknown value 'fare'", "did you mean fair?"),
        ("[[devices]]\nindex = -1", 2, 9, "number from 0", None),
        ("[[devices]]\nuuid = '0'", 2, 8, "GPU-", None),
        # relations
        ("[groups.a]\nmax = 0.3\nmin = 0.5", 3, 7, "min 50% is more than max 30%", "swapped"),
        ("[[devices]]\nindex.a = 0", 2, 1, "number from 0", None),
        ("[[devices]]\nuuid.a = 'GPU-1'", 2, 1, "uuid of a device", None),
        ("[[devices]]\npolicy = 'fair'", 1, 1, "either index or uuid", "nvidia-smi"),
        ("[[devices]]\nindex = 0\nuuid = 'GPU-1'", 1, 1, "either index or uuid", None),
        ("[[devices]]\nindex = 0\n[[devices]]\nindex = 0", 3, 1, "declared twice", "line 1"),
        # names
        ('[groups.""]', 1, 1, "empty", None),
        ('[groups."a\\u0000"]', 1, 1, "unprintable", None),
        ('[groups."\\u202e"]', 1, 1, "unprintable", None),
        (f'[groups."{"ü" * 128}"]', 1, 1, "256 bytes", "255"),
        # shapes
        ("groups = 1", 1, 1, "not a section", None),
        ("[groups]\na = 0.5", 2, 1, "not a section", "[groups.a]"),
        ("devices = 3", 1, 1, "not a list of sections", "[[devices]]"),
        ("[devices]\nindex = 0", 1, 1, "not a list of sections", "[[devices]]"),
        # syntax
        ("[groups.a]\nmin = 30%", 2, 9, "", 'min = "30%"'),
        ("[groups.a]\nmemory = 8GiB", 2, 11, "", 'memory = "8GiB"'),
        ("[groups.ns/pod]", 1, 11, "", '[groups."ns/pod"]'),
        ("[groups.a]\n\n[groups.a]", 3, 10, "group 'a' is declared twice", "merge"),
        ("[groups.a]\nmin = ", 2, 6, "Invalid value", None),
        ("[groups.a", 1, 10, "Expected ']'", None),
        ("[groups.a]\nmin = 0.1\nmin = 0.2", 3, None, "overwrite", None),
    ],
)  # fmt: skip
def test_error(text: str, line: int, column: int | None, message: str, hint: str | None) -> None:
    first, *others = errors(text)
    assert message in first.message
    assert first.line == line
    assert column is None or first.column == column
    assert hint is None or hint in (first.hint or "")
    assert others == []


def test_all_errors_are_reported_in_the_order_of_the_file() -> None:
    found = errors("""\
        [[devices]]
        index = "x"
        [groups.b]
        min = 2
        [groups.a]
        maxx = 1
        memory = -1
        """)
    assert [error.line for error in found] == [2, 4, 6, 7]
    assert str(found[1]).startswith("gemlet.toml:4:7: min of group 'b':")


def test_half_a_file_is_an_error_or_means_what_it_says() -> None:
    whole = '[groups.a]\nmin = "30%"\nusers = ["ana"]\n[[devices]]\nindex = 0\n'
    refused = 0
    for length in range(len(whole)):
        try:
            groups = parse(whole[:length], "gemlet.toml").groups
        except ConfigError:
            refused += 1
        else:
            assert groups in (  # cut between two lines
                (),
                (GroupSpec(name="a"),),
                (GroupSpec(name="a", min=0.3),),
                (GroupSpec(name="a", min=0.3, users=("ana",)),),
            )
    assert refused > len(whole) / 2


def test_warnings() -> None:
    configuration = read("""\
        [groups.a]
        min = 0.6
        [groups.b]
        min = "60%"
        [groups.c]
        max = 0
        memory = 0
        """)
    total, forever, nothing = configuration.warnings
    assert total.startswith("gemlet.toml: ")
    assert "120%" in total
    assert forever.startswith("gemlet.toml:5:1: max of group 'c' is 0")
    assert nothing.startswith("gemlet.toml:5:1: memory of group 'c' is 0")


def test_ten_tenths_are_one() -> None:
    assert read("".join(f"[groups.g{number}]\nmin = 0.1\n" for number in range(10))).warnings == ()


def test_names_of_any_script_and_length_255() -> None:
    for name in ("namespace/pod", "a b", "组", "a" * 255, "[x]", "=", "#"):
        assert read(f'[groups."{name}"]').groups[0].name == name
