"""The log of requests: what a line says, and what happens where it cannot be written."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest

from gemlet.errors import UsageError
from gemlet.serve.dispatch import request_log
from gemlet.serve.dispatch.call import Call, Tensor
from gemlet.serve.dispatch.engine import now_ms
from gemlet.serve.dispatch.request_log import RequestLog
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
