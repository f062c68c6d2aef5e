"""Requests that models send to others while they work: they go the way of any request, and their answer back."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from gemlet.serve.dispatch.call import Answered, Call, Refusal, Tensor
from gemlet.serve.dispatch.engine import now_ms
from gemlet.serve.execution import protocol
from gemlet.serve.execution.executor import COPY_BYTES

if TYPE_CHECKING:
    from gemlet.serve.dispatch.engine import Engine
    from gemlet.serve.execution.executor import Executor


class Nested:
    """Hands them to the engine; the executor of the model gets the reply."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._asked: WeakKeyDictionary[Executor, dict[int, Call]] = WeakKeyDictionary()  # by its number

    def __call__(self, executor: Executor, message: protocol.Ask | protocol.Cancel) -> None:
        asked = self._asked.setdefault(executor, {})
        if isinstance(message, protocol.Ask):
            self._ask(executor, asked, message)
        elif (call := asked.pop(message.number, None)) is not None:
            self._engine.heard(call)
            self._engine.cancel(call)

    def _ask(self, executor: Executor, asked: dict[int, Call], message: protocol.Ask) -> None:
        def answer(result: Answered | Refusal) -> None:
            self._engine.heard(asked.pop(message.number))  # which knows this: else both would wait for the collector
            nbytes = sum([len(each.data) for each in result.outputs]) if isinstance(result, Answered) else 0
            if COPY_BYTES < nbytes <= protocol.MAX_NESTED and isinstance(result, Answered):
                outputs, data = [_tensor(each) for each in result.outputs], [each.data for each in result.outputs]
                executor.reply_large(message.number, outputs, data, result.loan.keep())
            else:
                executor.reply(_reply(message, result, nbytes))

        # BYTES were packed by our own code in that process, and are looked at where the other model runs: not here,
        # where all others would wait for that.
        inputs = [
            Tensor(each.name, each.datatype, each.shape, each.inline, checked=each.datatype == "BYTES")
            for each in message.inputs
        ]
        timeout_ms = message.timeout_us / 1000
        asked[message.number] = call = Call(
            message.model, inputs, answer, now_ms(), message.version, timeout_ms,
            chain=message.chain, parent=message.batch, client=f"model {message.chain[-1]}",
        )  # fmt: skip
        self._engine.ask(call, executor)


def _reply(message: protocol.Ask, result: Answered | Refusal, nbytes: int) -> protocol.Reply:
    if isinstance(result, Refusal):
        return protocol.Reply(message.number, error=result.message)
    if nbytes > protocol.MAX_NESTED:
        error = f"the answer of {message.model} has {nbytes} bytes: expected at most {protocol.MAX_NESTED}"
        return protocol.Reply(message.number, error=error)
    return protocol.Reply(message.number, tuple([_tensor(each, bytes(each.data)) for each in result.outputs]))


def _tensor(output: Tensor, inline: bytes = b"") -> protocol.ArenaTensor:
    return protocol.ArenaTensor(output.name, output.datatype, output.shape, -1, len(output.data), inline)
