"""Files that nobody means: each is a configuration or a ConfigError, soon and in little memory."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest

from gemlet.config import files, text_file
from gemlet.errors import ConfigError

WRONG = {
    "deep arrays": ("[groups.a]\nusers = " + "[" * 5000 + "]" * 5000, "2:.*deep"),
    "deep tables": ("x = " + "{a = " * 3000 + "1" + "}" * 3000, "1:.*deep"),
    "a long key": ("[groups]\n" + ".".join("a" * 20_000) + " = 1", "2:.*parts"),
    "a long header": ("[" + ".".join("a" * 20_000) + "]", "1:.*parts"),
    "quoted parts": ("[groups]\n" + ".".join(['"a"'] * 20_000) + " = 1", "2:.*parts"),
    "many digits": ("[groups.a]\nmemory = " + "9" * 5000, "2:10: .*digits"),
    "many hexadecimal digits": ("[groups.a]\nmin = 0x" + "f" * 300, "2:7: min of group 'a': expected a share"),
    "an index": ("[[devices]]\nindex = 0x" + "f" * 5000, "2:9: index of a device: expected a number from 0"),
    "a uid": ('[groups.a]\nusers = ["4294967296"]', "2:9: users of group 'a': 4294967296 is not a uid"),
    "a user with a NUL": ('[groups.a]\nusers = ["a\\u0000b"]', "2:9: users .* cannot be the name of a user"),
    "a user with a colon": ('[groups.a]\nusers = ["a:b"]', "cannot be the name of a user"),
    "a long user": ('[groups.a]\nusers = ["' + "a" * 5000 + '"]', "cannot be the name of a user"),
    "a long unknown key": ("[groups.a]\n" + "k" * 100_000 + " = 1", "unknown key"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_said_in_few_words_and_little_memory(what: str) -> None:
    text, message = WRONG[what]
    tracemalloc.start()
    try:
        with pytest.raises(ConfigError, match=message) as caught:
            files.parse(text, "gemlet.toml")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(str(caught.value)) < 1200
    assert peak < 50 * len(text) + 1_000_000


@pytest.mark.parametrize("path", ["gemlet.toml", "resource.conf", "resource-config.txt"])
def test_a_defect_of_a_reader_is_an_error_of_the_file(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def reader_of(_: object) -> object:
        def read(_: object) -> None:
            raise ZeroDivisionError("surprise")

        return read

    monkeypatch.setattr(files, "reader_of", reader_of)
    with pytest.raises(ConfigError, match=rf"{path}: cannot be understood: ZeroDivisionError: surprise"):
        files.parse("", path)


def test_what_people_write_is_far_from_the_bounds() -> None:
    deep = '[groups."' + "a.b" * 80 + '"]\n# ' + "1.2." * 200 + "\nusers = [" + '"ana", ' * 3000 + "]"
    (group,) = files.parse(deep, "gemlet.toml").groups
    assert len(group.users) == 3000


def test_a_superscript_two_is_a_name_and_no_number() -> None:
    (group,) = files.parse('[groups.a]\nusers = ["²"]', "gemlet.toml").groups
    assert group.users == ("²",)


def test_only_files_are_read_as_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        with pytest.raises((ConfigError, IsADirectoryError)):
            text_file.read_bytes(path, 100)
        with pytest.raises(ConfigError):
            text_file.read_text(path, regular=True)
    (tmp_path / "file").write_bytes(b"x" * 101)
    with pytest.raises(ConfigError, match="larger than 100"):
        text_file.read_bytes(tmp_path / "file", 100)


def test_an_endless_file_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_file, "MAX_BYTES", 1000)
    with pytest.raises(ConfigError, match="larger than"):
        text_file.read_text(Path("/dev/zero"))


def test_an_interrupt_while_a_file_is_written_leaves_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupted)
    (tmp_path / "file").write_text("old")
    with pytest.raises(KeyboardInterrupt):
        text_file.write_text(tmp_path / "file", "new")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("file", "old")]
