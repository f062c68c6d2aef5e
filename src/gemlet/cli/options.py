"""Option types and decorators several verbs share. On the path of `gemlet run`: click and the standard library only."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gemlet.config import group_fields
from gemlet.config.quantities import check_fraction, format_share, format_size, parse_seconds, parse_share, parse_size
from gemlet.config.rules import SMALLEST_MEMORY, check_name
from gemlet.errors import GemletError, InvalidValue, UsageError
from gemlet.model import GROUP_FIELDS, LONGEST_BACK_S, GroupField, Kind

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

Given = TypeVar("Given")
Parsed = TypeVar("Parsed")
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
LONGEST_S = 1e9  # seconds: thirty years, for people who mean "without limit"


class BadValue(click.BadParameter):
    """A value that is not valid. ``hint`` says what to write instead."""

    def __init__(
        self, message: str, hint: str | None, param: click.Parameter | None, ctx: click.Context | None
    ) -> None:
        super().__init__(message, ctx=ctx, param=param)
        self.hint = hint


class Share(click.ParamType[float]):
    """A share of a device: 0..1 or a percentage."""

    name = "share"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        return value if isinstance(value, float) else _parsed(parse_share, str(value), param, ctx)


class Fraction(Share):
    """A fraction of the multiprocessors: as Share, but above 0."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        return _parsed(check_fraction, super().convert(value, param, ctx), param, ctx)


class GroupName(click.ParamType[str]):
    """A name that a group may have; a word that starts like an option is refused: the name before it was forgotten."""

    name = "name"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from gemlet.cli.completion import groups

        return groups(ctx, incomplete)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return _parsed(_parse_name, str(value), param, ctx)


class Size(click.ParamType[int]):
    """A size in bytes with Gemini's suffixes."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        return value if isinstance(value, int) else _parsed(_parse_limit, str(value), param, ctx)


class SizeOrNone(click.ParamType[Any]):
    """As Size, and `none` for no limit at all."""

    name = "size|none"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return "none" if value == "none" else _parsed(_parse_limit, str(value), param, ctx)


class Seconds(click.ParamType[float]):
    """A time in seconds, above 0; with ``zero`` 0, too."""

    name = "seconds"

    def __init__(self, *, zero: bool = False) -> None:
        self._zero = zero

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            seconds = float(value)
        except ValueError:
            seconds = -1.0
        if not (0 if self._zero else 1e-9) <= seconds <= LONGEST_S:
            least = "0 or more" if self._zero else "more than 0"
            raise BadValue(
                f"{str(value)!r} is not a number of seconds: expected {least}", "write a number such as 2.5", param, ctx
            )
        return seconds


class Duration(click.ParamType[float]):
    """A duration such as 2h, in seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        return _parsed(_parse_duration, str(value), param, ctx)


class Whole(click.IntRange):
    """A whole number, maybe with bounds, whose error says in words what was expected."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            raise _not_a("whole number", value, self, param, ctx) from None

    def _describe_range(self) -> str:  # click's name: what the help says of the bounds
        return _bounds(self)


class Number(click.FloatRange):
    """As Whole, of any number. NaN, which to click is within all bounds, is within none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            number = super().convert(value, param, ctx)
        except click.BadParameter:
            raise _not_a("number", value, self, param, ctx) from None
        if math.isnan(number) and self.min is not None:
            raise _not_a("number", value, self, param, ctx)
        return number

    def _describe_range(self) -> str:
        return _bounds(self)


def _bounds(number: Whole | Number) -> str:
    if number.min is None:
        return ""
    return f"from {number.min:g} to {number.max:g}" if number.max is not None else f"{number.min:g} or more"


def _not_a(
    kind: str, value: object, number: Whole | Number, param: click.Parameter | None, ctx: click.Context | None
) -> BadValue:
    expected = _bounds(number) or f"a {kind}"
    example = 1 if number.min is None else number.min
    return BadValue(
        f"{str(value)!r} is not a valid {kind}: expected {expected}", f"write one such as {example:g}", param, ctx
    )


class Gpus(click.ParamType[Any]):
    """A number of devices; or, of several kinds, how many of each by the name of its profiles: h200=2,h100.json=1."""

    name = "n|profiles=n,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        from gemlet.serve.plan.demand_file import MOST_GPUS

        def is_count(text: str) -> bool:
            return text.isascii() and text.isdigit() and len(text) <= len(str(MOST_GPUS)) and 0 < int(text) <= MOST_GPUS

        if is_count(value):
            return int(value)
        counts: dict[str, int] = {}
        for part in value.split(","):
            name, _, count = part.strip().rpartition("=")
            if not name or name in counts or not is_count(count):
                raise BadValue(
                    f"{value!r} is not a number of devices, nor one for each kind",
                    "write 2, or for each kind its profiles and a number, such as h200=2,h100.json=1;"
                    f" at most {MOST_GPUS} of each",
                    param,
                    ctx,
                )
            counts[name] = int(count)
        return counts


