"""The test's own picture of native/wire.h against the compiler's."""

from __future__ import annotations

import subprocess
from pathlib import Path

from gemlet.membership import WIRE_OLDEST, WIRE_VERSION
from tests.unit.server import wire

ROOT = Path(__file__).resolve().parents[3]


def test_offsets_and_sizes_are_the_compilers(tmp_path: Path) -> None:
    lines = [
        "#include <cstddef>",
        "#include <cstdio>",
        '#include "wire.h"',
        "using namespace gemlet::wire;",
        "int main() {",
    ]
    lines += [f'std::printf("{name} %zu\\n", offsetof({name.replace(".", ", ")}));' for name in wire.OFFSETS]
    lines += ['std::printf("Message %zu\\n", sizeof(Message));', "}"]
    source, program = tmp_path / "offsets.cpp", tmp_path / "offsets"
    source.write_text("\n".join(lines))
    subprocess.run(
        ["g++", "-std=c++20", "-Wno-invalid-offsetof", f"-I{ROOT / 'native'}", source, "-o", program], check=True
    )
    out = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    got = {name: int(at) for name, at in (line.split() for line in out.splitlines())}
    assert got == wire.OFFSETS | {"Message": wire.MESSAGE.size}


def test_the_version_is_the_one_that_python_knows() -> None:
    header = (ROOT / "native/wire.h").read_text()
    assert f"kWireVersion = {WIRE_VERSION};" in header
    assert f"kWireOldest = kWireVersion - {WIRE_VERSION - WIRE_OLDEST};" in header
