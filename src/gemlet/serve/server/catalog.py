"""The models of a repository and their states: which are served, which could be, which cannot and why."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from gemlet.errors import ConfigError, GemletError
from gemlet.serve.dispatch.call import Refusal
from gemlet.serve.dispatch.engine import ServedModel
from gemlet.serve.server.repository import tree

if TYPE_CHECKING:
    from pathlib import Path

    from gemlet.serve.dispatch.engine import Engine
    from gemlet.serve.models.specification import ModelSpec

logger = logging.getLogger(__name__)
MAX_NAME_BYTES = 255  # of a file, on any file system that matters


class Replan(Protocol):
    async def __call__(self, changed: str) -> None:
        """Makes a plan for the models of the engine and brings it into force. Raises GemletError."""
        ...


@dataclass(slots=True)
class Known:
    """A model directory. ``state``: READY, LOADING or UNAVAILABLE, and why."""

    name: str
    version: str
    state: str
    reason: str
    stamp: tree.Stamp


class Catalog:
    """Loads and unloads, one at a time."""

    def __init__(self, repository: Path, engine: Engine, replan: Replan) -> None:
        self.models: dict[str, Known] = {}
        self._repository = repository
        self._engine = engine
        self._replan = replan
        self._lock = asyncio.Lock()

    def read(self) -> None:
        """Takes in all models, at the start. Raises ConfigError with everything that is wrong."""
        entries = tree.scan(self._repository)
        errors = [entry.error for entry in entries.values() if entry.error is not None]
        if errors:
            errors[0].others = tuple(errors[1:])
            raise errors[0]
        if not entries:
            hint = "`gemlet serve --example DIR` writes one with two models"
            raise ConfigError("there is no model in this repository", path=str(self._repository), hint=hint)
        for entry in entries.values():
            if entry.spec is not None:
                self.models[entry.name] = Known(entry.name, str(entry.spec.version), "LOADING", "", entry.stamp)
                self._engine.models[entry.name] = ServedModel(entry.spec)

    def all_ready(self) -> None:
        """The first plan is in force."""
        for known in self.models.values():
            known.state = "READY"

    async def load(self, name: str) -> None:
        """Reads the model's files anew and serves it; if that fails the old one is served on. Raises Refusal."""
        if not name or "/" in name or "\0" in name or name.startswith(".") or len(name.encode()) > MAX_NAME_BYTES:
            raise Refusal("invalid", f"{name[:MAX_NAME_BYTES]!r} is not a valid name of a model")
        async with self._lock:
            folder = self._repository / name
            if not folder.is_dir():
                raise Refusal("unknown", f"the repository has no model {name!r}")
            entry = await asyncio.to_thread(tree.look, folder)
            version = str(entry.spec.version) if entry.spec is not None else ""
            known = self.models.setdefault(name, Known(name, version, "LOADING", "", entry.stamp))
            known.stamp = entry.stamp
            if entry.spec is None:
                self._failed(known, str(entry.error))
                raise Refusal("invalid", f"{name}: {entry.error}")
            await self._serve(known, entry.spec)

    async def unload(self, name: str, reason: str = "unloaded") -> None:
        """Refuses further requests for it and takes it off the devices. Raises Refusal."""
        async with self._lock:
            served = self._engine.models.pop(name, None)
            if served is None:
                raise Refusal("unknown", f"there is no model {name!r} here")
            known = self.models[name]
            known.state, known.reason = "UNAVAILABLE", reason
            try:
                await self._replan(name)
            except GemletError as error:
                logger.error("%s is not served any more, but the plan is as it was: %s", name, error)
            logger.info("model %s: %s", name, reason)

    async def compare(self) -> None:
        """Follows what changed in the repository."""
        try:
            entries = await asyncio.to_thread(tree.scan, self._repository)
        except ConfigError as error:
            logger.error("%s", error)
            return
        for name, entry in entries.items():
            known = self.models.get(name)
            if known is None or (known.stamp != entry.stamp and known.reason != "unloaded"):
                try:
                    await self.load(name)
                except Refusal as refusal:
                    logger.error("model %s: %s", name, refusal.message)
        for name in self.models.keys() - entries.keys():
            if name in self._engine.models:
                with suppress(Refusal):  # somebody else was first
                    await self.unload(name, "its directory no longer exists")
            self.models.pop(name, None)

    async def _serve(self, known: Known, spec: ModelSpec) -> None:
        before = self._engine.models.get(known.name)
        after = ServedModel(spec)
        if before is not None:
            after.statistics = before.statistics
        self._engine.models[known.name] = after
        known.state = "LOADING" if before is None else known.state
        try:
            await self._replan(known.name)
        except GemletError as error:
            if before is None:
                del self._engine.models[known.name]
            else:
                self._engine.models[known.name] = before
            self._failed(known, str(error))
            raise Refusal("failed", f"{known.name}: {error}") from None
        known.state, known.reason, known.version = "READY", "", str(spec.version)
        logger.info("model %s, version %d: loaded", known.name, spec.version)

    def _failed(self, known: Known, message: str) -> None:
        if known.name in self._engine.models:
            known.reason = f"the old files are still served, since the new ones cannot be: {message}"
        else:
            known.state, known.reason = "UNAVAILABLE", message
