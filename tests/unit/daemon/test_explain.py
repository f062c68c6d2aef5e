"""What `gemlet explain` says of groups that co-run, and of groups that do not."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gemlet.daemon.explain import TURNS, _sharing


def group(
    name: str,
    *,
    why: str = "shares",
    speed: float | None = None,
    state: str = "runs",
    most: float = 1.0,
    used: float | None = None,
) -> SimpleNamespace:
    clients = (SimpleNamespace(state=state),)
    return SimpleNamespace(name=name, why=why, speed=speed, clients=clients, max=most, share={"10s": used})


def said(*groups: SimpleNamespace) -> str:
    return "\n".join(_sharing(groups[0], SimpleNamespace(groups=groups)))  # type: ignore[arg-type]


def test_those_that_co_run() -> None:
    text = said(group("a", speed=0.98), group("b"))
    assert "runs freely beside others" in text
    assert "98% of its speed alone" in text


def test_one_at_its_maximum_is_not_said_to_run_freely() -> None:
    text = said(group("a", most=0.5, used=0.49), group("b"))
    assert "freely" not in text
    assert "without turns" in text
    assert "runs freely" in said(group("a", most=0.5, used=0.2), group("b"))


def test_one_that_is_alone_says_nothing_of_others() -> None:
    assert said(group("a", speed=1.0)) == ""
    assert said(group("a", speed=1.0), group("b", state="idle")) == ""


@pytest.mark.parametrize("why", TURNS)
def test_why_it_takes_turns(why: str) -> None:
    assert TURNS[why] in said(group("a", why=why), group("b"))


def test_one_that_stops_for_requests_is_not_said_to_run_freely() -> None:
    text = said(group("a"), group("b", why="slowed"))
    assert "stops for the requests of 'b'" in text
    assert "freely" not in text


def test_one_that_shares_waits_for_the_turns_of_another() -> None:
    text = said(group("a", speed=0.99), group("b", why="behind", state="waits"), group("c"))
    assert "waits for the turns of 'b', and runs freely beside all others" in text
    assert "no promise is in danger" not in text
    assert "runs freely beside others" in said(group("a"), group("b", why="behind", state="idle"), group("c"))
