"""The device of session.py as a process of its own has it, with the models on it: whatever they do there, each answer
is there in time, or the process is ended and the next model gets a new one.

A model that is code of the user's has the process to itself: what it leaves behind (a thread that spins, an alarm,
a descriptor that it has closed) would disturb the next one's measurements, or end its process.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Self, TypeVar

import msgspec

from gemlet.decoding import msgpack_decoder
from gemlet.errors import DeviceError, GemletError, UsageError
from gemlet.readiness import await_readable
from gemlet.serve.execution.printed import PassedOn
from gemlet.serve.profiling import guard, messages
from gemlet.serve.profiling.taking import sound

if TYPE_CHECKING:
    from collections.abc import Callable

    from gemlet.serve.models.specification import ModelSpec
    from gemlet.serve.profiles.profile import Device
    from gemlet.serve.profiling.messages import Reply, Request
    from gemlet.serve.profiling.session import Subject
    from gemlet.serve.profiling.steps import Step
    from gemlet.serve.profiling.taking import Taken

MACHINE = "gemlet.serve.profiling.gpu"
START_SECONDS = 120.0  # importing torch and making a CUDA context, on a busy machine
CLOSE_SECONDS = 10.0  # of a model
STATUS_SECONDS = 1.0  # after the end of the connection, until the guard has seen the end of the process
Kind = TypeVar("Kind", bound=messages.Reply)


class OverTime(GemletError):
    """The answer was not there in time. The process has been ended."""


class ProcessEnded(GemletError):
    """By the model, or by what the model did."""


class Apart:
    """A Rig. ``until`` is a moment of time.monotonic() everywhere. Raises DeviceError, UsageError."""

    def __init__(self, index: int, spec_of: Callable[[Subject], ModelSpec], *, machine: str = MACHINE) -> None:
        self._index, self._spec_of, self._machine = index, spec_of, machine
        self._process: _Process | None = None
        self._foreign = False  # code of a user's has run in it
        ready = self._started(time.monotonic() + START_SECONDS)
        self.device: Device = ready.device
        self.groups = ready.groups

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the process."""
        process, self._process = self._process, None
        if process is not None:
            process.end()

    def stressor(self, resource: str, until: float) -> float:
        return self.ask(lambda n: messages.Press(n, resource), messages.Pressed, until, "two stressors").slower

    def load(self, subject: Subject, until: float) -> ApartBench:
        """Raises GemletError."""
        spec = self._spec_of(subject)
        if self._foreign:
            self.close()
        self._foreign = spec.platform != "builtin"
        self.ask(lambda n: messages.Load(n, spec), messages.Done, until, "loading it")
        assert self._process is not None, "it has answered"
        return ApartBench(self, self._process)

    def ask(self, request: Callable[[int], Request], kind: type[Kind], until: float, what: str) -> Kind:
        """The answer, of a process that is started if there is none. Raises GemletError."""
        if self._process is None:
            self._started(until)
        assert self._process is not None, "it was started"
        process = self._process
        try:
            reply = process.ask(request, until, what)
        except BaseException:
            self.close()
            raise
        if isinstance(reply, messages.Failed):
            raise (UsageError if reply.usage else GemletError)(reply.message, hint=reply.hint)
        if not isinstance(reply, kind):
            self.close()
            raise ProcessEnded(f"{what}: it wrote to the connection of gemlet's; its process was ended")
        return reply

    def has(self, process: _Process) -> bool:
        """Whether that is still the one."""
        return self._process is process

    def _started(self, until: float) -> messages.Ready:
        """Raises DeviceError, UsageError, OverTime."""
        try:
            process = _Process(self._machine, self._index)
        except (OSError, RuntimeError) as error:
            raise DeviceError(f"a process for models cannot be started: {error}") from None
        try:
            reply = process.answer(0, until, "starting a process for it")
        except BaseException:
            process.end()
            raise
        if not isinstance(reply, messages.Ready):
            process.end()
            failed = reply if isinstance(reply, messages.Failed) else messages.Failed(0, "it answered out of turn")
            raise (UsageError if failed.usage else DeviceError)(failed.message, hint=failed.hint)
        self._process = process
        return reply


