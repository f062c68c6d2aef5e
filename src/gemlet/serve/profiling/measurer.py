"""The process in which `gemlet profile` runs models. It does one thing at a time, as it is asked.

Nothing that a model does here is to be feared: `guard.py` ends the process with all that it has started.
"""

from __future__ import annotations

import argparse
import importlib
import io
import os
import socket
import sys
from typing import TYPE_CHECKING, NoReturn

import msgspec

from gemlet.decoding import msgpack_decoder
from gemlet.errors import GemletError, UsageError
from gemlet.serve.execution.protocol import told
from gemlet.serve.profiling import messages
from gemlet.serve.profiling.taking import take, why

if TYPE_CHECKING:
    from gemlet.serve.profiling.messages import Reply, Request
    from gemlet.serve.profiling.taking import Bench, Machine


class Measurer:
    """``machine`` and the model that is loaded there, if one is."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._bench: Bench | None = None

    def answer(self, request: Request) -> Reply:
        """Raises whatever the model does."""
        match request:
            case messages.Load():
                self._close()
                self._bench = self._machine.bench(request.model)
            case messages.Press():
                return messages.Pressed(request.number, self._machine.stressor(request.resource))
            case messages.Close():
                self._close()
            case messages.Take():
                if self._bench is None:
                    raise GemletError("no model is loaded")
                return messages.Measured(request.number, take(self._bench, request.step, self._machine.groups))
        return messages.Done(request.number)

    def _close(self) -> None:
        bench, self._bench = self._bench, None
        if bench is not None:
            bench.close()


def main() -> NoReturn:
    parser = argparse.ArgumentParser(prog="gemlet.serve.profiling.measurer")
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--machine", required=True, help="a module with create(index)")
    parser.add_argument("--index", type=int, required=True)
    arguments = parser.parse_args()
    own = os.getpid()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # what is printed may be the last
    sys.dont_write_bytecode = True
    os.set_inheritable(arguments.fd, False)
    connection = socket.socket(fileno=arguments.fd)
    decoder = msgpack_decoder(messages.Request)
    measurer: Measurer | None = None
    number = 0
    while True:
        try:
            if measurer is None:
                machine: Machine = _created(arguments.machine, arguments.index)
                measurer = Measurer(machine)
                reply: Reply = messages.Ready(0, machine.device, machine.groups)
            else:
                data = connection.recv(messages.MOST_BYTES)
                if not data:
                    os._exit(0)  # not by sys.exit(), which waits for threads of a model's
                request: Request = decoder.decode(data)
                number = request.number
                reply = measurer.answer(request)
        except BaseException as error:  # noqa: BLE001  a model's own code raises anything, KeyboardInterrupt too
            reply = _failed(number, error)
        if os.getpid() != own:
            os._exit(0)  # a model has forked, and its child has come back here: the parent answers
        try:
            connection.sendall(msgspec.msgpack.encode(reply))
        except OSError:
            os._exit(messages.CLOSED)
        if measurer is None:
            os._exit(1)


def _created(module: str, index: int) -> Machine:
    try:
        machine: Machine = importlib.import_module(module).create(index)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        hint = "pip install 'gemlet[torch]'; gemlet profile --modelled needs neither torch nor a GPU"
        raise UsageError("measuring needs torch, which is not installed", hint=hint) from None
    return machine


def _failed(number: int, error: BaseException) -> messages.Failed:
    hint = error.hint if isinstance(error, GemletError) else None
    return messages.Failed(number, told(why(error)), hint, isinstance(error, UsageError))


if __name__ == "__main__":
    main()
