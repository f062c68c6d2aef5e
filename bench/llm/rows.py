"""Which programs share the device in each row of the table, in which ways, and what that must come to. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

# A program of bench/programs with its options; None: bench/client, by its configuration in bench/runner.py.
PROGRAMS: dict[str, list[str] | None] = {
    "generate": ["generate.py"],
    "generate-graph": ["generate.py", "--graph"],
    "serve": ["serve.py"],
    "serve-graph": ["serve.py", "--graph"],
    "train": ["train.py"],
    "train-large": ["train.py", "--batch", "8", "--length", "512"],
    "lora": ["train.py", "--lora"],
    "jax": ["jax_train.py"],
    "bursts": ["bursts.py"],
    "notebook": ["notebook.py"],
    "changing": ["changing.py"],
    "saturating": None,
}
CLIENT_CONFIG = "100us"
SERVICES = ("serve", "serve-graph")
LAUNCHES = 1.5  # seconds that a window takes beyond its length: starts, reports, groups that are changed
IMPORT, EACH_START = 12.0, 1.5  # seconds until the first program that is loaded is ready, and each further one
BEST_EFFORT = "-best-effort"  # in the name of a process whose class cannot change


@dataclass(frozen=True)
class Way:
    """``environment`` is the one of its programs; ``base`` the way that its row is compared with."""

    title: str
    environment: str
    base: str | None = None


WAYS: dict[str, Way] = {
    "slicing": Way("time slicing", "native"),
    "mps": Way("MPS", "mps"),
    "gemlet": Way("gemlet", "gemlet", base="slicing"),
    "mps-gemlet": Way("gemlet under MPS", "mps-gemlet", base="mps"),
}
ALONE = "alone"  # native, nobody else
MPS_WAYS = {name for name, way in WAYS.items() if way.environment.startswith("mps")}


@dataclass(frozen=True)
class Member:
    """One program of a row, and its group under gemlet."""

    program: str
    number: int = 1  # of several
    min: float = 0.0
    priority: str = "normal"
    busy: float | None = None  # of a service: the part of time with a request under way; 1: one follows the other

    @property
    def name(self) -> str:
        return f"{self.program}-{self.number}"

    @property
    def load(self) -> tuple[str, float | None]:
        """What is the same work when it runs alone."""
        return self.program, self.busy


@dataclass(frozen=True)
class Row:
    """``judge`` says by which rules (bench/llm/verdicts.py) it is judged."""

    name: str
    title: str
    members: tuple[Member, ...]
    judge: str = "total"
    seconds: float = 5.0
    settle: float = 2.0  # seconds at the start of a window that are left out: promises hold from the third one on
    repeats: int = 5
    period: float = 0.0  # of the changing program

    def windows_alone(self, wanted: int) -> int:
        """Of each program. A service is judged against windows with the same arrivals: one for each repeat."""
        return max(wanted, self.repeats) if any(member.busy is not None for member in self.members) else wanted

    def cost(self, ways: Sequence[str], repeats: int, alone: int) -> float:
        """Seconds that it takes about, once its programs run."""
        loads = len({member.load for member in self.members})
        return (self.seconds + LAUNCHES) * (len(ways) * repeats + loads * alone)


def generators(count: int) -> tuple[Member, ...]:
    return tuple(Member("generate", number) for number in range(1, count + 1))


def service(busy: float, training: str = "train", program: str = "serve") -> tuple[Member, ...]:
    return (Member(program, min=0.3, priority="latency", busy=busy), Member(training, priority="best-effort"))


TRAINING = "beside best-effort training"
ROWS: dict[str, Row] = {
    row.name: row
    for row in (
        Row("generator-1", "an eager generator that nobody shares with", generators(1)),
        Row("training-1", "eager training that nobody shares with", (Member("train"),)),
        Row("generators-2", "two eager generators", generators(2)),
        Row("generator-training", "an eager generator beside eager training", (Member("generate"), Member("train"))),
        Row("service-100", f"service, busy all the time, {TRAINING}", service(1.0), "service", seconds=6.0),
        Row("service-60", f"service, busy 60 % of the time, {TRAINING}", service(0.6), "service", seconds=8.0),
        Row("service-20", f"service, busy 20 % of the time, {TRAINING}", service(0.2), "service", seconds=10.0),
        Row(
            "service-graph", "service with CUDA graphs, busy 60 %, beside saturating best-effort training",
            service(0.6, "train-large", "serve-graph"), "service-graph", seconds=8.0,
        ),
        Row(
            "generator-saturating", "an eager generator beside saturating kernels",
            (Member("generate"), Member("saturating")), "halves",
        ),
        Row(
            "minima", "two eager generators, minima 75 % and 25 %",
            (Member("generate", 1, min=0.75), Member("generate", 2, min=0.25)), "minima",
        ),
        Row(
            "changing", "launch-bound and saturating by turns, each for 5 s, beside saturating kernels",
            (Member("changing"), Member("saturating")), "changing", seconds=15.0, settle=0.0, repeats=3, period=5.0,
        ),
        Row("generators-4", "four eager generators", generators(4)),
        Row("generators-8", "eight eager generators", generators(8)),
        Row(
            "graphs-2", "two generators with CUDA graphs",
            (Member("generate-graph", 1), Member("generate-graph", 2)), "shown",
        ),
        Row(
            "bursts-saturating", "bursts with pauses beside saturating kernels",
            (Member("bursts"), Member("saturating")), "shown",
        ),
        Row(
            "mixed-4", "generator, LoRA, notebook, bursts",
            (Member("generate"), Member("lora"), Member("notebook"), Member("bursts")), "mixed", seconds=10.0,
        ),
        Row(
            "mixed-8", "generator with graphs, generator, service, training, LoRA, JAX, notebook, bursts",
            (
                Member("generate-graph"), Member("generate"), Member("serve", busy=0.2), Member("train"),
                Member("lora"), Member("jax"), Member("notebook"), Member("bursts"),
            ), "mixed", seconds=10.0, repeats=3,
        ),
    )
}  # fmt: skip
QUICK = ("generators-2", "generator-saturating", "service-100")
QUICK_SECONDS = 5.0  # two of them to settle


@dataclass(frozen=True)
class Chosen:
    """What was asked for."""

    rows: tuple[Row, ...]
    ways: tuple[str, ...]
    alone: int  # windows of each program alone


def choose(
    names: Sequence[str],
    ways: Sequence[str],
    *,
    quick: bool = False,
    seconds: float | None = None,
    repeats: int | None = None,
    alone: int | None = None,
) -> Chosen:
    """Raises ValueError for a name that there is not."""
    names = names or (QUICK if quick else tuple(ROWS))
    for what, given, known in (("row", names, ROWS), ("way", ways, WAYS)):
        if unknown := [name for name in given if name not in known]:
            raise ValueError(f"no {what} {', '.join(unknown)}; there are {', '.join(known)}")
    rows = [ROWS[name] for name in names]
    if quick:
        rows = [replace(row, seconds=QUICK_SECONDS if not row.period else row.seconds, repeats=1) for row in rows]
    if seconds is not None:
        rows = [replace(row, seconds=seconds) for row in rows]
    if repeats is not None:
        rows = [replace(row, repeats=repeats) for row in rows]
    ordered = tuple(way for way in WAYS if way in (ways or WAYS))
    return Chosen(tuple(rows), ordered, alone=alone or (1 if quick else 3))


def without_gemlet(chosen: Chosen) -> Chosen:
    """Only what a machine without a GPU, or a simulated one, can run."""
    return replace(chosen, ways=("slicing",))


def starting(programs: int) -> float:
    """Seconds until this many are loaded, together."""
    return IMPORT + EACH_START * programs if programs else 0.0


def turns(ways: Sequence[str], repeats: int) -> Iterator[tuple[int, str]]:
    """(repeat, way): all ways once in each repeat, each time another one first."""
    for repeat in range(repeats):
        first = repeat % max(1, len(ways))
        for way in (*ways[first:], *ways[:first]):
            yield repeat, way


def needed(rows: Sequence[Row], ways: Sequence[str]) -> set[tuple[str, str]]:
    """(environment, name of a member) of all programs that these rows run, those alone included."""
    found = {(WAYS[way].environment, member.name) for row in rows for way in ways for member in row.members}
    return found | {("native", f"{member.program}-1") for row in rows for member in row.members}


def member_of(key: tuple[str, str]) -> tuple[str, str]:
    """The entry of `needed` for a process."""
    environment, name = key
    return environment, name.removesuffix(BEST_EFFORT)


def parameters(member: Member, row: Row, repeat: int, request_s: float | None) -> dict[str, object]:
    """The program's instructions for a window. ``request_s``: how long a request of this service takes alone."""
    given: dict[str, object] = {"seed": repeat + 1}
    if member.busy is not None:
        assert member.busy >= 1 or request_s
        given["rate"] = 0.0 if member.busy >= 1 else member.busy / (request_s or 1.0)
    if row.period:
        given["period"] = row.period
    return given


@dataclass
class Budget:
    """Seconds that all of it may take. ``reserve`` of them are kept to end what was started."""

    seconds: float
    begin: float
    reserve: float = 12.0
    refused: list[str] = field(default_factory=list)

    def left(self, now: float) -> float:
        return self.begin + self.seconds - self.reserve - now

    def allows(self, seconds: float, now: float, what: str) -> bool:
        if seconds <= self.left(now):
            return True
        self.refused.append(what)
        return False


def limits(member: Member) -> Mapping[str, str]:
    """Its group's options for `gemlet run` and `gemlet set`."""
    return {"--min": f"{member.min:g}", "--priority": member.priority}
