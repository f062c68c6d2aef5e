"""One program of `gemlet demo`: keeps a device busy and counts the work that is done.

A plain CUDA driver program in ctypes, without any dependency, so that it is a client like any other. Its kernel
(spin.ptx) does a fixed amount of work, whatever happens meanwhile.

    python demo_client.py calibrate MICROSECONDS             prints the scale at which a launch takes that long
    python demo_client.py work MICROSECONDS SCALE SECONDS [MIB]   a line each tenth of a second: time
                                                             (CLOCK_MONOTONIC, ns) and launches completed so far;
                                                             MIB: device memory it holds meanwhile, filled once

What goes wrong is one line on stderr and exit code 1.
"""

from __future__ import annotations

import ctypes
import signal
import sys
import time
from collections import deque
from pathlib import Path

SPIN = Path(__file__).with_name("spin.ptx")
THREADS = 1024  # a block; one block on each multiprocessor, so that a launch takes the whole device
IN_FLIGHT = 16  # launches: more than the device needs to stay busy between two looks of this loop
REPORT_SECONDS = 0.1

# Calibration: each round corrects the scale by what the one before took.
FIRST_SCALE = 1 << 14  # a multiply-add in 4 ns
ROUNDS = 6
ROUND_MICROSECONDS = 20_000

MULTIPROCESSORS = 16  # CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
BLOCKING_SYNC, DISABLE_TIMING = 1, 2  # CU_EVENT_...


class CudaError(RuntimeError):
    """A driver call failed, or there is no driver."""


class Program:
    """The kernel on device 0, in the primary context. Raises `CudaError`."""

    def __init__(self, microseconds: int) -> None:
        try:
            self._cuda = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise CudaError(f"no CUDA driver: {error}") from None
        device, context, module = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
        processors = ctypes.c_int()
        self.stream, self._function = ctypes.c_void_p(), ctypes.c_void_p()
        self._duration, self._scale = ctypes.c_uint64(microseconds * 1000), ctypes.c_uint64(FIRST_SCALE)
        self._out = ctypes.c_uint64()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDeviceGetAttribute", ctypes.byref(processors), MULTIPROCESSORS, device)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)
        self.call("cuModuleLoadData", ctypes.byref(module), SPIN.read_bytes())
        self.call("cuModuleGetFunction", ctypes.byref(self._function), module, b"spin")
        self.call("cuMemAlloc_v2", ctypes.byref(self._out), ctypes.c_size_t(4096))
        self.call("cuStreamCreate", ctypes.byref(self.stream), NON_BLOCKING)
        self._blocks = processors.value
        parameters = (self._duration, self._scale, self._out)
        self._parameters = (ctypes.c_void_p * len(parameters))(*map(ctypes.addressof, parameters))

    @property
    def scale(self) -> int:
        """What the kernel multiplies its nanoseconds by, in 65536ths."""
        return self._scale.value

    @scale.setter
    def scale(self, value: int) -> None:
        self._scale.value = value  # a launch copies its parameters

    def call(self, name: str, *arguments: object) -> None:
        """Calls ``name``; raises `CudaError` unless it answers CUDA_SUCCESS."""
        status = getattr(self._cuda, name)(*arguments)
        if status:
            raise CudaError(f"{name}: {self._name_of(status)}")

    def _name_of(self, status: int) -> str:
        name = ctypes.c_char_p()
        self._cuda.cuGetErrorName(status, ctypes.byref(name))
        return (name.value or b"CUDA error").decode() + f" ({status})"

    def launch(self) -> None:
        """One launch, asynchronous."""
        blocks, stream = self._blocks, self.stream
        self.call("cuLaunchKernel", self._function, blocks, 1, 1, THREADS, 1, 1, 0, stream, self._parameters, None)

    def event(self, flags: int) -> ctypes.c_void_p:
        """A new event that waits without spinning: several of these programs may share few processors."""
        event = ctypes.c_void_p()
        self.call("cuEventCreate", ctypes.byref(event), BLOCKING_SYNC | flags)
        return event


def calibrate(microseconds: int) -> int:
    """The scale at which a launch takes ``microseconds``. Nothing else may run on the device."""
    program = Program(microseconds)
    begin, end, elapsed = program.event(0), program.event(0), ctypes.c_float()
    launches = min(100, max(20, ROUND_MICROSECONDS // microseconds))
    for number in range(1 + ROUNDS):
        program.call("cuEventRecord", begin, program.stream)
        for _ in range(launches):
            program.launch()
        program.call("cuEventRecord", end, program.stream)
        program.call("cuEventSynchronize", end)
        program.call("cuEventElapsedTime", ctypes.byref(elapsed), begin, end)
        if number:  # the first only warms up: module, clocks
            program.scale = max(1, round(program.scale * microseconds * launches / (elapsed.value * 1000)))
    return program.scale


def work(microseconds: int, scale: int, seconds: float, mebibytes: int = 0) -> None:
    """Launches for ``seconds`` and reports as the module says."""
    program = Program(microseconds)
    program.scale = scale
    if mebibytes:
        held, size = ctypes.c_uint64(), ctypes.c_size_t(mebibytes << 20)
        program.call("cuMemAlloc_v2", ctypes.byref(held), size)
        program.call("cuMemsetD8_v2", held, ctypes.c_ubyte(1), size)
    idle = [program.event(DISABLE_TIMING) for _ in range(IN_FLIGHT)]
    pending: deque[ctypes.c_void_p] = deque()
    completed = 0
    now = time.monotonic_ns()
    end, report_at = now + int(seconds * 1e9), now
    while now < end:
        if not idle:
            done = pending.popleft()
            program.call("cuEventSynchronize", done)
            completed += 1
            idle.append(done)
        program.launch()
        event = idle.pop()
        program.call("cuEventRecord", event, program.stream)
        pending.append(event)
        now = time.monotonic_ns()
        if now >= report_at:
            print(now, completed, flush=True)
            report_at = now + int(REPORT_SECONDS * 1e9)
    program.call("cuStreamSynchronize", program.stream)


def main(arguments: list[str]) -> None:
    """Does what the module says; ends the process with a line on stderr if it cannot."""
    try:
        match arguments:
            case ["calibrate", microseconds]:
                print(calibrate(int(microseconds)))
            case ["work", microseconds, scale, seconds]:
                work(int(microseconds), int(scale), float(seconds))
            case ["work", microseconds, scale, seconds, mebibytes]:
                work(int(microseconds), int(scale), float(seconds), int(mebibytes))
            case _:
                sys.exit("usage: demo_client.py calibrate MICROSECONDS | work MICROSECONDS SCALE SECONDS [MIB]")
    except (CudaError, ValueError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGPIPE):  # it ends as a C program would
        signal.signal(number, signal.SIG_DFL)
    main(sys.argv[1:])
