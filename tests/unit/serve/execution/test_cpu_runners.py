"""A model's files as functions, and the backends that call them."""

from __future__ import annotations

import sys
from statistics import mean, stdev

import msgspec
import numpy as np
import pytest

from gemlet.errors import UsageError
from gemlet.serve.execution import backends
from gemlet.serve.execution.backend import BackendOptions, GpuLet, GpuLetGone
from gemlet.serve.execution.backends import cpu_runners, modelled
from gemlet.serve.models.specification import ModelError
from tests.unit.serve.stand_in import model

LINEAR = ((4, 2), (("X", "FP32", (4,)),), (("Y", "FP32", (2,)),))


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "1").mkdir()
    return tmp_path


def written(folder, code, **more):
    (folder / "1" / "model.py").write_text(code)
    spec = model(platform="python", **more)
    return msgspec.structs.replace(spec, directory=str(folder))


def gpu_let(name="l", sm=1.0):
    return GpuLet(name=name, sm=sm, models={"echo": 8})


X = {"X": np.ones((2, 3), dtype=np.float32)}


@pytest.mark.parametrize(
    "code",
    [
        "def infer(inputs): return {'Y': inputs['X'] * 2}",
        "def load(spec): return lambda inputs: {spec.outputs[0].name: inputs['X'] * 2}",
    ],
)
def test_a_python_file_is_a_function(folder, code):
    backend = backends.create("cpu", BackendOptions())
    backend.load(written(folder, code))
    backend.partition([gpu_let()])
    np.testing.assert_array_equal(backend.run("l", "echo", X, 2)["Y"], 2 * X["X"])
    with pytest.raises(GpuLetGone):
        backend.run("m", "echo", X, 2)
    backend.unload("echo")
    with pytest.raises(GpuLetGone):
        backend.run("l", "echo", X, 2)


NEIGHBOURLY = """
import neighbour
def load(spec):
    from package import part
    return lambda inputs: {"Y": inputs["X"] * neighbour.FACTOR + part.MORE}
"""


