"""Which jobs share the devices in each row on GPUs, in which ways, and what that must come to. Pure."""

from __future__ import annotations

from dataclasses import dataclass

# Options of bench/programs/ranks.py. `single` is bench/client, one program on one device; `jax` is jax_train.py, one
# process on all devices.
KINDS: dict[str, list[str]] = {
    "ddp": ["ddp"],
    "ddp-large": ["ddp", "--large"],
    "fsdp": ["fsdp"],
    "fsdp-large": ["fsdp", "--large"],
    "tensor": ["tensor"],
    "tensor-graph": ["tensor", "--graph"],
    "tensor-service": ["tensor", "--graph", "--busy", "0.5"],
    "reduce": ["reduce", "--most", "100"],
    "single": [],
    "jax": [],
}
WAYS = {"slicing": "time slicing", "each": "turns on each device for itself", "gemlet": "gemlet"}
BUSY = 0.97  # of alone that jobs which leave nothing must do together


@dataclass(frozen=True)
class Job:
    """``devices``: those that it uses; none: all."""

    kind: str
    number: int = 1  # of several of a kind
    min: float = 0.0
    priority: str = "normal"
    devices: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.number}"

    def options(self, way: str) -> dict[str, str]:
        """Its group's, for `gemlet run` and `gemlet set`."""
        gang = "off" if way == "each" else "auto"
        return {"--min": f"{self.min:g}", "--priority": self.priority, "--gang": gang}


@dataclass(frozen=True)
class Case:
    """``busy``: the jobs leave the devices nothing, so what they do together is compared with 1 instead of slicing.

    stopped: (job, seconds after the start, for how long) of a rank that is stopped. changing: `gemlet set` gives the
    first two jobs other minima every half a second. victims: jobs that work beside them; one rank of each is killed,
    of every second one after it was stopped for a second.
    """

    name: str
    title: str
    jobs: tuple[Job, ...]
    ways: tuple[str, ...] = ("slicing", "gemlet")
    busy: bool = False
    seconds: float = 4.0
    settle: float = 1.0
    stopped: tuple[int, float, float] | None = None
    changing: bool = False
    shares: tuple[float, ...] = ()  # due to each, in every second
    victims: tuple[Job, ...] = ()

    @property
    def devices(self) -> int:
        """How many it needs."""
        return 1 + max((device for job in self.jobs for device in job.devices), default=1)


def pair(kind: str, a: float = 0.0, b: float = 0.0) -> tuple[Job, ...]:
    return Job(kind, 1, a), Job(kind, 2, b)


CASES: dict[str, Case] = {
    case.name: case
    for case in (
        Case("tensor-alone", "a generator in CUDA graphs that nobody shares with", (Job("tensor-graph"),)),
        Case("ddp", "two DDP jobs, bound by their host", pair("ddp"), ("slicing", "each", "gemlet")),
        Case("ddp-large", "two DDP jobs of longer steps", pair("ddp-large")),
        Case("fsdp", "two FSDP jobs, bound by their host", pair("fsdp")),
        Case("fsdp-large", "two FSDP jobs of longer steps", pair("fsdp-large")),
        Case("tensor", "two tensor-parallel generators", pair("tensor")),
        Case("tensor-graph", "two tensor-parallel generators in CUDA graphs", pair("tensor-graph"), busy=True),
        Case("shares", "the same, minima 75/25", pair("tensor-graph", 0.75, 0.25), shares=(0.75, 0.25)),
        Case("tensor-ddp", "a tensor-parallel generator beside a DDP job", (Job("tensor"), Job("ddp"))),
        Case(
            "latency", "the generator in CUDA graphs, busy half of the time, as class latency beside a DDP job",
            (Job("tensor-service", min=0.3, priority="latency"), Job("ddp-large", priority="best-effort")), seconds=6.0,
        ),
        Case(
            "singles", "a DDP job, a saturating program on each device",
            (Job("ddp-large"), Job("single", 1, devices=(0,)), Job("single", 2, devices=(1,))), busy=True,
        ),
        Case("jax", "two trainings in JAX, one process each on all devices", pair("jax")),
        Case("stopped", "a rank of the second job is stopped for 1.5 s", pair("ddp"), stopped=(1, 1.5, 1.5)),
        Case(
            "reduce", "10^5 all-reduces, of each job, while minima change", pair("reduce"), ("gemlet",),
            seconds=30.0, settle=0.0, changing=True,
        ),
        Case(
            "kills", "10^5 all-reduces, of each job, while minima change and ranks of others are stopped and killed",
            pair("reduce"), ("gemlet",), seconds=30.0, settle=0.0, changing=True,
            victims=tuple(Job("ddp", number) for number in (1, 2, 3)),
        ),
        Case(
            "crossing", "three generators in CUDA graphs that cross: on devices 0 and 1, 1 and 2, 0 and 2",
            tuple(Job("tensor-graph", n, devices=on) for n, on in enumerate(((0, 1), (1, 2), (0, 2)), 1)),
        ),
    )
}  # fmt: skip
