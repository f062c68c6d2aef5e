"""Green contexts: streams whose kernels run on some of a device's SMs only. The driver's API by ctypes.

The SMs are split once, into the smallest groups that the driver makes (8 SMs on Hopper). A context takes a range of
these groups, so ranges that do not overlap share no SM; contexts of separate splits may. A CUDA graph keeps the context
of the stream that it was captured on, whatever stream launches it.

CUDA 12.5 and later. torch has green contexts too, but each by a split of its own, so that two of them may overlap.
"""

from __future__ import annotations

import ctypes
import logging
from dataclasses import dataclass
from typing import Any

from gemlet.errors import DeviceError

logger = logging.getLogger(__name__)
_SM = 1  # CU_DEV_RESOURCE_TYPE_SM
_DEFAULT_STREAM = 1  # CU_GREEN_CTX_DEFAULT_STREAM, which the driver demands
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING: waits for no work of the legacy stream


class _Sm(ctypes.Structure):
    _fields_ = (("count", ctypes.c_uint), ("smallest", ctypes.c_uint), ("alignment", ctypes.c_uint))


class _Union(ctypes.Union):
    _fields_ = (("sm", _Sm), ("oversize", ctypes.c_ubyte * 48))


class _Resource(ctypes.Structure):  # CUdevResource, version 1: 144 bytes
    _fields_ = (("type", ctypes.c_int), ("internal", ctypes.c_ubyte * 92), ("of", _Union))


assert ctypes.sizeof(_Resource) == 144, "CUdevResource has another size here"


@dataclass(frozen=True, slots=True)
class GreenStream:
    """A stream of a green context. ``handle`` is a CUstream; ``sms`` how many SMs its kernels may use."""

    handle: int
    sms: int
    context: int


class SmGroups:
    """The SMs of one device in groups that never overlap.

    The device's primary context must be in use (by torch, say) for as long as this is. Raises DeviceError where the
    driver has no green contexts or refuses.
    """

    def __init__(self, device: int) -> None:
        try:
            self._cuda = ctypes.CDLL("libcuda.so.1")
        except OSError:
            raise DeviceError(
                "there is no NVIDIA driver here", hint="see what is missing with `gemlet doctor`"
            ) from None
        self._device = ctypes.c_int()
        self._ask("cuInit", ctypes.c_uint(0))
        self._ask("cuDeviceGet", ctypes.byref(self._device), ctypes.c_int(device))
        whole = _Resource()
        self._ask("cuDeviceGetDevResource", self._device, ctypes.byref(whole), ctypes.c_int(_SM))
        self.sms = int(whole.of.sm.count)
        count = ctypes.c_uint()
        rest = _Resource()
        flags, least = ctypes.c_uint(0), ctypes.c_uint(1)  # 1: the driver rounds up to what it can split
        self._ask(
            "cuDevSmResourceSplitByCount", None, ctypes.byref(count), ctypes.byref(whole), None, flags, least
        )  # asks for the number only
        groups = (_Resource * count.value)()
        self._ask(
            "cuDevSmResourceSplitByCount",
            groups, ctypes.byref(count), ctypes.byref(whole), ctypes.byref(rest), flags, least,
        )  # fmt: skip
        self._groups = list(groups)[: count.value]
        self._rest = rest if rest.type == _SM and rest.of.sm.count else None
        self.group_sms = int(self._groups[0].of.sm.count)

    @property
    def count(self) -> int:
        """How many groups there are; SMs that fill no group belong to the last one."""
        return len(self._groups)

    def stream(self, first: int, count: int, priority: int = 0) -> GreenStream:
        """A new stream on the groups first .. first + count - 1. ``priority``: CUDA's, lower goes first."""
        if not 0 <= first < first + count <= self.count:
            raise DeviceError(f"there are no groups of SMs {first}..{first + count - 1}, only {self.count}")
        chosen = self._groups[first : first + count]
        if first + count == self.count and self._rest is not None:
            try:
                return self._stream([*chosen, self._rest], priority)
            except DeviceError as error:  # a driver that does not join groups and the rest: a few SMs stay idle
                logger.info("%d SMs stay idle: %s", self._rest.of.sm.count, error)
                self._rest = None
        return self._stream(chosen, priority)

    def _stream(self, chosen: list[_Resource], priority: int) -> GreenStream:
        resources = (_Resource * len(chosen))(*chosen)
        description, context, handle = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        self._ask("cuDevResourceGenerateDesc", ctypes.byref(description), resources, ctypes.c_uint(len(chosen)))
        create = ctypes.c_uint(_DEFAULT_STREAM)
        self._ask("cuGreenCtxCreate", ctypes.byref(context), description, self._device, create)
        got = _Resource()
        self._ask("cuGreenCtxGetDevResource", context, ctypes.byref(got), ctypes.c_int(_SM))
        self._ask(
            "cuGreenCtxStreamCreate",
            ctypes.byref(handle), context, ctypes.c_uint(_NON_BLOCKING), ctypes.c_int(priority),
        )  # fmt: skip
        return GreenStream(handle.value or 0, int(got.of.sm.count), context.value or 0)

    def destroy(self, stream: GreenStream) -> None:
        """Ends stream and context. No graph that was captured on it may be launched any more."""
        self._ask("cuStreamDestroy_v2", ctypes.c_void_p(stream.handle))
        self._ask("cuGreenCtxDestroy", ctypes.c_void_p(stream.context))

    def _ask(self, name: str, *arguments: Any) -> None:
        try:
            function = getattr(self._cuda, name)
        except AttributeError:
            raise DeviceError(
                f"this driver has no {name}",
                hint="update the driver: green contexts need that of CUDA 12.5 (555) or later",
            ) from None
        code = function(*arguments)
        if code:
            text = ctypes.c_char_p()
            self._cuda.cuGetErrorName(code, ctypes.byref(text))
            raise DeviceError(f"{name}: {(text.value or b'').decode() or code}")
