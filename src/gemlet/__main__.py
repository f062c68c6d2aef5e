"""The `gemlet` command, also as `python -m gemlet`."""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn


def main() -> NoReturn:
    """Runs the command line. Ctrl-C while modules are still being imported ends the process without a traceback."""
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not in the background, where it is ignored
    if ours:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    open_closed_streams()
    from gemlet.cli import main as command_line  # noqa: PLC0415  this is what takes the time

    if ours:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    command_line.main()


def open_closed_streams() -> None:
    """Has /dev/null in the place of the standard streams that the caller has closed (`>&-`).

    Else Python has none to write to, and what is opened next is taken for one. What `gemlet run` becomes finds them
    closed as before: Python's descriptors end with exec.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))  # the lowest that is free: its own


if __name__ == "__main__":
    main()
