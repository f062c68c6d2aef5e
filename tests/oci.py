"""packaging/image/oci.py, which is a script's neighbour and in no package."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

SOURCE = Path(__file__).resolve().parents[1] / "packaging" / "image" / "oci.py"


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gemlet_test_oci", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


oci = _load()
