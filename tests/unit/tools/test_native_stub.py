"""Parameters in _native.pyi against those nanobind knows: stubtest compares names only, for it cannot read these."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

import gemlet

native = pytest.importorskip("gemlet._native", reason="the native module is not built")
STUB = ast.parse(Path(gemlet.__file__).with_name("_native.pyi").read_text())
FUNCTIONS = {
    **{node.name: node for node in STUB.body if isinstance(node, ast.FunctionDef)},
    **{
        f"{group.name}.{node.name}": node
        for group in STUB.body
        if isinstance(group, ast.ClassDef) and hasattr(native, group.name)
        for node in group.body
        if isinstance(node, ast.FunctionDef) and not node.decorator_list
    },
}


def parameters(function: ast.FunctionDef) -> dict[str, Any]:
    """Each parameter with its default; `...` in a stub stands for any."""
    arguments = function.args
    defaults: list[ast.expr | None] = [None] * (len(arguments.args) - len(arguments.defaults))
    values = [*defaults, *arguments.defaults, *arguments.kw_defaults]
    named = [*(a.arg for a in arguments.args), *(f"*{a.arg}" for a in arguments.kwonlyargs)]
    found = dict(zip(named, ("" if v is None else ast.unparse(v) for v in values), strict=True))
    return found | ({f"**{arguments.kwarg.arg}": ""} if arguments.kwarg else {})


def at_runtime(name: str) -> ast.FunctionDef:
    found = native
    for part in name.split("."):
        found = getattr(found, part)
    ((signature, _, defaults),) = found.__nb_signature__
    text = re.sub(r"\\(\d+)", lambda match: repr(defaults[int(match[1])]), signature)
    (function,) = ast.parse(f"{text}: ...").body
    assert isinstance(function, ast.FunctionDef)
    return function


@pytest.mark.parametrize("name", FUNCTIONS)
def test_parameters(name: str) -> None:
    stub, runtime = parameters(FUNCTIONS[name]), parameters(at_runtime(name))
    assert list(stub) == list(runtime)
    for parameter, default in stub.items():
        if default != "...":
            assert ast.literal_eval(default or "''") == ast.literal_eval(runtime[parameter] or "''"), parameter
