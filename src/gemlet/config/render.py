"""Writes a configuration as the text of a gemlet.toml. What is at its default is left out."""

from __future__ import annotations

import re
from dataclasses import fields
from decimal import Decimal
from typing import TYPE_CHECKING

from gemlet.config.group_fields import render as render_value
from gemlet.config.toml_values import render_size, render_text
from gemlet.model import GROUP_FIELDS, AuditSpec, Configuration, DeviceSpec, GroupSpec, UserSpec, UserTerms

if TYPE_CHECKING:
    from collections.abc import Iterator


def render(configuration: Configuration) -> str:
    """A text that loads as ``configuration``, save for its ``source`` and ``warnings``."""
    sections = ["# Written by gemlet; comments are not kept when it writes again."]
    if daemon := list(_daemon(configuration)):
        sections.append("\n".join(["[daemon]", *daemon]))
    if audit := list(_audit(configuration.audit)):
        sections.append("\n".join(["[audit]", *audit]))
    sections += ["\n".join(_group(group)) for group in configuration.groups]
    sections += ["\n".join(_user(user)) for user in configuration.users]
    sections += ["\n".join(_device(device)) for device in configuration.devices]
    return "\n\n".join(sections) + "\n"


def _daemon(configuration: Configuration) -> Iterator[str]:
    if configuration.policy != "fair":
        yield f"policy = {render_text(configuration.policy)}"
    if configuration.metrics_port is not None:
        yield f"metrics_port = {configuration.metrics_port}"
    if configuration.web is not None:
        yield f"web = {render_text(configuration.web)}"
    if configuration.host_memory is not None:
        yield f"host_memory = {render_size(configuration.host_memory)}"


def _group(group: GroupSpec) -> Iterator[str]:
    yield f"[groups.{_key(group.name)}]"
    for name, field in GROUP_FIELDS.items():
        value = getattr(group, name)
        if value != field.default:
            yield f"{name} = {render_value(field, value)}"


def _audit(audit: AuditSpec) -> Iterator[str]:
    default = AuditSpec()
    if audit.policy != default.policy:
        yield f"policy = {render_text(audit.policy)}"
    if audit.after != default.after:
        yield f"after = {_seconds(audit.after)}"
    if audit.allow:
        yield f"allow = [{', '.join(map(render_text, audit.allow))}]"


def _user(user: UserSpec) -> Iterator[str]:
    yield f"[users.{_key(user.name)}]"
    yield from _user_terms(user)
    if user.groups is not None:
        yield f"groups = {user.groups}"
    if defaults := list(_user_terms(user.defaults)):
        yield f"defaults = {{ {', '.join(defaults)} }}"


def _user_terms(terms: UserTerms) -> Iterator[str]:
    for row in fields(UserTerms):
        value = getattr(terms, row.name)
        if value is not None:
            yield f"{row.name} = {render_value(GROUP_FIELDS[row.name], value)}"


def _device(device: DeviceSpec) -> Iterator[str]:
    yield "[[devices]]"
    yield f"index = {device.index}" if device.index is not None else f"uuid = {render_text(device.uuid or '')}"
    if device.policy != "fair":
        yield f"policy = {render_text(device.policy)}"
    if device.capacity is not None:
        yield f"capacity = {render_size(device.capacity)}"
    if device.max_wait != DeviceSpec().max_wait:
        yield f"max_wait = {_seconds(device.max_wait)}"


def _seconds(seconds: float) -> str:
    # Times have no exponents, which repr() writes for short ones.
    return render_text(f"{Decimal(repr(seconds)):f}s")


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else render_text(name)