def test_a_python_model_imports_what_is_beside_it_and_no_other_models(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.dont_write_bytecode", True)  # as in executors
    monkeypatch.setattr("sys.path", list(sys.path))
    backend = backends.create("cpu", BackendOptions())
    backend.partition([gpu_let()])
    for name, factor in (("a", 2), ("b", 3), ("a", 4)):
        folder = tmp_path / name / "1"
        (folder / "package").mkdir(parents=True, exist_ok=True)
        (folder / "neighbour.py").write_text(f"FACTOR = {factor}")
        (folder / "package" / "part.py").write_text(f"MORE = {factor}")
        backend.load(written(tmp_path / name, NEIGHBOURLY, name=name))
    np.testing.assert_array_equal(backend.run("l", "a", X, 2)["Y"], 4 * X["X"] + 4)
    np.testing.assert_array_equal(backend.run("l", "b", X, 2)["Y"], 3 * X["X"] + 3)


def test_python_files_that_are_not_models_are_reported(folder):
    backend = backends.create("cpu", BackendOptions())
    with pytest.raises(ModelError, match="defines no infer, load or module"):
        backend.load(written(folder, "x = 1"))
    with pytest.raises(ModelError, match="SyntaxError"):
        backend.load(written(folder, "def"))
    backend.load(written(folder, "def infer(inputs): raise ValueError('no')"))
    backend.partition([gpu_let()])
    with pytest.raises(ModelError, match="ValueError: no"):
        backend.run("l", "echo", X, 2)


def test_a_noop_model_gives_back_its_inputs_or_zeros():
    backend = backends.create("noop", BackendOptions())
    backend.load(model(outputs=(("Y", "FP32", (-1,)), ("Z", "BYTES", (2,)))))
    backend.partition([gpu_let()])
    outputs = backend.run("l", "echo", X, 2)
    assert outputs["Y"] is X["X"]
    assert outputs["Z"].tolist() == [[b"", b""]] * 2


def test_modelled_time_is_the_profiles(monkeypatch):
    slept = []
    now = [100.0]
    monkeypatch.setattr(modelled.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(modelled.time, "sleep", slept.append)
    backend = modelled.create(BackendOptions())
    spec = model(platform="modelled", parameters={"profile": "resnet50"})
    assert backend.load(spec) > 0
    backend.partition([gpu_let("half", 0.5)])
    backend.run("half", "echo", X, 8)
    surface = modelled.modelled.h200().models["resnet50"].surface
    assert slept == [pytest.approx(surface.latency(0.5, 8) / 1000, rel=0.3)]  # a profile has a variation of 3 %
    for _ in range(200):
        backend.run("half", "echo", X, 8)
    assert mean(slept) == pytest.approx(surface.latency(0.5, 8) / 1000, rel=0.02)
    assert 0.02 < stdev(slept) / mean(slept) < 0.04
    with pytest.raises(GpuLetGone):
        backend.run("whole", "echo", X, 8)
    with pytest.raises(ModelError, match="there is no profile of 'echo'"):
        backend.load(model(platform="modelled"))


def test_a_backend_that_is_none_is_an_error_with_the_names():
    with pytest.raises(UsageError, match="there is no backend 'tpu'"):
        backends.create("tpu", BackendOptions())


def test_platforms_that_need_a_gpu_are_refused(folder):
    with pytest.raises(ModelError, match="do not run on the CPU"):
        cpu_runners.load(model(platform="modelled"))


def torch_model():
    torch = pytest.importorskip("torch", reason="torch is an extra")
    torch.manual_seed(0)
    return torch, torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.ReLU()).eval()


def linear(folder, platform):
    _, inputs, outputs = LINEAR
    spec = model(platform=platform, inputs=inputs, outputs=outputs)
    return msgspec.structs.replace(spec, directory=str(folder))


GIVEN = {"X": np.arange(12, dtype=np.float32).reshape(3, 4)}


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_a_torchscript_model(folder):
    torch, module = torch_model()
    torch.jit.trace(module, torch.zeros(1, 4)).save(str(folder / "1" / "model.pt"))
    answer = cpu_runners.load(linear(folder, "torchscript"))(GIVEN)
    np.testing.assert_allclose(answer["Y"], module(torch.from_numpy(GIVEN["X"])).detach().numpy(), rtol=1e-5)


def test_an_exported_model(folder):
    torch, module = torch_model()
    rows = torch.export.Dim("rows", min=1, max=8)
    exported = torch.export.export(module, (torch.zeros(2, 4),), dynamic_shapes=({0: rows},))
    torch.export.save(exported, str(folder / "1" / "model.pt2"))
    answer = cpu_runners.load(linear(folder, "torch_export"))(GIVEN)
    np.testing.assert_allclose(answer["Y"], module(torch.from_numpy(GIVEN["X"])).detach().numpy(), rtol=1e-5)


def test_an_onnx_model(folder):
    pytest.importorskip("onnxruntime", reason="onnxruntime is optional")
    onnx = pytest.importorskip("onnx", reason="onnx writes the model of this test")
    weights = np.arange(8, dtype=np.float32).reshape(4, 2)
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", ["X", "W"], ["Y"])],
        "g",
        [onnx.helper.make_tensor_value_info("X", onnx.TensorProto.FLOAT, ["rows", 4])],
        [onnx.helper.make_tensor_value_info("Y", onnx.TensorProto.FLOAT, ["rows", 2])],
        [onnx.numpy_helper.from_array(weights, "W")],
    )
    made = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(made, str(folder / "1" / "model.onnx"))
    np.testing.assert_allclose(cpu_runners.load(linear(folder, "onnx"))(GIVEN)["Y"], GIVEN["X"] @ weights)


@pytest.mark.parametrize(("platform", "library"), [("torchscript", "torch"), ("onnx", "ONNX Runtime")])
def test_a_library_that_is_missing_is_named(folder, platform, library, monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(name=name)

    monkeypatch.setattr(cpu_runners.importlib, "import_module", missing)
    with pytest.raises(ModelError, match=f"needs {library}, which is not installed"):
        cpu_runners.load(linear(folder, platform))
