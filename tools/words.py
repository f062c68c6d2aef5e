"""Refuses words that docs/glossary.md replaced: one meaning, one word. Run by `make lint` from anywhere in the tree.

Words in ANYWHERE may stand in no text. Those in NAMES are good English in prose and refused in names, also of source
files: a run may be dry, but a counter is called empty_samples. Comments and strings are not names, so keys of documents
and of metrics stay as their schemas have them.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tokenize
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[1]

# The word, and what to write instead.
ANYWHERE = {
    "cure": "hint",
    "cures": "hints",
    "klass": "service_class",
    "whoever": "the client, the thread or whichever it is",
    "whomever": "the client, the thread or whichever it is",
}
# Names that are refused as they are, capitals included.
EXACTLY = {"HERE": "IN_PROCESS", "BEHIND": "a named offset", "Hold": "Lease"}
# A pattern of a name's parts in lower case, joined by spaces: `kDryLooks` and `dry_looks` are "dry looks".
NAMES = {
    "(?<!gpu )let(?! (?:go|in)$)": "gpu_let",
    "(?<!gpu )lets": "gpu_lets",
    "seat": "captured_stream",
    "company": "co_running",
    "crowd": "co_runners",
    "partner": "co_runner",
    "curious": "needs_baseline",
    "patient": "idle_grace",
    "wary": "backoff",
    "hurried": "latency_class",
    "looks": "samples",
    "dry(?! run)": "empty_samples",
    "starved": "idle_fraction",
    "told .+": "last_sent_*",
    "withdraw": "cancel",
    "books": "accounting",
    "booked": "accounted",
    "remarks?": "warning",
    "bears": "sustains",
    "arrangement": "serving_plan",
    "scarce": "overload",
    "inquiry": "model_metadata",
    ".+ press": "contention",
}
# In C and C++ only: in Python this is a field of the status document.
NAMES_OF_C = {"unledgered": "untracked"}

SKIPPED = re.compile(
    r"\.(json|csv|svg|ptx|inc)$|_pb2\.pyi?$|^bench/results/|^LICENSE$|^(tools/words|tests/unit/tools/test_words)\.py$"
)
PYTHON = (".py", ".pyi")
C = (".c", ".cpp", ".h", ".hpp", ".def")
# Comments, strings and characters of C and C++.
NOT_CODE = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|' + r"'(?:\\.|[^'\\\n])'", re.DOTALL)
NAME = re.compile(r"[^\W\d]\w*")
PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
WORD = re.compile(rf"\b(?:{'|'.join(ANYWHERE)})\b", re.IGNORECASE)


def parts(name: str) -> str:
    """The parts of a name in lower case, joined by spaces."""
    return " ".join(part.lower() for part in PART.findall(name))


def _patterns(names: dict[str, str]) -> list[tuple[re.Pattern[str], str]]:
    return [(re.compile(rf"\b(?:{pattern})\b"), new) for pattern, new in names.items()]


PYTHON_PATTERNS = _patterns(NAMES)
C_PATTERNS = _patterns(NAMES | NAMES_OF_C)


def instead(name: str, patterns: list[tuple[re.Pattern[str], str]] = PYTHON_PATTERNS) -> str | None:
    """What to write for the first part that is refused; None if the name is good."""
    return EXACTLY.get(name) or next((new for pattern, new in patterns if pattern.search(parts(name))), None)


def _names_of_python(text: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        # A test's name is a sentence.
        if token.type == tokenize.NAME and not token.string.startswith("test_"):
            yield token.start[0], token.string


def _names_of_c(text: str) -> Iterator[tuple[int, str]]:
    code = NOT_CODE.sub(lambda match: "\n" * match[0].count("\n"), text)
    for number, line in enumerate(code.splitlines(), 1):
        for match in NAME.finditer(line):
            yield number, match[0]


def errors_in(path: str, text: str) -> list[str]:
    """What is wrong in a file, one line a word."""
    found = [
        f"{path}:{number}: write {ANYWHERE[match[0].lower()]} in place of {match[0]}"
        for number, line in enumerate(text.splitlines(), 1)
        for match in WORD.finditer(line.replace("_", " "))
    ]
    stem = Path(path).stem
    if path.endswith((*PYTHON, *C)) and not stem.startswith("test_") and (new := instead(stem)):
        found.append(f"{path}: write {new} in the name of the file")
    names = _names_of_python(text) if path.endswith(PYTHON) else _names_of_c(text) if path.endswith(C) else ()
    known: dict[str, str | None] = {}
    for number, name in names:
        if name not in known:
            known[name] = instead(name, C_PATTERNS if path.endswith(C) else PYTHON_PATTERNS)
        if new := known[name]:
            found.append(f"{path}:{number}: write {new} in the name {name}")
    return found


def errors(root: Path = ROOT) -> list[str]:
    """The same for all files that git tracks."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True).stdout
    found = []
    for path in filter(None, listed.split("\0")):
        file = root / path
        if SKIPPED.search(path) or not file.is_file():
            continue
        try:
            found += errors_in(path, file.read_text())
        except UnicodeDecodeError:
            continue  # no text
    return found


if __name__ == "__main__":
    wrong = errors()
    for line in wrong:
        print(line, file=sys.stderr)
    if wrong:
        print("hint: docs/glossary.md has the words, tools/words.py what they replace", file=sys.stderr)
    sys.exit(1 if wrong else 0)
