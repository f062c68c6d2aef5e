"""Large answers to what a model asked: copied beside the event loop, and lent until then."""

from __future__ import annotations

import asyncio
from unittest import mock

import msgspec
import pytest

from gemlet.serve.execution import protocol
from gemlet.serve.execution.backend import BackendOptions
from gemlet.serve.execution.executor import Executor
from gemlet.serve.execution.loan import Loan


def parted(frame):
    assert int.from_bytes(frame[: protocol.LENGTH_BYTES], "little") == len(frame) - protocol.LENGTH_BYTES
    return protocol.to_executor.decode(frame[protocol.LENGTH_BYTES :])


@pytest.mark.parametrize("count", [0, 1, 15, 16, 300])
def test_pieces_of_a_reply_are_what_the_encoder_makes_of_it(count):
    data = [bytes([number % 256]) * 300 * number for number in range(count)]
    outputs = [protocol.ArenaTensor(f"Y{at}", "UINT8", (1, len(each)), -1, len(each)) for at, each in enumerate(data)]
    reply = parted(b"".join(protocol.reply_in_pieces(1 << 40, outputs, data)))
    whole = [msgspec.structs.replace(each, inline=inline) for each, inline in zip(outputs, data, strict=True)]
    assert reply == protocol.Reply(1 << 40, tuple(whole))


class Copying:
    """Copies when the test says so."""

    def __init__(self):
        self.orders = []

    def __call__(self, act, done):
        self.orders.append((act, done))

    def go(self, error=None):
        act, done = self.orders.pop()
        if error is None:
            act()
        done(error)


@pytest.mark.parametrize("ends", ["copied", "not copied", "died"])
def test_the_data_of_a_large_reply_are_lent_until_they_are_copied(ends):
    async def run():
        executor, released = Executor("one", "cpu", BackendOptions(device=0)), []
        executor._transport, executor._copying = transport, copying = mock.Mock(), Copying()
        loan = Loan(lambda: released.append(True))
        data = b"abc" * 1000
        output = protocol.ArenaTensor("Y", "UINT8", (1, len(data)), -1, len(data))
        executor.reply_large(7, [output], [data], loan.keep())
        loan.end()  # of the batch
        assert not released
        assert not transport.write.called
        if ends == "died":
            executor._transport = None
        copying.go(MemoryError("none") if ends == "not copied" else None)
        assert released == [True]
        written = [parted(bytes(call.args[0])) for call in transport.write.call_args_list]
        if ends == "copied":
            assert [(reply.number, reply.outputs[0].inline) for reply in written] == [(7, data)]
        elif ends == "not copied":
            assert written == [protocol.Reply(7, error="MemoryError: none")]
        else:
            assert written == []

    asyncio.run(run())


def test_a_large_reply_to_an_executor_that_is_gone_is_not_made():
    async def run():
        executor, released = Executor("one", "cpu", BackendOptions(device=0)), []
        loan = Loan(lambda: released.append(True))
        executor.reply_large(7, [], [], loan.keep())
        loan.end()
        assert released == [True]

    asyncio.run(run())
