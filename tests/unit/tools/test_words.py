"""Words that are out: what the check refuses, what it leaves alone, and that the tree holds it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "tools/words.py"
_spec = importlib.util.spec_from_file_location("words", SCRIPT)
assert _spec is not None
assert _spec.loader is not None
words = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(words)


def test_the_tree_holds_it() -> None:
    assert words.errors() == []


@pytest.mark.parametrize("pattern", words.NAMES)
def test_replacements_are_good(pattern: str) -> None:
    assert words.instead(words.NAMES[pattern]) is None


@pytest.mark.parametrize(
    ("name", "new"),
    [
        ("let", "gpu_let"),
        ("old_lets", "gpu_lets"),
        ("LetSpec", "gpu_let"),
        ("kDryLooks", "samples"),
        ("dry_", "empty_samples"),
        ("told_group", "last_sent_*"),
        ("GpuLet", None),
        ("gpu_lets", None),
        ("complete", None),
        ("dry_run", None),
        ("let_go", None),
        ("told", None),
        ("HERE", "IN_PROCESS"),
        ("here", None),
        ("Hold", "Lease"),
        ("hold", None),
        ("mean_press", "contention"),
        ("press", None),
    ],
)
def test_names(name: str, new: str | None) -> None:
    assert words.instead(name) == new


@pytest.mark.parametrize(
    ("path", "text", "line"),
    [
        ("docs/a.md", "Fine.\nThe field and the cure.\n", 2),
        ("src/a.py", "NO_SM_CURE = 1\n", 1),
        ("src/a.py", '"""A let."""\nlet = {"let": 1}\n', 2),
        ("native/a.cpp", '// It looks dry.\nint dry = f("dry");\n', 2),
        ("native/a.hpp", "/* Many\n lines. */ bool klass;\n", 2),
        ("native/a.hpp", "uint64_t unledgered_;\n", 1),
        ("src/a.py", "# Whoever waits.\n", 1),
    ],
)
def test_refused(path: str, text: str, line: int) -> None:
    (error,) = words.errors_in(path, text)
    assert error.startswith(f"{path}:{line}: write ")


def test_names_of_files_are_refused() -> None:
    assert words.errors_in("native/books_test.cpp", "") == [
        "native/books_test.cpp: write accounting in the name of the file"
    ]
    assert words.errors_in("tests/test_books.py", "") == []
    assert words.errors_in("docs/books.md", "") == []


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("docs/a.md", "gemlet lets programs share; a secure notebook looks dry.\n"),
        ("src/a.py", 'found = document["lets"]  # of a plan\n'),
        ("src/a.py", "unledgered: int\n"),
        ("src/a.py", "def test_stop_lets_programs_run_on(): ...\n"),
        ("native/a.cpp", "// It looks dry.\nint n = 1'000; char c = '\\''; f(\"let\");\n"),
    ],
)
def test_left_alone(path: str, text: str) -> None:
    assert words.errors_in(path, text) == []
