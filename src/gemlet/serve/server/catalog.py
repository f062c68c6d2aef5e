"""The models of a repository and their states: which versions are served, which could be, which cannot and why.

What is served changes with the plan that has a place for it, not before: until then the old versions answer.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import msgspec

from gemlet.errors import ConfigError, GemletError
from gemlet.serve.dispatch.call import Refusal
from gemlet.serve.dispatch.served import ServedModel
from gemlet.serve.models.specification import DiedLoading, ModelError
from gemlet.serve.server.frontend.fair_turn import FairTurn
from gemlet.serve.server.repository import completion, tree
from gemlet.serve.server.to_its_end import to_its_end

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from gemlet.serve.dispatch.engine import Engine
    from gemlet.serve.models.specification import ModelSpec

logger = logging.getLogger(__name__)
MAX_NAME_BYTES = 255  # of a file, on any file system that matters


class Replan(Protocol):
    async def __call__(self, changed: str, specs: Mapping[str, ModelSpec]) -> None:
        """Makes a plan for these models, by label, and brings both into force together. Raises GemletError: neither is.

        changed: the name of the one that is not as before.
        """
        ...


@dataclass(slots=True)
class Known:
    """A version of a model. ``state``: READY, LOADING or UNAVAILABLE, and why."""

    name: str
    version: str
    state: str
    reason: str


@dataclass(slots=True)
class _Directory:
    """A model's directory as it was last looked at. ``versions``: by number; empty if no version could be read.

    unloaded: why it is not served, because somebody wanted that.
    """

    stamp: tree.Stamp
    versions: dict[int, Known]
    unloaded: str = ""


class Catalog:
    """Loads and unloads, one at a time, and one of each peer after another. What has begun goes on when its client has
    gone: executors do, too."""

    def __init__(self, repository: Path, engine: Engine, replan: Replan) -> None:
        self.models: dict[str, _Directory] = {}
        self._repository = repository
        self._engine = engine
        self._replan = replan
        self._turn = FairTurn()  # many may wait for it, and go at once
        completion.asked.begin()

    def read(self) -> None:
        """Takes in all models, at the start. Raises ConfigError with everything that is wrong."""
        entries = tree.scan(self._repository)
        errors = [entry.error for entry in entries.values() if entry.error is not None]
        if errors:
            errors[0].others = tuple(errors[1:])
            raise errors[0]
        if not entries:
            hint = "make one with two models by `gemlet serve --example DIR`"
            raise ConfigError("there is no model in this repository", path=str(self._repository), hint=hint)
        for entry in entries.values():
            self.models[entry.name] = _Directory(entry.stamp, _all(entry.name, entry.specs, "LOADING"))
            for spec in entry.specs:
                self._engine.models[spec.label] = ServedModel(spec)

    def close(self) -> None:
        """Nothing is loaded any more that a model's code would have to be asked for."""
        completion.asked.end()

    def all_ready(self) -> None:
        """The first plan is in force."""
        for directory in self.models.values():
            for known in directory.versions.values():
                known.state = "READY"

    def index(self) -> list[Known]:
        """All versions, with what stands in the way of each right now."""
        return [self._now(known) for directory in self.models.values() for known in directory.versions.values()]

    def why_not(self, name: str) -> str:
        """Why no version of a model is served; "" if nothing is known of it."""
        directory = self.models.get(name)
        if directory is None:
            return ""
        return directory.unloaded or next((known.reason for known in directory.versions.values() if known.reason), "")

    async def load(self, name: str, *, peer: str = "") -> None:
        """Reads the model's files anew and serves it, when it is the peer's turn; if that fails the old one is served
        on. Raises Refusal."""
        if not name.isprintable() or not name or "/" in name or name[0] == "." or len(name.encode()) > MAX_NAME_BYTES:
            raise Refusal("invalid", f"{name[:MAX_NAME_BYTES]!r} is not a valid name of a model")
        async with self._turn.of(peer):
            await to_its_end(self._load(name))

    async def unload(self, name: str, reason: str = "unloaded", *, peer: str = "") -> None:
        """Refuses further requests for it and takes it off the devices once all others are answered. Raises Refusal."""
        async with self._turn.of(peer):
            await to_its_end(self._unload(name, reason))

    async def compare(self) -> None:
        """Follows what changed in the repository."""
        try:
            stamps = await asyncio.to_thread(tree.stamps, self._repository)
        except ConfigError as error:
            logger.error("%s", error)
            return
        for name, stamp in stamps.items():
            known = self.models.get(name)
            if known is None or (known.stamp != stamp and known.unloaded != "unloaded"):
                try:
                    await self.load(name)
                except Refusal as refusal:
                    logger.error("model %s: %s", name, refusal.message)
                except Exception:
                    logger.exception("model %s", name)  # all others are served on
        for name in self.models.keys() - stamps.keys():
            async with self._turn.of(""):  # somebody may be loading it
                await to_its_end(self._forget(name))

    async def _load(self, name: str) -> None:
        folder = self._repository / name
        if not folder.is_dir():
            raise Refusal("unknown", f"failed to load {name!r}: the repository has no such model")
        entry = await asyncio.to_thread(tree.look, folder)
        directory = self.models.setdefault(name, _Directory(entry.stamp, {}))
        directory.stamp = entry.stamp
        if not entry.specs:
            self._not_read(name, directory, str(entry.error))
            if self._engine.closing:
                raise Refusal("unavailable", self._engine.closing, retry_s=1)
            raise Refusal("invalid", f"failed to load {name}: {entry.error}")
        await self._serve(name, directory, entry.specs)

    async def _unload(self, name: str, reason: str) -> None:
        versions = self._engine.models.versions(name)
        if not versions:
            raise Refusal("unknown", f"there is no model {name!r} here")
        for served in versions:
            served.leaving = "model"
        directory = self.models[name]
        directory.unloaded = reason
        directory.versions = _all(name, [served.spec for served in versions], "UNAVAILABLE", reason)
        try:
            await self._replan_with_others(name, {})
        except GemletError as error:
            for served in versions:
                self._engine.models.pop(served.spec.label, None)
            logger.error("%s is not served any more, but the plan is as it was: %s", name, error)
        logger.info("model %s: %s", name, reason)

    async def _forget(self, name: str) -> None:
        if self._engine.models.versions(name):
            await self._unload(name, "its directory no longer exists")
        self.models.pop(name, None)

    async def _serve(self, name: str, directory: _Directory, specs: Sequence[ModelSpec]) -> None:
        """Serves these versions, without those that cannot be loaded. Raises Refusal if that leaves none."""
        before = {served.spec.version: served.spec for served in self._engine.models.versions(name)}
        directory.versions = _all(name, [*before.values(), *specs], "LOADING")
        for version in before:
            directory.versions[version].state = "READY"
        wanted, failed = list(specs), dict[int, str]()
        while True:
            labelled = _labelled(wanted)
            try:
                await self._replan_with_others(name, labelled)
                break
            except GemletError as error:
                bad = [spec for spec in wanted if isinstance(error, ModelError) and spec.key == error.key]
                failed |= {spec.version: error.message for spec in bad or wanted}
                wanted = [spec for spec in wanted if spec.version not in failed]
                if not wanted:
                    for version, message in failed.items():
                        self._failed(directory, before, version, message)
                    raise Refusal("failed", f"{name}: {error}") from None
        directory.unloaded = ""
        directory.versions = _all(name, specs, "READY")
        for version, message in failed.items():
            self._failed(directory, {}, version, message)
        for label in labelled:
            self._engine.pardon(label)
        served = ", ".join(str(spec.version) for spec in wanted)
        logger.info("model %s, version%s %s: loaded", name, "s" if len(wanted) > 1 else "", served)

    async def _replan_with_others(self, name: str, labelled: dict[str, ModelSpec]) -> None:
        """Serves these versions of the model beside all others, without those that cannot be loaded any more: they were
        served until their executor ended. One under which an executor dies is tried again, for another one may have
        done that, and what runs elsewhere is not given up for it. Raises GemletError."""
        others = {served.spec.key: served.spec for served in self._engine.models.values() if served.spec.name != name}
        lost: dict[str, str] = {}
        again: set[str] = set()
        while True:
            try:
                await self._replan(name, _by_label(spec for spec in others.values() if spec.key not in lost) | labelled)
                break
            except ModelError as error:
                if error.key not in others or error.key in lost:
                    raise
                if isinstance(error, DiedLoading):
                    if error.key not in again:
                        again.add(error.key)
                        continue
                    if self._engine.serves(others[error.key].label):
                        raise
                lost[error.key] = error.message
        for key, message in lost.items():
            spec = others[key]
            self._failed(self.models[spec.name], {}, spec.version, message)

    def _not_read(self, name: str, directory: _Directory, message: str) -> None:
        served = self._engine.models.versions(name)
        directory.versions = _all(name, [each.spec for each in served], "READY", _OLD + message)
        if not served:
            directory.versions[0] = Known(name, "", "UNAVAILABLE", message)

    @staticmethod
    def _failed(directory: _Directory, before: Mapping[int, ModelSpec], version: int, message: str) -> None:
        known = directory.versions[version]
        if version in before:
            known.reason = _OLD + message
        else:
            known.state, known.reason = "UNAVAILABLE", message
            logger.error("model %s, version %s: %s", known.name, known.version, message)

    def _now(self, known: Known) -> Known:
        """As it is known, unless it does not run at the moment."""
        served = self._engine.models.find(known.name, known.version) if known.state == "READY" else None
        why = self._engine.why_not(served.spec.label) if served is not None else ""
        return Known(known.name, known.version, "UNAVAILABLE", why) if why else known


_OLD = "the old files are still served, since the new ones cannot be: "


def _all(name: str, specs: Iterable[ModelSpec], state: str, reason: str = "") -> dict[int, Known]:
    return {spec.version: Known(name, str(spec.version), state, reason) for spec in specs}


def _by_label(specs: Iterable[ModelSpec]) -> dict[str, ModelSpec]:
    versions: dict[str, list[ModelSpec]] = {}
    for spec in sorted(specs, key=lambda spec: spec.version):
        versions.setdefault(spec.name, []).append(spec)
    return {label: spec for those in versions.values() for label, spec in _labelled(those).items()}


def _labelled(specs: Sequence[ModelSpec]) -> dict[str, ModelSpec]:
    """By label: the last one is the latest, also where versions after it are left out."""
    latest = [msgspec.structs.replace(spec, latest=spec is specs[-1]) for spec in specs]
    return {spec.label: spec for spec in latest}
