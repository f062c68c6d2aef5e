from __future__ import annotations

import json
import subprocess

import pytest

from gemlet.cli import main
from gemlet.cli.env import _after_failure, _docker_options, failing
from gemlet.cli.environment import Membership
from gemlet.errors import UsageError


def test_a_container_gets_mps_with_the_memory_its_server_shares(tmp_path, monkeypatch):
    (tmp_path / "libgemhook.so.1").touch()
    monkeypatch.setenv("GEMLET_LIB_DIR", str(tmp_path))
    plain = _docker_options(Membership(group="g", socket="/run/x/gemlet.sock"), under_mps=False)
    assert "-v /run/x:/run/x:ro" in plain
    assert not [option for option in plain if "GEMLET_LIMITS" in option]
    limited = Membership(group="g", socket="/run/x/gemlet.sock", granted={"memory": 1 << 30, "max": 0.5})
    assert "-e GEMLET_LIMITS=memory=1073741824,max=500000" in _docker_options(limited, under_mps=False)
    assert "--ipc=host" not in plain
    outside = _docker_options(
        Membership(group="g", socket="/run/x/gemlet.sock", mps={"CUDA_MPS_PIPE_DIRECTORY": "/run/x/mps/pipe-none"}),
        under_mps=False,
    )
    assert "--ipc=host" not in outside
    mps = {"CUDA_MPS_PIPE_DIRECTORY": "/run/x/mps/pipe", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "30"}
    under = _docker_options(Membership(group="g", socket="/run/x/gemlet.sock", mps=mps), under_mps=True)
    assert "--ipc=host" in under
    assert "-e CUDA_MPS_PIPE_DIRECTORY=/run/x/mps/pipe" in under
    assert "-e CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=30" in under


CASES = [["--group", "team"], ["--group", ""], ["--nonsense"], ["--group", "team", "--docker"], ["--docker", "--what"]]
CASES += [["--group", "team", "--json"], ["--json", "--what"]]


@pytest.fixture
def nowhere(tmp_path, monkeypatch):
    monkeypatch.setenv("GEMLET_SOCKET", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tmp_path


@pytest.mark.parametrize("arguments", CASES)
def test_without_an_environment_the_command_fails(arguments, nowhere, capsys):
    assert main.run(["env", *arguments]) != 0
    said = capsys.readouterr()
    assert "error: " in said.err
    if "--json" in arguments:
        with pytest.raises(json.JSONDecodeError):
            json.loads(said.out)
        return
    if "--docker" in arguments:
        assert said.out.strip() == "--gemlet-env-failed"
        return
    script = 'eval "$(cat)"; echo ran'
    ended = subprocess.run(["sh", "-c", script], input=said.out, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (125, "")


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_loader_that_would_ignore_the_hook_is_refused(form, nowhere, capsys, monkeypatch):
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.arena_max=2:glibc.rtld.enable_secure=1")
    assert main.run(["env", *form, "--group", "team"]) != 0
    said = capsys.readouterr()
    assert "glibc.rtld.enable_secure keeps the hook" in said.err
    assert said.out.strip() == failing("json" if form else "shell")


@pytest.mark.parametrize("before", [None, "0,1"])
def test_an_interactive_shell_lives_on_without_gpus_until_it_succeeds(before, nowhere, capsys, monkeypatch):
    if before:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", before)
    main.run(["env", "--group", "team"])
    failed = capsys.readouterr().out
    show = 'env | grep -E "CUDA_VISIBLE|GEMLET_ENV"'
    shell = ["sh", "-c", f"{failed.replace('$-', 'himBH')}\n echo $?; {failed.replace('$-', 'i')}\n {show}"]
    *codes, shown, kept = sorted(subprocess.run(shell, capture_output=True, text=True, check=False).stdout.splitlines())
    assert codes == ["1"]
    assert shown == "CUDA_VISIBLE_DEVICES=-1"
    environment = dict([kept.split("=", 1)])
    undone = _after_failure(environment)
    assert undone[0] == ("unset CUDA_VISIBLE_DEVICES" if before is None else "export CUDA_VISIBLE_DEVICES=0,1")


def test_what_the_shell_would_split_is_refused(tmp_path, monkeypatch):
    (tmp_path / "libgemhook.so.1").touch()
    monkeypatch.setenv("GEMLET_LIB_DIR", str(tmp_path))
    for name in ("my team", "a*b", "it's"):
        with pytest.raises(UsageError, match="cannot be passed"):
            _docker_options(Membership(group=name, socket="/run/x/gemlet.sock"), under_mps=False)
