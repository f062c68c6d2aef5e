"""A group while its file is being read: the values so far, and the places they came from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from gemlet.config import rules
from gemlet.errors import InvalidValue
from gemlet.model import AuditSpec, Configuration, DeviceSpec, GroupSpec, UserSpec

if TYPE_CHECKING:
    from collections.abc import Callable

    from gemlet.config.report import Place, Report

Raw = TypeVar("Raw")


class GroupDraft:
    """Collects the fields of one GroupSpec; what cannot be read is reported and keeps its default."""

    def __init__(self, name: str, place: Place, report: Report) -> None:
        self.name = name
        self.place = place
        self._report = report
        self._values: dict[str, Any] = {}
        self._places: dict[str, Place] = {"name": place}

    def default(self, field: str, value: object) -> None:
        """``value`` holds unless the file says otherwise."""
        self._values.setdefault(field, value)

    def read(
        self, field: str, parse: Callable[[Raw], object], raw: Raw, place: Place, *, key: str | None = None
    ) -> None:
        """``raw`` is what the file says of ``field``, which it calls ``key``, and stands at ``place``."""
        try:
            value = parse(raw)
        except InvalidValue as error:
            self._report.invalid(f"{key or field} of group {self.name!r}", error, place)
        else:
            self._values[field] = value
            self._places[field] = place

    def finish(self, hint: str | None = None) -> GroupSpec:
        """The group; what breaks a rule is reported. ``hint`` replaces the usual one where min is more than max."""
        group = GroupSpec(name=self.name, **self._values)
        for violation in rules.violations(group):
            chosen = hint if hint and violation.field == "min" else violation.hint
            message = violation.message
            if violation.field != "name":
                message = f"group {self.name!r}: {message}"
            self._report.error(message, self._places.get(violation.field, self.place), hint=chosen)
        return group


def finish(
    drafts: list[GroupDraft],
    report: Report,
    *,
    hint: str | None = None,
    devices: tuple[DeviceSpec, ...] = (),
    users: tuple[UserSpec, ...] = (),
    audit: AuditSpec | None = None,
    metrics_port: int | None = None,
    web: str | None = None,
    policy: str = "fair",
    host_memory: int | None = None,
) -> Configuration:
    """The configuration of one file. Raises ConfigError if anything has been or is now reported as an error."""
    groups = tuple(draft.finish(hint) for draft in drafts)
    report.raise_errors()
    places = {draft.name: draft.place for draft in drafts}
    for name, message in rules.warnings(groups):
        report.warning(message, places[name] if name is not None else None)
    return Configuration(
        groups=groups,
        devices=devices,
        users=users,
        audit=audit or AuditSpec(),
        metrics_port=metrics_port,
        web=web,
        policy=policy,
        host_memory=host_memory,
        source=report.path,
        warnings=report.warnings,
    )
