"""Requests that models send to others while they work: they go the way of any request, and their answer back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gemlet.serve.dispatch.call import Answered, Call, Refusal, Tensor
from gemlet.serve.dispatch.engine import now_ms
from gemlet.serve.execution import protocol

if TYPE_CHECKING:
    from gemlet.serve.dispatch.engine import Engine
    from gemlet.serve.execution.executor import Executor


def ask(engine: Engine, executor: Executor, message: protocol.Ask) -> None:
    """Hands it to the engine; ``executor`` gets the reply."""

    def answer(result: Answered | Refusal) -> None:
        engine.heard(call)
        if isinstance(result, Refusal):
            executor.reply(protocol.Reply(message.number, error=result.message))
            return
        nbytes = sum([len(each.data) for each in result.outputs])
        if nbytes > protocol.MAX_NESTED:
            error = f"the answer of {message.model} has {nbytes} bytes: expected at most {protocol.MAX_NESTED}"
            executor.reply(protocol.Reply(message.number, error=error))
            return
        outputs = tuple(
            protocol.ArenaTensor(each.name, each.datatype, each.shape, -1, len(each.data), bytes(each.data))
            for each in result.outputs
        )
        executor.reply(protocol.Reply(message.number, outputs))

    inputs = [Tensor(each.name, each.datatype, each.shape, each.inline) for each in message.inputs]
    timeout_ms = message.timeout_us / 1000
    call = Call(
        message.model, inputs, answer, now_ms(), message.version, timeout_ms,
        chain=message.chain, parent=message.batch,
    )  # fmt: skip
    engine.infer(call)
