"""The daemon's configuration file: what is in force, how it changes, how a group is saved into it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gemlet.config import files, watch
from gemlet.errors import ConfigError, Refused
from gemlet.model import Configuration, GroupSpec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class ConfigurationFile:
    """One file, or none: then the configuration is empty and groups come from `gemlet run` alone.

    ``optional``: the file need not exist; one that is created later is read then. error: why the file as it is now is
    not in force, or None.
    """

    def __init__(self, path: str | None, *, optional: bool = False) -> None:
        """Watching begins here, so that no change falls between loading and watching. Raises `ConfigError`."""
        self.path = path
        self.current = Configuration()
        self.error: str | None = None
        self._absent = optional and path is not None and not Path(path).exists()
        self._changes = watch.changes(path) if path is not None else None

    @property
    def source(self) -> str | None:
        """Path of the file, None as long as there is none."""
        return None if self._absent else self.path

    def load(self) -> Configuration:
        """Reads the file. Raises `ConfigError`; what is in force stays in force."""
        if self.path is not None and not self._absent:
            self.current = files.load(self.path)
        return self.current

    async def changes(self) -> AsyncIterator[Configuration | ConfigError]:
        """Each new content of the file, or why it cannot be used."""
        if self._changes is None or self.path is None:
            return
        async for change in self._changes:
            if change is watch.Change.GONE and self._absent:
                continue
            if change is watch.Change.GONE:
                hint = "restore the file: until then the last configuration stays in force"
                yield ConfigError("has been removed", path=self.path, hint=hint)
                continue
            self._absent = False
            try:
                yield self.load()
            except ConfigError as error:
                yield error

    def check_can_save(self) -> str:
        """The path `save_group` will write to.

        Raises `Refused` if there is none, `ConfigError` if the file is wrong now (saving would lose an edit) or of a
        format that is only read.
        """
        if self.path is None:
            raise Refused(
                "the daemon runs without a configuration file, so there is nowhere to save",
                hint="start it with `gemlet daemon --config FILE`",
            )
        if Path(self.path).exists():
            files.load(self.path)
            files.check_can_save(self.path)
        return self.path

    def save_group(self, spec: GroupSpec) -> str:
        """Writes ``spec`` into the file, atomically; returns its path.

        Raises as `check_can_save`, and `ConfigError` if the file cannot be written.
        """
        path = self.check_can_save()
        if self._absent:
            _make_directory(path)
        # As it is now: an edit may have been made this moment, or on another machine, where nobody saw it here.
        there = files.load(path) if Path(path).exists() else self.current
        groups = {group.name: group for group in there.groups}
        groups[spec.name] = spec
        changed = replace(there, groups=tuple(groups.values()))
        files.save(changed, path)
        self._absent = False
        self.current = changed
        return path


def _make_directory(path: str) -> None:
    try:
        Path(path).parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    except OSError as error:
        hint = "start the daemon with a file that it may write: `gemlet daemon --config FILE`"
        raise ConfigError(f"its directory cannot be made: {error.strerror}", path=path, hint=hint) from None
