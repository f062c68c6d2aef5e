"""Captures that fail, and what is done about it: torch on the CPU, with a double of the driver's graphs."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: nothing is captured")

from gemlet.serve.execution import capturing  # noqa: E402
from gemlet.serve.models.specification import ModelError  # noqa: E402
from tests.unit.serve.execution.graph_doubles import Graph, Model, Stream, graphed, on_the_cpu  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with on_the_cpu(monkeypatch):
        yield


def capture(model: Model) -> capturing.Captured:
    x, apart = torch.ones(2, 3), capturing.Apart()
    try:
        return capturing.capture(lambda: (model(x),), Stream(), "m, batch 2", apart)  # type: ignore[arg-type]
    finally:
        apart.close()


def test_the_collector_rests_during_a_capture_and_only_then() -> None:
    made = capture(Model())
    assert made.attempts == 1
    assert Graph.made[0].collecting is False
    assert Graph.made[0].replays == 1  # it was compared with the model


def test_a_failed_warm_up_is_tried_again_in_a_thread_without_a_past(caplog: pytest.LogCaptureFixture) -> None:
    model = Model(**{"warm-up": ["cuDNN error: CUDNN_STATUS_EXECUTION_FAILED_CUDART"]})
    with caplog.at_level(logging.INFO):
        made = capture(model)
    assert made.attempts == 2
    assert model.threads[0] == threading.get_ident() != model.threads[1]
    (line,) = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert line.startswith("m, batch 2: capture, attempt 1 of 3 (thread_local) failed in its warm-up")
    assert line.endswith("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED_CUDART")


def test_the_error_of_a_capture_is_told_and_not_what_followed_from_it(caplog: pytest.LogCaptureFixture) -> None:
    Graph.refusals = ["operation failed due to a previous error during capture"]
    with caplog.at_level(logging.INFO):
        made = capture(Model(capture=["cuDNN error: SOMETHING", "again"]))
    assert made.attempts == 3
    assert [g.mode for g in Graph.made] == ["thread_local", "thread_local", "relaxed"]
    assert all(g.ended for g in Graph.made)
    assert "failed in its capture" in caplog.text
    assert "SOMETHING" in caplog.text
    assert "previous error" not in caplog.text


def test_a_graph_that_is_wrong_is_not_taken() -> None:
    Graph.wrong = True
    with pytest.raises(capturing.NotCaptured, match="results differ from the model"):
        capture(Model())


def test_a_model_that_is_never_twice_the_same_cannot_be_compared() -> None:
    model = Model()
    model.random = True
    assert capture(model).attempts == 1


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ([1.0, float("nan")], [1.0, float("nan")], True),
        ([100.0, 0.0], [100.5, 0.01], True),
        ([1.0, 2.0], [1.0, 2.5], False),
        ([1.0, float("nan")], [1.0, 2.0], False),
    ],
)
def test_results_agree_but_for_rounding(one: list[float], other: list[float], alike: bool) -> None:
    assert capturing.same((torch.tensor(one),), (torch.tensor(other),)) is alike
    assert not capturing.same((torch.tensor([1]),), (torch.tensor([2]),))


def test_sizes_without_a_graph_are_served_by_the_next_larger_one() -> None:
    made = graphed(Model())
    assert (made.batches, made.missing, made.why_eager) == ([1, 2, 4], {}, None)
    real = Model()
    refused = []

    def call(x: torch.Tensor) -> torch.Tensor:
        if len(x) == 2:
            refused.append(x)
            raise RuntimeError("not this size")
        return real(x)

    made = graphed(call)  # type: ignore[arg-type]
    assert made.batches == [1, 4]
    assert made.missing == {2: "not this size"}
    assert made.size_for(2) == 4
    assert len(refused) == len(capturing.ATTEMPTS)


def test_batches_above_the_largest_graph_run_without_one_and_larger_ones_than_planned_not_at_all() -> None:
    real = Model()

    def call(x: torch.Tensor) -> torch.Tensor:
        if len(x) == 4 and Model.capturing:
            raise RuntimeError("too large to capture")
        return real(x)

    made = graphed(call)  # type: ignore[arg-type]
    assert made.batches == [1, 2]
    assert made._has_graph(2)
    assert not made._has_graph(4)
    with pytest.raises(ModelError, match="a batch of 5, but at most 4"):
        made._has_graph(5)


def test_a_model_that_cannot_be_captured_says_why_after_two_sizes() -> None:
    model = Model(capture=["a sync in the middle"] * 100)
    made = graphed(model, (1, 2, 4, 8))
    assert made.why_eager == "a sync in the middle"
    assert sorted(made.missing) == [4, 8]
    assert len(Graph.made) == 2 * len(capturing.ATTEMPTS)


def test_graphs_are_dropped_when_their_own_stream_is_done() -> None:
    stream = Stream()
    made = graphed(Model(), stream=stream)
    before = stream.waits
    made.close()
    assert stream.waits == before + 1
    assert made._graphs == {}


def threads() -> int:
    return sum(thread.name == "capture" for thread in threading.enumerate())


def test_the_thread_of_a_capture_lives_as_long_as_the_graph() -> None:
    made = graphed(Model(**{"warm-up": ["no"]}))
    assert made.retried == 1
    assert threads() == 1
    made.close()
    assert threads() == 0
    graphed(Model(capture=["no"] * 100))
    assert threads() == 0


@pytest.mark.parametrize("batch", [1, 3, 4])
def test_a_batch_is_replayed_in_the_next_larger_graph(batch: int) -> None:
    model = Model()
    made = graphed(model)
    called = len(model.threads)
    given = np.arange(3 * batch, dtype=np.float32).reshape(batch, 3)
    for inputs in (given, given + 1):
        np.testing.assert_array_equal(made.run({"x": inputs}, batch)["y"], 2 * inputs)
    assert len(model.threads) == called  # nothing but the graph ran


def test_a_batch_without_a_graph_runs_as_it_is() -> None:
    model = Model(capture=["a sync in the middle"] * 100)
    made = graphed(model)
    given = np.ones((3, 3), np.float32)
    np.testing.assert_array_equal(made.run({"x": given}, 3)["y"], 2 * given)
