"""Which models are profiled: built-in ones by name, or those of a model repository."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gemlet.errors import UsageError
from gemlet.serve.models import built_in
from gemlet.serve.profiling.session import Subject

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gemlet.serve.models.specification import ModelSpec


def subjects(names: Sequence[str]) -> tuple[list[Subject], Callable[[Subject], ModelSpec]]:
    """What to measure, and how a subject becomes a model. Raises UsageError, ConfigError.

    names: built-in models, directories that are model repositories, or nothing: every built-in architecture.
    """
    found: dict[str, Subject] = {}
    specs: dict[str, ModelSpec] = {}
    for name in names or built_in.DEFAULT:
        if name in built_in.BUILT_IN and name not in found:
            model = built_in.SAME.get(name, name)
            if model not in found:
                same = tuple(other for other, first in built_in.SAME.items() if first == model)
                found[model] = Subject(model, built_in.BUILT_IN[model].max_batch, same=same)
                specs[model] = built_in.spec(model)
        elif Path(name).is_dir():
            for model_spec in _repository(Path(name)):
                found[model_spec.name] = Subject(model_spec.name, model_spec.max_batch)
                specs[model_spec.name] = model_spec
        elif name not in found:
            hint = f"name a model repository, or one of {', '.join(built_in.BUILT_IN)}"
            raise UsageError(f"{name!r} is neither a built-in model nor a directory", hint=hint)
    return list(found.values()), lambda subject: specs[subject.name]


def _repository(path: Path) -> list[ModelSpec]:
    try:
        from gemlet.serve.server.repository import tree  # noqa: PLC0415  its YAML is another extra
    except ModuleNotFoundError as error:
        hint = "pip install 'gemlet[serve]'"
        raise UsageError(f"a model repository cannot be read without {error.name}", hint=hint) from None

    models = []
    for entry in tree.scan(path).values():
        if entry.error is not None:
            raise entry.error
        if entry.specs:  # one backend has one version of a model, so its name is its key
            models.append(msgspec.structs.replace(built_in.completed(entry.specs[-1]), revision=""))
    if not models:
        raise UsageError(f"{path} holds no model", hint="make it DIR/MODEL/config.yaml and DIR/MODEL/1/")
    return models
