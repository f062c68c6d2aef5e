"""How many examples a property tries that takes long for each."""

from __future__ import annotations

from hypothesis import settings

USUAL = 100  # hypothesis' own number, which the default profile keeps for properties that are quick


def few(count: int) -> settings:
    """``count`` examples in `make test`, and in the same measure more or fewer in another profile of conftest.py."""
    return settings(max_examples=max(1, count * settings().max_examples // USUAL))
