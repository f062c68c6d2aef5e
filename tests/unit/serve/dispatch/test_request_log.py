"""The log of requests: what a line says, and what happens where it cannot be written."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import resource
import signal
import time

import pytest

from gemlet.errors import UsageError
from gemlet.serve.dispatch import request_log
from gemlet.serve.dispatch.call import Call, Tensor
from gemlet.serve.dispatch.engine import now_ms
from gemlet.serve.dispatch.request_log import Line, RequestLog
from tests.unit.serve.stand_in import Service


def ask(service, *, model="echo", shape=(1, 1), **more):
    answers = []
    service.engine.infer(Call(model, [Tensor("X", "FP32", shape, bytes(4))], answers.append, now_ms(), **more))
    assert len(answers) == 1


def written(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_each_request_has_a_line_whose_stages_sum_to_its_time(tmp_path):
    async def run():
        service = Service()
        service.engine.log = RequestLog(tmp_path / "log")
        ask(service, id="seven")
        ask(service, shape=(9, 1))
        ask(service, model="nobody")
        await service.engine.log.write()
        await service.engine.log.write()

    asyncio.run(run())
    answered, invalid, unknown = written(tmp_path / "log")
    stages = ("received_ms", "queued_ms", "way_ms", "computed_ms", "answered_ms")
    assert sum(answered.get(stage, 0) for stage in stages) == pytest.approx(answered["total_ms"], abs=0.01)
    told = {key: answered[key] for key in ("model", "version", "id", "outcome", "rows", "batch", "sm", "deadline_ms")}
    assert told == {
        "model": "echo", "version": "1", "id": "seven", "outcome": "answered", "rows": 1, "batch": 1,
        "sm": 1.0, "deadline_ms": 1000.0,
    }  # fmt: skip
    assert (invalid["outcome"], "expected 1 to 8" in invalid["message"]) == ("invalid", True)
    assert (unknown["outcome"], unknown["model"]) == ("unknown", "nobody")


def test_times_follow_a_clock_that_is_set_while_the_server_runs(tmp_path, monkeypatch):
    async def run():
        service = Service()
        service.engine.log = RequestLog(tmp_path / "log")
        ask(service)
        await service.engine.log.write()
        real = time.time
        monkeypatch.setattr(request_log.time, "time", lambda: real() + 86_400)
        await service.engine.log.write()  # as twice a second
        ask(service)
        await service.engine.log.write()

    asyncio.run(run())
    before, after = written(tmp_path / "log")
    assert after["time"] - before["time"] == pytest.approx(86_400, abs=3600)


def test_what_clients_say_is_cut(tmp_path):
    async def run():
        service = Service()
        service.engine.log = RequestLog(tmp_path / "log")
        ask(service, id="i" * (1 << 20))
        ask(service, model="m" * (1 << 20), version="v" * (1 << 20), id="i" * (1 << 20))
        await service.engine.log.write()

    asyncio.run(run())
    assert [len(line["id"]) for line in written(tmp_path / "log")] == [request_log.MOST] * 2
    assert (tmp_path / "log").stat().st_size < 8 * request_log.MOST


def test_the_file_may_be_moved_away(tmp_path):
    log = RequestLog(tmp_path / "log")
    call = Call("m", [], print, now_ms())
    for name in ("first", "second"):
        log.ended(call, "cancelled", now_ms())
        asyncio.run(log.write())
        (tmp_path / "log").rename(tmp_path / name)
    assert [len(written(tmp_path / name)) for name in ("first", "second")] == [1, 1]


def test_what_cannot_be_written_is_counted_and_the_server_goes_on(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(request_log, "MAX_LINES", 2)
    (tmp_path / "folder").mkdir()
    log = RequestLog(tmp_path / "folder" / "log")
    call = Call("m", [], print, now_ms())
    for _ in range(3):
        log.ended(call, "cancelled", now_ms())
    with caplog.at_level(logging.WARNING, logger="gemlet"):
        asyncio.run(log.write())
        assert "1 requests are not logged" in caplog.text
        (tmp_path / "folder" / "log").unlink()
        (tmp_path / "folder").rmdir()
        log.ended(call, "cancelled", now_ms())
        asyncio.run(log.write())
    assert "No such file or directory; 1 requests are not logged" in caplog.text


def test_a_file_that_cannot_be_made_is_an_error_at_the_start(tmp_path):
    with pytest.raises(UsageError, match=r"--request-log: .*: No such file"):
        RequestLog(tmp_path / "absent" / "log")


def line(number):
    return Line(time=1.0, model=f"m{number}", outcome="answered", total_ms=1.0)


def lines_of(data):
    return [json.loads(each) for each in data.splitlines() if each]


def test_a_pipe_that_nobody_reads_is_not_waited_for(tmp_path, caplog):
    path = tmp_path / "log"
    os.mkfifo(path)
    with pytest.raises(UsageError, match="nobody reads this pipe"):
        RequestLog(path)
    path.unlink()
    log = RequestLog(path)
    path.unlink()
    os.mkfifo(path)
    log.add(line(1))
    asyncio.run(log.write())
    assert "1 requests are not logged" in caplog.text


def test_a_pipe_that_is_read_gets_lines_and_one_that_is_full_loses_them(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(request_log, "READER_S", 0.01)
    path = tmp_path / "log"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    log = RequestLog(path)
    for number in range(3000):  # more than a pipe has room for
        log.add(line(number))
    asyncio.run(log.write())
    data = os.read(reader, 1 << 20)
    written = data.count(b"\n")
    assert f"{3000 - written} requests are not logged" in caplog.text
    log.add(line(5000))
    asyncio.run(log.write())
    data += os.read(reader, 1 << 20)
    os.close(reader)
    found = [each for each in data.splitlines() if each.endswith(b"}")]
    assert len(found) == written + 1
    assert json.loads(found[-1])["model"] == "m5000"


def test_a_line_that_is_cut_short_does_not_spoil_the_next(tmp_path, caplog):
    path = tmp_path / "log"
    log = RequestLog(path)
    log.add(line(1))
    log.add(line(2))
    first = len(path.read_bytes())
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (first + 80, before[1]))
    try:
        asyncio.run(log.write())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert "1 requests are not logged" in caplog.text
    log.add(line(3))
    asyncio.run(log.write())
    whole = [each for each in path.read_bytes().splitlines() if each.endswith(b"}")]
    assert [json.loads(each)["model"] for each in whole] == ["m1", "m3"]


def test_lines_are_written_where_they_cannot_be_exported(tmp_path, caplog):
    def export(_):
        raise ValueError("no endpoint")

    log = RequestLog(tmp_path / "log", export)
    log.add(line(1))
    asyncio.run(log.write())
    assert [each["model"] for each in lines_of((tmp_path / "log").read_bytes())] == ["m1"]
    assert "no endpoint" in caplog.text
