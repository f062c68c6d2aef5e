"""What `gemlet doctor --image ROOT` looks at: whether programs of a root directory can have the hook loaded into them.

A root is read as it lies there and never entered: links in it count as if it were `/`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gemlet import paths
from gemlet.cli.doctor_checks import Check
from gemlet.elf_file import ElfFile, NotElfError, newest_glibc
from gemlet.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MOST_LINKS = 40
FOLDERS = ("lib64", "lib", "usr/lib64", "usr/lib")
LIBC = "libc.so.6"


def run_image_checks(root: Path) -> list[Check]:
    """The verdicts on the directory ``root``. Raises GemletError if there is no such directory or no hook."""
    if not root.is_dir():
        raise UsageError(f"{root} is not a directory", hint="unpack the image first: docker export CONTAINER | tar -x")
    return list(_checks(root, ElfFile(paths.hook_path())))


def _checks(root: Path, hook: ElfFile) -> Iterator[Check]:
    needed = newest_glibc(hook.required)
    yield Check("hook", "ok", f"for {hook.machine}, needs glibc {_dotted(needed)} or newer")
    found = False
    for library in _libraries(root):
        found = True
        yield _libc(library, root, hook, needed)
    for loader in _musl_loaders(root):
        found = True
        yield _musl(loader, hook)
    if not found:
        hint = "programs that are linked statically run without limits; `gemlet run --strict` refuses them"
        yield Check("libc", "fail", f"{root} has none: nothing can be loaded into its programs", hint)


def _libc(path: Path, root: Path, hook: ElfFile, needed: tuple[int, ...]) -> Check:
    name = f"libc of {path.relative_to(root.resolve()).parent}"
    try:
        libc = ElfFile(str(path))
    except (OSError, NotElfError) as error:
        return Check(name, "fail", f"cannot be read: {error}")
    if libc.bits == 32:
        return Check(name, "warn", "32-bit programs run without limits", "use 64-bit ones: CUDA 12 has no other")
    if libc.machine != hook.machine:
        hint = "use the wheel of gemlet for that machine"
        return Check(name, "fail", f"the hook is for {hook.machine}, these programs are for {libc.machine}", hint)
    offered = newest_glibc(libc.defined)
    if offered < needed:
        hint = "install gemlet from its wheel, whose hook needs glibc 2.17, or use a younger image"
        return Check(name, "fail", f"glibc {_dotted(offered)}: its programs do not start with the hook", hint)
    return Check(name, "ok", f"glibc {_dotted(offered)}")


def _musl(loader: Path, hook: ElfFile) -> Check:
    hint = "there is no CUDA for musl: use an image with glibc"
    if any(name.startswith("ld-") for name in hook.needed):
        return Check("musl", "fail", f"{loader.name} ends each program for this build of the hook", hint)
    return Check("musl", "warn", f"programs of {loader.name} run without limits", hint)


def _libraries(root: Path) -> list[Path]:
    """Each C library of glibc's, once."""
    places = [*FOLDERS, *(f"{folder}/{each.name}" for folder in ("lib", "usr/lib") for each in _folders(root, folder))]
    found = (inside(root, f"{place}/{LIBC}") for place in places)
    return list(dict.fromkeys(path for path in found if path is not None and path.is_file()))


def _folders(root: Path, name: str) -> list[Path]:
    folder = inside(root, name)
    if folder is None or not folder.is_dir():
        return []
    return sorted(each for each in folder.iterdir() if "-linux-" in each.name)


def _musl_loaders(root: Path) -> list[Path]:
    folder = inside(root, "lib")
    return sorted(folder.glob("ld-musl-*.so.1")) if folder is not None and folder.is_dir() else []


def inside(root: Path, name: str) -> Path | None:
    """What ``name`` is for a program whose `/` is ``root``: no link leads out of it. None where links go in circles."""
    root = root.resolve()
    parts, at, links = list(reversed(name.strip("/").split("/"))), root, 0
    while parts:
        part = parts.pop()
        if part in {"", "."}:
            continue
        if part == "..":
            at = at.parent if at != root else root
            continue
        at /= part
        if not at.is_symlink():
            continue
        links += 1
        if links > MOST_LINKS:
            return None
        target = str(at.readlink())
        at = root if target.startswith("/") else at.parent
        parts += reversed(target.strip("/").split("/"))
    return at


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version)) or "of any version"
