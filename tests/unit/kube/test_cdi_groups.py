"""The CDI document of groups against the rules of the CDI specification, version 0.5.0."""

from __future__ import annotations

import json
import os
from typing import Annotated

import msgspec
import pytest

from gemlet.errors import UsageError
from gemlet.kube import cdi
from gemlet.kube.edits import group_edits

HOOK = "/opt/venv/gemlet/_lib/libgemhook.so.1"
NAME = r"^[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?$"


class Strict(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    pass


class Mount(Strict):
    host_path: Annotated[str, msgspec.Meta(pattern="^/")]
    container_path: Annotated[str, msgspec.Meta(pattern="^/")]
    options: list[str] = []


class DeviceNode(Strict):
    path: Annotated[str, msgspec.Meta(pattern="^/")]


class ContainerEdits(Strict):
    env: list[Annotated[str, msgspec.Meta(pattern="^[^=]+=")]] = []
    device_nodes: list[DeviceNode] = []
    mounts: list[Mount] = []


class Device(Strict):
    name: Annotated[str, msgspec.Meta(pattern=NAME)]
    container_edits: ContainerEdits


class Specification(Strict):
    cdi_version: str
    kind: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*\.[a-z]+/[A-Za-z][A-Za-z0-9_-]*$")]
    devices: Annotated[list[Device], msgspec.Meta(min_length=1)]
    container_edits: ContainerEdits = msgspec.field(default_factory=ContainerEdits)


def edits(group="team", **others):
    return group_edits(HOOK, "/run/gemlet", group, **others)


def environment(content: dict[str, object]) -> dict[str, dict[str, str]]:
    checked = msgspec.convert(json.loads(json.dumps(content)), Specification)
    return {d.name: dict(entry.split("=", 1) for entry in d.container_edits.env) for d in checked.devices}


def test_each_group_is_a_device_that_never_runs_unmanaged():
    found = environment(cdi.groups({"team": edits(), "a.b_c": edits("a.b_c")}))
    assert {name: variables["GEMLET_GROUP"] for name, variables in found.items()} == {"team": "team", "a.b_c": "a.b_c"}
    assert {variables["GEMLET_STRICT"] for variables in found.values()} == {"1"}
    assert cdi.groups({"team": edits()})["kind"] == "gemlet.dev/group"


def test_mps_needs_the_memory_that_its_server_shares():
    assert "/dev/shm" not in {mount.host for mount in edits().mounts}
    under = edits(mps={"CUDA_MPS_PIPE_DIRECTORY": "/run/gemlet/mps/pipe"}, under_mps=True)
    assert ("/dev/shm", False) in {(mount.host, mount.read_only) for mount in under.mounts}
    assert ("/run/gemlet/mps/pipe", False) in {(mount.host, mount.read_only) for mount in under.mounts}
    assert environment(cdi.groups({"team": under}))["team"]["CUDA_MPS_PIPE_DIRECTORY"] == "/run/gemlet/mps/pipe"


def test_nothing_of_the_daemons_can_be_written_to():
    """Root in a container could put its own sockets there, and state for the next daemon."""
    assert all(mount.read_only for mount in edits().mounts)
    assert "/run/gemlet" in {mount.host for mount in edits().mounts}


def test_the_simulated_machine_brings_its_driver():
    made = edits(simulated=("/v/_lib/sim", "/v/profiles", "/run/gemlet/machine"))
    assert made.env["GEMLET_SIM_DIR"] == "/run/gemlet-machine"
    assert {mount.host: mount.read_only for mount in made.mounts}["/run/gemlet/machine"] is False


@pytest.mark.parametrize("name", ["my team", "space/pod", "-a", "a-", "é", "a=b", ""])
def test_a_name_that_no_runtime_takes_is_refused(name):
    with pytest.raises(UsageError, match="cannot be the name of a CDI device"):
        cdi.groups({"team": edits(), name: edits(name)})


def test_a_pipe_in_the_place_of_a_file_is_replaced_and_not_waited_for(tmp_path):
    path = tmp_path / "gemlet.json"
    os.mkfifo(path)
    assert cdi.write_file(path, {"kind": "x"})
    assert path.is_file()
    assert not cdi.write_file(path, {"kind": "x"})
    assert cdi.write_file(path, {})
