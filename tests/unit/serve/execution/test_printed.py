"""What a model prints or logs without end reaches the server's log at a bounded rate, and costs it little."""

from __future__ import annotations

import asyncio
import logging
import os

import msgspec
import pytest

from gemlet.serve.execution import printed as printed_module
from gemlet.serve.execution import protocol
from gemlet.serve.execution.backend import BackendOptions, GpuLet
from gemlet.serve.execution.executor import Executor, Input
from gemlet.serve.execution.printed import LINE_BYTES, LINES_PER_MINUTE, Printed
from gemlet.serve.execution.worker import LogSender
from tests.unit.serve.stand_in import model

PATIENCE_S = 120  # a limit for what never comes
FLOOD = """\
import logging
import os
import sys


def infer(inputs):
    for number in range(20_000):
        print("out", number)
        print("err", number, file=sys.stderr)
        logging.getLogger("gemlet.serve.executor").info("log %d", number)
    os.write(2, b"direct\\n" * 20_000)
    return {"Y": inputs["X"]}
"""


class Fed:
    def __init__(self):
        self.now = 0.0
        self.written = b""
        self.printed = Printed("one", self.write, clock=lambda: self.now)

    def write(self, data):
        self.written += data

    def lines(self):
        return self.written.decode().splitlines()


def test_lines_pass_whole_and_in_order():
    fed = Fed()
    for part in (b"a\nb", b"c\n", b"\n", b"d"):
        fed.printed.feed(part)
    assert fed.written == b"a\nbc\n\n"
    fed.printed.end()
    assert fed.written == b"a\nbc\n\nd\n"


def test_beyond_the_rate_lines_are_counted_and_the_count_told():
    fed = Fed()
    for _ in range(3):
        fed.printed.feed(b"x\n" * LINES_PER_MINUTE)
    assert len(fed.lines()) == LINES_PER_MINUTE
    fed.now = 61
    fed.printed.feed(b"y\n")
    told, last = fed.lines()[LINES_PER_MINUTE:]
    assert f"one: {2 * LINES_PER_MINUTE} lines that it printed were left out" in told
    assert last == "y"


def test_the_count_is_told_at_the_end():
    fed = Fed()
    fed.printed.feed(b"x\n" * (LINES_PER_MINUTE + 5) + b"and more")
    fed.printed.end()
    assert "one: 5 lines" in fed.lines()[-2]
    assert fed.lines()[-1] == "and more"


def test_the_lines_left_out_cost_one_look_for_each_piece():
    fed = Fed()
    fed.printed.feed(b"x\n" * LINES_PER_MINUTE)
    asked = []
    allow = fed.printed._limiter.allow
    fed.printed._limiter.allow = lambda key, *, now: asked.append(key) or allow(key, now=now)
    for _ in range(10):
        fed.printed.feed(b"\n" * 60_000)
    assert len(asked) == 10
    assert fed.printed._left_out == 600_000


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_a_line_without_end_is_cut_and_kept_nowhere(end):
    fed = Fed()
    for _ in range(200):
        fed.printed.feed(b"x" * 65_536)
        assert len(fed.printed._begun) < LINE_BYTES
    fed.printed.feed(end)
    assert len(fed.written) <= LINES_PER_MINUTE * (LINE_BYTES + 1)
    assert max(map(len, fed.lines())) <= LINE_BYTES


class Sent:
    def __init__(self):
        self.messages = []

    def send(self, message):
        self.messages.append(message)


def test_the_log_of_a_process_is_bounded(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("gemlet.serve.execution.worker.time.monotonic", lambda: now[0])
    sent = Sent()
    handler = LogSender(sent)

    def log(line):
        handler.handle(logging.LogRecord("gemlet.serve.executor", logging.INFO, "", 0, line, None, None))

    for _ in range(LINES_PER_MINUTE + 7):
        log("x" * 100_000)
    assert len(sent.messages) == LINES_PER_MINUTE
    assert {len(message.line) for message in sent.messages} == {protocol.TEXT_CHARACTERS + 3}
    now[0] = 61.0
    log("y")
    told, last = sent.messages[LINES_PER_MINUTE:]
    assert told == protocol.Log(
        logging.WARNING, "gemlet.serve.executor", f"7 lines were left out: more than {LINES_PER_MINUTE} a minute"
    )
    assert last.line == "y"


def test_a_model_that_prints_and_logs_without_end_fills_no_log(tmp_path, capfd, caplog):
    folder = tmp_path / "bad"
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text(FLOOD)
    spec = msgspec.structs.replace(model("bad", platform="python", max_batch=0), directory=str(folder))

    async def run():
        executor = Executor("one", "cpu", BackendOptions(device=0), arena_bytes=1 << 20)
        await executor.start()
        await executor.load(spec)
        await executor.partition([GpuLet(name="let", sm=1.0, models={spec.key: 1})])
        async with asyncio.timeout(PATIENCE_S):
            await executor.run("let", spec.key, [Input("X", "FP32", (1,), [bytes(4)], 4)], 1)
        await executor.close()

    with caplog.at_level(logging.INFO, logger="gemlet.serve.executor"):
        asyncio.run(run())
    minutes = 3  # that it may take where the machine is busy
    lines = capfd.readouterr().err.splitlines()
    assert "out 0" in lines
    assert len(lines) <= minutes * (LINES_PER_MINUTE + 1)
    assert "lines that it printed were left out" in lines[-1]
    assert len([each for each in caplog.records if "log " in each.getMessage()]) <= minutes * LINES_PER_MINUTE


def test_the_last_words_of_a_process_that_dies_are_heard(capfd):
    pipe = printed_module.PassedOn("one")
    os.write(pipe.descriptor, b"Fatal error")
    pipe.began()
    pipe.finish()
    assert capfd.readouterr().err == "Fatal error\n"
