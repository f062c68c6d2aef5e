"""The executor's process from inside: what it does with its arena."""

from __future__ import annotations

import logging
import os
import queue
import socket
import sys
from unittest import mock

import numpy as np
import pytest

from gemlet.inference_protocol import tensors
from gemlet.serve.execution import arena, protocol
from gemlet.serve.execution.backend import GpuLet
from gemlet.serve.execution.process_settings import Settings
from gemlet.serve.execution.worker import Channel, LogSender, Worker
from gemlet.serve.models.specification import ModelError
from tests.unit.serve.stand_in import model


@pytest.mark.parametrize("nbytes", [0, 1 << 17])
def test_no_model_takes_the_pages_of_an_arena_from_the_server(nbytes):
    descriptor = arena.create(1 << 16)
    with pytest.raises(PermissionError):
        os.ftruncate(descriptor, nbytes)
    os.close(descriptor)


@pytest.mark.parametrize("outputs", [{}, {"Z": np.array([["x"]])}], ids=["missing", "not numbers"])
def test_outputs_of_a_model_that_fails_half_way_leave_nothing_in_the_arena(outputs):
    descriptor = arena.create(1 << 16)
    outputs_arena = arena.Arena(descriptor)
    os.close(descriptor)
    worker = Worker(None, Said(), None, outputs_arena)
    spec = model(outputs=(("Y", "FP32", (-1,)), ("Z", "FP32", (-1,))))
    with pytest.raises(ModelError):
        worker._placed(spec, {"Y": np.zeros((1, protocol.SMALL_BYTES), dtype=np.float32)} | outputs)
    assert outputs_arena.used == 0
    outputs_arena.close()


def test_outputs_that_have_no_room_are_an_error_and_leave_nothing(monkeypatch):
    monkeypatch.setattr(protocol, "MAX_OUTPUTS", 1 << 16)
    descriptor = arena.create(1 << 16)
    outputs_arena = arena.Arena(descriptor)
    os.close(descriptor)
    worker = Worker(None, Said(), None, outputs_arena)
    spec = model(outputs=(("Y", "FP32", (-1,)), ("Z", "UINT8", (-1,))))
    given = {"Y": np.zeros((1, protocol.SMALL_BYTES), dtype=np.float32)}
    worker._release(worker._placed(spec, given | {"Z": np.zeros((1, 1 << 16), dtype=np.uint8)}))
    with pytest.raises(ModelError, match="65537 bytes have no room"):
        worker._placed(spec, given | {"Z": np.zeros((1, (1 << 16) + 1), dtype=np.uint8)})
    assert outputs_arena.used == 0
    outputs_arena.close()


@pytest.mark.parametrize(("datatype", "element"), [("FP32", np.float32(1)), ("FP32", np.int8(1)), ("BYTES", b"")])
def test_outputs_that_can_have_no_room_are_not_copied(datatype, element):
    """An array may be of far more than there is of memory, by one element that it repeats."""
    descriptor = arena.create(1 << 16)
    outputs_arena = arena.Arena(descriptor)
    os.close(descriptor)
    worker = Worker(None, Said(), None, outputs_arena)
    repeated = np.broadcast_to(np.array(element), (1, 1 << 58))  # no machine has as many addresses
    with pytest.raises(ModelError, match="have no room"):
        worker._placed(model(outputs=(("Y", datatype, (-1,)),)), {"Y": repeated})
    outputs_arena.close()


@pytest.mark.parametrize("more", [0, 1])
def test_only_outputs_that_are_not_small_take_room(more):
    descriptor = arena.create(1 << 16)
    outputs_arena = arena.Arena(descriptor)
    os.close(descriptor)
    worker = Worker(None, Said(), None, outputs_arena)
    data = np.arange(protocol.SMALL_BYTES + more, dtype=np.uint8).reshape(1, -1)
    (placed,) = worker._placed(model(outputs=(("Y", "UINT8", (-1,)),)), {"Y": data})
    assert (placed.offset == -1, outputs_arena.used > 0) == (not more, bool(more))
    found = outputs_arena.view[placed.offset : placed.offset + placed.nbytes] if more else placed.inline
    assert bytes(found) == data.tobytes()
    outputs_arena.close()


