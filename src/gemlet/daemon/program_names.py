"""What people call a program, from what the kernel shows of it: `train.py` and not "python". Pure.

A name is for people and may be anything that the program wants: whom a process belongs to, the kernel says.
"""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import TYPE_CHECKING

from gemlet.config.printable import printable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LONGEST = 40  # characters
NOTEBOOK = "JPY_SESSION_NAME"  # Jupyter's servers tell a kernel the path of its notebook
HOST = "HOSTNAME"
VARIABLES = (NOTEBOOK, HOST)  # of a program's environment that are looked at

_PYTHON = re.compile(r"(python|pypy)[\d.]*t?$")
_OTHERS = re.compile(r"(node|nodejs|bash|dash|sh|zsh|perl[\d.]*|ruby[\d.]*|julia|Rscript)$")
_WITH_VALUE = "WX"  # options of Python that take a value; -c and -m end the options
_KERNELS = ("ipykernel_launcher", "ipykernel")
_CONTAINER = re.compile(r"[/-]([0-9a-f]{64})(?:\.scope)?(?:/|$)", re.MULTILINE)


def called(arguments: Sequence[str], *, command: str, environment: Mapping[str, str]) -> str:
    """The script, module, notebook or executable; ``command``, the kernel's name for it, where nothing else is known.

    ``arguments``: its command line, the name of the program first.
    """
    name = _called(arguments, environment) or command
    shown = printable(name)
    return shown if len(shown) <= LONGEST else shown[: LONGEST - 1] + "…"


def stem(arguments: Sequence[str], *, command: str) -> str:
    """What to call a new group after: `train` for `python train.py`, `trainer.main` for `python -m trainer.main`."""
    program = PurePath(command).name
    name = _called(arguments, {}).removeprefix("-m ").removesuffix(".py").removesuffix(".sh")
    return program if not name or " " in name else name


def container_of(cgroups: str, environment: Mapping[str, str]) -> str:
    """The container's name: a pod's, or the host name that it was given, else twelve digits of its id; "" for none.

    ``cgroups``: the process' /proc/PID/cgroup.
    """
    found = _CONTAINER.findall(cgroups)
    if not found:
        return ""
    short = str(found[-1])[:12]
    return printable(environment.get(HOST) or short)[:LONGEST]


def _called(arguments: Sequence[str], environment: Mapping[str, str]) -> str:
    if not arguments or not arguments[0].strip():
        return ""
    first = arguments[0]
    if not any(arguments[1:]) and " " in first:  # a title that the program gave itself
        return first.strip()
    program = PurePath(first).name.removeprefix("-")  # a login shell's
    if _PYTHON.match(program):
        return _of_python(arguments[1:], environment) or program
    if _OTHERS.match(program):
        script = next((word for word in arguments[1:] if not word.startswith("-")), "")
        inline = any(word in ("-c", "-e") for word in arguments[1:2])
        return program if inline or not script else PurePath(script).name
    return program


def _of_python(words: Sequence[str], environment: Mapping[str, str]) -> str:
    """The script or module of a Python command line, "" for an interpreter without one."""
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word == "-":
            break
        if not word.startswith("-"):
            return _script(word, environment)
        if word.startswith("--"):
            if word == "--check-hash-based-pycs":
                rest = rest[1:]
            continue
        for place, letter in enumerate(word[1:], start=2):  # options may be joined: -um MODULE
            if letter not in "cm" + _WITH_VALUE:
                continue
            value = word[place:] or (rest.pop(0) if rest else "")
            if letter == "m":
                return _module(value, environment)
            if letter == "c":
                return "python -c"
            break
    return ""


def _script(word: str, environment: Mapping[str, str]) -> str:
    path = PurePath(word)
    if path.stem in _KERNELS:
        return _notebook(environment)
    return path.parent.name if path.name == "__main__.py" and path.parent.name else path.name


def _module(name: str, environment: Mapping[str, str]) -> str:
    return _notebook(environment) if name.partition(".")[0] in _KERNELS else f"-m {name}"


def _notebook(environment: Mapping[str, str]) -> str:
    return PurePath(environment.get(NOTEBOOK, "")).name or "notebook"
