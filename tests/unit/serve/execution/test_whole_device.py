"""An executor's process under a fraction of MPS becomes one that the hook tells of the whole device."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING, NoReturn

import pytest

from gemlet import paths
from gemlet.devices import nvml
from gemlet.errors import DeviceError, GemletError
from gemlet.membership import MULTIPROCESSORS, PERCENTAGE
from gemlet.serve.execution.whole_device import start_again_as_whole

if TYPE_CHECKING:
    from collections.abc import Iterator

UUID = "GPU-00000000-0000-0000-0000-000000000001"


class Replaced(Exception):
    pass


class Card:
    uuid = UUID

    def __init__(self, count: int | None) -> None:
        self._count = count

    def multiprocessors(self) -> int | None:
        return self._count


class Session:
    def __init__(self, count: int | None) -> None:
        self._count = count

    def devices(self) -> list[Card]:
        return [Card(self._count)]


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Of the process; it has no hook yet, and its devices 132 multiprocessors."""
    own = {name: value for name, value in os.environ.items() if name not in (PERCENTAGE, MULTIPROCESSORS, "LD_PRELOAD")}
    monkeypatch.setattr(os, "environ", own)
    monkeypatch.setattr(nvml, "session", has(132))
    monkeypatch.setattr(paths, "hook_path", lambda: "/lib/hook.so")

    def replace(program: str, arguments: list[str]) -> NoReturn:
        raise Replaced(program, *arguments)

    monkeypatch.setattr(os, "execv", replace)
    monkeypatch.setattr(sys, "argv", ["worker.py", "--backend", "mps"])
    return own


def has(count: int | None):  # type: ignore[no-untyped-def]
    @contextlib.contextmanager
    def session() -> Iterator[Session]:
        yield Session(count)

    return session


def test_it_starts_again_with_the_hook_and_the_number(environment: dict[str, str]) -> None:
    environment |= {PERCENTAGE: "46.7", "LD_PRELOAD": "/lib/other.so"}
    with pytest.raises(Replaced) as replaced:
        start_again_as_whole("worker")
    assert replaced.value.args == (sys.executable, sys.executable, "-P", "-m", "worker", "--backend", "mps")
    assert environment[MULTIPROCESSORS] == f"{UUID}=132"
    assert environment["LD_PRELOAD"] == "/lib/hook.so:/lib/other.so"
    start_again_as_whole("worker")  # once


@pytest.mark.parametrize("percentage", [None, "100"])
def test_nothing_is_done_for_a_whole_device(environment: dict[str, str], percentage: str | None) -> None:
    if percentage:
        environment[PERCENTAGE] = percentage
    start_again_as_whole("worker")
    assert MULTIPROCESSORS not in environment


@pytest.mark.parametrize("percentage", ["half", "50%", "nan", "-50", "0", "1e", " "])
def test_a_percentage_that_makes_no_sense_is_refused(environment: dict[str, str], percentage: str) -> None:
    environment[PERCENTAGE] = percentage
    with pytest.raises(DeviceError, match=PERCENTAGE) as refused:
        start_again_as_whole("worker")
    assert repr(percentage) in refused.value.message
    assert PERCENTAGE in (refused.value.hint or "")


def test_what_cannot_be_known_is_refused(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    environment[PERCENTAGE] = "30"
    monkeypatch.setattr(nvml, "session", has(None))
    with pytest.raises(DeviceError, match="how many multiprocessors") as refused:
        start_again_as_whole("worker")
    assert MULTIPROCESSORS in (refused.value.hint or "")

    def missing() -> NoReturn:
        raise GemletError("there is no hook", hint="build it")

    monkeypatch.setattr(nvml, "session", has(132))
    monkeypatch.setattr(paths, "hook_path", missing)
    with pytest.raises(DeviceError, match="there is no hook"):
        start_again_as_whole("worker")
