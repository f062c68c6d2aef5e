"""The daemon's configuration file: what is in force, how it changes, how a group is saved into it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gemlet.config import files, watch
from gemlet.errors import ConfigError, Refused
from gemlet.model import Configuration, GroupSpec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class ConfigurationFile:
    """One file, or none: then the configuration is empty and groups come from `gemlet run` alone."""

    def __init__(self, path: str | None) -> None:
        """Watching begins here, so that no change falls between loading and watching. Raises `ConfigError`."""
        self.path = path
        self.current = Configuration()
        self._changes = watch.changes(path) if path is not None else None

    def load(self) -> Configuration:
        """Reads the file. Raises `ConfigError`; what is in force stays in force."""
        if self.path is not None:
            self.current = files.load(self.path)
        return self.current

    async def changes(self) -> AsyncIterator[Configuration | ConfigError]:
        """Each new content of the file, or why it cannot be used."""
        if self._changes is None or self.path is None:
            return
        async for change in self._changes:
            if change is watch.Change.GONE:
                hint = "the configuration stays in force; a new file of that name will be read"
                yield ConfigError("has been removed", path=self.path, hint=hint)
                continue
            try:
                yield self.load()
            except ConfigError as error:
                yield error

    def check_can_save(self) -> str:
        """The path `save_group` will write to. Raises `Refused` if there is none."""
        if self.path is None:
            raise Refused(
                "the daemon runs without a configuration file, so there is nowhere to save",
                hint="start it with `gemlet daemon --config FILE`",
            )
        return self.path

    def save_group(self, spec: GroupSpec) -> str:
        """Writes ``spec`` into the file, atomically; returns its path.

        Raises `Refused` if there is no file, `ConfigError` if it cannot be written.
        """
        path = self.check_can_save()
        groups = {group.name: group for group in self.current.groups}
        groups[spec.name] = spec
        changed = replace(self.current, groups=tuple(groups.values()))
        files.save(changed, path)
        self.current = changed
        return path
