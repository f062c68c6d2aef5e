"""Batches with a graph as one call of the driver, or through torch, on the CPU, with doubles of graph and driver."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: there are no graphs")

from gemlet.serve.execution.backend import DeviceLost  # noqa: E402
from gemlet.serve.execution.graphed import Graphed  # noqa: E402
from gemlet.serve.execution.torch_models import Loaded  # noqa: E402
from gemlet.serve.models.specification import ModelError, ModelSpec, TensorSpec  # noqa: E402
from tests.unit.serve.execution.graph_doubles import (  # noqa: E402
    Driver,
    Graph,
    GraphWithHandle,
    Model,
    Stream,
    give_driver,
    graphed,
    on_the_cpu,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with on_the_cpu(monkeypatch):
        yield


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    return give_driver(monkeypatch)


@pytest.mark.parametrize("batch", [1, 3, 4])
def test_with_a_handle_a_batch_is_one_call_of_the_driver(driver: Driver, batch: int) -> None:
    made = graphed(Model())
    replays = [graph.replays for graph in Graph.made]
    given = np.arange(3 * batch, dtype=np.float32).reshape(batch, 3)
    given.flags.writeable = False
    for inputs in (given, given + 1):
        np.testing.assert_array_equal(made.run({"x": inputs}, batch)["y"], 2 * inputs)
    place = {4: 0, 2: 1, 1: 2}[made.size_for(batch)]  # the largest was captured first
    assert driver.calls == 2 * [100 + place]
    assert driver.staged_before == 2 * [[False]]
    assert [graph.replays for graph in Graph.made] == replays


def test_arrays_that_must_be_converted_are_staged_before_the_call(driver: Driver) -> None:
    made = graphed(Model())
    wide = np.arange(24, dtype=np.float32).reshape(4, 6)[:, ::2]
    np.testing.assert_array_equal(made.run({"x": wide}, 4)["y"], 2 * wide)
    double = np.arange(12, dtype=np.float64).reshape(4, 3)
    assert made.run({"x": double}, 4)["y"].dtype == np.float32
    np.testing.assert_array_equal(made.run({"x": double}, 4)["y"], 2 * double)
    assert driver.staged_before == 3 * [[True]]
    with pytest.raises(ModelError, match=r"^m failed: could not broadcast"):
        made.run({"x": np.ones((2, 3), np.float32)}, 4)
    assert len(driver.calls) == 3


def test_a_model_that_draws_random_numbers_is_replayed_by_torch(driver: Driver) -> None:
    model = Model()
    model.random = True
    made = graphed(model)
    replays = Graph.made[0].replays
    made.run({"x": np.ones((4, 3), np.float32)}, 4)
    assert driver.calls == []
    assert Graph.made[0].replays == replays + 1


def test_without_a_handle_or_with_results_elsewhere_torch_replays(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = np.ones((4, 3), np.float32)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    np.testing.assert_array_equal(graphed(Model()).run({"x": given}, 4)["y"], 2 * given)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", GraphWithHandle)
    monkeypatch.setattr(torch.Tensor, "is_cuda", False)
    np.testing.assert_array_equal(graphed(Model()).run({"x": given}, 4)["y"], 2 * given)
    assert driver.calls == []


def test_results_that_lie_otherwise_are_put_in_order_by_the_graph(driver: Driver) -> None:
    real = Model()

    def call(x: torch.Tensor) -> torch.Tensor:
        return real(x).t().contiguous().t()

    made = graphed(call, (4,))  # type: ignore[arg-type]
    (outputs,) = [each.outputs for each in made._graphs.values()]
    assert outputs[0].is_contiguous()
    assert outputs[0].shape == (4, 3)


def test_a_batch_that_fails_says_so_and_the_next_one_works(driver: Driver) -> None:
    made = graphed(Model())
    given = np.ones((4, 3), np.float32)
    driver.codes = [700]
    with pytest.raises(ModelError, match=r"^m failed: CUDA error: words of 700 \(copying output 'y'\)$"):
        made.run({"x": given}, 4)
    np.testing.assert_array_equal(made.run({"x": given}, 4)["y"], 2 * given)
    with pytest.raises(ModelError, match="a batch of 5, but at most 4"):
        made.run({"x": given}, 5)


def test_each_thread_has_results_of_its_own_valid_until_its_next_call(driver: Driver) -> None:
    made = graphed(Model())
    ones = np.ones((4, 3), np.float32)
    mine = made.run({"x": ones}, 4)["y"]
    other = threading.Thread(target=lambda: made.run({"x": 5 * ones}, 4))
    other.start()
    other.join()
    np.testing.assert_array_equal(mine, 2 * ones)
    again = made.run({"x": 3 * ones[:2]}, 2)["y"]
    assert np.shares_memory(again, mine)
    np.testing.assert_array_equal(again, 6 * ones[:2])


def test_half_precision_of_the_other_kind_is_its_bits(driver: Driver) -> None:
    made = graphed(Model(), (2,), datatype="BF16")
    bits = np.full((2, 3), 0x3F80, np.uint16)  # 1.0
    np.testing.assert_array_equal(made.run({"x": bits}, 2)["y"], np.full((2, 3), 0x4000, np.uint16))
    assert len(driver.calls) == 1


def test_nothing_prepared_outlives_its_graphs(driver: Driver) -> None:
    made = graphed(Model())
    made.run({"x": np.ones((4, 3), np.float32)}, 4)
    made.close()
    with pytest.raises(KeyError):
        made.run({"x": np.ones((4, 3), np.float32)}, 4)
    assert len(driver.calls) == 1


def test_what_fails_without_a_message_or_for_its_type_is_a_failure_of_the_model(driver: Driver) -> None:
    made = graphed(Model())
    with pytest.raises(ModelError, match=r"^m failed: Cannot cast"):
        made.run({"x": np.ones((4, 3), np.complex64)}, 4)

    def infer(_: object) -> dict[str, np.ndarray]:
        raise RuntimeError

    silent = Graphed(made.spec, Loaded(infer=infer), Stream(), (4,))
    with pytest.raises(ModelError, match=r"^m failed: RuntimeError$"):
        silent.run({"x": np.ones((4, 3), np.float32)}, 4)


def test_inputs_that_are_made_when_they_are_asked_for_live_until_they_are_read(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[weakref.ref[np.ndarray]] = []

    class Lazy(dict[str, np.ndarray]):
        def __getitem__(self, name: str) -> np.ndarray:
            array = np.full((2, 3), len(name), np.float32)
            asked.append(weakref.ref(array))
            return array

    spec = ModelSpec(
        name="m",
        directory="/m",
        platform="python",
        inputs=(TensorSpec("x", "FP32", (3,)), TensorSpec("xx", "FP32", (3,))),
        outputs=(TensorSpec("y", "FP32", (3,)),),
        max_batch=8,
    )
    model = Model()
    made = Graphed(spec, Loaded(lambda x, _: model(x)), Stream(), (2,))
    real = driver.run
    alive: list[bool] = []

    def run(address: int) -> int:
        alive.extend(each() is not None for each in asked)
        return real(address)

    monkeypatch.setattr(driver, "run", run)
    np.testing.assert_array_equal(made.run(Lazy(), 2)["y"], np.full((2, 3), 2))
    assert alive == [True, True]


def test_a_batch_of_no_rows_has_results_of_no_rows(driver: Driver) -> None:
    assert graphed(Model()).run({"x": np.ones((0, 3), np.float32)}, 0)["y"].shape == (0, 3)


class FailedStream(Stream):
    """Of a device that an error stays on."""

    lost = False

    def synchronize(self) -> None:
        super().synchronize()
        if self.lost:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")


@pytest.mark.parametrize(("lost", "error"), [(True, DeviceLost), (False, ModelError)])
def test_an_error_that_stays_is_told_from_one_that_is_over(driver: Driver, lost: bool, error: type[Exception]) -> None:
    stream = FailedStream()
    made = graphed(Model(), stream=stream)
    driver.codes, stream.lost = [700], lost
    with pytest.raises(error, match=r"^m failed: "):
        made.run({"x": np.ones((1, 3), np.float32)}, 1)
