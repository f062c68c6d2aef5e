from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess

import pytest

from gemlet.cli import env, main
from gemlet.cli.env import FAILED, WAS_UNSET, _after_failure, _docker_options, _quoted, failing
from gemlet.cli.environment import Membership
from gemlet.daemon.address import Endpoint
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


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_error_of_its_own_lets_nothing_run(error, capsys, monkeypatch):
    def broken(*_, **__):
        raise error

    monkeypatch.setattr(env, "running", broken)
    with contextlib.suppress(error):
        main.run(["env", "--group", "team"])
    assert capsys.readouterr().out.strip() == failing("shell")


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
    environment = {"PATH": os.environ["PATH"], "CUDA_VISIBLE_DEVICES": "-1"} | environment
    shell = ["sh", "-c", "\n".join([*undone, show])]
    left = subprocess.run(shell, capture_output=True, text=True, check=False, env=environment)
    assert left.stdout.splitlines() == ([] if before is None else ["CUDA_VISIBLE_DEVICES=0,1"])


SHELLS = [["sh"], ["dash"], ["bash"], ["bash", "-eu"], ["zsh", "-f"], ["fish", "--no-config"]]


def in_shell(shell: list[str], script: str, **variables: str) -> subprocess.CompletedProcess[str]:
    if shutil.which(shell[0]) is None:
        pytest.skip(f"needs {shell[0]}")
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", **variables}
    return subprocess.run(
        [*shell, "-c", script], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, env=environment
    )


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
def test_nothing_runs_in_any_shell_after_a_failure(shell):
    """fish reports what it cannot read, and runs the next command."""
    ended = in_shell(shell, f'eval "$(printf %s {_quoted(failing("shell"))})"; echo ran')
    assert (ended.returncode, ended.stdout) == (125, "")


@pytest.mark.parametrize("before", [None, "0,1"])
def test_an_interactive_fish_sees_no_gpu_until_it_succeeds(before):
    variables = {} if before is None else {"CUDA_VISIBLE_DEVICES": before}
    fish = ["fish", "--no-config", "--interactive"]
    show = 'echo "$CUDA_VISIBLE_DEVICES" (set -q CUDA_VISIBLE_DEVICES; and echo set)'
    undone = "\n".join(_after_failure({FAILED: before or WAS_UNSET}))
    ended = in_shell(fish, f"{failing('shell')}\n{failing('shell')}\n{show}\n{undone}\n{show}", **variables)
    assert (ended.returncode, "fish: " in ended.stderr) == (0, False)  # of the terminal it says something, too
    assert ended.stdout.splitlines() == ["-1 set", "" if before is None else f"{before} set"]


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
def test_each_shell_reads_a_value_alike(shell):
    value = "a'b\"c\\d\\\\e\\'f $x `y` *\\"
    ended = in_shell(shell, f"export ODD={_quoted(value)}; printenv ODD")
    assert (ended.stdout, ended.stderr) == (value + "\n", "")


CLOSED = {"message": "group g is not open to ben", "hint": "choose another --group"}


@pytest.fixture
def closed(tmp_path, monkeypatch):
    """A daemon that says of g that it is another user's."""
    (tmp_path / "libgemhook.so.1").touch()
    monkeypatch.setenv("GEMLET_LIB_DIR", str(tmp_path))
    answer = {"environment": {}, "granted": {}, "under_mps": False, "closed": CLOSED}
    endpoint = Endpoint(tmp_path, kind="user")
    monkeypatch.setattr(env, "running", lambda *_, **__: (endpoint, {"g": answer}))


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_group_of_another_user_is_refused(form, closed, capsys):
    """Its programs could not join it, and would keep to no share of the time."""
    assert main.run(["env", "--group", "g", *form]) != 0
    said = capsys.readouterr()
    assert CLOSED["message"] in said.err
    assert "LD_PRELOAD" not in said.out


def test_a_container_may_have_another_user(closed, capsys):
    """As root it may join any group."""
    assert main.run(["env", "--group", "g", "--docker"]) == 0
    assert "GEMLET_GROUP=g" in capsys.readouterr().out


def test_what_the_shell_would_split_is_refused(tmp_path, monkeypatch):
    (tmp_path / "libgemhook.so.1").touch()
    monkeypatch.setenv("GEMLET_LIB_DIR", str(tmp_path))
    for name in ("my team", "a*b", "it's"):
        with pytest.raises(UsageError, match="cannot be passed"):
            _docker_options(Membership(group=name, socket="/run/x/gemlet.sock"), under_mps=False)
