"""The environment that makes a program a client: what `run` sets, `env` prints and `demo` gives its programs.

On the path of `gemlet run`: standard library only.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gemlet import paths
from gemlet.errors import DaemonError, GemletError, UsageError
from gemlet.membership import MULTIPROCESSORS, WIRE_VERSION, client_variables
from gemlet.typed_command import command

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

LIMITS = "GEMLET_LIMITS"  # the group's limits, for devices that no daemon governs
ENV_FAILED = "GEMLET_ENV_FAILED"  # in a shell where `gemlet env` has failed: what CUDA_VISIBLE_DEVICES was
LAST_DEVICE = 1023  # the largest index that a request has
SET_BY_US = "GEMLET_MPS_SET"  # which variables an outer `gemlet run` set for MPS, and to what: NAME=VALUE,...
# Of one program: an outer `gemlet run` must not decide them for an inner one.
OF_ONE_PROGRAM = ("GEMINI_IPC_DIR", "GEMINI_GROUP_NAME", "GEMLET_TORCH", "GEMLET_MANAGED", LIMITS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """Where a program belongs. ``machine``: directory of the simulated machine, None for real devices.

    mps: the variables by which it is (or is not) under MPS, as the daemon says. torch: what PyTorch does at the end of
    an iteration (`dead`, `empty-cache`), None for nothing. managed: cuMemAlloc takes managed memory (`checked`,
    `force`). granted: the group's limits, to which the program keeps on devices that no daemon governs.
    """

    group: str
    socket: str
    strict: bool = False
    machine: str | None = None
    mps: Mapping[str, str] = field(default_factory=dict)
    torch: str | None = None
    managed: str | None = None
    granted: Mapping[str, Any] = field(default_factory=dict)


def check_version(answer: Mapping[str, Any], *, simulated: bool) -> None:
    """Whether this version's hook and the daemon that answered understand each other. Raises `DaemonError`."""
    spoken = answer.get("wire")  # the first daemons did not say
    if spoken is not None and answer.get("wire_oldest", spoken) <= WIRE_VERSION <= spoken:
        return
    older = spoken is None or spoken < WIRE_VERSION
    if older and "wire_oldest" in answer:
        raise DaemonError(
            "the daemon is of an older version of gemlet, and programs of this version cannot talk to it",
            hint="replace it, while its programs run on, with "
            f"`{command('daemon', '--take-over', simulated=simulated)}`",
        )
    stop = command("stop", simulated=simulated)
    raise DaemonError(
        f"the daemon is of {'an older' if older else 'a newer'} version of gemlet, "
        "and programs of this version cannot talk to it",
        hint=f"stop it with `{stop}`: programs run on without limits, the next `gemlet run` starts a new daemon"
        if older
        else "use the gemlet that started it; `gemlet status` prints its version",
    )


def variables(membership: Membership, base: Mapping[str, str]) -> dict[str, str]:
    """The variables to set on top of ``base``. Raises GemletError if the libraries are missing."""
    changed = client_variables(
        preload=_prepended(paths.hook_path(), base.get("LD_PRELOAD", "")),
        socket=membership.socket,
        group=membership.group,
        strict=membership.strict,
    )
    if membership.machine:
        changed["LD_LIBRARY_PATH"] = _prepended(paths.sim_dir(), base.get("LD_LIBRARY_PATH", ""))
        changed["GEMLET_SIM_DIR"] = membership.machine
    if membership.torch:
        changed["GEMLET_TORCH"] = membership.torch
        changed["PYTHONPATH"] = os.pathsep.join([paths.injected_dir(), *_own_python_path(base)])
    if membership.managed:
        changed["GEMLET_MANAGED"] = membership.managed
    changed |= known_limits(membership.granted)
    # What the program is told of its devices' size is the user's to say otherwise (docs/mps.md).
    users = without_outer_mps(base)
    mps = {name: value for name, value in membership.mps.items() if name != MULTIPROCESSORS or name not in users}
    if mps:
        changed |= mps
        changed[SET_BY_US] = ",".join(f"{name}={value}" for name, value in mps.items())
    return changed


def for_program(membership: Membership, base: Mapping[str, str]) -> dict[str, str]:
    """The whole environment of a client. An outer group's settings do not leak into it."""
    kept = without_outer_mps(base)
    kept = {name: value for name, value in kept.items() if name not in OF_ONE_PROGRAM}
    if paths.injected_dir() in kept.get("PYTHONPATH", "").split(os.pathsep):
        kept["PYTHONPATH"] = os.pathsep.join(_own_python_path(kept))
        if not kept["PYTHONPATH"]:
            del kept["PYTHONPATH"]
    if not membership.strict:
        kept.pop("GEMLET_STRICT", None)
    return kept | variables(membership, base)


def without_outer_mps(base: Mapping[str, str]) -> dict[str, str]:
    """``base`` without what an outer `gemlet run` set for MPS. What somebody has set since then stays."""
    ours = dict(part.partition("=")[::2] for part in base.get(SET_BY_US, "").split(","))
    return {name: value for name, value in base.items() if name != SET_BY_US and ours.get(name) != value}


def own_pipe_directory(base: Mapping[str, str]) -> str | None:
    """The MPS pipe directory that ``base`` names by itself, None if it names none or an outer `gemlet run` did."""
    return without_outer_mps(base).get("CUDA_MPS_PIPE_DIRECTORY") or None


