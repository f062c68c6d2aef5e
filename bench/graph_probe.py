"""What bench.graph_check asks of one process: GoogLeNet's results eager, captured and replayed. Needs a GPU.

python -m bench.graph_probe CASE SECONDS            waits for a line on stdin, then prints a line of JSON for each test
python -m bench.graph_probe --work MODEL SECONDS    a neighbour: batches of this model, one after the other

Every test is of the model as `gemlet serve` has it: half precision, channels last, a stream of its own, zeros as input.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import time
from typing import TYPE_CHECKING, Any

import torch

from gemlet.serve.execution import capturing
from gemlet.serve.execution.graphed import Graphed
from gemlet.serve.execution.torch_models import load
from gemlet.serve.models import built_in
from gemlet.serve.models.construct import build
from gemlet.serve.profiles.ladder import ladder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gemlet.serve.execution.torch_models import Loaded

MODEL = "googlenet"
LARGEST = 8
SIZES = (8, 4, 1)
CAPTURES, REPLAYS, AGAIN = 5, 4, 6
LARGE, SMALL, SMALLS = 256 << 20, 512 << 10, 64  # bytes that are filled before a run, and how many small blocks
NAN, ZERO = 0xFF, 0x00  # two bytes of 0xFF are a NaN in half precision
Tensors = tuple[torch.Tensor, ...]


class Probe:
    """One model on one stream."""

    def __init__(self, case: str, until: float) -> None:
        self.case, self.until = case, until
        self.spec = built_in.spec(MODEL)
        self.loaded: Loaded = load(self.spec)
        self.stream = torch.cuda.Stream()
        with torch.cuda.stream(self.stream):
            (tensor,) = self.spec.inputs
            self.images = torch.zeros((LARGEST, *tensor.shape), dtype=torch.uint8, device="cuda")
            self.others = torch.randint_like(self.images, 0, 256)
        self.module: Any = self.loaded.module

    def call(self, size: int) -> Tensors:
        return self._results(self.images[:size])

    def _results(self, images: torch.Tensor) -> Tensors:
        result = self.module(images)
        return tuple(result) if isinstance(result, (tuple, list)) else (result,)

    def told(self, test: str, **more: object) -> None:
        print(json.dumps({"case": self.case, "test": test, **more}), flush=True)

    def run(self) -> None:
        """All tests; one that fails says so, and none begins when the time is over."""
        torch.cuda.synchronize()
        about = torch.cuda.get_device_properties(0)
        self.told(
            "about", device=about.name, sms=about.multi_processor_count, torch=torch.__version__,
            cudnn=torch.backends.cudnn.version(), cuda=torch.version.cuda,
        )  # fmt: skip
        tests: list[tuple[str, Callable[[], dict[str, object]]]] = [
            ("depends", self.depends),
            *((f"eager {size}", lambda size=size: self.eager(size)) for size in SIZES),
            ("served", self.served),
            *((f"graph {size}", lambda size=size: self.graphs(size)) for size in SIZES),
            ("graph 8, own thread", self.apart),
            *((f"graph 8, {name}", lambda way=way: self.changed(way)) for name, way in WAYS.items()),
            ("memory, eager", self.eager_in_filled_memory),
            ("memory, graph", self.graph_in_filled_memory),
            ("layers", self.layers),
            ("kernels", self.kernels),
        ]
        for name, test in tests:
            if time.monotonic() > self.until:
                self.told(name, left_out="no time")
                continue
            try:
                with torch.inference_mode(), torch.cuda.stream(self.stream):
                    self.told(name, **test())
            except Exception as error:  # noqa: BLE001  what one test cannot do says nothing of the next
                self.told(name, error=f"{type(error).__name__}: {capturing.first_line(error)}")

    # The tests

    def depends(self) -> dict[str, object]:
        """How far results of other images are from these, and both from single precision without cuDNN."""
        zeros, others = _copied(self.call(LARGEST)), _copied(self._results(self.others))
        return {"by_the_input": _distance(others, zeros), "from_single": _distance(zeros, self._in_single())}

    def _in_single(self) -> Tensors:
        with torch.backends.cudnn.flags(enabled=False, allow_tf32=False):
            result = build(MODEL, "cuda", torch.float32)(self.images)
            self.stream.synchronize()
            return (result,)

    def eager(self, size: int) -> dict[str, object]:
        first = _copied(self.call(size))
        more = [_copied(self.call(size)) for _ in range(AGAIN)]
        return {
            "runs": AGAIN,
            "same_bits": sum(_same_bits(each, first) for each in more),
            "wrong": sum(not capturing.same(each, first) for each in more),
            "worst": max(_distance(each, first) for each in more),
        }

    def served(self) -> dict[str, object]:
        """As an executor prepares it, with its attempts and one pool for all sizes."""
        seen: list[str] = []
        handler = _Heard(seen)
        logger = logging.getLogger(capturing.__name__)
        logger.addHandler(handler)
        try:
            began = time.monotonic()
            made = Graphed(self.spec, self.loaded, self.stream, ladder(LARGEST))
            took = time.monotonic() - began
            made.close()
        finally:
            logger.removeHandler(handler)
        return {
            "sizes": ladder(LARGEST), "missing": {str(size): why for size, why in made.missing.items()},
            "failed_attempts": seen, "seconds": round(took, 2),
        }  # fmt: skip

    def graphs(self, size: int = LARGEST) -> dict[str, object]:
        """Captures, each replayed a few times: in which replays the results differ, "1000": in the first alone."""
        expected = _copied(self.call(size))
        patterns, worst, nans = [], 0.0, 0
        first: dict[str, object] = {}  # of the first wrong result: how many values, and some of them
        for _ in range(CAPTURES):
            graph, outputs = self._captured(size)
            pattern = ""
            for _ in range(REPLAYS):
                graph.replay()
                self.stream.synchronize()
                wrong = not capturing.same(outputs, expected)
                pattern += "01"[wrong]
                if wrong and not first:
                    first = _told(outputs[0], expected[0])
                worst = max(worst, _distance(outputs, expected))
                nans += sum(int(torch.isnan(each).sum()) for each in outputs)
            patterns.append(pattern)
            graph.reset()
        after = _distance(_copied(self.call(size)), expected)
        return {
            "captures": CAPTURES, "wrong": sum("1" in each for each in patterns), "patterns": patterns,
            "worst": worst, "nans": nans, "eager_afterwards": after, "first_wrong": first,
        }  # fmt: skip

    def _captured(self, size: int, pool: capturing.Pool | None = None) -> tuple[torch.cuda.CUDAGraph, Tensors]:
        self.call(size)
        self.stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with capturing.recording(graph, pool):
            outputs = self.call(size)
        return graph, outputs

    def apart(self) -> dict[str, object]:
        """As `graphs`, in a thread without cuDNN's earlier choices."""
        apart = capturing.Apart()

        def once() -> dict[str, object]:
            with torch.inference_mode(), torch.cuda.stream(self.stream):
                return self.graphs()

        try:
            found: dict[str, object] = apart.call(once)
            return found
        finally:
            apart.close()

    def changed(self, way: Callable[[], contextlib.AbstractContextManager[object]]) -> dict[str, object]:
        with way():
            return self.graphs()

    def eager_in_filled_memory(self) -> dict[str, object]:
        """The model on memory that held zeros, and NaN, before: a result that differs rests on what nobody wrote."""
        found = {}
        for name, byte in (("zero", ZERO), ("nan", NAN)):
            self.stream.synchronize()
            torch.cuda.empty_cache()
            _forget_workspaces()
            _fill(byte)
            found[name] = _copied(self.call(LARGEST))
        return _filled(found)

    def graph_in_filled_memory(self) -> dict[str, object]:
        """The same of a graph, in a pool whose memory another graph has filled."""
        found = {}
        for name, byte in (("zero", ZERO), ("nan", NAN)):
            filling = torch.cuda.CUDAGraph()
            with capturing.recording(filling):
                _fill(byte)
            graph, outputs = self._captured(LARGEST, filling.pool())
            filling.replay()
            graph.replay()
            found[name] = _copied(outputs)
            self.stream.synchronize()
            graph.reset()
            filling.reset()
        return _filled(found)

    def layers(self) -> dict[str, object]:
        """The first module whose output in a graph is not what it is eager, over several captures."""
        with _outputs(self.module) as kept:
            self.call(LARGEST)
            expected = [(name, each.clone()) for name, each in kept]
            for number in range(2 * CAPTURES):
                self.stream.synchronize()
                graph = torch.cuda.CUDAGraph()
                kept.clear()
                with capturing.recording(graph):
                    self.call(LARGEST)
                captured = list(kept)
                graph.replay()
                for (name, was), (_, now) in zip(expected, captured, strict=True):
                    if not capturing.same((now,), (was,)):
                        return {
                            "captures": number + 1, "first": name, "shape": list(was.shape),
                            "worst": _distance((now,), (was,)), "nans": int(torch.isnan(now).sum()),
                            "differ": int((now != was).sum()), "of": was.numel(),
                        }  # fmt: skip
                kept.clear()
                captured.clear()
                graph.reset()
        return {"captures": 2 * CAPTURES, "first": None}

    def kernels(self) -> dict[str, object]:
        """Names of the kernels of one eager run, in their order, each once."""
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            self.call(LARGEST)
            self.stream.synchronize()
        names = dict.fromkeys(event.name for event in seen.events() if str(event.device_type).endswith("CUDA"))
        return {"names": [name[:160] for name in names]}


