"""What each kind of a group's fields is in a file, on a command line and in a sentence.

The table itself, `GroupSpec` with its bases, is in model.py: names, types, defaults, texts. Made from it, and from the
few lines for each kind here and there, are

    gemlet.toml, read and written      config/gemlet_toml.py, config/render.py, by `read` and `render`
    the simulator's workloads          simulate/workload.py, by `read`
    checks of single values            config/rules.py, by `check`
    options of `gemlet run` and `set`  cli/options.py, by `parse`; what they say was granted, by `phrases`
    the daemon's API and status        daemon/requests.py, daemon/status.py, daemon/native.py
    the native structs and bindings    native/group_fields.h, written by tools/generate_group_fields.py

A new field is a row in model.py; then come its rule (config/rules.py), who acts on it, and the documents.
Standard library only: `gemlet run` imports this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gemlet.config import quantities, toml_values
from gemlet.model import GROUP_FIELDS, GroupField, Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping


def read(field: GroupField, value: object) -> Any:
    """``value`` as TOML gives it, as the field's type. Raises InvalidValue."""
    if field.choices is not None:
        return field.choices(toml_values.one_of(value, tuple(field.choices)))
    return _READERS[field.kind](value)


def parse(field: GroupField, text: str) -> Any:
    """``text`` of a command line as the field's type. Raises InvalidValue."""
    if field.kind is Kind.NAMES:
        return toml_values.check_users(tuple(name.strip() for name in text.split(",") if name.strip()))
    if field.kind is Kind.SLOWDOWN:
        return quantities.check_slowdown(quantities.parse_factor(text))
    return quantities.parse_factor(text) if field.kind is Kind.NUMBER else read(field, text)


def check(field: GroupField, value: Any) -> None:
    """Raises InvalidValue unless ``value``, of the field's type, is one that the field may have."""
    if value is not None and field.kind in _CHECKS:
        _CHECKS[field.kind](value)


def render(field: GroupField, value: Any) -> str:
    """``value`` as TOML, so that `read` gives the same value."""
    if field.kind is Kind.SIZE:
        return toml_values.render_size(value)
    if field.kind is Kind.NAMES:
        return f"[{', '.join(toml_values.render_text(name) for name in value)}]"
    # repr() of a float is the shortest text that reads back as the same float.
    return toml_values.render_text(value) if field.kind is Kind.CHOICE else repr(value)


PAUSES = " (its work waits until `gemlet set` raises it)"  # what a maximum of 0 means


def phrases(values: Mapping[str, Any], *, also: Collection[str] = ("min", "max")) -> Iterator[tuple[GroupField, str]]:
    """What ``values`` grant, a phrase for each field that is in ``also`` or not at its default."""
    for name, field in GROUP_FIELDS.items():
        value = values.get(name, field.default)  # a daemon of another version may not know the field
        if name in also or not (value == field.default or (field.kind is Kind.NAMES and not value)):
            phrase = field.column.phrase.format(shown(field, value))
            yield field, phrase + PAUSES if name == "max" and value == 0 else phrase


def shown(field: GroupField, value: Any) -> str:
    """``value`` for people."""
    if field.kind in {Kind.SHARE, Kind.FRACTION}:
        return quantities.format_share(value)
    if field.kind is Kind.SIZE:
        return "any amount" if value is None else quantities.format_size(value)
    if field.kind is Kind.NAMES:
        return ", ".join(value) or "all"
    return f"{value:g}" if field.kind in {Kind.NUMBER, Kind.SLOWDOWN} else str(value)


_READERS: dict[Kind, Callable[[object], Any]] = {
    Kind.SHARE: toml_values.read_share,
    Kind.FRACTION: toml_values.read_fraction,
    Kind.NUMBER: toml_values.read_factor,
    Kind.SLOWDOWN: toml_values.read_slowdown,
    Kind.SIZE: toml_values.read_size,
    Kind.NAMES: toml_values.read_names,
}
_CHECKS: dict[Kind, Callable[[Any], object]] = {
    Kind.SHARE: quantities.check_share,
    Kind.FRACTION: quantities.check_fraction,
    Kind.NUMBER: quantities.check_factor,
    Kind.SLOWDOWN: quantities.check_slowdown,
    Kind.SIZE: quantities.check_size,
    Kind.NAMES: toml_values.check_users,
}
