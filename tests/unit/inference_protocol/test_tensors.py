"""Tensors as bytes, and the arena they lie in."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemlet.inference_protocol import tensors
from gemlet.serve.execution import arena


@given(st.lists(st.binary(max_size=20), max_size=10))
def test_bytes_are_packed_and_unpacked(elements):
    assert tensors.unpack(tensors.pack(elements), len(elements)) == elements


@given(st.binary(max_size=40), st.integers(0, 5))
def test_any_bytes_are_elements_or_refused(data, count):
    try:
        elements = tensors.unpack(data, count)
    except tensors.BadTensor:
        return
    assert tensors.pack(elements) == data


@pytest.mark.parametrize("datatype", sorted(tensors.ELEMENTS))
def test_arrays_of_every_datatype_survive(datatype):
    size, name = tensors.ELEMENTS[datatype]
    array = np.arange(6).reshape(2, 3).astype(name)
    data = tensors.to_buffer(array, datatype)
    assert len(data) == tensors.nbytes(datatype, (2, 3)) == 6 * size
    np.testing.assert_array_equal(tensors.to_array(data, datatype, (2, 3)), array)


def test_arrays_that_are_none_are_refused():
    with pytest.raises(tensors.BadTensor):
        tensors.to_array(b"123", "FP32", (1,))
    with pytest.raises(tensors.BadTensor):
        tensors.to_buffer(np.array(["x"]), "FP32")
    with pytest.raises(tensors.BadTensor):
        tensors.nbytes("FP31", (1,))


@given(st.lists(st.lists(st.binary(max_size=3), min_size=2, max_size=2), min_size=1, max_size=6), st.data())
def test_a_batch_of_bytes_is_cut_between_its_rows(rows, data):
    sizes = cut(len(rows), data)
    elements = [element for row in rows for element in row]
    packed, of_rows = tensors.pack(elements), tensors.row_bytes(elements, (len(rows), 2))
    parts = tensors.split(packed, "BYTES", (len(rows), 2), sizes, of_rows)
    assert b"".join(parts) == packed
    for part, size in zip(parts, sizes, strict=True):
        assert len(tensors.unpack(part, 2 * size)) == 2 * size


@pytest.mark.parametrize("of_rows", [(), (4,), (4, 5), (4, 4, 0)])
def test_rows_of_bytes_that_are_not_those_of_the_batch_are_refused(of_rows):
    with pytest.raises(tensors.BadTensor, match="8 bytes whose 2 rows have"):
        tensors.split(tensors.pack([b"", b""]), "BYTES", (2, 1), [1, 1], of_rows)


def test_rows_without_elements_have_no_bytes():
    assert tensors.row_bytes([], (3, 0)) == (0, 0, 0)
    assert [bytes(part) for part in tensors.split(b"", "BYTES", (3, 0), [1, 2], (0, 0, 0))] == [b"", b""]


@given(st.integers(1, 8), st.integers(0, 5), st.data())
def test_a_batch_of_numbers_is_cut_between_its_rows(rows, width, data):
    sizes = cut(rows, data)
    array = np.arange(rows * width, dtype=np.int32).reshape(rows, width)
    parts = tensors.split(tensors.to_buffer(array, "INT32"), "INT32", (rows, width), sizes)
    assert [len(part) for part in parts] == [4 * width * size for size in sizes]
    assert b"".join(parts) == array.tobytes()


def cut(rows, data):
    sizes = []
    while rows:
        sizes.append(data.draw(st.integers(1, rows)))
        rows -= sizes[-1]
    return sizes


def test_a_batch_of_other_rows_is_refused():
    with pytest.raises(tensors.BadTensor, match="batch of 3 rows"):
        tensors.split(b"\0" * 8, "INT32", (2, 1), [1, 2])


@given(st.lists(st.tuples(st.integers(0, 3000), st.booleans()), max_size=60))
def test_an_arena_gives_each_its_own_and_gets_all_back(steps):
    descriptor = arena.create(16 * 1024)
    memory = arena.Arena(descriptor)
    os.close(descriptor)
    held = {}
    for size, release in steps:
        if release and held:
            offset = next(iter(held))
            memory.release(offset)
            del held[offset]
        elif (offset := memory.allocate(size)) is not None:
            assert offset % arena.ALIGNMENT == 0
            assert all(offset + size <= other or other + taken <= offset for other, taken in held.items())
            held[offset] = max(1, size)
        else:
            assert memory.used + size > 4 * 1024  # it is not refused while there is plenty
    for offset in held:
        memory.release(offset)
    assert memory.used == 0
    assert memory.allocate(16 * 1024) == 0
    memory.close()


def test_a_process_that_maps_an_arena_sees_its_bytes():
    descriptor = arena.create(4096)
    memory, other = arena.Arena(descriptor), arena.Mapping(descriptor)
    os.close(descriptor)
    offset = memory.allocate(5)
    memory.view[offset : offset + 5] = b"hello"
    assert bytes(other.view[offset : offset + 5]) == b"hello"
    memory.close()
    other.close()
