from __future__ import annotations

import pytest

from gemlet import paths
from gemlet.cli.environment import (
    Membership,
    choose_device,
    choose_devices,
    for_program,
    own_pipe_directory,
    to_be_checked,
    variables,
)
from gemlet.errors import GemletError, UsageError

MEMBER = Membership(group="g", socket="/run/x/gemlet.sock")


@pytest.fixture
def libraries(tmp_path, monkeypatch):
    (tmp_path / "sim").mkdir()
    (tmp_path / "libgemhook.so.1").touch()
    (tmp_path / "sim" / "libcuda.so.1").touch()
    monkeypatch.setenv("GEMLET_LIB_DIR", str(tmp_path))
    return tmp_path


def test_the_hook_is_preloaded_first_and_by_absolute_path(libraries):
    hook = f"{libraries}/libgemhook.so.1"
    assert variables(MEMBER, {})["LD_PRELOAD"] == hook
    assert variables(MEMBER, {"LD_PRELOAD": "/a.so:/b.so"})["LD_PRELOAD"] == f"{hook}:/a.so:/b.so"
    assert variables(MEMBER, {"LD_PRELOAD": f"/a.so:{hook}"})["LD_PRELOAD"] == f"{hook}:/a.so"


def test_group_and_socket(libraries):
    assert variables(MEMBER, {})["GEMLET_GROUP"] == "g"
    assert variables(MEMBER, {})["GEMLET_SOCKET"] == "/run/x/gemlet.sock"
    assert "GEMLET_STRICT" not in variables(MEMBER, {})
    strict = Membership(group="g", socket="/x", strict=True)
    assert variables(strict, {})["GEMLET_STRICT"] == "1"


def test_simulated(libraries):
    simulated = Membership(group="g", socket="/x", machine="/x/machine")
    changed = variables(simulated, {"LD_LIBRARY_PATH": "/usr/local/lib"})
    assert changed["LD_LIBRARY_PATH"] == f"{libraries}/sim:/usr/local/lib"
    assert changed["GEMLET_SIM_DIR"] == "/x/machine"


def test_settings_of_an_outer_group_do_not_leak(libraries):
    outer = {
        "GEMLET_GROUP": "outer",
        "GEMLET_STRICT": "1",
        "GEMINI_GROUP_NAME": "old",
        "GEMINI_IPC_DIR": "/t",
        "A": "b",
    }
    inner = for_program(MEMBER, outer)
    assert inner["GEMLET_GROUP"] == "g"
    assert inner["A"] == "b"
    assert not {"GEMLET_STRICT", "GEMINI_GROUP_NAME", "GEMINI_IPC_DIR"} & inner.keys()


MPS = {"CUDA_MPS_PIPE_DIRECTORY": "/run/x/mps/pipe", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "30"}


def test_what_the_daemon_says_of_mps_is_set(libraries):
    changed = variables(Membership(group="g", socket="/x", mps=MPS), {})
    assert changed.items() >= MPS.items()
    assert "GEMLET_MPS_SET" not in variables(MEMBER, {})


def test_the_mps_of_an_outer_run_does_not_leak(libraries):
    outer = for_program(Membership(group="outer", socket="/x", mps=MPS), {"A": "b", "CUDA_MPS_CLIENT_PRIORITY": "1"})
    assert own_pipe_directory(outer) is None
    inner = for_program(MEMBER, outer)
    assert not {*MPS, "GEMLET_MPS_SET"} & inner.keys()
    assert inner["A"] == "b"
    assert inner["CUDA_MPS_CLIENT_PRIORITY"] == "1"  # not gemlet's


def test_variables_set_inside_an_outer_run_stay(libraries):
    outer = for_program(Membership(group="outer", socket="/x", mps=MPS), {})
    outer["CUDA_MPS_PIPE_DIRECTORY"] = "/tmp/mine"
    assert own_pipe_directory(outer) == "/tmp/mine"
    inner = for_program(MEMBER, outer)
    assert inner["CUDA_MPS_PIPE_DIRECTORY"] == "/tmp/mine"
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in inner


def test_the_hook_for_pytorch_comes_before_the_programs_own_modules(libraries):
    member = Membership(group="g", socket="/x", torch="dead")
    ours = paths.injected_dir()
    assert variables(member, {})["PYTHONPATH"] == ours
    assert (
        variables(member, {"PYTHONPATH": f"/a:{ours}:"})["PYTHONPATH"] == f"{ours}:/a:"
    )  # an empty entry means something
    assert variables(member, {})["GEMLET_TORCH"] == "dead"
    assert not {"PYTHONPATH", "GEMLET_TORCH", "GEMLET_MANAGED"} & variables(MEMBER, {"PYTHONPATH": "/a"}).keys()


@pytest.mark.parametrize(
    ("granted", "said"),
    [
        ({"memory": 1 << 30, "max": 0.3}, "memory=1073741824,max=300000"),
        ({"memory": None, "max": 0.0}, "max=1"),
        ({"memory": None, "max": 1.0}, None),
        ({"memory": None, "resident": 2 << 30}, "memory=2147483648"),
        ({"memory": 3 << 30, "resident": 2 << 30}, "memory=2147483648"),
        ({"memory": 0, "resident": 2 << 30}, "memory=0"),
    ],
)
def test_the_hook_is_told_the_limits_that_were_granted(libraries, granted, said):
    outer = for_program(Membership(group="outer", socket="/x", granted=granted), {})
    assert outer.get("GEMLET_LIMITS") == said
    assert "GEMLET_LIMITS" not in for_program(MEMBER, outer)


