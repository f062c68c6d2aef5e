"""A program beneath `gemlet run` at a prompt: to the shell and to the program as if it were started by itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.shell import Shell
from tests.waiting import eventually

# As `gemlet run` does it, without a daemon.
ATTENDED = """
import os, sys
from gemlet.cli import attended, run
if not attended.wanted():
    print("replaced", flush=True)
    run.execute(sys.argv[1], tuple(sys.argv[1:]), dict(os.environ))
sys.exit(attended.run(
    lambda: run.execute(sys.argv[1], tuple(sys.argv[1:]), dict(os.environ)),
    lambda: print("the last", "word", flush=True),
))
"""


@pytest.fixture
def shell(tmp_path):
    (tmp_path / "attended.py").write_text(ATTENDED)
    made = Shell(os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))})
    made.type(f"alias at='{sys.executable} {tmp_path}/attended.py'\n")
    yield made
    made.close()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.parametrize("code", [0, 3, 255])
def test_the_exit_code_is_the_programs_and_the_line_comes_before_the_prompt(shell, code):
    shell.type(f"at /bin/sh -c 'exit {code}'; echo code=$?\n")
    assert "the last word" in shell.expect(r"(?s).*code=(\d+)").group(0)
    shell.type("echo\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGUSR1])
def test_a_death_by_a_signal_is_passed_on(shell, number):
    shell.type(f"at /bin/sh -c 'kill -{int(number)} $$'; echo code=$?\n")
    assert shell.expect(r"code=(\d+)").group(1) == str(128 + number)


def test_ctrl_c_reaches_the_program_once(shell):
    counts = "import signal,time; signal.signal(2, lambda *_: print('one', flush=True)); print('rea' 'dy', flush=True)"
    shell.type(f'at {sys.executable} -c "{counts}; [time.sleep(0.1) for _ in range(12)]"; echo code=$?\n')
    shell.expect("ready")
    shell.type("\x03")
    seen = shell.expect(r"(?s).*code=0").group(0)
    assert seen.count("one") == 1


def test_ctrl_c_ends_an_ordinary_program(shell):
    shell.type("at /bin/sh -c 'echo re''ady; exec sleep 600'\n")
    shell.expect("ready")
    shell.type("\x03")
    shell.expect("the last word")
    shell.type("echo code=$?\n")
    assert shell.expect(r"code=(\d+)").group(1) == "130"


def test_ctrl_z_and_fg(shell):
    shell.type("at /bin/sh -c 'echo pid=$$ ; read answer; echo got $answer'; echo ended\n")
    pid = int(shell.expect(r"pid=(\d+)").group(1))
    shell.type("\x1a")
    shell.expect("Stopped")
    assert alive(pid)
    shell.type("fg\n")
    shell.expect("attended.py")
    shell.type("hello\n")
    shell.expect("got hello")
    shell.expect("the last word")


@pytest.mark.parametrize(("number", "code"), [("TERM", 143), ("KILL", 137), ("HUP", 129)])
def test_a_signal_to_the_parent_ends_the_program(shell, number, code):
    shell.type("at /bin/sh -c 'echo pid=$$ parent=$PPID; exec sleep 600'; echo code=$?\n")
    pid, parent = map(int, shell.expect(r"pid=(\d+) parent=(\d+)").groups())
    subprocess.run(["kill", f"-{number}", str(parent)], check=True)
    assert shell.expect(r"code=(\d+)").group(1) == str(code)
    eventually(lambda: not alive(pid))


def test_a_program_that_cannot_be_executed(shell, tmp_path):
    broken = tmp_path / "broken"
    broken.write_text("no program")
    broken.chmod(0o755)
    shell.type(f"at {broken} 2>&1 | tail -1; at {broken}; echo code=$?\n")
    seen = shell.expect(r"(?s).*code=(\d+)").group(0)
    assert "NotExecutable" in seen
    assert "the last word" not in seen


@pytest.mark.parametrize(
    "line",
    [
        "at /bin/sh -c true | cat",
        "echo | at /bin/sh -c true",
        "bash -c '{at} /bin/sh -c true; true'",
        "at /bin/sh -c true & wait",
        "at /bin/sh -c true 2> /dev/null",
    ],
)
def test_elsewhere_the_program_replaces_it(shell, tmp_path, line):
    shell.type(line.replace("{at}", f"{sys.executable} {tmp_path}/attended.py") + "\necho en''d\n")
    seen = shell.expect(r"(?s).*end").group(0)
    assert "replaced" in seen
    assert "the last word" not in seen
