"""Outputs of a batch stay where they are as long as somebody keeps them, and no longer."""

from __future__ import annotations

import asyncio

from gemlet.serve.execution import protocol
from gemlet.serve.execution.backend import BackendOptions
from gemlet.serve.execution.executor import Executor, Input
from gemlet.serve.execution.loan import Loan


def test_the_memory_goes_back_once_when_nobody_keeps_it_any_more():
    released = []
    loan = Loan(lambda: released.append(1))
    first, second = loan.keep(), loan.keep()
    loan.end()
    first.end()
    first.end()
    assert not released
    del second  # as a task that never ran leaves it
    assert released == [1]


class Outputs:
    """In place of a mapping."""

    view = memoryview(b"abcdefgh")


class Sent:
    """In place of a transport."""

    def __init__(self):
        self.frames = []

    def is_closing(self):
        return False

    def write(self, frame):
        self.frames.append(frame)


def batch(executor, done):
    """Gives an executor that never started an output at 4 to 8 of its memory; ``done`` is called with the future."""
    executor._outputs, executor._transport = Outputs(), Sent()
    future = executor._waiting[1] = asyncio.get_running_loop().create_future()
    future.add_done_callback(done)
    executor.received(protocol.Done(1, (protocol.ArenaTensor("Y", "UINT8", (1, 4), 4, 4),), 1.0))
    return future


RELEASED = protocol.frame(protocol.Release((4,)))


def test_an_executor_gets_its_memory_back_after_the_answer():
    async def run():
        executor = Executor("one", "noop", BackendOptions(device=0))
        seen = []
        batch(executor, lambda _: seen.append(list(executor._transport.frames)))
        for _ in range(3):
            await asyncio.sleep(0)
        assert seen == [[]]
        assert executor._transport.frames == [RELEASED]

    asyncio.run(run())


def test_who_keeps_it_while_the_answer_is_given_has_it():
    async def run():
        executor = Executor("one", "noop", BackendOptions(device=0))
        kept = []
        future = batch(executor, lambda done: kept.append(done.result().loan.keep()))
        for _ in range(3):
            await asyncio.sleep(0)
        assert not executor._transport.frames
        assert bytes(future.result().outputs[0][1]) == b"efgh"
        kept.pop().end()
        assert executor._transport.frames == [RELEASED]

    asyncio.run(run())


class Taken:
    """In place of an arena: how much was asked of it."""

    def __init__(self):
        self.nbytes = []
        self.view = memoryview(bytearray(1 << 16))

    def allocate(self, nbytes):
        self.nbytes.append(nbytes)
        return 0

    def release(self, offset):
        pass


def test_a_batch_of_small_tensors_is_one_message_there_and_one_back():
    async def run():
        executor = Executor("one", "noop", BackendOptions(device=0))
        executor._transport, executor._inputs = Sent(), Taken()
        small, large = b"x" * protocol.SMALL_BYTES, b"x" * (protocol.SMALL_BYTES + 1)
        future = executor.run("let", "m", [Input("X", "UINT8", (1, len(small)), [small], len(small))], 1)
        executor.received(protocol.Done(1, (protocol.ArenaTensor("Y", "UINT8", (1, 2), -1, 2, b"ab"),), 1.0))
        ((_, data),) = (await future).outputs
        assert bytes(data) == b"ab"
        await asyncio.sleep(0)
        assert len(executor._transport.frames) == 1
        assert executor._inputs.nbytes == []
        executor.run("let", "m", [Input("X", "UINT8", (1, len(large)), [large], len(large))], 1)
        assert executor._inputs.nbytes == [len(large)]

    asyncio.run(run())
