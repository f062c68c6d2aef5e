"""The first moments of the command: how it is entered, and Ctrl-C before it has begun."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from gemlet import __version__


def gemlet(*arguments, first="", **options):
    path = os.pathsep.join(filter(None, [str(first), *sys.path]))
    command = [sys.executable, "-m", "gemlet", *arguments]
    environment = os.environ | {"PYTHONPATH": path}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False, **options)


def test_python_m_gemlet_is_the_command():
    assert gemlet("--version").stdout == f"gemlet {__version__}\n"
    assert gemlet("statsu").stderr.startswith("error: no such command 'statsu'")


@pytest.fixture
def interrupting(tmp_path):
    """A folder with a `click` that sends its importer SIGINT, as a Ctrl-C in the first milliseconds would."""
    (tmp_path / "click.py").write_text(
        "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(0.01)\nraise SystemExit(9)\n"
    )
    return tmp_path


def test_an_early_ctrl_c_shows_no_traceback(interrupting):
    # The tests themselves may run in the background of a shell, which ignores SIGINT there.
    listen = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}
    done = gemlet("run", "--", "true", first=interrupting, **listen)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


def test_in_the_background_ctrl_c_goes_on_being_ignored(interrupting):
    ignore = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)}
    assert gemlet("run", "--", "true", first=interrupting, **ignore).returncode == 9


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_caller_may_have_closed_the_standard_streams(closed):
    """As cron, a hook of another program or `>&-` may: nothing is written then, and no traceback elsewhere."""
    for command in (["--version"], ["run", "-h"]):
        line = f'exec "$0" -m gemlet {" ".join(command)} {closed}'
        done = subprocess.run(
            ["sh", "-c", line, sys.executable], capture_output=True, text=True, timeout=60, check=False
        )
        assert (done.returncode, done.stderr) == (0, ""), done


def test_what_is_opened_next_is_not_taken_for_a_stream_nor_left_to_programs():
    """The program of `gemlet run` finds closed what was closed."""
    code = (
        "import os, sys, gemlet.__main__ as entry; entry.open_closed_streams(); taken = os.open('/dev/zero', 0);"
        "found = [os.readlink(f'/proc/self/fd/{n}') for n in (0, 1)]; inherited = os.get_inheritable(1);"
        "print(taken > 2, found, inherited, sys.stdout.fileno(), file=sys.stderr)"
    )
    line = 'exec "$0" -c "$1" <&- >&-'
    done = subprocess.run(
        ["sh", "-c", line, sys.executable, code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stderr == "True ['/dev/null', '/dev/null'] False 1\n"


@pytest.mark.parametrize("arguments", [["-h"], ["completion", "bash"], ["run", "-h"]])
def test_a_reader_that_has_gone_is_no_error(arguments):
    """`gemlet status | head`, in a script with pipefail."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "gemlet", *arguments]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")
