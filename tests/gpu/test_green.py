"""Green contexts on a real GPU: gpu-lets on SMs of their own, graphs that stay there, a division changed in use.

Needs torch with CUDA, and Triton, which comes with it, to ask a kernel where it runs.
"""

from __future__ import annotations

import threading
import time
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch", reason="torch is not installed")
triton = pytest.importorskip("triton", reason="Triton is not installed")
if not torch.cuda.is_available():
    pytest.skip("torch sees no GPU", allow_module_level=True)

from triton import language as tl  # noqa: E402

from gemlet.serve.execution.backend import BackendOptions, GpuLet, GpuLetGone  # noqa: E402
from gemlet.serve.execution.backends import green, streams  # noqa: E402
from gemlet.serve.execution.parts import Parts  # noqa: E402
from gemlet.serve.models import build, built_in  # noqa: E402
from gemlet.serve.models.specification import ModelError, ModelSpec, TensorSpec  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gemlet.serve.execution.backends.torch_gpu_lets import TorchGpuLets
    from gemlet.serve.execution.graphed import Graphed

ONE_CALL = hasattr(torch.cuda.CUDAGraph, "raw_cuda_graph_exec")  # torch 2.8


@triton.jit
def _where(out):  # type: ignore[no-untyped-def]
    place = tl.program_id(0)
    sm = tl.inline_asm_elementwise("mov.u32 $0, %smid;", "=r,r", [place], dtype=tl.int32, is_pure=False, pack=1)
    spin = 0
    for _ in range(2000):
        spin += tl.load(out + place, volatile=True) * 0
    tl.store(out + place, sm + spin)


def _sms(stream: torch.cuda.Stream, *, graph: bool, launch_on: torch.cuda.Stream | None = None) -> set[int]:
    out = torch.zeros(4096, dtype=torch.int32, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        _where[(4096,)](out, num_warps=1)
        stream.synchronize()
        if graph:
            captured = torch.cuda.CUDAGraph()
            captured.capture_begin(capture_error_mode="thread_local")
            _where[(4096,)](out, num_warps=1)
            captured.capture_end()
            out.zero_()
            stream.synchronize()
    if graph:
        where = launch_on or stream
        with torch.cuda.stream(where):
            captured.replay()
        where.synchronize()  # torch.cuda.synchronize() does not wait for other contexts
    return set(out.tolist())


@pytest.fixture(scope="module")
def parts() -> Parts:
    return Parts()


def test_ranges_that_do_not_overlap_share_no_sm_and_together_are_the_device(parts: Parts) -> None:
    count = parts.groups.count
    half = count // 2
    left, right = (_sms(parts.stream(first, n), graph=False) for first, n in ((0, half), (half, count - half)))
    assert not left & right
    assert len(left) == half * parts.groups.group_sms
    assert len(left | right) == parts.groups.sms  # SMs that fill no group belong to the last


def test_a_graph_keeps_the_sms_of_its_capture_wherever_it_is_launched(parts: Parts) -> None:
    two, others = parts.stream(0, 2), parts.stream(4, 4)
    assert _sms(two, graph=True) == _sms(two, graph=False)
    assert _sms(two, graph=True, launch_on=others) == _sms(two, graph=False)


def _images(batch: int) -> dict[str, np.ndarray]:
    return {"input": np.random.default_rng(batch).integers(0, 256, (batch, 3, 224, 224), np.uint8)}


@pytest.mark.parametrize("make", [green.create, streams.create])
def test_answers_are_those_of_the_model_itself_for_any_batch_and_division(make) -> None:  # type: ignore[no-untyped-def]
    backend = make(BackendOptions())
    spec = built_in.spec("googlenet")
    assert backend.load(spec) > 10 * 1024**2
    model = build("googlenet", "cuda")
    for sm in (0.25, 1.0, 0.25):
        backend.partition([GpuLet(name="gpu0/let0", sm=sm, models={"googlenet": 8})])
        for batch in (1, 5, 8):
            with torch.inference_mode():
                wanted = model(torch.from_numpy(_images(batch)["input"]).cuda()).cpu().numpy()
            got = backend.run("gpu0/let0", "googlenet", _images(batch), batch)["output"]
            assert got.shape == (batch, 1000)
            np.testing.assert_allclose(got, wanted, atol=1e-3)
    with pytest.raises(ModelError, match="a batch of 9"):
        backend.run("gpu0/let0", "googlenet", _images(9), 9)
    backend.partition([])
    with pytest.raises(GpuLetGone):
        backend.run("gpu0/let0", "googlenet", _images(1), 1)
    backend.close()


@pytest.mark.parametrize("name", ["vgg16", "resnet50"])
def test_every_size_has_its_graph_on_smaller_and_smaller_parts(name: str) -> None:
    """What a library chose on the whole device may not run on a part of it: that must not cost the graph."""
    backend = green.create(BackendOptions())
    backend.load(built_in.spec(name))
    for sm in (1.0, 0.8, 0.4, 0.2):
        backend.partition([GpuLet(name="gpu0/let0", sm=sm, models={name: 32})])
        assert backend.slower == []
        (told,) = backend.graphs()
        assert told["batches"][-1] == 32
    backend.unload(name)
    backend.close()


@pytest.fixture(params=[green.create, streams.create], ids=["green", "streams"])
def backend(request: pytest.FixtureRequest) -> Iterator[TorchGpuLets]:
    made = request.param(BackendOptions())
    yield made
    made.close()


def _gpu_let(backend: TorchGpuLets, spec: ModelSpec) -> Graphed:
    """The model on half of the device, for batches up to 8."""
    backend.load(spec)
    backend.partition([GpuLet(name="gpu0/let0", sm=0.5, models={spec.name: 8})])
    return backend._gpu_lets["gpu0/let0"].models[spec.name]


@pytest.mark.skipif(not ONE_CALL, reason="this torch does not tell a graph's handle")
def test_a_batch_in_one_call_gives_what_torch_gives(backend: TorchGpuLets) -> None:
    made = _gpu_let(backend, built_in.spec("googlenet"))
    for batch in (8, 1, 5):
        assert made._call_for(batch) is not None
        wanted = made._run(_images(batch), batch)["output"].copy()
        np.testing.assert_allclose(made.run(_images(batch), batch)["output"], wanted, atol=1e-4)
    other_type = {"input": _images(5)["input"].astype(np.uint16)}
    np.testing.assert_allclose(made.run(other_type, 5)["output"], wanted, atol=1e-4)
    every_other = np.repeat(_images(5)["input"], 2, axis=3)[..., ::2]
    np.testing.assert_allclose(made.run({"input": every_other}, 5)["output"], wanted, atol=1e-4)
    with pytest.raises(ModelError, match="could not broadcast"):
        made.run({"input": _images(5)["input"][:, :, :7]}, 5)
    np.testing.assert_allclose(made.run(_images(5), 5)["output"], wanted, atol=1e-4)


@pytest.mark.skipif(not ONE_CALL, reason="this torch does not tell a graph's handle")
def test_a_thread_that_never_used_the_device_runs_a_batch(backend: TorchGpuLets) -> None:
    made = _gpu_let(backend, built_in.spec("googlenet"))
    wanted = made._run(_images(3), 3)["output"].copy()
    got: list[np.ndarray] = []
    thread = threading.Thread(target=lambda: got.append(made.run(_images(3), 3)["output"]))
    thread.start()
    thread.join()
    np.testing.assert_allclose(got[0], wanted, atol=1e-4)


def _written(tmp_path: Path, forward: str) -> ModelSpec:
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "model.py").write_text(
        f"""
import torch  # noqa: E402

class Model(torch.nn.Module):
    def forward(self, x):
        return {forward}

def module():
    return Model()
"""
    )
    return ModelSpec(
        name="written",
        directory=str(tmp_path),
        platform="python",
        inputs=(TensorSpec("X", "FP32", (16,)),),
        outputs=(TensorSpec("Y", "FP32", (16,)),),
        max_batch=8,
    )


