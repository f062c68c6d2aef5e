"""Option types and decorators several verbs share. On the path of `gemlet run`: click and the standard library only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from gemlet.config.rules import check_name, check_sm
from gemlet.config.share import parse_share
from gemlet.config.size import parse_size
from gemlet.errors import GemletError, InvalidValue

Given = TypeVar("Given")
Parsed = TypeVar("Parsed")
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
PRIORITIES = ("latency", "normal", "best-effort")
LONGEST_S = 1e9  # seconds: thirty years, for whoever means "without limit"
WORKLOADS = ("unknown", "compute", "memory", "alone")


class BadValue(click.BadParameter):
    """A value that is none. ``hint`` says what to write instead."""

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
    """As Share, but not 0: no kernel runs on no multiprocessor."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        return _parsed(check_sm, super().convert(value, param, ctx), param, ctx)


class GroupName(click.ParamType[str]):
    """A name that a group may have, and that is no option somebody forgot to put a name before."""

    name = "name"

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
            raise BadValue(f"{str(value)!r} is no number of seconds", f"{least}, such as 2.5", param, ctx)
        return seconds


def _parse_name(text: str) -> str:
    if text.startswith("--"):
        raise InvalidValue(f"{text!r} looks like an option", hint="give the group a name")
    return check_name(text)


def _parse_limit(text: str) -> int:
    size = parse_size(text)
    if size == 0:
        raise InvalidValue(f"{text!r} leaves no memory at all, not even for a context", hint="name a size such as 8GiB")
    return size


def _parsed(
    parse: Callable[[Given], Parsed], value: Given, param: click.Parameter | None, ctx: click.Context | None
) -> Parsed:
    try:
        return parse(value)
    except GemletError as error:
        raise BadValue(error.message, error.hint, param, ctx) from None


# click names variables after parameters, and these two parameters cannot be called min and max in Python.
def minimum(verb: str) -> Decorator:
    """--min of a verb."""
    help_ = "Share of device time that is guaranteed: 0.3 or 30%"
    return click.option("--min", "minimum", type=Share(), envvar=f"GEMLET_{verb}_MIN", help=help_)


def maximum(verb: str) -> Decorator:
    """--max of a verb."""
    help_ = "Share of device time never passed, even alone"
    return click.option("--max", "maximum", type=Share(), envvar=f"GEMLET_{verb}_MAX", help=help_)


def multiprocessors(verb: str) -> Decorator:
    """--sm of a verb."""
    help_ = "Fraction of the multiprocessors, under MPS: 0.3 or 30%"
    return click.option("--sm", type=Fraction(), envvar=f"GEMLET_{verb}_SM", help=help_)


workload = click.option(
    "--workload", type=click.Choice(WORKLOADS), help="What bounds its kernels: a first guess of whom it may run beside"
)


def output(*formats: str) -> Decorator:
    """-o/--output with the given formats, the first the default."""
    return click.option(
        "-o", "--output", type=click.Choice(formats), default=formats[0], show_default=True, help="Form of the output"
    )


simulate = click.option("--simulate", is_flag=True, help="Use the simulated machine: no GPU is touched")