@pytest.mark.parametrize(
    ("datatype", "array"),
    [
        ("BYTES", np.array([[b"x", "y"]], dtype=object)),
        ("INT32", np.array([[1, -2]], dtype=">i4")),
        ("INT32", np.array([[1, 0], [0, 2]], dtype=np.int32).T),
        ("FP32", np.array([[1, 2]], dtype=np.int64)),
        ("BOOL", np.array([[True, False]])),
        ("BF16", np.array([[1, 2]], dtype=np.uint16)),
    ],
    ids=["objects", "other order of bytes", "not contiguous", "another type", "truth", "a type that numpy has not"],
)
def test_small_outputs_are_what_large_ones_are(datatype, array):
    worker = Worker(None, Said(), None, None)
    (placed,) = worker._placed(model(outputs=(("Y", datatype, (-1,)),)), {"Y": array})
    assert placed.inline == bytes(tensors.to_buffer(array, datatype))


class Said:
    """A channel that keeps what is sent."""

    def __init__(self):
        self.messages = queue.SimpleQueue()

    def send(self, message):
        self.messages.put(message)


class Leaving:
    """A backend whose models call sys.exit()."""

    def load(self, model):
        sys.exit(3)

    def run(self, *_):
        sys.exit(4)

    def partition(self, _):
        pass


class Unable(Leaving):
    def partition(self, _):
        raise ModelError("no memory")


def test_a_partition_that_fails_leaves_no_lane_open():
    ours, theirs = socket.socketpair()
    lane, gpu_let = Channel(theirs), GpuLet(name="let", sm=1.0, models={})
    worker = Worker(Unable(), Said(), None, None)
    with ours:
        with pytest.raises(ModelError):
            worker._partition((gpu_let,), {"let": lane})
        assert not ours.recv(1)
        (thread,) = worker._threads
        thread.join(60)
    with pytest.raises(OSError, match="Bad file descriptor"):
        lane.send(protocol.Log(0, "", ""))


@pytest.mark.parametrize("threads", [0, 1])
def test_a_partition_without_threads_leaves_all_as_it_was(monkeypatch, threads):
    backend, left, plain = mock.Mock(), [1 + threads], Settings.start

    def start(*given, **named):
        if not left[0]:
            raise RuntimeError("can't start new thread")
        left[0] -= 1
        return plain(*given, **named)

    monkeypatch.setattr(Settings, "start", start)
    worker = Worker(backend, Said(), None, None)
    before, *others = (GpuLet(name=name, sm=0.5, models={}) for name in ("before", "one", "other"))
    worker._partition((before,))
    pairs = {gpu_let.name: socket.socketpair() for gpu_let in others}
    lanes = {name: Channel(theirs) for name, (_, theirs) in pairs.items()}
    with pytest.raises(RuntimeError):
        worker._partition(tuple(others), lanes)
    assert backend.partition.mock_calls == [mock.call((before,))]
    assert set(worker._gpu_lets) == worker._named == {"before"}
    for ours, _ in pairs.values():
        assert not ours.recv(1)
        ours.close()
    worker._gpu_lets["before"].put(None)
    for thread in worker._threads:
        thread.join(60)
        assert not thread.is_alive()


