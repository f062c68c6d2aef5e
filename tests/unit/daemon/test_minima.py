"""Minima that may meet on one device come to no more than the device."""

from __future__ import annotations

import pytest

from gemlet.daemon.minima import Minimum, fits, refusal, rivals


def test_a_device_is_given_away_once():
    held = [Minimum("a", 0.5), Minimum("b", 0.2)]
    assert fits(Minimum("c", 0.3), held)
    assert not fits(Minimum("c", 0.31), held)
    assert fits(Minimum("c", 1.0), [])
    assert not fits(Minimum("c", 1.01), [])


def test_tenths_come_to_a_whole():
    assert fits(Minimum("d", 0.7), [Minimum("a", 0.1), Minimum("b", 0.2)])
    assert fits(Minimum("j", 0.1), [Minimum(name, 0.1) for name in "abcdefghi"])


def test_no_minimum_needs_no_room():
    assert fits(Minimum("c", 0.0), [Minimum("a", 1.0)])
    assert rivals(Minimum("c", 0.1), [Minimum("a", 0.0)]) == []


def test_what_a_group_holds_itself_is_not_in_its_way():
    held = [Minimum("a", 0.6), Minimum("b", 0.3)]
    assert fits(Minimum("a", 0.7), held)
    assert not fits(Minimum("a", 0.71), held)


@pytest.mark.parametrize(
    ("mine", "theirs", "meet"),
    [(None, None, True), (None, 0, True), (0, None, True), (0, 0, True), (0, 1, False)],
)
def test_on_which_devices_two_meet(mine, theirs, meet):
    held = [Minimum("a", 0.6, theirs)]
    assert rivals(Minimum("b", 0.6, mine), held) == (held if meet else [])
    assert fits(Minimum("b", 0.6, mine), held) is not meet


def test_a_group_for_every_device_needs_room_on_each_and_not_on_all_together():
    held = [Minimum("a", 0.6, 0), Minimum("b", 0.5, 1), Minimum("c", 0.1)]
    assert fits(Minimum("d", 0.3), held)
    assert not fits(Minimum("d", 0.31), held)
    assert rivals(Minimum("d", 0.31), held) == [held[0], held[2]]


def test_a_refusal_names_who_is_in_the_way_and_what_is_left():
    held = [Minimum("a", 0.5, 0), Minimum("b", 0.2), Minimum("c", 0.9, 1)]
    error = refusal(Minimum("d", 0.4, 0), held)
    assert str(error) == "the minimum 40% cannot be guaranteed: a holds 50% and b holds 20%"
    assert error.hint == "ask for --min 30% or less, or for another device with `gemlet run --device`"


@pytest.mark.parametrize("taken", [1.0, 0.995, 1.5])
def test_no_minimum_of_nothing_is_proposed(taken):
    error = refusal(Minimum("d", 0.4), [Minimum("a", taken)])
    assert error.hint is not None
    assert error.hint.startswith("leave out --min, lower the minimum of another group")