def own_pipes(base: Mapping[str, str]) -> dict[str, Any]:
    """What a request says of the MPS pipe directory that ``base`` names by itself."""
    directory = own_pipe_directory(base)
    if directory is None:
        return {"pipe_directory": None}
    from gemlet.devices.mps import control_of

    return {"pipe_directory": directory, "pipe_alive": control_of(directory) is not None}


def choose_devices(names: str, base: Mapping[str, str]) -> tuple[dict[str, str], int | None]:
    """As choose_device, for one number or several, or for UUIDs: ``0``, ``0,1``, ``GPU-...``. Raises `UsageError`."""
    listed = [name.strip() for name in names.split(",")]
    if all(name.isascii() and name.isdecimal() for name in listed):
        chosen = [choose_device(int(name), base) for name in listed]
        variables, index = chosen[0]
        shown = [each["CUDA_VISIBLE_DEVICES"] for each, _ in chosen]
        _check_once(names, shown)
        return {**variables, "CUDA_VISIBLE_DEVICES": ",".join(shown)}, index if len(chosen) == 1 else None
    check_whole(listed)
    _check_once(names, listed)
    if not all(name.startswith("GPU-") for name in listed):
        raise UsageError(
            f"{names!r} names no devices: expected numbers or UUIDs, with commas between",
            hint="write --device 0, --device 0,1 or a UUID that `nvidia-smi -L` shows",
        )
    visible = base.get("CUDA_VISIBLE_DEVICES")
    known = None if visible is None else [entry.strip() for entry in visible.split(",")]
    if known is not None and not set(listed) <= set(known):  # Slurm has given others
        raise UsageError(
            f"CUDA_VISIBLE_DEVICES={visible} does not show {names}",
            hint="name a device that it shows, by its number in it",
        )
    return {"CUDA_VISIBLE_DEVICES": ",".join(listed)}, None


def _check_once(names: str, devices: Sequence[str]) -> None:
    if len(set(devices)) < len(devices):  # a mistake, for which CUDA may show no device at all
        raise UsageError(f"{names!r} names a device twice", hint="name each device once, such as --device 0,1")


def check_whole(names: Iterable[str]) -> None:
    """Raises `UsageError` for an instance of a GPU in MIG mode: neither its memory nor its time would be seen."""
    instance = next((name.strip() for name in names if name.strip().startswith("MIG-")), None)
    if instance is not None:
        raise UsageError(
            f"{instance} is an instance of a GPU in MIG mode, and gemlet shares whole GPUs",
            hint="run the program without gemlet, or switch MIG off with `nvidia-smi -mig 0`",
        )


def to_be_checked(shown: Mapping[str, str], base: Mapping[str, str]) -> list[str]:
    """The devices of `choose_devices` that the daemon can know: none if CUDA_VISIBLE_DEVICES was set before."""
    named = shown.get("CUDA_VISIBLE_DEVICES")
    return named.split(",") if named and "CUDA_VISIBLE_DEVICES" not in base else []


def choose_device(number: int, base: Mapping[str, str]) -> tuple[dict[str, str], int | None]:
    """Variables that show only device ``number`` to a program, and its index in nvidia-smi if that can be known.

    Where CUDA_VISIBLE_DEVICES is set (Slurm, containers), ``number`` counts within it. Raises `UsageError`.
    """
    visible = base.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        if number > LAST_DEVICE:
            raise UsageError(
                f"no device {number}", hint="choose an index that `gemlet status` or `nvidia-smi -L` shows"
            )
        # CUDA's own order is fastest first; nvidia-smi's, which people read, is by bus.
        return {"CUDA_VISIBLE_DEVICES": str(number), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, number
    listed = [entry.strip() for entry in visible.split(",") if entry.strip()]
    if number >= len(listed):
        raise UsageError(
            f"no device {number}: CUDA_VISIBLE_DEVICES={visible} shows {len(listed)}",
            hint="choose a smaller number: --device counts within CUDA_VISIBLE_DEVICES",
        )
    chosen = listed[number]
    by_bus = base.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    return {"CUDA_VISIBLE_DEVICES": chosen}, int(chosen) if chosen.isdigit() and by_bus else None


def known_limits(granted: Mapping[str, Any]) -> dict[str, str]:
    """The variable with what the hook must know of the limits before a daemon tells it: bytes, and millionths of a
    device's time. Empty where there are none. Without a daemon no memory moves, so what may be resident is all there.
    """
    parts = []
    memory = [granted[name] for name in ("memory", "resident") if granted.get(name) is not None]
    if memory:
        parts.append(f"memory={min(memory)}")
    if (most := granted.get("max", 1.0)) < 1.0:
        parts.append(f"max={max(1, int(most * 1_000_000))}")
    return {LIMITS: ",".join(parts)} if parts else {}


def _own_python_path(base: Mapping[str, str]) -> list[str]:
    """The entries of PYTHONPATH that are not ours."""
    present = base.get("PYTHONPATH")
    return [entry for entry in present.split(os.pathsep) if entry != paths.injected_dir()] if present else []


def _prepended(path: str, present: str) -> str:
    if any(character in path for character in ": \t"):
        raise GemletError(
            f"{path} has a colon or a space in its name, which the dynamic loader cannot read",
            hint="install gemlet elsewhere, or set GEMLET_LIB_DIR to a copy of its _lib directory",
        )
    return paths.prepended(path, present)
