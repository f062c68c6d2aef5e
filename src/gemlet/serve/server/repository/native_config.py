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


def parse(text: str, path: Path) -> Config:
    """What the file says. Raises ConfigError with the line."""
    try:
        table: Any = yaml.safe_load(text)
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
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # of the reader, of an invalid date
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
