"""VS Code's debugger starts a program by the launch.json of docs/integrations/jupyter.md; its adapter, that is."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.conftest import gemlet  # noqa: F401  a fixture

pytest.importorskip("debugpy", reason="`make jupyter-test` installs it")

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.e2e.conftest import Gemlet

PAGE = Path(__file__).resolve().parents[2] / "docs/integrations/jupyter.md"
PROGRAM = """import os
seen = os.environ["GEMLET_GROUP"], os.environ["LD_PRELOAD"].endswith("libgemhook.so.1")
print(*seen)
"""


class Adapter:
    """Speaks the Debug Adapter Protocol with debugpy's adapter, as an editor does."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._sent = 0

    def send(self, command: str, arguments: dict[str, Any]) -> None:
        self._sent += 1
        body = json.dumps({"seq": self._sent, "type": "request", "command": command, "arguments": arguments}).encode()
        assert self._process.stdin is not None
        self._process.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        self._process.stdin.flush()

    def messages(self) -> Iterator[dict[str, Any]]:
        """What the adapter says, until it ends."""
        assert self._process.stdout is not None
        while header := self._process.stdout.readline():
            length = int(header.split(b":")[1])
            assert self._process.stdout.readline() == b"\r\n"
            yield json.loads(self._process.stdout.read(length))


def test_a_debugged_program_is_in_a_group_and_stops_at_its_breakpoints(gemlet: Gemlet, tmp_path: Path) -> None:  # noqa: F811
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    launch = _documented() | {"program": str(program), "cwd": str(tmp_path), "console": "internalConsole"}
    gemlet_run, command = launch["python"][:2], launch["python"][2:]
    assert gemlet_run == ["gemlet", "run"], "the page's launch.json starts the program by gemlet"
    script = Path(sys.executable).with_name("gemlet")
    launch["python"] = [str(script), "run", "--simulate", *command[:-1], sys.executable]
    launch |= {name: sys.executable for name in ("debugLauncherPython", "debugAdapterPython") if name in launch}
    heard, stops = "", 0
    with subprocess.Popen(
        [sys.executable, "-m", "debugpy.adapter"],
        env=gemlet.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        editor = Adapter(process)
        editor.send("initialize", {"adapterID": "debugpy", "pathFormat": "path"})
        editor.send("launch", launch)
        for message in editor.messages():
            assert message.get("success", True), message
            body = message.get("body") or {}
            match message.get("event"):
                case "initialized":
                    editor.send("setBreakpoints", {"source": {"path": str(program)}, "breakpoints": [{"line": 3}]})
                    editor.send("configurationDone", {})
                case "stopped":
                    stops += 1
                    editor.send("continue", {"threadId": body["threadId"]})
                case "output" if body["category"] == "stdout":
                    heard += body["output"]
                case "terminated":
                    break
    assert stops == 1
    group, hooked = heard.split()
    assert hooked == "True"
    assert group == "debug", "the group that the page's launch.json names"


def _documented() -> dict[str, Any]:
    found = re.search(r"```json\n(\{.*?\})\n```", PAGE.read_text(), re.DOTALL)
    assert found, f"no launch.json in {PAGE}"
    return dict(json.loads(found[1]))
