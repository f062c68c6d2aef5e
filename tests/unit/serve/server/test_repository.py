"""Model repositories: both formats, and errors that name file, line and field."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemlet.errors import ConfigError
from gemlet.inference_protocol import model_config_pb2
from gemlet.serve.models.specification import TensorSpec
from gemlet.serve.server.repository import native_config, text_fields, tree, triton_config

GOOD = """\
platform: noop
max_batch: 16
slo: 25ms
sm: 30%
class: throughput
priority: 1
inputs:
  - {name: X, datatype: FP32, shape: [3, -1]}
outputs:
  - {name: Y, datatype: BYTES, shape: []}
parameters: {threads: 4, fast: true}
"""
TENSORS = """\
inputs: [{name: X, datatype: FP32, shape: [1]}]
outputs: [{name: Y, datatype: FP32, shape: [1]}]
"""
TRITON = """\
name: "m"
backend: "python"  # "platform" would do, too
max_batch_size: 8
input [ { name: "A" data_type: TYPE_FP16 dims: [ 4, -1 ] } ]
output [ { name: "B" data_type: TYPE_STRING dims: [ 1 ] } ]
version_policy { specific { versions: [1, 2] } }
dynamic_batching { preferred_batch_size: [4, 8] max_queue_delay_microseconds: 100 default_priority_level: 3 }
instance_group [ { count: 2 kind: KIND_GPU } ]
optimization { cuda { graphs: true } }
parameters { key: "slo_ms" value { string_value: "40" } }
parameters { key: "sm" value { string_value: "25%" } }
parameters { key: "mine" value { string_value: "x { y: 1" } }
"""


def wrong(model, text=None):
    if text is not None:
        (model / "config.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        tree.read_model(model)
    return caught.value


def test_our_own_format(model):
    (model / "config.yaml").write_text(GOOD)
    (spec,) = tree.read_model(model)
    assert (spec.name, spec.platform, spec.max_batch, spec.slo_ms, spec.sm) == ("m", "noop", 16, 25.0, 0.3)
    assert (spec.service_class, spec.priority) == ("throughput", 1)
    assert spec.inputs == (TensorSpec("X", "FP32", (3, -1)),)
    assert spec.outputs == (TensorSpec("Y", "BYTES", ()),)
    assert spec.parameters == {"threads": "4", "fast": "true"}


def test_tritons_format(model, caplog):
    (model / "2").mkdir()
    (model / "3").mkdir()
    for version in "12":
        (model / version / "model.py").touch()
    (model / "config.pbtxt").write_text(TRITON)
    with caplog.at_level(logging.WARNING, logger="gemlet"):
        first, spec = tree.read_model(model)
    assert (spec.platform, spec.max_batch, spec.slo_ms, spec.sm, spec.priority) == ("python", 8, 40.0, 0.25, 3)
    assert [(each.label, each.version) for each in (first, spec)] == [("m/1", 1), ("m", 2)]
    assert spec.inputs == (TensorSpec("A", "FP16", (4, -1)),)
    assert spec.outputs == (TensorSpec("B", "BYTES", (1,)),)
    assert spec.parameters == {"mine": "x { y: 1"}
    told = caplog.text
    assert "instance_group is ignored" in told
    assert "max_queue_delay_microseconds is ignored" in told
    assert "ignored: optimization" in told


def test_ours_beside_tritons_goes_first(model):
    (model / "1" / "model.py").touch()
    (model / "config.pbtxt").write_text(TRITON.replace("version_policy { specific { versions: [1, 2] } }", ""))
    (model / "config.yaml").write_text("slo: 7ms\n")
    (spec,) = tree.read_model(model)
    assert (spec.slo_ms, spec.max_batch) == (7.0, 8)


@pytest.mark.parametrize(
    ("change", "line", "message", "hint"),
    [
        (("max_batch: 16", "max_batch: many"), 2, "max_batch: expected `int", None),
        (("max_batch: 16", "max_batch: -1"), 2, "max_batch: -1 is not valid", "without a batch dimension"),
        (("max_batch", "max_bach"), 2, "max_bach: there is no such field", "did you mean max_batch?"),
        (("slo: 25ms", "slo: soon"), 3, "slo: 'soon' is not a duration", "25ms"),
        (("slo: 25ms", "slo: 25ms\nslo_ms: 3"), 3, "slo: slo and slo_ms are both given", "keep one"),
        (("sm: 30%", "sm: 30"), 4, "sm: 30 is more than 1", "percentage"),
        (("class: throughput", "class: best"), 5, "class: invalid enum", None),
        (("priority: 1", "priority: 0"), 6, "priority: 0 is not valid", "write 1 for what"),
        (("FP32", "FLOAT"), 8, "inputs 1 datatype: 'FLOAT' is none", None),
        (("[3, -1]", "[3, -2]"), 8, "inputs 1 shape", "any size"),
        (("[3, -1]", f"[3, {10**20}]"), 8, "inputs 1 shape: a size is above", "any size"),
        (("30%", '"\\ud800"'), 4, "not YAML: half a character", None),
        (("shape: [3, -1]", "shap: [3]"), 8, "inputs 1 shap: there is no such field", "did you mean shape?"),
        (("platform: noop", "platform: onx"), 1, "platform: 'onx' is none", "did you mean onnx?"),
        (("platform: noop", "platform: onnx"), 1, "onnx needs 1/model.onnx", None),
        (("platform: noop\n", ""), None, "platform: it does not say", "write platform:"),
        (("platform: noop", "platform: noop\nversion: 4"), 2, "version: there is no version 4", "there: 1"),
        (("platform: noop", "platform: noop\nversions: [1, 4]"), 2, "versions: there is no version 4", "there: 1"),
        (("platform: noop", "platform: noop\nversions: newest"), 2, "versions: 'newest' says not which", "latest 2"),
        (("platform: noop", "platform: noop\nversions: all\nversion: 1"), 3, "version and versions are both", "one"),
        (("platform: noop", "platform: noop\nname: other"), 2, "name: 'other' is not the name", "leave it out"),
    ],
)
def test_an_error_names_file_line_and_field(model, change, line, message, hint):
    error = wrong(model, GOOD.replace(*change))
    assert error.path == str(model / "config.yaml")
    assert message in str(error)
    assert error.line == line
    assert hint is None or hint in error.hint


def test_yaml_that_is_none_names_the_place(model):
    error = wrong(model, "inputs: [\n")
    assert "not YAML" in str(error)
    assert error.line == 2


DOUBLED = "".join(f"- &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("warm_up:\n- &a0 [1]\n" + DOUBLED, ":15:9: not YAML: more than 50000 values"),
        ("inputs:\n- &x [" + "1, " * 30_000 + "]\n- *x\n", ":3:3: not YAML: more than 50000 values"),
        ("parameters: &x {a: *x}", ":1:20: not YAML: an alias within what it stands for"),
        ("priority: 0x" + "9" * 10_000, ":1:11: not YAML: a number of 10002 digits"),
        ("priority: 1" + ":59" * 10_000, ":1:11: not YAML: a number of 30001 digits"),
        ("slo_ms: 1" + ":59" * 10_000 + ".0", ":1:9: not YAML: a number of 30003 digits"),
        ("priority: !!bool x", ": not YAML: 'x'"),
        ("priority: !!timestamp x", ": not YAML: "),
        ("priority: !!int ''", ": not YAML: "),
    ],
)
def test_yaml_that_would_take_time_or_memory_or_is_wrongly_tagged_is_refused(model, text, said):
    assert str(wrong(model, text)).startswith(f"{model}/config.yaml{said}")


def test_yaml_may_have_aliases(model):
    tensors = "inputs: &same\n- {name: X, datatype: FP32, shape: [1]}\noutputs: *same\n"
    (model / "config.yaml").write_text(f"platform: noop\n{tensors}")
    (spec,) = tree.read_model(model)
    assert spec.inputs == spec.outputs


WARM = """\
backend: 'python'
input { name: 'A' data_type: TYPE_FP32 dims: 4 }
output { name: 'B' data_type: TYPE_FP32 dims: 4 }
"""


def sample(said, *, dims="4", kind="FP32", more=()):
    """Of a warm-up, in a file that is right otherwise."""
    inputs = "".join(
        f"inputs {{ key: '{name}' value {{ data_type: TYPE_{kind} dims: [{dims}] zero_data: true }} }} "
        for name in ("A", *more)
    )
    return f"model_warmup {{ name: 'a' {said} {inputs} }}\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_batch_size: many", "many"),
        ('platform: "tensorflow_graphdef"', "platform: 'tensorflow_graphdef' cannot be served"),
        ("model_warmup { name: 'a' inputs { key: 'A' value { data_type: TYPE_FP32 } } }", "what fills it"),
        (
            "model_warmup { inputs { key: 'A' value { data_type: TYPE_FP32 input_data_file: '../x' } } }",
            "what fills it",
        ),
        ("model_warmup { name: 'a' inputs { key: 'A' value { zero_data: true } } }", "model_warmup inputs A: it does"),
        (sample("count: 1001"), "model_warmup 1 count: 1001 makes 1001 runs of all samples: expected at most 1000"),
        (sample("count: 600") * 2, "model_warmup 2 count: 600 makes 1200 runs"),
        (sample("count: 4294967295"), "model_warmup 1 count: 4294967295"),
        (sample("") * 101, "model_warmup: 101 samples are too many: expected at most 100"),
        (sample("batch_size: 65537"), "model_warmup 1 batch_size: 65537 is not valid: expected at most 65536"),
        (sample("batch_size: 4294967295"), "model_warmup 1 batch_size: 4294967295"),
        (sample("", dims="1048576, 257"), "model_warmup 1 inputs A dims: the sample has more than 1073741824 bytes"),
        (sample("batch_size: 65536", dims="65536"), "model_warmup 1 inputs A dims: the sample has more than"),
        (sample("", dims="9223372036854775807, 9223372036854775807"), "model_warmup 1 inputs A dims: the sample has"),
        (sample("", dims="1048576, 129", more=("B", "C")), "model_warmup 1 inputs B dims: the sample has more than"),
        (sample("", dims="134217729", kind="STRING"), "model_warmup 1 inputs A dims: the sample has more than"),
        (sample("", dims="4, -1"), "model_warmup 1 inputs A dims: [4, -1] has a negative size"),
        ('default_model_filename: "../model.py"', "default_model_filename: '../model.py' is not the name of a file"),
        ('input { name: "x" dims: 1 }', "input 1 data_type: it does not say"),
        ('parameters { key: "slo_ms" value { string_value: "soon" } }', "'soon' is not a number"),
    ],
)
def test_errors_in_tritons_format(model, text, message):
    if text.startswith("model_warmup"):
        text += WARM
    (model / "1" / "model.py").touch()
    (model / "config.pbtxt").write_text(text)
    error = wrong(model)
    assert error.path == str(model / "config.pbtxt")
    assert message in str(error)


def test_a_warm_up_within_its_bounds_is_taken(model):
    (model / "1" / "model.py").touch()
    most = sample("count: 901 batch_size: 65536", dims="4096") + sample("", dims="268435456") * 99
    (model / "config.pbtxt").write_text(most + WARM)
    (spec,) = tree.read_model(model)
    assert len(spec.warm_up) == 100


@pytest.mark.parametrize(
    ("native", "triton", "served"),
    [
        ("", "", [7]),
        ("versions: all\n", "version_policy: { all { } }", [1, 3, 7]),
        ("versions: latest 2\n", "version_policy { latest { num_versions: 2 } }", [3, 7]),
        ("versions: [3, 1]\n", "version_policy: { specific: { versions: [ 3, 1 ] } }", [1, 3]),
        ("version: 3\n", "version_policy { specific { versions: 3 } }", [3]),
    ],
)
def test_which_versions_are_served(model, native, triton, served):
    for version in ("1", "3", "7"):
        (model / version).mkdir(exist_ok=True)
        (model / version / "model.py").touch()
    (model / "config.yaml").write_text(f"platform: python\n{TENSORS}{native}")
    assert [spec.version for spec in tree.read_model(model)] == served
    (model / "config.yaml").unlink()
    (model / "config.pbtxt").write_text(re.sub("version_policy.*", triton, TRITON))
    specs = tree.read_model(model)
    assert [spec.version for spec in specs] == served
    assert [spec.label for spec in specs] == [*[f"m/{version}" for version in served[:-1]], "m"]


def test_files_of_one_version_are_no_news_for_another(model):
    (model / "2").mkdir()
    (model / "config.yaml").write_text(GOOD + "versions: all\n")
    before = {spec.version: spec.key for spec in tree.look(model).specs}
    (model / "2" / "weights").write_bytes(b"1")
    after = {spec.version: spec.key for spec in tree.look(model).specs}
    assert (after[1] == before[1], after[2] == before[2]) == (True, False)
    (model / "labels.txt").touch()
    assert {spec.version: spec.key for spec in tree.look(model).specs}.keys() == {1, 2}
    assert all(spec.key != after[spec.version] for spec in tree.look(model).specs)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('cc_model_filenames [ { key: "7.5" value: "m" } ]', "cc_model_filenames"),
        ("response_cache { enable: true }", "response_cache"),
        ("x [ ]", "x"),
        ("dynamic_batching { priority_queue_policy { key: 1 value { } } }", "dynamic_batching.priority_queue_policy"),
        ("dynamic_batching { default_queue_policy { max_queue_size: 3 } }", "default_queue_policy"),
        ("input [ { name: 'Q' data_type: TYPE_FP32 dims: 1 format: FORMAT_NCHW } ]", "input.format"),
    ],
)
def test_fields_that_mean_nothing_here_are_named(model, caplog, text, named):
    (model / "1" / "model.py").touch()
    (model / "config.pbtxt").write_text(re.sub("(version_policy|dynamic_batching).*\n", "", TRITON) + text + "\n")
    with caplog.at_level(logging.WARNING, logger="gemlet"):
        tree.read_model(model)
    assert any(named in record.getMessage() and "ignored" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("input { name: 'Q' data_type: TYPE_FP32 dims: 1 reshape { shape: [ ] } }", "input reshape"),
        ("sequence_batching { control_input [ { name: 'a' } ] }", "sequence_batching"),
        ("model_transaction_policy { decoupled: True }", "model_transaction_policy decoupled"),
        ("ensemble_scheduling { step [ { model_name: 'a' } ] }", "ensemble_scheduling"),
    ],
)
def test_fields_that_would_change_what_a_model_means_are_refused(model, text, field):
    (model / "1" / "model.py").touch()
    (model / "config.pbtxt").write_text(re.sub("version_policy.*\n", "", TRITON) + text + "\n")
    error = wrong(model)
    assert str(error).startswith(f"{field}: ") or f" {field}: " in str(error)
    assert error.line == TRITON.count("\n")


def test_an_input_may_be_left_out_of_requests_to_a_model_that_gets_requests(model):
    optional = "input { name: 'Q' data_type: TYPE_FP32 dims: 1 optional: true }"
    (model / "config.pbtxt").write_text(re.sub("version_policy.*\n", "", TRITON) + optional)
    (model / "1" / "model.py").write_text("def infer(inputs): return inputs")
    assert "inputs 2 optional: 'Q' may be left out: of a python model" in str(wrong(model))
    (model / "1" / "model.py").write_text("class TritonPythonModel: pass")
    (spec,) = tree.read_model(model)
    assert [tensor.optional for tensor in spec.inputs] == [False, True]
    assert (spec.platform, spec.shown_platform, spec.by_request) == ("triton_python", "python", True)


def test_a_model_of_tritons_gets_its_configuration_as_it_is_used_to(model):
    text = re.sub("version_policy.*\n", "", TRITON) + "model_warmup { name: 'a' count: 3 inputs { key: 'A' value { "
    text += "data_type: TYPE_FP16 dims: [4, 2] random_data: true } } } default_model_filename: 'it.py'"
    (model / "config.pbtxt").write_text(text)
    (model / "1" / "it.py").write_text("class TritonPythonModel: pass")
    (spec,) = tree.read_model(model)
    told = json.loads(spec.configuration)
    assert (told["name"], told["backend"], told["max_batch_size"]) == ("m", "python", 8)
    assert told["input"] == [{"name": "A", "data_type": "TYPE_FP16", "dims": [4, -1], "optional": False}]
    assert told["output"][0]["dims"] == [1]
    assert told["parameters"]["mine"] == {"string_value": "x { y: 1"}
    assert told["version_policy"] == {"latest": {"num_versions": 1}}
    assert told["instance_group"][0]["kind"] == "KIND_GPU"
    assert spec.file == told["default_model_filename"] == "it.py"
    (sample,) = spec.warm_up
    assert (sample.rows, sample.count, sample.inputs) == (1, 3, ((TensorSpec("A", "FP16", (4, 2)), "random"),))


def test_without_a_goal_for_latency_no_request_is_too_late_as_in_triton(model):
    without = re.sub("parameters.*slo_ms.*\n|version_policy.*\n", "", TRITON)
    (model / "1" / "model.py").touch()
    classes = {}
    for name, text in (("none", without), ("slo", re.sub("version_policy.*\n", "", TRITON))):
        (model / "config.pbtxt").write_text(text)
        (spec,) = tree.read_model(model)
        classes[name] = spec.service_class
    (model / "config.yaml").write_text("slo: 7ms\n")
    (model / "config.pbtxt").write_text(without)
    (spec,) = tree.read_model(model)
    assert classes | {"ours": spec.service_class} == {"none": "throughput", "slo": "latency", "ours": "latency"}


def test_what_is_missing(model, tmp_path):
    assert "neither config.yaml nor config.pbtxt" in str(wrong(model))
    (model / "1").rmdir()
    assert "there is no version folder" in str(wrong(model, "max_batch: 1"))
    with pytest.raises(ConfigError, match="cannot be read"):
        tree.scan(tmp_path / "absent")


def test_a_scan_keeps_the_good_beside_the_bad(model, tmp_path):
    (model / "config.yaml").write_text(GOOD)
    (tmp_path / "bad").mkdir()
    (tmp_path / ".hidden").mkdir()
    found = tree.scan(tmp_path)
    assert list(found) == ["bad", "m"]
    assert found["bad"].error is not None
    assert [spec.name for spec in found["m"].specs] == ["m"]


def test_a_directory_that_goes_while_it_is_read_is_an_error_of_that_model(model, monkeypatch):
    def gone(_folder):
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(os, "scandir", gone)
    error = tree.look(model).error
    assert error is not None
    assert "cannot be read: No such file" in str(error)


def test_the_stamp_follows_the_files(model):
    (model / "config.yaml").write_text(GOOD)
    before = tree.look(model).stamp
    assert tree.look(model).stamp == before
    (model / "1" / "weights").write_bytes(b"1")
    assert tree.look(model).stamp != before


def test_the_stamp_follows_a_version_that_is_a_link(model, tmp_path):
    """As deployments swap them; the version has another revision then, so that a load takes its new files."""
    (model / "config.yaml").write_text(GOOD)
    for name in ("old", "new"):
        (tmp_path / "store" / name / "deep").mkdir(parents=True)
        for file in (tmp_path / "store" / name / "model.py", tmp_path / "store" / name / "deep" / "weights"):
            file.write_text("1")
            os.utime(file, (1, 1))
    shutil.rmtree(model / "1")
    (model / "1").symlink_to(tmp_path / "store" / "old")
    before = tree.look(model)
    (tmp_path / "store" / "old" / "deep" / "weights").write_text("2")
    changed = tree.look(model)
    (model / "1").unlink()
    (model / "1").symlink_to(tmp_path / "store" / "new")
    swapped = tree.look(model)
    assert len({each.specs[0].key for each in (before, changed, swapped)}) == 3


def test_the_stamp_follows_a_link_between_the_files_but_not_into_its_folder(model, tmp_path):
    (model / "config.yaml").write_text(GOOD)
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (1, 1))
    (model / "1" / "data").symlink_to(tmp_path / "old")
    (model / "2").symlink_to(model)  # a loop
    before = tree.look(model).stamp
    assert len(before) < 20
    (model / "1" / "data").unlink()
    (model / "1" / "data").symlink_to(tmp_path / "new")
    assert tree.look(model).stamp != before


@pytest.fixture
def deep(model):
    """A folder so deep that a path to it is too long a name."""
    at = os.open(model / "1", os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=at)
        inner = os.open("d", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = inner
    os.close(at)
    yield model / "1"
    subprocess.run(["rm", "-rf", model / "1"], check=True)  # pytest's own way is not as deep


def test_the_stamp_follows_folders_deeper_than_functions_can_be(model, deep):
    (model / "config.yaml").write_text(GOOD)
    before = tree.look(model)
    assert before.specs
    (deep / "/".join("d" * 1200) / "weights").write_text("1")
    assert tree.look(model).stamp != before.stamp


def test_the_stamp_follows_permissions(model):
    (model / "config.yaml").write_text(GOOD)
    before = tree.look(model).stamp
    (model / "config.yaml").chmod(0o640)
    assert tree.look(model).stamp != before


def test_the_configuration_shown_is_read_back(model):
    (model / "config.yaml").write_text(GOOD)
    (spec,) = tree.read_model(model)
    text = str(triton_config.message_of(spec)).replace('platform: "noop"', 'platform: "python"')
    config, notes = triton_config.parse(text, model / "config.pbtxt")
    assert notes == ()
    assert (config.slo_ms, config.max_batch, config.priority) == (25.0, 16, 1)


@given(st.one_of(st.text(max_size=200), st.text(alphabet='abn:{}[]"\n -1"', max_size=80)))
def test_any_text_is_read_or_refused(tmp_path_factory, text):
    path = tmp_path_factory.getbasetemp() / "config"
    for parse in (native_config.parse, triton_config.parse):
        with contextlib.suppress(ConfigError):
            parse(text, path)


@pytest.mark.parametrize("file", ["config.yaml", "config.pbtxt", "1/model.pt"])
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_path_that_is_not_a_file_is_not_waited_for(model, file, kind):
    (model / "config.yaml").write_text("platform: torchscript\n")
    path = model / file
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    entry = tree.scan(model.parent)["m"]
    assert entry.specs == ()
    assert re.search("not a regular file|needs m?/?1/model.pt, which is not there", str(entry.error))


def test_names_that_requests_cannot_say_are_left_out_and_said_once(model, caplog):
    (model / "config.yaml").write_text("platform: noop\n")
    (model / "²").mkdir()  # a digit, and no number
    (model.parent / os.fsdecode(b"\xff")).mkdir()
    (model.parent / "a\x1b[2J").mkdir()
    for _ in range(3):
        assert list(tree.scan(model.parent)) == ["m"]
    assert len(caplog.records) == 2
    assert all(record.getMessage().isprintable() for record in caplog.records)


def test_a_repository_may_be_the_root_of_a_file_system(model):
    (model / "config.yaml").write_text("platform: noop\n")
    (model.parent / "lost+found").mkdir()
    assert list(tree.scan(model.parent)) == list(tree.stamps(model.parent)) == ["m"]


def test_a_model_of_code_that_is_no_source_is_not_read_whole(model):
    (model / "config.yaml").write_text(f"platform: python\n{TENSORS}")
    with (model / "1" / "model.py").open("wb") as file:
        file.truncate(1 << 40)  # of which the disk has nothing
    assert "larger than" in str(tree.look(model).error)
    (model / "config.yaml").unlink()
    assert "larger than" in str(tree.look(model).error)


class Looked(str):
    """Counts the characters that are looked through for newlines."""

    __slots__ = ("through",)

    def count(self, wanted, start=0, end=None):
        stop = len(self) if end is None else end
        self.through += stop - start
        return super().count(wanted, start, stop)


def test_fields_are_numbered_in_one_pass():
    def looked(count):
        text = Looked("".join(f'parameters {{ key: "{n}" value {{ string_value: "v" }} }}\n' for n in range(count)))
        text.through = 0
        found = list(text_fields.fields(text, model_config_pb2.ModelConfig.DESCRIPTOR))
        assert [field.line for field in found if field.path == "parameters"] == list(range(1, count + 1))
        return text.through / len(text)

    assert looked(2000) <= looked(20) + 1, "20,000 parameters took a quarter of a minute"


def test_a_string_that_is_never_closed_is_looked_at_once():
    """Each quote within it was tried to its end."""
    for text in ('"' + '\\"' * 50, "'" + "\\'" * 50):
        (found,) = re.finditer(text_fields.QUOTED, text + "\n")
        assert found[0] == text


@pytest.mark.parametrize("name", ["config.yaml", "config.pbtxt"])
def test_a_configuration_has_a_largest_size(model, name):
    (model / name).write_text("#" * tree.MAX_CONFIG_BYTES + "\n")
    error = wrong(model)
    assert error.path == str(model / name)
    assert "larger than 1048576 bytes" in str(error)


def test_an_error_does_not_quote_the_whole_of_a_line(model):
    (model / "config.pbtxt").write_text('name: "' + "x" * 10_000)
    assert len(str(wrong(model))) < 2000


def test_folders_whose_names_are_no_versions_are_none(model):
    for name in ("01", "9" * 18, "9" * 19, "9" * 200, "1_0"):
        (model / name).mkdir()
    (model / "config.yaml").write_text(GOOD + "versions: all\n")
    assert [spec.version for spec in tree.look(model).specs] == [1, int("9" * 18)]
