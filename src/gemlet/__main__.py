"""The `gemlet` command, also as `python -m gemlet`."""

from __future__ import annotations

import signal
from typing import NoReturn


def main() -> NoReturn:
    """Runs the command line. Ctrl-C while modules are still being imported ends the process without a traceback."""
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not in the background, where it is ignored
    if ours:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from gemlet.cli import main as command_line  # noqa: PLC0415  this is what takes the time

    if ours:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    command_line.main()


if __name__ == "__main__":
    main()
