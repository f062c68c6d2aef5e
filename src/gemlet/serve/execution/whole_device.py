"""An executor's process under a fraction of MPS is told the whole device's number of multiprocessors.

Without that, libraries compute wrong results: see `gemlet.membership.as_whole_devices`. The hook tells it, so the
process becomes one that has it preloaded, before it loads anything of CUDA.
"""

from __future__ import annotations

import math
import os
import sys

from gemlet import paths
from gemlet.devices import nvml
from gemlet.errors import DeviceError, GemletError
from gemlet.membership import MULTIPROCESSORS, PERCENTAGE, as_whole_devices


def start_again_as_whole(module: str) -> None:
    """Replaces this process by `python -m module` with the same arguments; does nothing if that was done, or no
    fraction is set. Raises DeviceError if the fraction makes no sense, or the number cannot be known or told: results
    could be wrong."""
    if percentage() >= 100 or MULTIPROCESSORS in os.environ:
        return
    with nvml.session() as session:
        devices = {device.uuid: device.multiprocessors() for device in session.devices()}
    whole = as_whole_devices({uuid: count for uuid, count in devices.items() if count})
    try:
        preload = paths.hook_path()
    except GemletError as error:
        raise DeviceError(f"no SM fraction under MPS without the hook: {error.message}", hint=error.hint) from None
    if not whole:
        raise DeviceError(
            "the driver does not tell how many multiprocessors the devices have, and without that number libraries may"
            " compute wrong results",
            hint=f"set {MULTIPROCESSORS} to UUID=NUMBER for each device, or use another executor",
        )
    os.environ["LD_PRELOAD"] = paths.prepended(preload, os.environ.get("LD_PRELOAD", ""))
    os.environ |= whole
    os.execv(sys.executable, [sys.executable, "-P", "-m", module, *sys.argv[1:]])


def percentage() -> float:
    """The fraction under MPS that this process was started with; 100 without one. Raises DeviceError."""
    text = os.environ.get(PERCENTAGE) or "100"
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not value > 0:
        raise DeviceError(
            f"{PERCENTAGE} of the environment is not valid: {text!r}, expected a number above 0",
            hint=f"set {PERCENTAGE} to a percentage of the multiprocessors, or unset it",
        )
    return value
