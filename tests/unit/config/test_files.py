"""Whole files: which format, what cannot be read, and saving without ever losing the old file."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gemlet import config
from gemlet.config import client_table, files, gemlet_toml, keyfile
from gemlet.config.files import MAX_FILE_BYTES, load, parse, reader_of, save
from gemlet.config.quantities import SECOND
from gemlet.config.render import render
from gemlet.config.report import Source
from gemlet.errors import ConfigError
from gemlet.model import POLICIES, AuditSpec, Configuration, DeviceSpec, GroupSpec, Priority, Workload

if TYPE_CHECKING:
    from pathlib import Path

SMALL = Configuration(groups=(GroupSpec(name="a", min=0.3),))


def test_the_package_offers_them() -> None:
    assert config.load is load
    assert config.save is save
    with pytest.raises(AttributeError):
        config.nonsense  # noqa: B018


@pytest.mark.parametrize(
    ("path", "text", "reader"),
    [
        ("gemlet.toml", "", gemlet_toml),
        ("gemlet.toml", "[a]\nMinUtil = 0.5", gemlet_toml),
        ("resource.conf", "[a]\nMinUtil = 0.5", keyfile),
        ("renamed", "# c\n[a]\nMinUtil = 0.5", keyfile),
        ("renamed.txt", "[a]\nMemoryLimit=1", keyfile),
        ("resource.conf", "[groups]\nMinUtil = 0.5", keyfile),  # a group may have this name
        ("resource.conf", "[a]\n[b]", keyfile),
        ("resource.conf", "", keyfile),
        ("renamed", "[groups.a]\nmin = 0", gemlet_toml),
        ("gemlet.conf", "[daemon]\npolicy = 'fair'", gemlet_toml),
        ("renamed", "[[devices]]\nindex = 0", gemlet_toml),
        ("resource-config.txt", "", client_table),
        ("resource-config.txt", "a 0 1 1", client_table),
        ("renamed", "# c\n\n 2 # two\na 0 1 1\n", client_table),
        ("gemlet.conf", "0", client_table),
    ],
)
def test_format(path: str, text: str, reader: object) -> None:
    assert reader_of(Source(text, path)) is reader.read  # type: ignore[attr-defined]


def test_load_says_what_is_wrong_with_the_file(tmp_path: Path) -> None:
    missing = tmp_path / "missing.toml"
    with pytest.raises(ConfigError, match=r"missing\.toml: cannot be read: No such file"):
        load(missing)
    with pytest.raises(ConfigError, match="Is a directory"):
        load(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="not a regular file"):
        load(tmp_path / "pipe")  # and does not wait for a writer
    (tmp_path / "large.toml").write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    with pytest.raises(ConfigError, match="larger than"):
        load(tmp_path / "large.toml")
    (tmp_path / "latin.toml").write_bytes("[groups.a]\n# ü\n# ".encode() + b"\xfc")
    with pytest.raises(ConfigError, match=r"latin\.toml:3:3: not valid UTF-8"):
        load(tmp_path / "latin.toml")


shares = st.floats(0, 1)
names = st.text(st.characters(exclude_categories=("C", "Z"), include_characters=" "), min_size=1, max_size=40)
groups = st.builds(
    lambda name, share, other, **rest: GroupSpec(name=name, min=min(share, other), max=max(share, other), **rest),
    name=names,
    share=shares,
    other=shares,
    memory=st.none() | st.integers(0, 2**63 - 1),
    weight=st.floats(0, 1e6, exclude_min=True),
    sm=st.floats(0, 1, exclude_min=True),
    priority=st.sampled_from(Priority),
    workload=st.sampled_from(Workload),
    users=st.lists(names.filter(lambda name: ":" not in name and not name.isdecimal()), max_size=3).map(tuple),
)
devices = st.builds(
    DeviceSpec,
    index=st.integers(0, 2**31),
    policy=st.sampled_from(POLICIES),
    capacity=st.none() | st.integers(0, 2**63 - 1),
    max_wait=st.integers(SECOND // 10, 10**9 * SECOND).map(lambda ns: ns / SECOND),
) | st.builds(DeviceSpec, uuid=names.map("GPU-{}".format), policy=st.sampled_from(POLICIES))


@given(
    st.builds(
        Configuration,
        groups=st.lists(groups, max_size=4, unique_by=lambda group: group.name).map(tuple),
        devices=st.lists(devices, max_size=4, unique_by=lambda device: (device.index, device.uuid)).map(tuple),
        audit=st.builds(AuditSpec, after=st.integers(0, 10**9 * SECOND).map(lambda ns: ns / SECOND)),
        policy=st.sampled_from(POLICIES),
    )
)
@example(Configuration(audit=AuditSpec(after=1e-9)))  # repr() has an exponent, a time in the file has none
def test_what_is_written_reads_back(configuration: Configuration) -> None:
    read = parse(render(configuration), "gemlet.toml")
    assert (read.groups, read.devices, read.audit, read.policy) == (
        configuration.groups,
        configuration.devices,
        configuration.audit,
        configuration.policy,
    )


def test_save_keeps_mode_and_link(tmp_path: Path) -> None:
    real = tmp_path / "real.toml"
    link = tmp_path / "gemlet.toml"
    real.write_text("# old")
    real.chmod(0o640)
    link.symlink_to(real)
    save(SMALL, link)
    assert link.is_symlink()
    assert load(link).groups == SMALL.groups
    assert real.stat().st_mode & 0o777 == 0o640
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gemlet.toml", "real.toml"]


def test_save_creates_a_private_file(tmp_path: Path) -> None:
    save(SMALL, tmp_path / "gemlet.toml")
    assert (tmp_path / "gemlet.toml").stat().st_mode & 0o777 == 0o600


def test_save_does_not_turn_a_gemini_file_into_something_else(tmp_path: Path) -> None:
    path = tmp_path / "resource.conf"
    path.write_text("[a]\nMinUtil = 0.5\n")
    with pytest.raises(ConfigError, match="format of Gemini") as caught:
        save(SMALL, path)
    assert "gemlet.toml" in (caught.value.hint or "")
    assert path.read_text() == "[a]\nMinUtil = 0.5\n"


@pytest.mark.parametrize("step", ["fsync", "fdopen", "open"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES, errno.EDQUOT])
def test_failure_at_any_step_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, code: int
) -> None:
    path = tmp_path / "gemlet.toml"
    path.write_text("# old")

    def fail(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patched:
        patched.setattr(files.os, step, fail)
        with pytest.raises(ConfigError, match="the old file is unchanged") as caught:
            save(SMALL, path)
    assert caught.value.hint
    assert path.read_text() == "# old"
    assert [file.name for file in tmp_path.iterdir()] == ["gemlet.toml"]


def test_disk_that_ends_in_the_middle_of_the_file(tmp_path: Path) -> None:
    # A limit on file sizes makes the kernel write a part and then refuse, as a full disk does.
    path = tmp_path / "gemlet.toml"
    path.write_text("# old")
    code = (
        "import resource, sys\n"
        "from gemlet.config.files import save\n"
        "from gemlet.model import *\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2048, 2048))\n"
        "try: save(Configuration(groups=tuple(GroupSpec(name=f'group-{n}') for n in range(1000))), sys.argv[1])\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=30, check=True
    )
    assert result.stdout.startswith("ConfigError")
    assert path.read_text() == "# old"
    assert [file.name for file in tmp_path.iterdir()] == ["gemlet.toml"]


def test_save_into_a_directory_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        save(SMALL, tmp_path / "none" / "gemlet.toml")
    assert "create the directory" in (caught.value.hint or "")
