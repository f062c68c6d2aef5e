"""The scanner finds exactly the keys that tomllib finds, in whatever shape they are written."""

from __future__ import annotations

import tomllib
from textwrap import dedent
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemlet.config.files import parse
from gemlet.config.render import render
from gemlet.config.toml_places import Path, scan
from gemlet.errors import ConfigError
from gemlet.model import Configuration, GroupSpec

if TYPE_CHECKING:
    from collections.abc import Iterator

SHAPES = dedent('''\
    # comment with = and [brackets]
    top = 1 # [not.a.table]
    "quoted key" = "a # b"
    dotted . "key.with.dot" . \'literal\' = \'c:\\\\\'
    date = 1979-05-27 07:32:00  # with a blank
    dates = [ 1979-05-27 07:32:00 , 1979-05-27T07:32:00Z ]
    multi = """
    [groups.fake]
    x = 1 \\""" still inside
    """
    quotes = """"two quotes stand before the end: """""
    literal = \'\'\'
    y = 2\'\'\'
    empty = ""
    inline = { a = 1, b = { c = [1, {d = 2}], "e f" = "}" } }
    array = [ # comment ]
      1, [2, 3],
      "]", ]

    [groups]
    [groups.a] # comment
    min=0.1
    [ groups . "b/c" ]
    min = +inf
    [[devices]]
    index = 0
    [devices.extra]
    k = true
    [[devices.list]]
    k = 1
    [[devices.list]]
    k = 2
    [[devices]]
    index = 1
    [[devices.list]]
    k = 3
''')


def leaves(value: object, path: Path = ()) -> Iterator[Path]:
    if path:
        yield path
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, (*path, key))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from leaves(inner, (*path, number))


def described(text: str) -> set[Path]:
    found = set(leaves(tomllib.loads(text)))
    # Arrays of tables have no place as a whole: each table has its own.
    return {path for path in found if not any(other[:-1] == path and other[-1] == 0 for other in found)}


def check(text: str) -> None:
    offsets = scan(text)
    assert described(text) <= offsets.keys()
    assert offsets.keys() <= set(leaves(tomllib.loads(text)))
    for path, found in offsets.items():
        assert text[found.key] in "[{\"'" or text[found.key].isalnum() or text[found.key] in "+-_"
        name = path[-1]
        if isinstance(name, str) and found.value != found.key and "." not in text[found.key : found.value]:
            assert text[found.key : found.value].split("=", maxsplit=1)[0].strip().strip("\"'") == name


def test_every_shape() -> None:
    check(SHAPES)
    check(SHAPES.replace("\n", "\r\n"))


def test_values_are_found() -> None:
    offsets = scan(SHAPES)
    for path, beginning in {
        ("groups", "a", "min"): "0.1",
        ("groups", "b/c", "min"): "+inf",
        ("inline", "b", "c", 1, "d"): "2}",
        ("devices", 0, "list", 1, "k"): "2\n",
        ("devices", 1, "list", 0, "k"): "3\n",
        ("array", 2): '"]"',
        ("dates", 1): "1979-05-27T",
    }.items():
        assert SHAPES[offsets[path].value :].startswith(beginning)


def test_what_it_does_not_know_costs_only_places() -> None:
    assert ("a",) in scan("a = 1\nb ? 2\n")
    scan("[")
    scan('a = "')


texts = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=20)


@given(st.lists(texts, unique=True, max_size=4))
def test_names_of_any_kind(names: list[str]) -> None:
    check(render(Configuration(groups=tuple(GroupSpec(name=name, min=0.5, users=(name, "#")) for name in names))))


@given(st.text(alphabet="[]{}\"'=.,#\n\\ a1", max_size=40))
def test_any_text_that_tomllib_accepts(text: str) -> None:
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        scan(text)  # must end, and must not fail
    else:
        check(text)


def test_places_count_characters_not_bytes() -> None:
    with pytest.raises(ConfigError) as caught:
        parse('[groups."ü"]\nusers=["ü"]; min = 0', "a.toml")
    assert (caught.value.line, caught.value.column) == (2, 12)
    with pytest.raises(ConfigError) as caught:
        parse('groups."ü".min = "ü"', "a.toml")
    assert (caught.value.line, caught.value.column) == (1, 18)
