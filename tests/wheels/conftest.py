"""The wheels in dist, as `make wheels` left them."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

DIST = Path(__file__).resolve().parents[2] / "dist"
WHEELS = sorted(DIST.glob("gemlet-*.whl"))
LIBRARIES = ("gemlet/_lib/libgemhook.so.1", "gemlet/_lib/libgembatch.so.1")


@dataclass(frozen=True)
class Unpacked:
    """A wheel and its content, unpacked at ``folder``."""

    wheel: Path
    folder: Path

    @property
    def architecture(self) -> str:
        return self.wheel.stem.split("manylinux_2_28_")[1]

    @property
    def hook(self) -> Path:
        return self.folder / "gemlet/_lib/libgemhook.so.1"


@pytest.fixture(scope="session")
def unpack(tmp_path_factory):
    """Unpacks a wheel, once, with the modes of its files."""
    done: dict[Path, Unpacked] = {}

    def unpack(wheel: Path) -> Unpacked:
        if wheel not in done:
            folder = tmp_path_factory.mktemp("wheel")
            with zipfile.ZipFile(wheel) as archive:
                for entry in archive.infolist():
                    path = Path(archive.extract(entry, folder))
                    path.chmod(entry.external_attr >> 16 & 0o777 or 0o644)
            done[wheel] = Unpacked(wheel, folder)
        return done[wheel]

    return unpack


def wheel_for(architecture: str) -> Path:
    """A wheel for ``architecture``: their libraries are the same for all Pythons."""
    found = [wheel for wheel in WHEELS if wheel.stem.endswith(architecture)]
    if not found:
        pytest.fail(f"no wheel for {architecture} in {DIST}: run `make wheels`", pytrace=False)
    return found[0]


@pytest.fixture(params=WHEELS or [None], ids=lambda wheel: wheel.stem if wheel else "none")
def wheel(request, unpack) -> Unpacked:
    if request.param is None:
        pytest.fail(f"no wheels in {DIST}: run `make wheels`", pytrace=False)
    return unpack(request.param)


@pytest.fixture
def of_architecture(unpack):
    return lambda architecture: unpack(wheel_for(architecture))