class ApartBench:
    """A model that is loaded there."""

    def __init__(self, rig: Apart, process: _Process) -> None:
        self._rig, self._process = rig, process

    def take(self, step: Step, until: float) -> Taken:
        """Raises GemletError."""
        if not self._rig.has(self._process):
            raise ProcessEnded("its process has ended")
        what = f"measuring on {step.groups}/{self._rig.groups} of the SMs"
        taken = self._rig.ask(lambda n: messages.Take(n, step), messages.Measured, until, what).taken
        if not sound(step, taken, self._rig.groups):
            raise ProcessEnded(f"{what} came to numbers that make no sense")
        return taken

    def close(self) -> None:
        """Raises GemletError where the model does not let itself be unloaded; its process has been ended then."""
        if self._rig.has(self._process):
            self._rig.ask(messages.Close, messages.Done, time.monotonic() + CLOSE_SECONDS, "unloading it")


class _Process:
    """One, with its guard."""

    def __init__(self, machine: str, index: int) -> None:
        """Raises OSError, RuntimeError."""
        self._number = 0
        self._decoder = msgpack_decoder(messages.Reply)
        with contextlib.ExitStack() as passed, contextlib.ExitStack() as unused:
            self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            passed.enter_context(theirs)
            unused.enter_context(self._connection)
            self._line, guards = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            passed.enter_context(guards)
            unused.enter_context(self._line)
            # Not to standard output, which is for data, and never so much that it fills a log.
            self._printed = PassedOn("gemlet: a model")
            passed.callback(self._printed.began)
            self._guard = subprocess.Popen(
                [sys.executable, "-P", "-m", guard.__name__, "--line", str(guards.fileno()), "--pass",
                 str(theirs.fileno()), "--", sys.executable, "-P", "-m", "gemlet.serve.profiling.measurer", "--fd",
                 str(theirs.fileno()), "--machine", machine, "--index", str(index)],
                pass_fds=(guards.fileno(), theirs.fileno()), stdin=subprocess.DEVNULL,
                stdout=self._printed.descriptor, stderr=self._printed.descriptor,
                start_new_session=True,  # Ctrl-C is for gemlet alone; what a model sends to its group is not
            )  # fmt: skip
            unused.pop_all()

    def ask(self, request: Callable[[int], Request], until: float, what: str) -> Reply:
        """Raises OverTime, ProcessEnded; the process is to be ended then."""
        self._number += 1
        data = msgspec.msgpack.encode(request(self._number))
        if len(data) > messages.MOST_BYTES:
            raise GemletError(f"its configuration is of {len(data)} bytes: expected at most {messages.MOST_BYTES}")
        try:
            self._connection.send(data, socket.MSG_DONTWAIT)
        except OSError:  # it has ended meanwhile, or takes nothing
            raise ProcessEnded(f"{what}: {self._how_it_ended()}") from None
        return self.answer(self._number, until, what)

    def answer(self, number: int, until: float, what: str) -> Reply:
        """To the request of this number. Raises as `ask`."""
        while True:
            ready = await_readable([self._connection, self._line], until - time.monotonic())
            if not ready or time.monotonic() >= until:
                raise OverTime(f"{what} did not end within the budget; its process was ended")
            if self._connection.fileno() not in ready:  # what the process said last comes before its end
                raise ProcessEnded(f"{what}: {self._how_it_ended()}")
            try:
                data = self._connection.recv(messages.MOST_BYTES + 1)
            except OSError:
                data = b""
            if not data:
                raise ProcessEnded(f"{what}: {self._how_it_ended()}")
            with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                reply: Reply = self._decoder.decode(data)
                if reply.number == number:
                    return reply

    def end(self) -> None:
        """Ends it with all that it has started."""
        with contextlib.suppress(OSError):
            self._line.shutdown(socket.SHUT_RDWR)
        self._guard.send_signal(signal.SIGCONT)  # a model may have stopped it
        try:
            self._guard.wait(2 * guard.END_SECONDS)
        except subprocess.TimeoutExpired:  # a model stops it again and again
            for pid in (self._guard.pid, *guard.descendants(self._guard.pid)):
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            self._guard.wait()
        self._connection.close()
        self._line.close()
        self._printed.finish()

    def _how_it_ended(self) -> str:
        status: int | None = None
        if await_readable([self._line], STATUS_SECONDS):
            with contextlib.suppress(OSError, ValueError):
                status = int(self._line.recv(64) or b"x")
        return told(status)


def told(status: int | None) -> str:
    """How a process ended, in words. None: it had not, so a model must have closed its connection."""
    if status in (None, messages.CLOSED):
        return "the model has closed the connection of gemlet's; its process was ended"
    assert status is not None, "that was the case above"
    if status >= 0:
        return f"the model has ended its process, with exit code {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    memory = ": perhaps the memory of the host was used up" if -status == signal.SIGKILL else ""
    return f"its process was ended by {name}{memory}"
