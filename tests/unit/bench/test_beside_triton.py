"""What bench.beside_triton tells of its rounds."""

from __future__ import annotations

from bench.beside_triton import HALF, Measured, told


def test_rates_are_compared_when_full_and_tails_at_half_load():
    def runs(*pairs: tuple[float, float]) -> list[Measured]:
        return [Measured(rate, p99 / 2, p99, 1e-4) for rate, p99 in pairs]

    found = {
        ("grpc", "16", "triton"): runs((100, 50), (200, 40), (100, 30)),
        ("grpc", "16", "gemlet"): runs((110, 90), (100, 90), (300, 90)),
        ("grpc", HALF, "triton"): runs((50, 100), (50, 200), (50, 400)),
        ("grpc", HALF, "gemlet"): runs((50, 90), (50, 220), (50, 100)),
    }
    rows = {(row["load"], row["server"]): row for row in told(found)}
    assert rows["16", "gemlet"]["of_triton"] == (1.1, 0.5, 3.0)
    assert rows[HALF, "gemlet"]["of_triton"] == (0.9, 0.25, 1.1)
    assert rows[HALF, "gemlet"]["p99_us"] == 100
    assert rows["16", "triton"]["of_triton"] == (1.0, 1.0, 1.0)
