"""What a wheel is made of, in CycloneDX 1.6: what is linked into its libraries, and what it needs to be installed.

PEP 770 gives such documents their place in a wheel: .dist-info/sboms.
"""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from importlib.metadata import version
from pathlib import Path

import ziglang

SOURCE = Path(__file__).resolve().parents[2]


def document(release: str, architecture: str) -> str:
    """The document of the release's wheels for one architecture. The same sources and tools give the same text."""
    gemlet = _component("gemlet", release, "Apache-2.0", kind="application")
    linked = [
        _component("nanobind", version("nanobind"), "BSD-3-Clause"),
        _component("uplot", _uplot(), "MIT", purl=f"pkg:npm/uplot@{_uplot()}"),  # in the page of `gemlet web`
        *(_component(name, _llvm(), "Apache-2.0 WITH LLVM-exception", purl=f"pkg:generic/llvm/{name}@{_llvm()}")
          for name in ("libcxx", "libcxxabi", "libunwind")),
    ]  # fmt: skip
    needed = [_required(line) for line in _project()["dependencies"]]
    return json.dumps(
        {
            "bomFormat": "CycloneDX",
            "specVersion": "1.6",
            "version": 1,
            "metadata": {
                "component": gemlet,
                "tools": {"components": [_component("ziglang", version("ziglang"), "MIT", kind="application")]},
                "properties": [{"name": "architecture", "value": architecture}],
            },
            "components": linked + needed,
            "dependencies": [{"ref": gemlet["bom-ref"], "dependsOn": [each["bom-ref"] for each in linked + needed]}],
        },
        indent=1,
    )


def _uplot() -> str:
    page: str = json.loads((SOURCE / "web" / "package.json").read_text())["devDependencies"]["uplot"]
    return page


def _component(
    name: str, release: str, licence: str | None, *, kind: str = "library", purl: str | None = None
) -> dict[str, object]:
    purl = purl or f"pkg:pypi/{name}@{release}"
    found: dict[str, object] = {"type": kind, "bom-ref": purl, "name": name, "version": release, "purl": purl}
    return found | ({"licenses": [{"expression": licence}]} if licence else {})


def _required(requirement: str) -> dict[str, object]:
    """A package that pip installs beside gemlet, in whatever version satisfies ``requirement``."""
    name = re.split(r"[<>=!~\[ ]", requirement)[0]
    purl = f"pkg:pypi/{name}"
    return {
        "type": "library", "bom-ref": purl, "name": name, "purl": purl,
        "properties": [{"name": "requirement", "value": requirement}],
    }  # fmt: skip


def _project() -> dict[str, list[str]]:
    return dict(tomllib.loads((SOURCE / "pyproject.toml").read_text())["project"])


def _llvm() -> str:
    """The version of LLVM that this zig is made of, and so of its C++ runtime."""
    zig = Path(ziglang.__file__).with_name("zig")
    said = subprocess.run([zig, "c++", "--version"], check=True, capture_output=True, text=True).stdout
    return re.findall(r"clang version (\S+)", said)[0]
