"""Writes a configuration as the text of a gemlet.toml. What is at its default is left out."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gemlet.config.size import MAX_BYTES, exact_size
from gemlet.model import Configuration, DeviceSpec, GroupSpec, Priority, Workload

if TYPE_CHECKING:
    from collections.abc import Iterator

_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def render(configuration: Configuration) -> str:
    """A text that loads as ``configuration``, save for its ``source`` and ``warnings``."""
    sections = ["# Written by gemlet; comments are not kept when it writes again."]
    if daemon := list(_daemon(configuration)):
        sections.append("\n".join(["[daemon]", *daemon]))
    sections += ["\n".join(_group(group)) for group in configuration.groups]
    sections += ["\n".join(_device(device)) for device in configuration.devices]
    return "\n\n".join(sections) + "\n"


def _daemon(configuration: Configuration) -> Iterator[str]:
    if configuration.policy != "fair":
        yield f"policy = {_text(configuration.policy)}"
    if configuration.host_memory is not None:
        yield f"host_memory = {_size(configuration.host_memory)}"


def _group(group: GroupSpec) -> Iterator[str]:
    yield f"[groups.{_key(group.name)}]"
    # repr() of a float is the shortest text that reads back as the same float.
    if group.min != 0:
        yield f"min = {group.min!r}"
    if group.max != 1:
        yield f"max = {group.max!r}"
    if group.memory is not None:
        yield f"memory = {_size(group.memory)}"
    if group.resident is not None:
        yield f"resident = {_size(group.resident)}"
    if group.weight != 1:
        yield f"weight = {group.weight!r}"
    if group.sm != 1:
        yield f"sm = {group.sm!r}"
    if group.priority is not Priority.NORMAL:
        yield f"priority = {_text(group.priority)}"
    if group.workload is not Workload.UNKNOWN:
        yield f"workload = {_text(group.workload)}"
    if group.users:
        yield f"users = [{', '.join(_text(user) for user in group.users)}]"


def _device(device: DeviceSpec) -> Iterator[str]:
    yield "[[devices]]"
    yield f"index = {device.index}" if device.index is not None else f"uuid = {_text(device.uuid or '')}"
    if device.policy != "fair":
        yield f"policy = {_text(device.policy)}"
    if device.capacity is not None:
        yield f"capacity = {_size(device.capacity)}"


def _size(size: int) -> str:
    text = exact_size(min(size, MAX_BYTES))
    return text if text.isdecimal() else _text(text)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _text(name)


def _text(text: str) -> str:
    # Control characters never get into a configuration (rules.check_name), except in user names by mistake.
    return '"' + "".join(_ESCAPES.get(c) or (c if c >= " " and c != "\x7f" else f"\\u{ord(c):04x}") for c in text) + '"'
