"""How a process of the server's own works, and how what it refuses comes back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gemlet import own_memory
from gemlet.serve.dispatch.call import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable


class Refused:
    """A Refusal on its way between processes."""

    def __init__(self, reason: str, message: str) -> None:
        self.reason = reason
        self.message = message


def work(act: Callable[..., Any], *given: Any) -> Any:
    """In the other process. Never raises."""
    try:
        return act(*given)
    except Refusal as refusal:
        return Refused(refusal.reason, refusal.message)
    except MemoryError:
        return Refused("invalid", "reading the request needs more memory than it may take")
    except Exception as error:  # noqa: BLE001  the answer to a request, whatever went wrong
        return Refused("failed", f"{type(error).__name__}: {error}")
    finally:
        del given
        own_memory.trim()