def test_lanes_that_did_not_get_through_are_an_error_and_the_next_ones_are_not_mistaken():
    ours, door = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pairs = [socket.socketpair() for _ in range(3)]
    with ours, door:
        worker = Worker(None, Said(), None, None, door)
        socket.send_fds(ours, [b"."], [pairs[0][1].fileno()])
        ours.send(b".")  # what is left of a message whose descriptors the process has no room for
        socket.send_fds(ours, [b"."], [pairs[1][1].fileno()])
        with pytest.raises(ModelError, match="open files"):
            worker._opened(("a", "b", "c"))
        socket.send_fds(ours, [b"."], [pairs[2][1].fileno()])
        found = worker._opened(("d",))
        for _, theirs in pairs:
            theirs.close()
        found["d"].send(protocol.Log(0, "", "here"))
        assert pairs[2][0].recv(99).endswith(b"here")
        assert pairs[0][0].recv(1) == b""
        found["d"].close()
    for first, _ in pairs:
        first.close()


def test_a_model_that_calls_exit_has_failed_and_its_gpu_let_goes_on():
    said = Said()
    worker = Worker(Leaving(), said, None, None)
    worker._models["echo"] = model()
    worker._partition((GpuLet(name="let", sm=1.0, models={"echo": 8}),))
    for ticket in (1, 2):
        worker._enqueue(protocol.Run(ticket, "let", "echo", 1, ()))
        told = said.messages.get(timeout=60)
        assert (told.ticket, told.message) == (ticket, "SystemExit: 4")
    worker._gpu_lets["let"].put(None)
    for message in (protocol.Load(3, model()), None):
        worker._orders.put(message)
    worker._obey()
    told = said.messages.get(timeout=60)
    assert (told.ticket, told.message) == (3, "SystemExit: 3")


class TextOfItsOwn(Exception):
    def __str__(self):
        raise self


@pytest.mark.parametrize(
    ("error", "starts"),
    [
        (ValueError("no file \udcff"), "ValueError: no file \\udcff"),
        (ModelError("no file \udcff", hint="\udcff"), "no file \\udcff"),
        (ValueError("x" * 10_000_000), "ValueError: xxx"),
        (TextOfItsOwn(), "TextOfItsOwn, whose text cannot be had"),
    ],
    ids=["half of a character", "the same in an error of ours", "long", "none"],
)
def test_whatever_a_model_raises_can_be_sent(error, starts, monkeypatch):
    """Else its gpu-let's thread ended, and all that waited for it got no answer."""
    monkeypatch.setattr("gemlet.serve.execution.worker.logger.disabled", True)  # pytest cannot send such text either

    class Raising(Leaving):
        def run(self, *_):
            raise error

    worker = Worker(Raising(), Said(), None, None)
    worker._models["m"] = model()
    (sent,) = [worker._answer(protocol.Run(1, "let", "m", 1, (), ()))]
    failed = protocol.to_server.decode(protocol.frame(sent)[protocol.LENGTH_BYTES :])
    assert failed.message.startswith(starts)
    assert len(failed.message) < 10_000


def test_a_log_line_that_cannot_be_shown_costs_that_line(capsys):
    said = Said()
    handler = LogSender(said)
    for given in (TextOfItsOwn(), "\udcff"):
        handler.handle(logging.LogRecord("gemlet.serve.executor", logging.INFO, "", 0, "%s", (given,), None))
    assert said.messages.get_nowait().line == "\\udcff"
    assert said.messages.empty()


HALF = "name\udce9"  # what Python makes of a name that is not UTF-8


class Sent(Said):
    """A channel that sends what can be sent."""

    def send(self, message):
        super().send(protocol.to_server.decode(protocol.frame(message)[protocol.LENGTH_BYTES :]))


def test_an_answer_that_cannot_be_sent_has_failed_and_leaves_nothing_in_the_arena():
    descriptor = arena.create(1 << 16)
    outputs = arena.Arena(descriptor)
    os.close(descriptor)
    sent = Sent()
    worker = Worker(None, sent, None, outputs)
    here = protocol.ArenaTensor(HALF, "UINT8", (8192,), outputs.allocate(8192), 8192)
    worker._send(sent, protocol.DoneEach(7, (protocol.Answers((here,)),), 1.0))
    told = sent.messages.get(timeout=60)
    assert (told.ticket, told.kind) == (7, "crash")
    assert outputs.used == 0
    outputs.close()
