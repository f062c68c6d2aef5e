"""Commands that have a program started by another one, which does not hand on what `gemlet run` sets.

`gemlet run` reads this for these commands only: run.HANDING_OVER. It helps people; a script may call any of them.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence


class HandedOver(NamedTuple):
    """``message``: a sentence on what then runs without limits."""

    message: str
    hint: str


_CONTAINERS = HandedOver(
    "{name} hands nothing of its environment to containers: what runs in them has no limits of gemlet's",
    "give the container its group: `gemlet env --group NAME --docker` prints the options of `{name} run`",
)
_ROOTS = HandedOver(
    "{name} starts programs where the hook or the daemon may be missing: they then run without gemlet's limits",
    "let them see gemlet's libraries and the daemon's directory at their own places, and look at `gemlet top`",
)
_MACHINES = HandedOver(
    "{name} starts programs elsewhere: they run without gemlet's limits",
    "write `gemlet run` behind it, so that it runs where the program does",
)
_OTHER_USERS = HandedOver(
    "{name} clears the environment: what it starts runs without gemlet's limits",
    "write it first: {name} gemlet run ... -- COMMAND",
)
_SERVERS = HandedOver(
    "{name} may let one that runs already start programs: those run without gemlet's limits",
    "write `gemlet run` where the programs are started, in the window of {name}",
)
_SYSTEMD = HandedOver(
    "{name} lets systemd start the program, which then runs without gemlet's limits",
    "write it first: {name} gemlet run ... -- COMMAND",
)
_ENV = HandedOver(
    "{name} takes the hook out of the environment: what it starts runs without gemlet's limits",
    "write it first: {name} ... gemlet run ... -- COMMAND",
)
ALWAYS = (
    dict.fromkeys(("docker", "podman", "nerdctl"), _CONTAINERS)
    | dict.fromkeys(("apptainer", "bwrap", "chroot", "flatpak", "singularity", "systemd-nspawn"), _ROOTS)
    | dict.fromkeys(("ssh", "mosh", "rsh", "kubectl"), _MACHINES)
    | dict.fromkeys(("sudo", "doas", "pkexec"), _OTHER_USERS)
    | dict.fromkeys(("tmux", "byobu", "gnome-terminal"), _SERVERS)
)
SOME = {"systemd-run": _SYSTEMD, "env": _ENV, "su": _OTHER_USERS, "runuser": _OTHER_USERS}  # by what they are told
_WITH_WORD = "uCS"  # options of `env` that take a word; those of some systems only are not among them
_LONG = ("--ignore-environment", "--unset", "--chdir", "--split-string")


def handed_over(command: Sequence[str], *, snap: bool = False) -> HandedOver | None:
    """What is to be said of ``command``, the program and its arguments; None if it starts what it starts itself.

    ``snap``: whether it is one of a snap, which is a link to that which starts all of them.
    """
    name = "snap" if snap else os.path.basename(command[0])  # noqa: PTH119
    known = _ROOTS if snap else ALWAYS.get(name)
    if name in SOME and _hands_over(command):
        known = SOME[name]
    return known and HandedOver(*(text.format(name=name) for text in known))


def _hands_over(command: Sequence[str]) -> bool:
    match os.path.basename(command[0]):  # noqa: PTH119
        case "systemd-run":
            return "--scope" not in command  # with it the program is its own child
        case "env":
            return _without_hook(list(command[1:]))
        case _:
            return any(word in ("-", "-l", "--login") for word in command)


def _without_hook(words: list[str]) -> bool:
    """Whether `env` with ``words`` starts its program without what `gemlet run` preloads."""
    while words:
        word = words.pop(0)
        if not word.startswith("-"):
            name, assigns, _ = word.partition("=")
            if not assigns:
                return False  # the program
            if name == "LD_PRELOAD":  # the hook is not in it: the shell of `gemlet run` has put the value there
                return True
            continue
        for option, value in _options(word, words):
            if option == "i" or (option == "u" and value == "LD_PRELOAD"):
                return True
            if option == "S":
                words = [*value.split(), *words]
    return False


def _options(word: str, rest: list[str]) -> list[tuple[str, str]]:
    """The options of `env` in ``word``, each by its letter with its value, which may be the first of ``rest``."""
    if word == "-":
        return [("i", "")]
    if word.startswith("--"):
        name, given, value = word.partition("=")
        meant = [known for known in _LONG if len(name) > 2 and known.startswith(name)]
        if len(meant) != 1:
            return []
        letter = {"--split-string": "S", "--chdir": "C"}.get(meant[0], meant[0][2])
        return [(letter, value if given or letter == "i" else _taken(rest))]
    found: list[tuple[str, str]] = []
    for at, letter in enumerate(word[1:], start=2):
        if letter in _WITH_WORD:
            return [*found, (letter, word[at:] or _taken(rest))]
        found.append((letter, ""))
    return found


def _taken(rest: list[str]) -> str:
    return rest.pop(0) if rest else ""
