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
    "{name} clears the environment: what it starts runs without gemlet's limits",
    "write it first: {name} ... gemlet run ... -- COMMAND",
)
ALWAYS = (
    dict.fromkeys(("docker", "podman", "nerdctl"), _CONTAINERS)
    | dict.fromkeys(("apptainer", "bwrap", "chroot", "flatpak", "singularity", "systemd-nspawn"), _ROOTS)
    | dict.fromkeys(("ssh", "mosh", "rsh", "kubectl"), _MACHINES)
    | dict.fromkeys(("sudo", "doas", "pkexec"), _OTHER_USERS)
    | dict.fromkeys(("tmux", "byobu", "gnome-terminal"), _SERVERS)
)
SOME = {"systemd-run": _SYSTEMD, "env": _ENV}  # by what they are told
_CLEARING = ("-", "-i", "--ignore-environment")


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
    if os.path.basename(command[0]) == "systemd-run":  # noqa: PTH119
        return "--scope" not in command  # with it the program is its own child
    return any(word in _CLEARING for word in _options(command))


def _options(command: Sequence[str]) -> list[str]:
    """The words before that which `env` starts."""
    options: list[str] = []
    for word in command[1:]:
        if not word.startswith("-") and "=" not in word:
            break
        options.append(word)
    return options