def test_managed_memory(libraries):
    assert variables(Membership(group="g", socket="/x", managed="force"), {})["GEMLET_MANAGED"] == "force"


@pytest.mark.parametrize("own", [{}, {"PYTHONPATH": "/a:/b"}])
def test_what_an_outer_run_adds_to_programs_does_not_leak(libraries, own):
    outer = for_program(Membership(group="outer", socket="/x", torch="empty-cache", managed="checked"), own)
    inner = for_program(MEMBER, outer)
    assert not {"GEMLET_TORCH", "GEMLET_MANAGED"} & inner.keys()
    assert inner.get("PYTHONPATH") == own.get("PYTHONPATH")


@pytest.mark.parametrize("base", [{}, {"CUDA_MPS_PIPE_DIRECTORY": ""}])
def test_no_pipe_directory_of_ones_own(base):
    assert own_pipe_directory(base) is None


@pytest.mark.parametrize("name", ["with space", "with:colon"])
def test_a_path_the_loader_cannot_read_is_refused(tmp_path, monkeypatch, name):
    (tmp_path / name).mkdir()
    (tmp_path / name / "libgemhook.so.1").touch()
    monkeypatch.setenv("GEMLET_LIB_DIR", str(tmp_path / name))
    with pytest.raises(GemletError, match="loader"):
        variables(MEMBER, {})


def test_a_missing_hook_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("GEMLET_LIB_DIR", str(tmp_path))
    with pytest.raises(GemletError, match="does not exist"):
        variables(MEMBER, {})


@pytest.mark.parametrize(
    ("names", "visible", "shown"),
    [
        ("0,1", None, {"CUDA_VISIBLE_DEVICES": "0,1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}),
        (" 1, 0 ", "2,3", {"CUDA_VISIBLE_DEVICES": "3,2"}),
        ("GPU-abc", None, {"CUDA_VISIBLE_DEVICES": "GPU-abc"}),
        ("GPU-def", "GPU-abc,GPU-def", {"CUDA_VISIBLE_DEVICES": "GPU-def"}),
    ],
)
def test_several_devices_and_uuids(names, visible, shown):
    assert choose_devices(names, {"CUDA_VISIBLE_DEVICES": visible} if visible else {}) == (shown, None)


@pytest.mark.parametrize(
    ("names", "visible"),
    [
        ("x", None),
        ("", None),
        ("0,", None),
        ("-1", None),
        ("²", None),
        ("GPU-a", "0"),
        ("0,9", "0,1"),
        ("0,1,0", None),
        ("1,01", "4,5"),
        ("GPU-a,GPU-a", None),
    ],
)
def test_what_names_no_device(names, visible):
    with pytest.raises(UsageError):
        choose_devices(names, {"CUDA_VISIBLE_DEVICES": visible} if visible else {})


@pytest.mark.parametrize("names", ["MIG-ab", "GPU-a, MIG-ab"])
def test_instances_in_mig_mode_are_refused(names):
    with pytest.raises(UsageError, match="MIG-ab is an instance of a GPU in MIG mode"):
        choose_devices(names, {})


def test_one_device_by_number_is_known_to_the_daemon():
    assert choose_devices("1", {})[1] == 1


def test_the_daemon_checks_the_devices_that_nvidia_smi_counts():
    assert to_be_checked(choose_devices("0,1", {})[0], {}) == ["0", "1"]
    assert to_be_checked(choose_devices("GPU-a", {})[0], {}) == ["GPU-a"]
    chosen_elsewhere = {"CUDA_VISIBLE_DEVICES": "3,4"}
    assert to_be_checked(choose_devices("0,1", chosen_elsewhere)[0], chosen_elsewhere) == []
    assert to_be_checked({}, {}) == []


def test_device_counts_as_nvidia_smi_does():
    assert choose_device(1, {}) == ({"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, 1)


@pytest.mark.parametrize(
    ("visible", "order", "number", "shown", "index"),
    [
        ("2,3", None, 0, "2", None),
        ("2,3", "PCI_BUS_ID", 1, "3", 3),
        ("GPU-abc, GPU-def", None, 1, "GPU-def", None),
    ],
)
def test_device_counts_within_an_existing_mapping(visible, order, number, shown, index):
    base = {"CUDA_VISIBLE_DEVICES": visible} | ({"CUDA_DEVICE_ORDER": order} if order else {})
    assert choose_device(number, base) == ({"CUDA_VISIBLE_DEVICES": shown}, index)


@pytest.mark.parametrize("visible", ["", "2,3"])
def test_device_outside_the_mapping(visible):
    with pytest.raises(UsageError, match="CUDA_VISIBLE_DEVICES"):
        choose_device(2, {"CUDA_VISIBLE_DEVICES": visible})


def test_no_machine_has_a_device_of_such_a_number():
    with pytest.raises(UsageError, match="no device 1024"):
        choose_devices("1024", {})
