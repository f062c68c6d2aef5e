"""config.yaml of a model.

platform: python              # what runs it; without it the file in the version's folder tells
max_batch: 32
slo: 25ms                     # or slo_ms: 25
sm: 30%                       # of a device's SMs; without it the planner decides
class: latency                # or throughput
priority: 1                   # 1 is the first served
inputs:  [{name: X, datatype: FP32, shape: [3, 224, 224]}]    # without the batch dimension; -1: any size
outputs: [{name: Y, datatype: FP32, shape: [1000]}]
version: 2                    # default: the highest; or versions: all, latest 2, [1, 3]
parameters: {threads: 4}      # for the model itself
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import yaml

from gemlet.decoding import convert
from gemlet.errors import ConfigError
from gemlet.serve.server.repository.config import Config, FieldError, field_of, problem

if TYPE_CHECKING:
    from pathlib import Path

EXAMPLE = "docs/serving/models.md has an example"
# Of a file with what its aliases stand for: a few lines can stand for more than there is memory, and are converted
# while all other threads wait.
MAX_VALUES = 50_000
MAX_DIGITS = 100  # longer numbers take time by the square of their length, and cannot be printed


class _Loader(yaml.SafeLoader):
    """Of values that take little time and memory, and can be sent to executors and clients."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._values = 0
        self._values_of: dict[int, int] = {}  # by id of a node: how many values it is

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event, before = self.peek_event(), self._values  # type: ignore[no-untyped-call]
        self._values += 1
        node = super().compose_node(parent, index)
        if isinstance(event, yaml.AliasEvent):
            if id(node) not in self._values_of:
                raise _wrong("an alias within what it stands for", event)
            self._values += self._values_of[id(node)]
        else:
            self._values_of[id(node)] = self._values - before
        if self._values > MAX_VALUES:
            raise _wrong(f"more than {MAX_VALUES} values", event)
        return node

    def construct_number(self, node: yaml.ScalarNode) -> Any:
        if len(node.value) > MAX_DIGITS:
            raise _wrong(f"a number of {len(node.value)} digits", node)
        return yaml.SafeLoader.yaml_constructors[node.tag](self, node)

    def construct_text(self, node: yaml.ScalarNode) -> str:
        try:
            node.value.encode()
        except UnicodeEncodeError:
            raise _wrong("half a character (\\ud800 to \\udfff)", node) from None
        return str(node.value)


for _tag in ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float"):
    _Loader.add_constructor(_tag, _Loader.construct_number)
_Loader.add_constructor("tag:yaml.org,2002:str", _Loader.construct_text)


def _wrong(problem: str, at: Any) -> yaml.MarkedYAMLError:
    """``at``: an event or a node."""
    return yaml.MarkedYAMLError(problem=problem, problem_mark=at.start_mark)


def parse(text: str, path: Path) -> Config:
    """What the file says. Raises ConfigError with the line."""
    try:
        table: Any = yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (None, None)
        raise ConfigError(
            f"not YAML: {error.problem}",
            path=str(path),
            line=line,
            column=column,
            hint=EXAMPLE,
        ) from None
    except Exception as error:  # noqa: BLE001  of an invalid date, or whatever a wrong tag comes to
        raise ConfigError(f"not YAML: {error}", path=str(path), hint=EXAMPLE) from None
    try:
        return convert({} if table is None else table, Config)
    except msgspec.ValidationError as error:
        wrong = field_of(error)
        raise problem(wrong, path, line_of(text, wrong.field)) from None


def line_of(text: str, field: tuple[str | int, ...]) -> int | None:
    """The line, from 1, of that field, or of the nearest thing around it; None if the text has none."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError:
        return None
    line = None
    for part in field:
        if isinstance(node, yaml.MappingNode):
            found = next(((key, value) for key, value in node.value if key.value == part), None)
            if found is None:
                break
            line, node = found[0].start_mark.line + 1, found[1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            line = node.start_mark.line + 1
        else:
            break
    return line


def located(error: FieldError, text: str, path: Path) -> ConfigError:
    """A FieldError that a check found later."""
    return problem(error, path, line_of(text, error.field))
