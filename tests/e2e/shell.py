"""A shell with job control, as a person has it."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

SECONDS = 60.0


class Shell:
    """An interactive bash on a terminal of its own."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        variables = dict(variables) | {"PS1": "", "PS2": "", "TERM": "dumb", "HISTFILE": ""}
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            # A terminal's shell hears them, also if the tests run where they are ignored: in the background, by nohup.
            for number in (signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            os.execvpe("bash", ["bash", "--norc", "--noprofile", "--noediting", "-i"], variables)
        self.seen = ""
        self.type("stty -echo; bind 'set enable-bracketed-paste off' 2>/dev/null; echo up$((1+1))\n")
        self.expect("up2")

    def type(self, text: str) -> None:
        os.write(self.terminal, text.encode())

    def expect(self, pattern: str, *, typing: str = "") -> re.Match[str]:
        """Reads until there is ``pattern``; what was seen up to its end is taken.

        ``typing``: types this meanwhile, again and again; a program that asks for a key may discard what came before.
        """
        give_up = time.monotonic() + SECONDS
        while not (found := re.search(pattern, self.seen)):
            assert time.monotonic() < give_up, self.seen
            if typing:
                self.type(typing)
            if select.select([self.terminal], [], [], 0.5)[0]:
                self.seen += os.read(self.terminal, 65536).decode(errors="replace")
        self.seen = self.seen[found.end() :]
        return found

    def close(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.close(self.terminal)
        os.waitpid(self.pid, 0)
