"""Python processes of gemlet's own, by multiprocessing: modules in the directory where gemlet was called are none of
theirs. It may be one that others write to, as /tmp, and an `argparse.py` there is anybody's code."""

from __future__ import annotations

import multiprocessing
import multiprocessing.util
import subprocess
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from multiprocessing.context import SpawnContext


def spawning() -> SpawnContext:
    """For processes that begin anew. Also Python's process that knows the locks begins so, if none has begun before.

    They begin as `python -c`, which looks in that directory first. There is no other way to tell multiprocessing.
    """
    cast("Any", multiprocessing.util)._args_from_interpreter_flags = _arguments
    return multiprocessing.get_context("spawn")


def _arguments() -> list[str]:
    return ["-P", *cast("Any", subprocess)._args_from_interpreter_flags()]
