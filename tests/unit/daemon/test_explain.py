"""What `gemlet explain` says of groups that run side by side."""

from __future__ import annotations

import pytest

from gemlet.daemon.explain import _pair
from gemlet.daemon.native import PairUsage


@pytest.mark.parametrize(
    ("state", "speeds", "text"),
    [
        ("together", (0.9, 0.6), "runs beside b: 90% and 60% of their speed alone, more than in turns"),
        ("together", (0.0, 0.0), "runs beside b, until measured"),
        ("apart", (0.5, 0.4), "takes turns with b: side by side they had 50% and 40% of their speed alone"),
        ("apart", (0.0, 0.0), "takes turns with b: they are of one kind"),
        ("unknown", (0.0, 0.0), "side by side with b is yet to be tried"),
    ],
)
def test_a_pair(state: str, speeds: tuple[float, float], text: str) -> None:
    assert _pair(PairUsage(groups=("a", "b"), state=state, speeds=speeds), "a") == text


def test_the_other_of_a_pair() -> None:
    pair = PairUsage(groups=("a", "b"), state="together", speeds=(0.9, 0.6))
    assert _pair(pair, "b").startswith("runs beside a: 60% and 90%")
