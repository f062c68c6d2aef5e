"""The progress of a profile: a bar on a terminal, a line for each model elsewhere."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from types import TracebackType


class Bar:
    """A Reporter of session.py on stderr."""

    def __init__(self) -> None:
        self._console = console = Console(stderr=True)
        self._lines = not console.is_terminal
        self._progress = Progress(
            TextColumn("{task.fields[model]:<16}"), BarColumn(30), MofNCompleteColumn(),
            TimeElapsedColumn(), TimeRemainingColumn(), TextColumn("{task.fields[what]}"),
            console=console, transient=True, disable=self._lines,
        )  # fmt: skip
        self._task = self._progress.add_task("", total=None, model="", what="")
        self._model = ""
        self._begin = time.monotonic()

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def begin(self, total: int) -> None:
        self._progress.update(self._task, total=total)

    def step(self, model: str, what: str) -> None:
        if self._lines and model != self._model:
            self._console.print(f"gemlet: {time.monotonic() - self._begin:5.1f} s  {model}", highlight=False)
        self._model = model
        self._progress.update(self._task, model=model, what=what)

    def done(self, count: int) -> None:
        self._progress.advance(self._task, count)
