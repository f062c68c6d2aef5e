"""Checks commit messages against the rules in CONTRIBUTING.md, "History".

.venv/bin/python tools/commit_messages.py         all commits since the rules hold; `make lint` does this
.venv/bin/python tools/commit_messages.py FILE    the message in FILE; so .git/hooks/commit-msg can call it

Commits from before the rules pass. So does a tree without its history, such as a release tarball.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BASE = "961a090ea4d2d626a12af5d4ddaf137c3355b0bd"  # the last commit that the rules do not bind
LONGEST = 72
WRITTEN_BY_GIT = re.compile(r"(Merge|Revert|fixup!|squash!|amend!) ")
AREA = re.compile(r"[a-z][\w./-]*(, ?[a-z][\w./-]*)*: ")  # as in "serve: Say why a request was refused"
# What the first word may not look like, and imperatives that do look like it.
NOT_IMPERATIVE = re.compile(r"\w{2,}(ed|ing|[^s]s)$|an?$|the$|it$|this$|now$|no$|some$", re.IGNORECASE)
IMPERATIVE = {
    "bring", "embed", "exceed", "feed", "need", "ping", "proceed", "seed", "shed", "speed", "string", "succeed",
    "alias", "bias", "focus",
}  # fmt: skip


def faults(message: str) -> list[str]:
    """What is wrong with a message, a sentence each."""
    lines = [line for line in message.splitlines() if not line.startswith("#")]
    subject = lines[0] if lines else ""
    if WRITTEN_BY_GIT.match(subject):
        return []
    if not subject.strip():
        return ["the subject is empty"]
    found = []
    if len(subject) > LONGEST:
        found.append(f"the subject has {len(subject)} characters; expected at most {LONGEST}")
    if subject.endswith("."):
        found.append("the subject ends in a full stop")
    words = AREA.sub("", subject, count=1).split()
    if len(words) < 2:
        found.append("the subject does not say what is done to what")
    first = words[0] if words else ""
    if NOT_IMPERATIVE.fullmatch(first) and first.lower() not in IMPERATIVE:
        found.append(f"the subject starts with {first!r}; expected an imperative such as 'Add', 'Move' or 'Say'")
    if len(lines) > 1 and lines[1].strip():
        found.append("the second line is not empty")
    return found


def git(*arguments: str) -> str | None:
    """What git prints, or None where it fails or is not installed."""
    try:
        done = subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return done.stdout if done.returncode == 0 else None


def commits() -> list[tuple[str, str]] | None:
    """Hash and message of each commit since the rules hold; None where the history is not here."""
    if not (ROOT / ".git").exists() or git("rev-parse", "--verify", "--quiet", "HEAD") is None:
        return None
    if git("merge-base", "--is-ancestor", BASE, "HEAD") is not None:
        span = [f"{BASE}..HEAD"]
    elif git("rev-parse", "--is-shallow-repository") == "true\n":
        span = ["HEAD"]  # the newest few
    else:
        return None  # a history that was written anew
    log = git("log", "-z", "--no-merges", "--format=%h%n%B", *span)
    if log is None:
        return None
    return [(entry.partition("\n")[0], entry.partition("\n")[2]) for entry in log.split("\0") if entry]


def main() -> int:
    if sys.argv[1:]:
        given = [(name, Path(name).read_text()) for name in sys.argv[1:]]
    else:
        found = commits()
        if found is None:
            print("commit messages: not checked: the history is not in this tree")
            return 0
        given = found
    wrong = 0
    for name, message in given:
        for fault in faults(message):
            wrong += 1
            print(f"error: commit {name}: {fault}: {message.splitlines()[0] if message else ''}", file=sys.stderr)
    if wrong:
        print('hint: see "History" in CONTRIBUTING.md; `git rebase -i` changes messages', file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
