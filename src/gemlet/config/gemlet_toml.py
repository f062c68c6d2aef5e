"""Reads gemlet.toml.

    [daemon]
    policy = "fair"                 # of every device that does not say otherwise
    host_memory = "64GiB"           # that swapped device memory may take; docs/memory.md

    metrics_port = 9532             # of this machine's loopback interface; read when the daemon starts
    web = "127.0.0.1:8080"          # the page of `gemlet web`; read when the daemon starts

    [groups.training]               # quotes around names with other characters: [groups."team-a/notebook"]
    min = "30%"                     # or 0.3
    max = 0.6
    memory = "8GiB"                 # or bytes
    resident = "4GiB"               # of it on the device at a time; docs/memory.md
    weight = 2
    sm = 0.5
    priority = "normal"             # or "latency", "best-effort"
    workload = "unknown"            # or "compute", "memory": what bounds its kernels
    users = ["ana", "ben"]

    [users.ana]                     # or a uid, or "*" for everybody else: what groups that they make may have
    min = "50%"                     # all together
    max = "80%"                     # each
    memory = "40GiB"                # all together
    priority = "normal"             # each, at most
    groups = 8
    defaults = { memory = "8GiB" }  # of a group of which nothing is said

    [audit]                         # programs that use a device outside gemlet
    policy = "say"                  # or "stop", "kill": with --system
    after = "10s"
    allow = ["gdm"]                 # users whose programs are only shown

    [[devices]]
    index = 0                       # or uuid = "GPU-..."
    policy = "gemini"
    capacity = "40GiB"

An unknown key is an error here: a misspelt limit that is silently not enforced is worse than a file that is refused.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any

from gemlet.config import draft, group_fields, toml_places, toml_text
from gemlet.config import suggest as did_you_mean
from gemlet.config.draft import GroupDraft
from gemlet.config.loopback import parse_loopback
from gemlet.config.quantities import parse_seconds
from gemlet.config.report import Place, Report, Source
from gemlet.config.toml_values import check_users, kind_of, one_of, read_names, read_size
from gemlet.errors import InvalidValue
from gemlet.model import (
    AUDIT_POLICIES,
    GROUP_FIELDS,
    POLICIES,
    AuditSpec,
    Configuration,
    DeviceSpec,
    UserSpec,
    UserTerms,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SHORTEST_WAIT = 0.1  # seconds
LONGEST = 1e9  # ... of any time: 32 years, which also fit in nanoseconds once rounded
MAX_INDEX = 2**31  # of a device; far above any


def read(source: Source) -> Configuration:
    """The configuration in ``source``. Raises ConfigError with every error of the file."""
    report = Report(source.path)
    try:
        document = toml_text.loads(source.text)
    except tomllib.TOMLDecodeError as error:
        _report_syntax(source, report, str(error))
        report.raise_errors()
        raise  # not reached: a syntax error has just been reported
    return _Reader(source, report).configuration(document)


def _report_syntax(source: Source, report: Report, text: str) -> None:
    message, _, where = text.rpartition(" (at ")
    position = re.fullmatch(r"line (\d+), column (\d+)\)", where)
    place = Place(int(position[1]), int(position[2])) if position else source.place(len(source.text.rstrip()))
    line = source.lines()[place.line - 1]
    hint = None
    if declared := re.fullmatch(r"Cannot declare \('groups', '(.*)'\) twice", message):
        message, hint = f"group {declared[1]!r} is declared twice", "merge the two sections, or rename one"
    elif value := re.match(r"\s*([\w-]+)\s*=\s*([\d.]+\s*(?:%|[KMGT]i?B?))", line, re.IGNORECASE):
        hint = f'a value with a unit needs quotes: {value[1]} = "{value[2]}"'
    elif header := re.match(r"\s*\[groups\.([^\]\"']*[^\]\"'\w.-][^\]\"']*)\]", line):
        hint = f'this name needs quotes: [groups."{header[1]}"]'
    report.error(message, place, hint=hint)


class _Reader:
    def __init__(self, source: Source, report: Report) -> None:
        self.source = source
        self.report = report
        self.offsets = toml_places.scan(source.text)

    def configuration(self, document: Mapping[str, object]) -> Configuration:
        sections = ("daemon", "groups", "users", "audit", "devices")
        for name, value in document.items():
            if name not in sections:
                hint = f"write [groups.{name}]" if isinstance(value, dict) else None
                if hint is None or did_you_mean.closest(name, sections):
                    hint = did_you_mean.hint(name, sections)
                self.report.error(f"unknown section {name!r}", self.key(name), hint=hint)
        daemon = self._daemon(self._table(document, "daemon"))
        drafts = [self._group(name, value) for name, value in self._table(document, "groups").items()]
        users = tuple(self._user(name, value) for name, value in self._table(document, "users").items())
        audit = AuditSpec(**self._terms(self._table(document, "audit"), _AUDIT_FIELDS, "audit"))
        devices = tuple(self._devices(document.get("devices", [])))
        return draft.finish(drafts, self.report, devices=devices, users=users, audit=audit, **daemon)

    def key(self, *path: str | int) -> Place:
        found = self.offsets.get(path)
        return self.source.place(found.key if found else 0)

    def value(self, *path: str | int) -> Place:
        found = self.offsets.get(path)
        return self.source.place(found.value if found else 0)

    def _table(self, document: Mapping[str, object], name: str) -> Mapping[str, object]:
        table = document.get(name, {})
        if isinstance(table, dict):
            return table
        self.report.error(f"{name} is {kind_of(table)}, not a section", self.key(name), hint=f"write [{name}...]")
        return {}

    def _unknown(self, word: str, known: tuple[str, ...], *path: str | int) -> None:
        self.report.error(f"unknown key {word!r}", self.key(*path, word), hint=did_you_mean.hint(word, known))

    def _daemon(self, table: Mapping[str, object]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name, value in table.items():
            parse = _DAEMON_FIELDS.get(name)
            if parse is None:
                self._unknown(name, tuple(_DAEMON_FIELDS), "daemon")
                continue
            try:
                values[name] = parse(value)
            except InvalidValue as error:
                self.report.invalid(name, error, self.value("daemon", name))
        return values

    def _group(self, name: str, table: object) -> GroupDraft:
        group = GroupDraft(name, self.key("groups", name), self.report)
        if not isinstance(table, dict):
            self.report.error(
                f"group {name!r} is {kind_of(table)}, not a section",
                self.key("groups", name),
                hint=f"write [groups.{name}] in a line of its own and its keys below",
            )
            return group
        for key, value in table.items():
            field = GROUP_FIELDS.get(key)
            if field is None:
                self._unknown(key, tuple(GROUP_FIELDS), "groups", name)
            else:
                group.read(key, partial(group_fields.read, field), value, self.value("groups", name, key))
        return group

    def _user(self, name: str, table: object) -> UserSpec:
        try:
            check_users((name,))
        except InvalidValue as error:
            self.report.invalid("users", error, self.key("users", name))
        values = self._terms(table, _USER_FIELDS | {"groups": _count, "defaults": lambda value: value}, "users", name)
        defaults = self._terms(values.pop("defaults", {}), _USER_FIELDS, "users", name, "defaults")
        return UserSpec(name=name, **values, defaults=UserTerms(**defaults))

    def _terms(self, table: object, known: Mapping[str, Callable[[object], object]], *path: str) -> dict[str, Any]:
        if not isinstance(table, dict):
            self.report.error(f"{'.'.join(path)} is {kind_of(table)}, not a section", self.key(*path))
            return {}
        values: dict[str, Any] = {}
        for name, value in table.items():
            if name not in known:
                self._unknown(name, tuple(known), *path)
                continue
            try:
                values[name] = known[name](value)
            except InvalidValue as error:
                self.report.invalid(f"{name} of {'.'.join(path)}", error, self.value(*path, name))
        return values

    def _devices(self, tables: object) -> list[DeviceSpec]:
        if not (isinstance(tables, list) and all(isinstance(table, dict) for table in tables)):
            self.report.error("devices is not a list of sections", self.key("devices"), hint="write [[devices]]")
            return []
        devices: list[DeviceSpec] = []
        seen: dict[object, Place] = {}
        for number, table in enumerate(tables):
            place = self.key("devices", number)
            device = self._device(number, table)
            if device is None:
                continue
            name = device.index if device.index is not None else device.uuid
            if name is None or (device.index is not None and device.uuid is not None):
                hint = "choose one of the two from `nvidia-smi -L`"
                self.report.error("a device is named by either index or uuid", place, hint=hint)
            elif name in seen:
                hint = f"remove this section or the one in line {seen[name].line}"
                self.report.error(f"device {name} is declared twice", place, hint=hint)
            else:
                seen[name] = place
                devices.append(device)
        return devices

    def _device(self, number: int, table: Mapping[str, object]) -> DeviceSpec | None:
        """What ``table`` says; None if it names its device by something that is no name."""
        named = True
        values: dict[str, object] = {}
        for field, value in table.items():
            parse = _DEVICE_FIELDS.get(field)
            if parse is None:
                self._unknown(field, tuple(_DEVICE_FIELDS), "devices", number)
                continue
            try:
                values[field] = parse(value)
            except InvalidValue as error:
                self.report.invalid(f"{field} of a device", error, self.value("devices", number, field))
                named &= field not in {"index", "uuid"}
        return DeviceSpec(**values) if named else None  # type: ignore[arg-type]


def _policy(value: object) -> str:
    return one_of(value, POLICIES)


def _index(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_INDEX:
        return value
    found = kind_of(value) if not isinstance(value, int) or abs(value) > MAX_INDEX else repr(value)
    raise InvalidValue(f"expected a number from 0, found {found}", hint="write the number that `nvidia-smi -L` shows")


def _uuid(value: object) -> str:
    if isinstance(value, str) and value.startswith("GPU-"):
        return value
    raise InvalidValue(
        f'expected a text that starts with "GPU-", found {value!r}', hint="write the UUID that `nvidia-smi -L` shows"
    )


def _count(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_INDEX:
        return value
    raise InvalidValue(f"expected a number from 0, found {kind_of(value)}", hint="write how many, such as 8")


def _port(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 65536:
        return value
    raise InvalidValue("expected a port from 1 to 65535", hint="write a number such as 9532")


def _web(value: object) -> str:
    if not isinstance(value, str):
        raise InvalidValue(f"expected an address, found {kind_of(value)}", hint='write "127.0.0.1:8080"')
    if parse_loopback(value)[1] == 0:
        raise InvalidValue("expected a port from 1 to 65535", hint='write "127.0.0.1:8080"')
    return value


def _seconds(value: object) -> float:
    if isinstance(value, str):
        if (seconds := parse_seconds(value)) > LONGEST:
            raise InvalidValue(f"{value} is too long: expected {LONGEST:.0f} s or less", hint="write a shorter time")
        return seconds
    raise InvalidValue(f"expected a time, found {kind_of(value)}", hint='write a number with a unit, such as "10s"')


def _wait(value: object) -> float:
    seconds = _seconds(value)
    if seconds >= SHORTEST_WAIT:
        return seconds
    raise InvalidValue(f"{value} is too short: expected {SHORTEST_WAIT:g} s or more", hint='write a time such as "5s"')


_USER_FIELDS: dict[str, Callable[[object], object]] = {
    row.name: partial(group_fields.read, GROUP_FIELDS[row.name]) for row in fields(UserTerms)
}
_AUDIT_FIELDS: dict[str, Callable[[object], object]] = {
    "policy": lambda value: one_of(value, AUDIT_POLICIES),
    "after": _seconds,
    "allow": read_names,
}
_DAEMON_FIELDS: dict[str, Callable[[object], object]] = {
    "policy": _policy,
    "host_memory": read_size,
    "metrics_port": _port,
    "web": _web,
}
_DEVICE_FIELDS: dict[str, Callable[[object], object]] = {
    "index": _index,
    "uuid": _uuid,
    "policy": _policy,
    "capacity": read_size,
    "max_wait": _wait,
}
