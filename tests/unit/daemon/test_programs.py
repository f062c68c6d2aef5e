"""What people call a program, and that looking it up holds nobody up."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time

import pytest

from gemlet.daemon.program_names import called, container_of
from gemlet.daemon.programs import Program, Programs, look
from tests.waiting import eventually

ID = "0123456789ab" + "c" * 52
NOTEBOOK = {"JPY_SESSION_NAME": "/home/ana/work/Untitled 3.ipynb"}


@pytest.mark.parametrize(
    ("line", "name"),
    [
        (["python", "train.py", "--lr", "0.1"], "train.py"),
        (["/usr/bin/python3.12", "-u", "-W", "ignore", "src/train.py"], "train.py"),
        (["python3", "-m", "torch.distributed.run", "train.py"], "-m torch.distributed.run"),
        (["python3.13t", "-um", "package.module"], "-m package.module"),
        (["python", "-X", "dev", "-Wignore", "-mpackage"], "-m package"),
        (["python", "-c", "import time"], "python -c"),
        (["python", "app/__main__.py"], "app"),
        (["python"], "python"),
        (["python", "-"], "python"),
        (["/venv/bin/python", "/venv/bin/vllm", "serve", "model"], "vllm"),
        (["/bin/bash", "-e", "run.sh"], "bash"),
        (["bash", "run.sh"], "run.sh"),
        (["-bash"], "bash"),
        (["julia", "--project", "a.jl"], "a.jl"),
        (["./a.out", "1"], "a.out"),
        (["VLLM::Worker TP0"], "VLLM::Worker TP0"),
        (["a b/c", "1"], "c"),
        ([""], "comm"),
        ([], "comm"),
        (["python", "x\x1b[2J.py"], "x\\x1b[2J.py"),
        (["./" + "x" * 90], "x" * 39 + "…"),
    ],
)
def test_a_program_is_called_what_people_call_it(line, name):
    assert called(line, command="comm", environment={}) == name


@pytest.mark.parametrize("words", [["-m", "ipykernel_launcher", "-f", "k.json"], ["/x/ipykernel_launcher.py"]])
def test_a_kernel_is_called_as_its_notebook(words):
    assert called(["python", *words], command="python", environment=NOTEBOOK) == "Untitled 3.ipynb"
    assert called(["python", *words], command="python", environment={}) == "notebook"


@pytest.mark.parametrize(
    "cgroup",
    [
        f"0::/system.slice/docker-{ID}.scope\n",
        f"12:devices:/docker/{ID}\n0::/\n",
        f"0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-{ID}.scope\n",
        f"0::/user.slice/user-1000.slice/libpod-{ID}.scope/container\n",
    ],
)
def test_a_container_is_found(cgroup):
    assert container_of(cgroup, {}) == "0123456789ab"
    assert container_of(cgroup, {"HOSTNAME": "trainer-0"}) == "trainer-0"


def test_outside_of_a_container_there_is_none():
    assert container_of("0::/user.slice/user-1000.slice/session-3.scope\n", {"HOSTNAME": "box"}) == ""


def test_a_process_is_looked_up():
    started = time.time()
    child = subprocess.Popen(
        [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", "0"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        eventually(lambda: look(child.pid).name == "-m http.server")  # after its exec
        assert abs(look(child.pid).started - started) < 60
    finally:
        child.kill()
        child.wait()
    assert look(child.pid) == Program()


def test_who_has_been_looked_up_is_known_from_the_first_status_on():
    async def run():
        programs = Programs(lambda pid: Program(name=f"p{pid}"))
        await programs.settle([(1, 0.0), (2, 0.0)], patience=60.0)
        assert [programs.find((pid, 0.0)).name for pid in (1, 2)] == ["p1", "p2"]
        programs.ask([(2, 0.0)])
        assert programs.find((1, 0.0)) == Program()

    asyncio.run(run())


def test_a_program_that_hangs_holds_nobody_up():
    go_on = threading.Event()
    programs = Programs(lambda pid: Program(name=str(go_on.wait())))

    async def run():
        await programs.settle([(1, 0.0)], patience=0.01)
        await programs.settle([(1, 0.0)], patience=3600.0)  # it was asked for already
        return programs.find((1, 0.0))

    assert asyncio.run(run()) == Program()
    go_on.set()
    eventually(lambda: programs.find((1, 0.0)).name == "True")


def test_a_program_that_hangs_leaves_those_of_its_user_without_names_alone():
    go_on = threading.Event()

    def name(pid):
        assert pid != 1 or go_on.wait(60)
        return Program(name=f"p{pid}")

    programs = Programs(name, user_of=lambda pid: pid % 2)

    async def run():
        await programs.settle([(1, 0.0)], patience=0.01)
        await programs.settle([(1, 0.0), (2, 0.0), (3, 0.0)], patience=0.01)

    asyncio.run(run())
    eventually(lambda: programs.find((2, 0.0)).name == "p2")
    assert programs.find((3, 0.0)) == Program()
    go_on.set()
    eventually(lambda: programs.find((3, 0.0)).name == "p3")


def test_one_is_looked_up_once():
    asked = []
    programs = Programs(lambda pid: asked.append(pid) or Program(name="x"))
    for _ in range(3):
        programs.ask([(os.getpid(), 1.0)])
    eventually(lambda: programs.find((os.getpid(), 1.0)).name)
    assert asked == [os.getpid()]
