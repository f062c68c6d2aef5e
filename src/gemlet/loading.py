"""Whether a program's loader will load the hook into it, and why not.

On the path of `gemlet run`: standard library only.

A program into which nothing can be loaded runs without the hook; the loaders ignore it or cannot see it. What such a
program starts is hooked again: the environment is handed on.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from gemlet import paths
from gemlet.elf_file import ElfFile, NotElfError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

START_BYTES = 256  # of a script are what Linux looks at
MOST_SCRIPTS = 4  # that are each other's interpreter, as in Linux
SECURE = "is to run as if it were setuid (glibc.rtld.enable_secure in GLIBC_TUNABLES)"  # since glibc 2.40
UNKNOWN = "is a program that cannot be read, or none that is known here"  # Linux may run it all the same


def obstacle(path: str, environment: Mapping[str, str], *, strict: bool = False) -> str | None:
    """Why the hook cannot be loaded into the program at ``path``: half a sentence of which it is the subject.

    None if it can, or if that cannot be known; ``strict``: not to know it is an obstacle, too. A script is its
    interpreter.
    """
    if is_secure(environment):
        return SECURE
    unknown = UNKNOWN if strict else None
    program = binary(path, environment)
    if program is None:
        return unknown
    if (reason := _other_identity(program)) is not None:
        return reason
    try:
        return _of_file(program)
    except (OSError, NotElfError):
        return unknown


def is_secure(environment: Mapping[str, str]) -> bool:
    """Whether glibc is told to preload nothing by its path, as into a setuid program: by a tunable, since 2.40."""
    tunables = (tunable.partition("=") for tunable in environment.get("GLIBC_TUNABLES", "").split(":"))
    return any(name == "glibc.rtld.enable_secure" and value != "0" for name, _, value in tunables)


def _of_file(program: str) -> str | None:
    file = ElfFile(program)
    if file.bits == 32:
        return "is a 32-bit program"
    if file.machine != os.uname().machine:
        return f"is a program for {file.machine}"
    if file.interpreter is None and not os.path.basename(program).startswith("ld-"):  # noqa: PTH119
        return "is linked statically"
    if file.interpreter and os.path.basename(file.interpreter).startswith("ld-musl"):  # noqa: PTH119
        return "is linked with musl, for which there is no CUDA"
    return None


def refused_by_loader(path: str, environment: Mapping[str, str], hook: str) -> bool:
    """Whether the program's loader would end it because of the hook at ``hook``: musl's, if it needs glibc's."""
    program = binary(path, environment)
    try:
        loader = program and ElfFile(program).interpreter
        return bool(loader and "ld-musl" in loader and any(name.startswith("ld-") for name in ElfFile(hook).needed))
    except (OSError, NotElfError):
        return False


def binary(path: str, environment: Mapping[str, str]) -> str | None:
    """The file that Linux loads for the program at ``path``: an interpreter's, if it is a script. None if unknown."""
    for _ in range(MOST_SCRIPTS):
        try:
            start = _start(path)
        except OSError:
            return None
        if start[:2] != b"#!":
            return os.path.realpath(path)
        words = start[2:].split(b"\n")[0].decode(errors="replace").split()
        if not words:
            return None
        path = words[0]
        if os.path.basename(path) == "env":  # noqa: PTH119
            named = next((word for word in words[1:] if not word.startswith("-") and "=" not in word), None)
            found = named and next((file for file in on_path(named, environment) if os.access(file, os.X_OK)), None)
            if not found:
                return None
            path = found
    return None


def _start(path: str) -> bytes:
    descriptor = paths.open_regular(path)
    try:
        return os.read(descriptor, START_BYTES)
    finally:
        os.close(descriptor)


def on_path(name: str, environment: Mapping[str, str]) -> Iterator[str]:
    """The files that execvp(3) tries for the program ``name``; of those that are no programs, too."""
    directories = [""] if "/" in name else environment.get("PATH", os.defpath).split(os.pathsep)
    files = (os.path.join(directory, name) for directory in directories)  # noqa: PTH118
    return (path for path in files if os.path.isfile(path))  # noqa: PTH113


def _other_identity(program: str) -> str | None:
    """Into a program that gains rights the loader loads nothing by name of its user."""
    try:
        status = os.stat(program)  # noqa: PTH116
    except OSError:
        return None
    if status.st_mode & stat.S_ISUID and status.st_uid != os.getuid():
        return "runs as another user (setuid)"
    if status.st_mode & stat.S_ISGID and status.st_gid != os.getgid():
        return "runs as another group (setgid)"
    if os.getuid() != 0 and _has_capabilities(program):
        return "has capabilities of its own"
    return None


def _has_capabilities(program: str) -> bool:
    try:
        return bool(os.getxattr(program, "security.capability"))
    except OSError:
        return False