# Settings, under which `graphs` is asked again


@contextlib.contextmanager
def _set(holder: Any, **wanted: object) -> Iterator[None]:
    before = {name: getattr(holder, name) for name in wanted}
    for name, value in wanted.items():
        setattr(holder, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(holder, name, value)


@contextlib.contextmanager
def _blas(name: str) -> Iterator[None]:
    before = torch.backends.cuda.preferred_blas_library()
    torch.backends.cuda.preferred_blas_library(name)
    try:
        yield
    finally:
        torch.backends.cuda.preferred_blas_library(before)


WAYS: dict[str, Callable[[], contextlib.AbstractContextManager[object]]] = {
    "cuDNN deterministic": lambda: _set(torch.backends.cudnn, deterministic=True),
    "cuDNN by trying": lambda: _set(torch.backends.cudnn, benchmark=True),
    "without cuDNN": lambda: _set(torch.backends.cudnn, enabled=False),
    "cuBLAS, not Lt": lambda: _blas("cublas"),
    "sums in single": lambda: _set(torch.backends.cuda.matmul, allow_fp16_reduced_precision_reduction=False),
}


# Helpers


class _Heard(logging.Handler):
    """Which attempts failed."""

    def __init__(self, seen: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._seen = seen

    def emit(self, record: logging.LogRecord) -> None:
        self._seen.append(record.getMessage())


@contextlib.contextmanager
def _outputs(module: torch.nn.Module) -> Iterator[list[tuple[str, torch.Tensor]]]:
    """What each module without children, and each that joins branches, gives, in the order of the calls."""
    kept: list[tuple[str, torch.Tensor]] = []

    def keep(name: str) -> Callable[[object, object, object], None]:
        return lambda _module, _inputs, output: (
            kept.append((name, output)) if isinstance(output, torch.Tensor) else None
        )

    found = [(name, each) for name, each in module.named_modules() if not list(each.children()) or _joins(each)]
    handles = [each.register_forward_hook(keep(f"{name}: {type(each).__name__}")) for name, each in found]
    try:
        yield kept
    finally:
        for handle in handles:
            handle.remove()


def _joins(module: torch.nn.Module) -> bool:
    return type(module).__name__ == "Cat"


def _fill(byte: int) -> None:
    """Blocks of the current stream's pool hold this byte when they are given back."""
    blocks = [torch.empty(LARGE, dtype=torch.uint8, device="cuda")]
    blocks += [torch.empty(SMALL, dtype=torch.uint8, device="cuda") for _ in range(SMALLS)]
    for block in blocks:
        block.fill_(byte)


def _forget_workspaces() -> None:
    forget = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
    if forget is not None:
        forget()


def _filled(found: dict[str, Tensors]) -> dict[str, object]:
    nans = sum(int(torch.isnan(each).sum()) for each in found["nan"])
    return {
        "same_bits": _same_bits(found["nan"], found["zero"]), "nans": nans,
        "worst": _distance(found["nan"], found["zero"]),
    }  # fmt: skip


def _told(wrong: torch.Tensor, right: torch.Tensor) -> dict[str, object]:
    differ = (wrong != right).flatten()
    some = differ.nonzero().flatten()[:4]
    return {
        "differ": int(differ.sum()), "of": differ.numel(), "places": some.tolist(),
        "wrong": [str(each) for each in wrong.flatten()[some].tolist()],
        "right": [str(each) for each in right.flatten()[some].tolist()],
    }  # fmt: skip


def _copied(results: Tensors) -> Tensors:
    return tuple(each.clone() for each in results)


def _same_bits(ones: Tensors, others: Tensors) -> bool:
    return all(torch.equal(one, other) for one, other in zip(ones, others, strict=True))


def _distance(ones: Tensors, others: Tensors) -> float:
    """The largest difference as a part of the largest value of ``others``; NaN counts as infinite."""
    worst = 0.0
    for one, other in zip(ones, others, strict=True):
        largest = float(other.float().abs().max()) or 1.0
        difference = (one.float() - other.float()).abs().max() / largest
        worst = max(worst, float(torch.nan_to_num(difference, nan=1e30, posinf=1e30)))
    return float(f"{worst:.3g}")


def work(model: str, seconds: float) -> None:
    """A neighbour that is never idle."""
    spec = built_in.spec(model)
    made = Graphed(spec, load(spec), torch.cuda.Stream(), ladder(LARGEST))
    print(json.dumps({"test": "neighbour", "model": model, "why_eager": made.why_eager}), flush=True)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for _ in range(8):
            made.again(LARGEST)
        made.stream.synchronize()


def main() -> int:
    what, name, *rest = sys.argv[1:]
    sys.stdin.readline()
    if what == "--work":
        work(name, float(rest[0]))
    else:
        Probe(what, time.monotonic() + float(name)).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
