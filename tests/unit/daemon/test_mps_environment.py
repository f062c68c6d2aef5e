"""What a program gets of MPS, and the error when it cannot have what it asks for."""

from __future__ import annotations

import pytest

from gemlet.daemon.mps_environment import MpsEnvironment, NeedsMps, Program, check, place
from gemlet.daemon.mps_state import MpsClient, MpsServer, MpsStatus
from gemlet.model import GroupSpec, Priority

ON = MpsStatus(state="on", pid=7, pipe_directory="/run/gemlet/mps/pipe", log_directory="/run/gemlet/mps/log")
OFF = MpsStatus(pipe_directory=ON.pipe_directory, log_directory=ON.log_directory)
OURS = {"CUDA_MPS_PIPE_DIRECTORY": "/run/gemlet/mps/pipe", "CUDA_MPS_LOG_DIRECTORY": "/run/gemlet/mps/log"}
NOWHERE = {"CUDA_MPS_PIPE_DIRECTORY": "/run/gemlet/mps/pipe-none"}
THIRD = GroupSpec(name="g", sm=0.3)
WHOLE = GroupSpec(name="g")


def state(name: str) -> MpsStatus:
    return MpsStatus(state=name, pipe_directory=ON.pipe_directory, log_directory=ON.log_directory)


def serving(uid: int) -> MpsStatus:
    client = MpsClient(pid=5, uid=uid, command="python")
    server = MpsServer(pid=9, uid=uid, status="ACTIVE", clients=(client,))
    return MpsStatus(state="on", pipe_directory=ON.pipe_directory, log_directory=ON.log_directory, servers=(server,))


def placed(program: Program, spec: GroupSpec, status: MpsStatus, *, simulated: bool = False) -> MpsEnvironment:
    return place(program, spec, status, simulated=simulated)


def test_every_program_joins():
    assert placed(Program(uid=1), WHOLE, ON) == MpsEnvironment(variables=OURS, under=True)


def test_a_fraction_is_a_percentage():
    expected = OURS | {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "30"}
    assert placed(Program(uid=1), THIRD, ON) == MpsEnvironment(variables=expected, under=True)
    assert (
        placed(Program(uid=1), GroupSpec(name="g", sm=1 / 3), ON).variables["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"]
        == "33.3333"
    )


def test_a_program_with_a_fraction_is_told_of_whole_devices():
    devices = {"GPU-b": 114, "GPU-a": 132}
    told = {"GEMLET_MULTIPROCESSORS": "GPU-a=132;GPU-b=114"}
    own = Program(uid=1, pipe_directory="/mine", pipe_alive=True)
    for program in (Program(uid=1), own):
        variables = place(program, THIRD, ON, simulated=False, multiprocessors=devices).variables
        assert variables.items() >= told.items()
        whole = place(program, WHOLE, ON, simulated=False, multiprocessors=devices).variables
        assert "GEMLET_MULTIPROCESSORS" not in whole
    assert "GEMLET_MULTIPROCESSORS" not in placed(Program(uid=1), THIRD, ON).variables


def test_best_effort_is_below_the_others():
    spec = GroupSpec(name="g", priority=Priority.BEST_EFFORT)
    assert placed(Program(uid=1), spec, ON).variables == OURS | {"CUDA_MPS_CLIENT_PRIORITY": "1"}
    assert "CUDA_MPS_CLIENT_PRIORITY" not in placed(Program(uid=1), WHOLE, ON).variables


def test_outside_is_outside_of_every_control_daemon():
    assert placed(Program(uid=1, outside=True), WHOLE, ON) == MpsEnvironment(variables=NOWHERE)
    assert placed(Program(uid=1, outside=True), THIRD, ON) == MpsEnvironment(variables=NOWHERE, in_force=False)


@pytest.mark.parametrize("name", ["off", "stopping", "failed"])
def test_without_mps_a_configured_fraction_is_not_in_force(name):
    assert placed(Program(uid=1), THIRD, state(name)) == MpsEnvironment(in_force=False)
    assert placed(Program(uid=1), WHOLE, state(name)) == MpsEnvironment()


def test_a_simulated_program_does_not_find_the_mps_of_the_real_machine():
    assert placed(Program(uid=1), WHOLE, OFF, simulated=True).variables == NOWHERE
    assert placed(Program(uid=1), WHOLE, ON, simulated=True).variables == OURS