def _parse_name(text: str) -> str:
    if text.startswith("--"):
        raise InvalidValue(f"{text!r} looks like an option: expected a name", hint="give the group a name")
    if text.strip() and text != text.strip():  # which nobody sees in a list
        raise InvalidValue(f"{text!r} begins or ends with a blank", hint=f"write {text.strip()!r}")
    return check_name(text)


def _parse_duration(text: str) -> float:
    seconds = parse_seconds(text)
    if seconds > LONGEST_BACK_S:
        raise InvalidValue(f"{text} is too long: expected 90 days or less", hint="write a duration such as 2h")
    return seconds


def _parse_limit(text: str) -> int:
    size = parse_size(text)
    if size < SMALLEST_MEMORY:
        raise InvalidValue(
            f"{text!r} is not a valid memory limit: expected {format_size(SMALLEST_MEMORY)} or more",
            hint=f"write it with a unit, such as {size}GiB" if 0 < size < 1000 else "write a size such as 8GiB",
        )
    return size


def _parsed(
    parse: Callable[[Given], Parsed], value: Given, param: click.Parameter | None, ctx: click.Context | None
) -> Parsed:
    try:
        return parse(value)
    except GemletError as error:
        raise BadValue(error.message, error.hint, param, ctx) from None


class FieldValue(click.ParamType[Any]):
    """The value of a field of a group, of a kind that needs nothing of its own here."""

    def __init__(self, field: GroupField) -> None:
        self.name = {Kind.NUMBER: "number", Kind.SLOWDOWN: "factor", Kind.NAMES: "a,b"}[field.kind]
        self._field = field

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return _parsed(functools.partial(group_fields.parse, self._field), value, param, ctx)


def limits(verb: str) -> Decorator:
    """An option for each field of a group that ``gemlet verb`` may set; the function gets the given ones as ``limits``.

    The environment variable of an option is GEMLET_VERB_FIELD, such as GEMLET_RUN_MIN.
    """
    fields = [field for field in GROUP_FIELDS.values() if verb in field.column.verbs]

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*arguments: Any, **given: Any) -> Any:
            values = {field.name: given.pop(field.name) for field in fields}
            given_limits = {k: v for k, v in values.items() if v is not None}
            _check_order(given_limits)
            return function(*arguments, limits=given_limits, **given)

        decorated: Callable[..., Any] = call
        for field in reversed(fields):
            type_, help_ = _type_of(field, verb), _help_of(field, verb)
            decorated = click.option(f"--{field.name}", field.name, type=type_, help=help_)(decorated)
        return decorated

    return decorate


def check_variables(context: click.Context) -> None:
    """Raises `UsageError` for a variable that is to be an option of this command, and of which there is none: with a
    limit that is misspelt the program would have no limit."""
    prefix = f"{context.auto_envvar_prefix}_"
    known = {f"{prefix}{option.name.upper()}" for option in context.command.params if option.name}
    for name in os.environ:
        if name.startswith(prefix) and name not in known:
            from gemlet.config import suggest

            likely = suggest.closest(name, known)
            raise UsageError(
                f"{name} is set in the environment and names no option of `{context.command_path}`",
                hint=f"did you mean {likely}?"
                if likely
                else f"unset it; `{context.command_path} -h` shows the options",
            )


def _check_order(limits: dict[str, Any]) -> None:
    """What the daemon would refuse, too, but of a group whose name it has yet to choose."""
    least, most = limits.get("min", 0.0), limits.get("max", 1.0)
    if least > most:
        raise UsageError(
            f"--min {format_share(least)} is more than --max {format_share(most)}",
            hint="min is guaranteed and max is the limit: check that the two have not been swapped",
        )


def _type_of(field: GroupField, verb: str) -> click.ParamType[Any]:
    if field.choices is not None:
        return click.Choice([str(choice) for choice in field.choices])
    if field.kind is Kind.SIZE:
        return SizeOrNone() if verb == "set" else Size()
    if field.kind is Kind.SHARE:
        return Share()
    return Fraction() if field.kind is Kind.FRACTION else FieldValue(field)


def _help_of(field: GroupField, verb: str) -> str:
    if verb == "set":
        return field.column.help + ("; `none` lifts it" if field.kind is Kind.SIZE else "")
    return field.column.help + (f"; default: {field.default}" if field.choices is not None else "")


def program_completion(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """For the command after `--`."""
    from gemlet.cli.completion import programs

    return programs(ctx, param, incomplete)


def output(*formats: str) -> Decorator:
    """-o/--output with the given formats, the first the default."""
    return click.option(
        "-o", "--output", type=click.Choice(formats), default=formats[0], show_default=True, help="Form of the output"
    )


simulate = click.option("--simulate", is_flag=True, help="Use the simulated machine: no GPU is touched")
