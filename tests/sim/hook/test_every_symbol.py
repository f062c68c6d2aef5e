"""Every function of the driver is hooked, or listed with the reason why not: in native/hook/lookup, once."""

from __future__ import annotations

import json
import re
import sysconfig
from collections import Counter
from pathlib import Path

import pytest

from tests.sim.hook.test_lookup import hooks_def

ROOT = Path(__file__).parents[3]
LIST = ROOT / "native/hook/lookup/not_hooked.txt"
PER_THREAD = re.compile(r"_pt[ds][sz]$")
PROTOTYPE = re.compile(r"^\s*CUresult\s+CUDAAPI\s+(cu\w+)\s*\(", re.MULTILINE)


def exported() -> set[str]:
    return set(json.loads((ROOT / "native/sim/driver-580.json").read_text())["exported"])


def declared() -> set[str]:
    """What the newest headers declare, those for graphics included."""
    folder = Path(sysconfig.get_paths()["purelib"]) / "nvidia/cu13/include"
    headers = [folder / f"{name}.h" for name in ("cuda", "cudaGL", "cudaEGL", "cudaVDPAU", "cudaProfiler")]
    if not headers[0].is_file():
        pytest.skip("no cuda.h: pip install 'nvidia-cuda-runtime>=13,<14'")
    return {name for header in headers if header.is_file() for name in PROTOTYPE.findall(header.read_text())}


def reasons() -> list[tuple[str, list[str]]]:
    """Each reason and the names it holds for."""
    text = re.sub(r"^#.*\n", "", LIST.read_text(), flags=re.MULTILINE)
    found = re.findall(r"^\[([^\]]+)\]\n((?:cu\w+\n)+)", text, re.MULTILINE)
    assert re.sub(r"\[[^\]]+\]|^cu\w+$", "", text, flags=re.MULTILINE).strip() == "", "neither a reason nor a name"
    return [(" ".join(reason.split()), names.split()) for reason, names in found]


def listed() -> list[str]:
    return [name for _, names in reasons() for name in names]


def test_every_symbol_is_hooked_or_listed_with_a_reason() -> None:
    hooked, known = set(hooks_def()[0]), exported() | declared()
    left_out = {PER_THREAD.sub("", name) for name in known - hooked}
    assert set(listed()) == left_out


def test_a_name_is_listed_once_and_in_order() -> None:
    assert [name for name, times in Counter(listed()).items() if times > 1] == []
    for reason, names in reasons():
        assert names == sorted(names), reason


def test_variants_for_the_threads_own_stream_go_with_their_function() -> None:
    """A symbol without a hook, of a function that has one under another name, would be a way around the hook."""
    hooked = set(hooks_def()[0])
    split = {
        name
        for name in (exported() | declared()) - hooked
        if {PER_THREAD.sub("", name), *(PER_THREAD.sub("", name) + end for end in ("_ptds", "_ptsz"))} & hooked
    }
    assert split == set()


def test_a_reason_is_a_sentence() -> None:
    assert len(reasons()) >= 5
    assert [reason for reason, _ in reasons() if not re.fullmatch(r"[A-Z].{20,}\.", reason)] == []
