"""What a frontend asks the server for; server.py implements it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gemlet.serve.dispatch.engine import Engine
    from gemlet.serve.models.specification import ModelSpec
    from gemlet.serve.plan.model import Plan
    from gemlet.serve.server.frontend.logs import LogTail
    from gemlet.serve.server.frontend.regions import Regions
    from gemlet.serve.server.frontend.shared_text import SharedTexts
    from gemlet.serve.server.frontend.unpacking import Unpacking

NO_OVERRIDE = "failed to load: a model is loaded as the files in the repository say; change these instead"


class IndexEntry(Protocol):
    """A version of a model of the repository. ``state``: READY, UNAVAILABLE or LOADING, and why."""

    name: str
    version: str
    state: str
    reason: str


class Service(Protocol):
    engine: Engine
    regions: Regions
    unpacking: Unpacking
    logs: LogTail
    texts: SharedTexts[Service]

    @property
    def ready(self) -> bool:
        """Whether it answers, and serves at least one of its models; each model has a readiness of its own."""
        ...

    def model(self, name: str, version: str = "") -> ModelSpec:
        """A version of a model that is loaded, the latest if none is named. Raises Refusal."""
        ...

    def model_ready(self, name: str, version: str = "") -> bool: ...

    def index(self) -> Sequence[IndexEntry]: ...

    async def load(self, name: str, peer: str) -> None:
        """Reads the model's files and serves it, when it is the peer's turn. Raises Refusal."""
        ...

    async def unload(self, name: str, peer: str) -> None:
        """When it is the peer's turn. Raises Refusal."""
        ...

    def plan(self) -> Plan: ...

    def runs_on(self) -> Mapping[str, str]:
        """What the server runs on, for metadata: backend, devices, note."""
        ...

    def restarts(self) -> Mapping[int, int]:
        """Executors that were started again, by device."""
        ...
