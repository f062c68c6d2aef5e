"""A process in which models run does not end by SIGTERM, and what a model starts does."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap

import pytest

SECONDS = 60
BEGIN = """
import os, signal, subprocess, sys, threading, time
from gemlet.serve.end_signals import end_children_by_sigterm, leave_them_to_the_server
leave_them_to_the_server()
end_children_by_sigterm()
"""


def told(code):
    """What a program prints that begins as an executor does, and asks models in threads."""
    program = f"{BEGIN}\ndef model():\n{textwrap.indent(textwrap.dedent(code), '    ')}\n"
    program += "thread = threading.Thread(target=model)\nthread.start()\nthread.join()\n"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=SECONDS, check=True)
    return done.stdout.split()


def test_the_process_itself_goes_on():
    assert told("os.kill(os.getpid(), signal.SIGTERM); time.sleep(0.1); print('here')") == ["here"]


@pytest.mark.parametrize(
    "start",
    [
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])",
        "import multiprocessing\nchild = multiprocessing.get_context('fork').Process(target=time.sleep, args=(60,))\n"
        "child.start()",
    ],
)
def test_what_a_model_starts_ends_when_it_is_told_to(start):
    """At once after it was started, too."""
    end = "child.terminate()\nended = child.wait() if hasattr(child, 'wait') else child.join() or child.exitcode"
    assert told(f"{start}\n{end}\nprint(ended)") == [str(-signal.SIGTERM)]


def test_a_thread_that_starts_something_heeds_what_it_did_before():
    code = """
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
        child = os.fork()
        if child == 0:
            os._exit(len(signal.pthread_sigmask(signal.SIG_BLOCK, ())))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), len(signal.pthread_sigmask(signal.SIG_BLOCK, ())))
    """
    assert told(code) == ["1", "1"]
