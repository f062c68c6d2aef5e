"""What arguments of serving benchmarks must be; argparse says what is wrong, before anything is started. Pure."""

from __future__ import annotations

import argparse
from math import isfinite
from pathlib import Path


def positive(text: str) -> float:
    """A number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not (isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def count(text: str) -> int:
    """A whole number from 1."""
    if not (text.isascii() and text.isdigit() and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1")
    return int(text)


def positives(text: str) -> list[float]:
    """Numbers above 0, ascending."""
    return sorted(positive(each) for each in text.split(","))


def output(text: str) -> Path:
    """A file in a folder that is there: results come last, and would be lost."""
    path = Path(text)
    if not path.resolve().parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {str(path.parent)!r}")
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is a folder")
    return path
