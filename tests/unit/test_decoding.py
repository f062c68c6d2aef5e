"""Threads that use a type for the first time at once."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest

from gemlet.decoding import convert, from_json

# Reading the annotations of Inner takes a while, and other threads run meanwhile. msgspec's own functions crash then.
THREADS = """
import threading, time
import msgspec
from gemlet.decoding import convert, from_json

def slowly():
    time.sleep(0.01)
    return int

for turn in range(10):
    class Inner(msgspec.Struct):
        a: "slowly()"

    class Outer(msgspec.Struct):
        inner: Inner
        b: int

    class Another(msgspec.Struct):
        inners: list[Inner]

    done = []
    uses = [
        lambda: convert({"inner": {"a": 1}, "b": 2}, Outer).inner.a,
        lambda: from_json(b'{"inners": [{"a": 1}]}', Another).inners[0].a,
        lambda: convert([{"a": 1}], list[Inner])[0].a,
        lambda: from_json('{"inner": {"a": 1}, "b": 2}', Outer).inner.a,
    ]
    def late(use, delay):
        time.sleep(delay)
        done.append(use())
    threads = [threading.Thread(target=late, args=(use, n * 0.003)) for n, use in enumerate(uses)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert done == [1] * 4, done
"""


def test_a_type_that_threads_use_for_the_first_time_at_once():
    done = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_does_not_fit_is_refused():
    class Point(msgspec.Struct):
        x: int

    assert convert({"x": 1}, Point) == from_json(b'{"x": 1}', Point) == Point(1)
    with pytest.raises(msgspec.ValidationError, match="Expected `int`"):
        convert({"x": "1"}, Point)
    with pytest.raises(msgspec.ValidationError, match="Expected `int`"):
        from_json(b'{"x": "1"}', Point)


def test_bytes_are_taken_as_they_are_where_that_is_asked():
    assert convert([b"1"], list[bytes], builtin_types=(bytes,)) == [b"1"]