def test_a_pipe_directory_of_ones_own_wins():
    own = Program(uid=1, pipe_directory="/tmp/mine", pipe_alive=True)
    assert placed(own, WHOLE, ON) == MpsEnvironment(under=True)
    third = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "30"}
    assert placed(own, THIRD, ON) == MpsEnvironment(variables=third, under=True)
    assert placed(Program(uid=1, pipe_directory="/tmp/mine"), THIRD, ON) == MpsEnvironment(in_force=False)


def test_one_user_at_a_time():
    assert placed(Program(uid=1), WHOLE, serving(1)).variables == OURS
    assert placed(Program(uid=2), WHOLE, serving(1)) == MpsEnvironment()
    assert placed(Program(uid=2), THIRD, serving(1)) == MpsEnvironment(in_force=False)
    idle = MpsStatus(
        state="on",
        pipe_directory=ON.pipe_directory,
        log_directory=ON.log_directory,
        servers=(MpsServer(pid=9, uid=1, status="ACTIVE"),),
    )
    assert placed(Program(uid=2), WHOLE, idle).variables == OURS  # its server makes way for another


@pytest.mark.parametrize(("control", "program", "joins"), [(0, 2, True), (1, 1, True), (1, 2, False)])
def test_only_the_control_daemon_of_root_serves_others(control, program, joins):
    status = MpsStatus(state="on", uid=control, pipe_directory=ON.pipe_directory, log_directory=ON.log_directory)
    expected = MpsEnvironment(variables=OURS, under=True) if joins else MpsEnvironment()
    assert placed(Program(uid=program), WHOLE, status) == expected


ASKS = Program(uid=1, sm=0.3)


@pytest.mark.parametrize(
    ("program", "status"),
    [
        (ASKS, ON),
        (ASKS, serving(1)),
        (Program(uid=1), OFF),
        (Program(uid=1, sm=1.0), OFF),
        (Program(uid=1, sm=1.0, outside=True), OFF),
        (Program(uid=1, sm=0.3, pipe_directory="/tmp/mine", pipe_alive=True), OFF),
    ],
)
def test_what_can_be_had(program, status):
    check(program, status, simulated=False)


@pytest.mark.parametrize(
    ("program", "status", "words", "hint"),
    [
        (ASKS, OFF, "--sm 30% needs MPS, which does not run", "gemlet mps start"),
        (ASKS, state("stopping"), "is being stopped", "gemlet mps start"),
        (ASKS, state("failed"), "ended unexpectedly", "gemlet mps start"),
        (ASKS, serving(2), "serves one user at a time, now uid 2", "take turns"),
        (Program(uid=1, sm=0.3, outside=True), ON, "--no-mps forbids it", "leave out one"),
        (
            Program(uid=1, sm=0.3, pipe_directory="/tmp/mine"),
            ON,
            "no control daemon lives in /tmp/mine",
            "unset CUDA_MPS_PIPE_DIRECTORY",
        ),
    ],
)
def test_what_cannot_be_had(program, status, words, hint):
    with pytest.raises(NeedsMps, match=words) as error:
        check(program, status, simulated=False)
    assert hint in error.value.hint


def test_the_hint_is_for_the_machine_that_was_meant():
    with pytest.raises(NeedsMps) as error:
        check(ASKS, OFF, simulated=True)
    assert error.value.hint == "start it with `gemlet mps start --simulate`"


@pytest.mark.parametrize(("memory", "limit"), [(8 << 30, "0=8192M"), (1, "0=1M"), ((1 << 20) + 1, "0=2M"), (0, "0=1M")])
def test_the_driver_holds_a_process_to_no_less_than_its_groups_memory(memory, limit):
    spec = GroupSpec(name="g", memory=memory)
    variables = placed(Program(uid=1, one_device=True), spec, ON).variables
    assert variables == OURS | {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": limit}


def test_the_driver_is_told_no_limit_where_its_numbers_of_devices_are_unknown():
    assert placed(Program(uid=1), GroupSpec(name="g", memory=1 << 30), ON).variables == OURS
    assert placed(Program(uid=1, one_device=True), WHOLE, ON).variables == OURS
    assert placed(Program(uid=1, one_device=True), GroupSpec(name="g", memory=1 << 30), OFF).variables == {}
