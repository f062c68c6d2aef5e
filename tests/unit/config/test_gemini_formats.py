"""Both Gemini formats: their own files load unchanged, and what they let pass is reported."""

from __future__ import annotations

from textwrap import dedent

import pytest

from gemlet.config.files import parse
from gemlet.errors import ConfigError
from gemlet.model import Configuration, GroupSpec

GIB = 2**30


def keyfile(text: str) -> Configuration:
    return parse(dedent(text), "resource.conf")


def table(text: str) -> Configuration:
    return parse(dedent(text), "resource-config.txt")


def test_keyfile() -> None:
    configuration = keyfile("""\
        # two groups
        [training]
        MinUtil = 0.3
        MaxUtil=0.6
        MemoryLimit = 2 GB

        [inference]
        """)
    assert configuration.groups == (
        GroupSpec(name="training", min=0.3, max=0.6, memory=2 * 10**9),
        GroupSpec(name="inference", min=0.0, max=1.0, memory=GIB),  # Gemini's defaults
    )
    assert configuration.warnings == ()


def test_keyfile_with_comments_behind_values() -> None:
    # The example in Gemini's own README stopped Gemini.
    configuration = keyfile("""\
        [a] # the first
        MinUtil = 0.3  # at least
        MaxUtil = 60%  ; at most
          ; a comment
        MemoryLimit = 4GiB# no blank
        """)
    assert configuration.groups == (GroupSpec(name="a", min=0.3, max=0.6, memory=4 * GIB),)


def test_keyfile_names_that_stopped_gemini() -> None:
    for name in ("namespace/pod", "n" * 200, "a b", "组"):
        assert keyfile(f"[{name}]").groups[0].name == name


@pytest.mark.parametrize("text", ["", "\n\n", "# nothing\n", "; nothing", "\ufeff# nothing"])
def test_empty_keyfile_has_no_groups(text: str) -> None:
    assert keyfile(text).groups == ()


def test_unknown_keys_are_ignored_with_a_warning_as_gemini_did_without() -> None:
    configuration = keyfile("[a]\nmaxutil = 0.5\nColour = blue\n")
    assert configuration.groups == (GroupSpec(name="a", memory=GIB),)
    first, second = configuration.warnings
    assert first == "resource.conf:2:1: unknown key 'maxutil' of group 'a' is ignored; did you mean MaxUtil?"
    assert second.startswith("resource.conf:3:1: unknown key 'Colour'")


@pytest.mark.parametrize(
    ("text", "line", "column", "message", "hint"),
    [
        ("[a]\nMinUtil = 2", 2, 11, "MinUtil of group 'a': 2 is more than 1", '"2%"'),
        ("[a]\nMinUtil = nan", 2, 11, "not a share", None),
        ("[a]\nMinUtil =", 2, 10, "the share is empty", None),
        ("[a]\n  MinUtil = abc", 2, 13, "not a share", None),
        ("[a]\nMemoryLimit = 5,B", 2, 15, "MemoryLimit of group 'a'", "point for decimals"),
        ("[a]\nMemoryLimit = -1", 2, 15, "is negative", "no limit"),
        ("[a]\nMinUtil = 0.6\nMaxUtil = 0.3", 2, 11, "min 60% is more than max 30%", "swapped"),
        ("[a]\n[b]\n[a]", 3, 1, "group 'a' appears twice", "line 1"),
        ("[a]\nMinUtil = 0\nMinUtil = 1", 3, 1, "given twice", "line 2"),
        ("MinUtil = 0.5\n[a]", 1, 1, "before the first section", "[training]"),
        ("[a]\nnonsense", 2, 1, "expected a section", "start a comment with #"),
        ("[a\nMinUtil = 0.5", 1, 1, "expected a section", None),
        ("[a] b\nMinUtil = 0.5", 1, 1, "expected a section", None),
        ("[]", 1, 1, "empty", None),
        (f"[{'n' * 256}]", 1, 1, "256 bytes", None),
        ("[a\x1b[31m]", 1, 1, "", None),
    ],
)
def test_keyfile_errors(text: str, line: int, column: int, message: str, hint: str | None) -> None:
    with pytest.raises(ConfigError) as caught:
        keyfile(text)
    error = caught.value
    assert (error.line, error.column) == (line, column)
    assert message in error.message
    assert hint is None or hint in (error.hint or "")


def test_keyfile_reports_all_errors() -> None:
    with pytest.raises(ConfigError) as caught:
        keyfile("[a]\nMinUtil = x\nMaxUtil = y\n[b]\nMemoryLimit = z\n")
    assert [caught.value.line, *(error.line for error in caught.value.others)] == [2, 3, 5]


def test_table() -> None:
    configuration = table("""\
        2
        training 0.3 0.6 8589934592
        default/pod-1\t0 1.0  4294967296
        """)
    assert configuration.groups == (
        GroupSpec(name="training", min=0.3, max=0.6, memory=8 * GIB),
        GroupSpec(name="default/pod-1", min=0.0, max=1.0, memory=4 * GIB),
    )


def test_table_with_comments_and_units() -> None:
    configuration = table("# clients\n1 # one\n\n; here\na#1 30% 60% 8GiB ; first\n")
    assert configuration.groups == (GroupSpec(name="a#1", min=0.3, max=0.6, memory=8 * GIB),)


def test_table_without_groups() -> None:
    assert table("0\n").groups == ()


def test_table_in_the_order_of_kubeshare_is_not_guessed() -> None:
    with pytest.raises(ConfigError) as caught:
        table("2\na 0.5 0.5 1\nb 1.0 0.3 1073741824\n")
    assert (caught.value.line, caught.value.column) == (3, 3)
    assert "KubeShare" in (caught.value.hint or "")
    assert "swapped" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("text", "line", "column", "message", "hint"),
    [
        ("", 1, 1, "empty", None),
        ("\n\n", 1, 1, "empty", None),
        ("2\na 0 1 1\n", 1, 1, "says 2 clients, but 1 follow", "write 1, or complete"),  # Gemini read the last again
        ("1\na 0 1 1\nb 0 1 1\n", 1, 1, "says 1 clients, but 2 follow", None),
        ("a 0 1 1\n", 1, 1, "not the number of clients", "write 0"),
        ("1 a 0 1 1\n", 1, 1, "not the number of clients", None),
        ("1\na 0 1\n", 2, 1, "expected 4 columns, found 3", "ID REQUEST LIMIT MEMORY"),
        ("1\na 0 1 1 1\n", 2, 1, "expected 4 columns, found 5", None),
        ("2\na 0 1 1\na 0 1 1\n", 3, 1, "appears twice", "line 2"),
        ("1\na 0 1 -1\n", 2, 7, "is negative", None),
        ("1\na x 1 1\n", 2, 3, "not a share", None),
        ("1\na 0 2 1\n", 2, 5, "more than 1", None),
    ],
)
def test_table_errors(text: str, line: int, column: int, message: str, hint: str | None) -> None:
    with pytest.raises(ConfigError) as caught:
        table(text)
    error = caught.value
    assert (error.line, error.column) == (line, column)
    assert message in error.message
    assert hint is None or hint in (error.hint or "")
