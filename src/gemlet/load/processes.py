"""Runs a job in processes of their own: as many as it needs, all sending parts of the same arrivals."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from dataclasses import dataclass
from math import ceil
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING

from gemlet import own_python
from gemlet.load.generator import Generator, client_of
from gemlet.load.job import LoadError
from gemlet.load.recording import Part, Recording

if TYPE_CHECKING:
    from multiprocessing.context import SpawnProcess

    from gemlet.load.job import Job

EACH = 8000.0  # requests/s that one process is given when nobody says how many processes; HTTP, small tensors
EACH_GRPC = 2000.0
AHEAD_S = 0.1  # between the last process being ready and the first second
START_S = 60.0


def fitting(job: Job) -> int:
    """Processes for the highest rate of a job, at most one for each core."""
    seconds = [job.seconds * step / 100 for step in range(101)]
    highest = max(sum(stream.rate.at(second) for stream in job.streams) for second in seconds)
    each = EACH_GRPC if job.address.grpc else EACH
    return max(1, min(os.cpu_count() or 1, ceil(highest / each)))


@dataclass(frozen=True, slots=True)
class Run:
    """What each process reported. began: the first second, Unix time; seconds: of the job, or until it was stopped."""

    parts: list[Part]
    began: float
    seconds: float
    stopped: bool


def run(job: Job, processes: int) -> Run:
    """What each process reports; Ctrl-C makes them stop and report. Raises LoadError if one dies or finds no server."""
    context = own_python.spawning()
    children: list[tuple[SpawnProcess, Connection]] = []
    try:
        for part in range(processes):
            mine, theirs = context.Pipe()
            child = context.Process(target=_child, args=(job, part, processes, theirs), daemon=True)
            child.start()
            theirs.close()
            children.append((child, mine))
        for child, pipe in children:
            _receive(child, pipe, START_S)  # it is connected
        start = time.monotonic() + AHEAD_S
        began = time.time() + AHEAD_S
        for _, pipe in children:
            pipe.send(start)
        parts = _reports(children, job)
    finally:
        for child, pipe in children:
            pipe.close()  # ends a child that waits for the start
            child.join(5.0)
            if child.is_alive():
                child.kill()
                child.join()
    stops = [part.seconds for part in parts if part.seconds is not None]
    return Run(parts, began, max(stops, default=job.seconds), bool(stops))


def _reports(children: list[tuple[SpawnProcess, Connection]], job: Job) -> list[Part]:
    """Of all processes. The first interrupt makes them stop sending, the second one is raised."""
    limit = job.seconds + job.patience_s + START_S
    parts: list[Part] = []
    try:
        _collect(parts, children, limit)
    except KeyboardInterrupt:
        for _, pipe in children:
            with contextlib.suppress(OSError):  # one that has reported already
                pipe.send(None)
        _collect(parts, children, job.patience_s + START_S)
    return parts


def _collect(parts: list[Part], children: list[tuple[SpawnProcess, Connection]], seconds: float) -> None:
    """Adds what the others report."""
    for child, pipe in children[len(parts) :]:
        part = _receive(child, pipe, seconds)
        assert part is not None
        parts.append(part)


def together(parts: list[Part]) -> list[Recording]:
    """The recordings of all processes, by stream."""
    whole = [Recording() for _ in parts[0].recordings]
    for part in parts:
        for recording, more in zip(whole, part.recordings, strict=True):
            recording.add(more)
    return whole


def _receive(child: SpawnProcess, pipe: Connection, seconds: float) -> Part | None:
    if not wait([pipe, child.sentinel], seconds):
        raise LoadError(f"a process of the generator did not answer for {seconds:.0f} s")
    try:
        answer = pipe.recv() if pipe.poll() else LoadError("a process of the generator died")
    except EOFError:
        answer = LoadError("a process of the generator died")
    if isinstance(answer, LoadError):
        raise answer
    assert answer is None or isinstance(answer, Part)
    return answer


def _child(job: Job, part: int, parts: int, pipe: Connection) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):  # everybody may get those; the parent tells us what to do
        signal.signal(number, signal.SIG_IGN)
    try:
        with contextlib.suppress(ImportError):
            import uvloop  # noqa: PLC0415  a third of the cost of each request, where it is there

            uvloop.run(_work(job, part, parts, pipe))
            return
        asyncio.run(_work(job, part, parts, pipe))
    except LoadError as error:
        pipe.send(error)
    except (EOFError, BrokenPipeError):
        pass  # the parent gave up


async def _work(job: Job, part: int, parts: int, pipe: Connection) -> None:
    client = client_of(job.address, job.connections)
    await client.open()
    try:
        pipe.send(None)
        start: float = pipe.recv()
        generator = Generator(job, client, part, parts)
        # The parent says nothing but "stop", with a word or with its end.
        asyncio.get_running_loop().add_reader(pipe.fileno(), _stop, generator, pipe)
        report = await generator.run(start)
        asyncio.get_running_loop().remove_reader(pipe.fileno())
        os.set_blocking(pipe.fileno(), True)  # uvloop's readers are not; a report is more than a socket takes at once
        pipe.send(report)
    finally:
        await client.close()


def _stop(generator: Generator, pipe: Connection) -> None:
    asyncio.get_running_loop().remove_reader(pipe.fileno())
    generator.stop()
