"""A program stays in exec(2) for as long as it likes, where the kernel lets nobody look at it."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.hanging_exec import hanging
from tests.unit.server import wire
from tests.unit.server.wire import RawClient

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.unit.server.conftest import Served


def is_looked_at() -> bool:
    """Some thread of the server's looks at a process."""
    return any(task.joinpath("comm").read_text() == "gemlet-inquires\n" for task in Path("/proc/self/task").iterdir())


def test_nobody_waits_for_it(serve: Callable[..., Served]) -> None:
    s = serve()
    with tempfile.TemporaryDirectory() as folder:  # where another user may go
        Path(folder).chmod(0o755)
        s.server.listen(folder + "/s", None, 0o666)
        with hanging(folder + "/s"):
            wire.eventually(is_looked_at)
            polite = RawClient(s.path, "polite").attach()
            for _ in range(3):
                polite.send(wire.REQUEST)
                polite.await_state(wire.RUN)
                polite.stop(wire.IDLE)
            assert s.groups()["hangs"]["awaited"], "what it held counts"
            s.server.snapshot()
        s.server.unlisten(folder + "/s")
    wire.eventually(lambda: "hangs" not in s.groups())