def test_a_model_that_draws_random_numbers_draws_new_ones_each_time(backend: TorchGpuLets, tmp_path: Path) -> None:
    made = _gpu_let(backend, _written(tmp_path, "x + torch.rand_like(x)"))
    assert made.why_eager is None
    x = {"X": np.zeros((4, 16), np.float32)}
    answers = [made.run(x, 4)["Y"].copy() for _ in range(4)]
    assert len({answer.tobytes() for answer in answers}) == 4
    assert all(answer.min() >= 0 and answer.max() < 1 for answer in answers)
    assert made._call_for(4) is None


def test_results_that_lie_otherwise_on_the_device_come_back_in_order(backend: TorchGpuLets, tmp_path: Path) -> None:
    made = _gpu_let(backend, _written(tmp_path, "(2 * x).t().contiguous().t()"))
    x = np.arange(48, dtype=np.float32).reshape(3, 16)
    np.testing.assert_array_equal(made.run({"X": x}, 3)["Y"], 2 * x)
    assert (made._call_for(3) is not None) == ONE_CALL


def test_a_seat_in_use_answers_while_another_model_is_captured_for_it(backend: TorchGpuLets) -> None:
    names = ["googlenet", "mobilenet_v2", "bert"]
    for name in names:
        backend.load(built_in.spec(name))
    batches = dict.fromkeys(names[:1], 8)
    backend.partition([GpuLet(name="gpu0/let0", sm=0.5, models=batches)])
    wanted = backend.run("gpu0/let0", "googlenet", _images(8), 8)["output"].copy()
    answers: list[float] = []
    wrong: list[float] = []
    end, images = threading.Event(), _images(8)

    def ask() -> None:
        while not end.is_set():
            got = backend.run("gpu0/let0", "googlenet", images, 8)["output"]
            answers.append(time.perf_counter())
            wrong.append(float(np.abs(got - wanted).max()))

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        for count in (2, 3):  # the same stream: it has the same name and size
            begin = time.perf_counter()
            batches |= dict.fromkeys(names[:count], 8)
            backend.partition([GpuLet(name="gpu0/let0", sm=0.5, models=dict(batches))])
            took = time.perf_counter() - begin
            time.sleep(0.05)
            during = [at for at in answers if begin < at < begin + took]
            longest = max(b - a for a, b in pairwise([begin, *during, begin + took]))
            assert longest < max(0.04, 0.3 * took), (longest, took)
    finally:
        end.set()
        thread.join()
    assert max(wrong) < 1e-3
    stream = {id(made.captured_on) for made in backend._gpu_lets["gpu0/let0"].models.values()}
    assert len(stream) == 3  # each on one of its own, since that was in use
