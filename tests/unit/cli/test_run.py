from __future__ import annotations

import errno
import os
import signal
import sys

import click
import pytest

from gemlet.cli import main, messages
from gemlet.cli.options import check_variables
from gemlet.cli.run import NotExecutable, NotFound, command, execute, find_program, granted_line, torch_hook


def joined(**changes):
    granted = {"min": 0.3, "max": 0.6, "memory": 8 << 30, "priority": "normal", "sm": 1.0} | changes.pop("granted", {})
    return {"group": "train-1", "simulated": False, "granted": granted} | changes


def test_one_line_says_what_was_granted_and_what_to_type_next():
    line = granted_line(joined(), None)
    assert line == "gemlet: group train-1: 30% guaranteed, up to 60%, 8 GiB of memory; see: gemlet top"


def test_what_is_not_limited_is_not_mentioned():
    assert "memory" not in granted_line(joined(granted={"memory": None}), None)
    assert "device 1" in granted_line(joined(), "1")
    assert "latency" in granted_line(joined(granted={"priority": "latency"}), None)


def test_a_maximum_of_0_is_not_silent():
    assert "waits" in granted_line(joined(granted={"max": 0.0}), None)


def test_a_fraction_that_is_not_in_force_is_said():
    third = joined(granted={"sm": 0.3}, sm_in_force=True)
    assert ", 30% of the multiprocessors, 8 GiB" in granted_line(third, None)
    assert "30% of the multiprocessors (not in force: not under MPS)" in granted_line(
        third | {"sm_in_force": False}, None
    )


def test_simulated_is_said():
    assert granted_line(joined(simulated=True), None).startswith("gemlet (simulated): ")


@pytest.mark.parametrize(
    ("movable", "no_hook", "empty_cache", "what"),
    [
        (False, False, False, None),  # nothing would come of it
        (True, False, False, "dead"),
        (True, True, False, None),
        (False, False, True, "empty-cache"),
        (True, False, True, "empty-cache"),
    ],
)
def test_what_pytorch_does_after_a_step(movable, no_hook, empty_cache, what):
    assert torch_hook(movable=movable, no_hook=no_hook, empty_cache=empty_cache) == what


@pytest.fixture
def path(tmp_path, monkeypatch):
    first, second = tmp_path / "first", tmp_path / "second"
    for directory in (first, second):
        directory.mkdir()
    monkeypatch.setenv("PATH", f"{first}{os.pathsep}{second}")
    return first, second


def test_found_as_execvp_does(path):
    first, second = path
    (first / "tool").touch(mode=0o644)
    (second / "tool").touch(mode=0o755)
    assert find_program("tool") == str(second / "tool")
    assert find_program(str(second / "tool")) == str(second / "tool")


@pytest.mark.skipif(os.getuid() == 0, reason="root may execute what has any x bit, and this has none")
def test_not_executable_as_a_user(path):
    (path[0] / "tool").touch(mode=0o644)
    with pytest.raises(NotExecutable) as error:
        find_program("tool")
    assert error.value.exit_code == 126


def test_not_executable(path, tmp_path):
    (path[0] / "tool").touch(mode=0o644)
    with pytest.raises(NotExecutable) as error:
        find_program("tool")
    assert error.value.exit_code == 126
    with pytest.raises(NotExecutable, match="directory"):
        find_program(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("train.py", "write ./train.py, or its interpreter before it"),
        ("tool --fast", "leave out the quotes: -- tool --fast"),
        ("tol --fast", "check the spelling and PATH"),
        ("cd", "the shell does that itself: sh -c 'cd ...'"),
        ("A=b", "put a variable before `gemlet`, or write `env` before it"),
    ],
)
def test_what_is_not_found_as_it_was_written(path, tmp_path, monkeypatch, name, hint):
    (path[0] / "tool").touch(mode=0o755)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    with pytest.raises(NotFound) as error:
        find_program(name)
    assert error.value.hint == hint


def test_not_found(path):
    with pytest.raises(NotFound) as error:
        find_program("tool")
    assert error.value.exit_code == 127


def test_a_variable_that_names_no_option_is_refused(monkeypatch, capsys):
    """As `--memroy` is: else the program would run without its limit."""
    monkeypatch.setenv("GEMLET_RUN_MEMROY", "8GiB")
    assert main.run(["run", "--", "true"]) == 2
    said = capsys.readouterr().err
    assert "GEMLET_RUN_MEMROY is set" in said
    assert "did you mean GEMLET_RUN_MEMORY?" in said


def test_variables_that_name_options_are_known(monkeypatch):
    context = click.Context(command, auto_envvar_prefix="GEMLET_RUN")
    for option in ("MEMORY", "NO_MPS", "QUIET", "DEVICE", "SIMULATE"):
        monkeypatch.setenv(f"GEMLET_RUN_{option}", "1")
    check_variables(context)


@pytest.mark.parametrize("error", [BrokenPipeError, OSError(errno.ENOSPC, "full")])
def test_nobody_who_reads_a_message_changes_nothing(error, monkeypatch):
    """The program would not run, and `gemlet run` end with 0 as if it had."""

    def fails(*_, **__):
        raise error

    monkeypatch.setattr(sys, "stderr", sys.stderr)
    monkeypatch.setattr(click, "echo", fails)
    messages.say("train-1: 30% guaranteed")
    messages.error("nothing", "to be done")


def test_a_script_whose_interpreter_is_missing(tmp_path):
    script = tmp_path / "script"
    script.write_text("#!/usr/bin/python3\r\n")
    script.chmod(0o755)
    with pytest.raises(NotExecutable) as error:
        execute(str(script), ("script",), {})
    assert error.value.hint is not None
    assert "Windows" in error.value.hint
    assert signal.getsignal(signal.SIGPIPE) == signal.SIG_IGN  # as before: a message that nobody reads is no end


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--sm", "30%", "--no-mps"], "--sm needs MPS, and --no-mps forbids it"),
        (["--group", "mine "], "'mine ' begins or ends with a blank"),
    ],
)
def test_what_cannot_be_meant_is_a_usage_error(options, said, capsys):
    assert main.run(["run", *options, "--", "true"]) == 2
    assert said in capsys.readouterr().err


def test_a_shell_in_which_env_has_failed_is_told_why_there_is_no_gpu(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("GEMLET_ENV_FAILED", "unset")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    main.run(["--socket", str(tmp_path), "run", "--", "true"])  # where no daemon is
    assert "`gemlet env` has failed in this shell" in capsys.readouterr().err
