"""glet's files, so that its users can bring and take theirs: rates.csv in and out, ModelList.txt (a plan) in and out.

rates.csv: the number of lines to come, then ``model id,requests a second,SLO in ms,`` a line. ModelList.txt: a line for
each model on a gpu-let, ``gpu,percent,number,model,batch,duty cycle in ms``; the number tells gpu-lets of equal size on
one GPU apart, the model is ``reserved`` on an empty gpu-let, and the file is ``EMPTY`` where there is no plan.
"""

from __future__ import annotations

from math import ceil, isfinite
from typing import TYPE_CHECKING

from gemlet.config import suggest
from gemlet.errors import ConfigError, InvalidValue
from gemlet.serve.plan.model import Demand, Gpu, Plan, PlannedGpuLet, Task
from gemlet.serve.profiles import kinds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gemlet.serve.profiles.kinds import Known
    from gemlet.serve.profiles.profile import Profiles

# The place in this list is glet's model id.
MODELS = (
    "lenet1", "lenet2", "lenet3", "lenet4", "lenet5", "lenet6", "googlenet", "resnet50", "ssd-mobilenetv1", "vgg16",
    "mnasnet1_0", "mobilenet_v2", "densenet161", "bert",
)  # fmt: skip


def parse_rates(text: str, path: str) -> tuple[Demand, ...]:
    """The demands of a rates.csv. Raises ConfigError with the line."""
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not lines:
        raise ConfigError("empty", path=path, hint="write the number of the lines that follow into the first line")
    first, announced = lines[0]
    if not announced.rstrip(",").isdigit():
        raise ConfigError(
            f"{announced!r} is not the number of lines to come", path=path, line=first, hint="write a number such as 3"
        )
    demands = tuple(_demand(number, line, path) for number, line in lines[1:])
    if len(demands) != int(announced.rstrip(",")):
        raise ConfigError(f"announces {announced} lines and has {len(demands)}", path=path, line=first)
    return demands


def _demand(number: int, line: str, path: str) -> Demand:
    cells = [cell.strip() for cell in line.rstrip(",").split(",")]
    hint = "write model id, requests a second and SLO in ms in a line, such as 7,100,108,"
    if len(cells) != 3:
        raise ConfigError(f"{len(cells)} numbers: expected 3", path=path, line=number, hint=hint)
    try:
        model, rate, slo = int(cells[0]), float(cells[1]), float(cells[2])
    except ValueError:
        raise ConfigError(f"{line!r} is not three numbers", path=path, line=number, hint=hint) from None
    if not 0 <= model < len(MODELS):
        known = ", ".join(f"{place} {name}" for place, name in enumerate(MODELS))
        raise ConfigError(f"there is no model id {model}", path=path, line=number, hint=f"choose one of {known}")
    if not (isfinite(rate) and rate >= 0):
        raise ConfigError(
            f"the rate is {cells[1]} requests/s: expected 0 or more",
            path=path,
            line=number,
            hint="write how many requests come in a second",
        )
    if not (isfinite(slo) and slo > 0):
        raise ConfigError(
            f"the SLO is {cells[2]} ms: expected more than 0",
            path=path,
            line=number,
            hint="write how late a reply may be, in ms",
        )
    return Demand(model=MODELS[model], rate=rate, slo_ms=slo)


def render_rates(demands: Sequence[Demand]) -> str:
    """rates.csv; rates are rounded up and SLOs down to whole numbers. Raises InvalidValue for a model glet has not."""
    lines = [str(len(demands))]
    for demand in demands:
        if demand.model not in MODELS:
            raise InvalidValue(
                f"glet has no model {demand.model!r}, so rates.csv cannot name it",
                hint=suggest.hint(demand.model, MODELS),
            )
        lines.append(f"{MODELS.index(demand.model)},{ceil(demand.rate)},{max(1, int(demand.slo_ms))},")
    return "\n".join(lines) + "\n"


def render_model_list(plan: Plan) -> str:
    """ModelList.txt; shares are rounded down to whole percent."""
    lines = []
    for gpu in plan.gpus:
        numbers: dict[int, int] = {}
        for gpu_let in gpu.gpu_lets:
            percent = max(1, int(100 * gpu_let.sm + 1e-6))
            number = numbers.get(percent, 0)
            numbers[percent] = number + 1
            lines += [
                f"{gpu.index},{percent},{number},{task.model},{task.batch},{gpu_let.duty_ms:.6g}"
                for task in gpu_let.tasks
            ]
    return "\n".join(lines or ["EMPTY"]) + "\n"


def parse_model_list(text: str, path: str, known: Known, demands: Sequence[Demand]) -> Plan:
    """The plan of a ModelList.txt. Latencies come from the profiles, SLOs from the demands. Raises ConfigError.

    A task's rate is what its batch and duty cycle come to; neighbours are not counted.
    """
    slos = {demand.model: demand.slo_ms for demand in demands}
    gpus: dict[int, dict[tuple[int, int], list[tuple[str, int, float]]]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.strip() == "EMPTY":
            continue
        gpu, gpu_let, entry = _entry(line, number, path)
        gpu_lets = gpus.setdefault(gpu, {}).setdefault(gpu_let, [])
        if entry is None:
            continue
        profiles = kinds.on(known, gpu)
        if entry[0] not in profiles.models:
            raise ConfigError(
                f"no profile of model {entry[0]!r}",
                path=path,
                line=number,
                hint=suggest.hint(entry[0], profiles.models),
            )
        gpu_lets.append(entry)
    return Plan(
        policy="static",
        device=kinds.title(known),
        origin=kinds.origin(known),
        gpus=tuple(
            Gpu(
                index=gpu,
                memory_mib=0.0,
                gpu_lets=tuple(
                    _gpu_let(percent / 100, entries, kinds.on(known, gpu), slos)
                    for (percent, _), entries in sorted(gpu_lets.items(), reverse=True)
                    if entries
                ),
                device=kinds.kind_of(known, gpu),
            )
            for gpu, gpu_lets in sorted(gpus.items())
        ),
        demands=tuple(demands),
        notes=(f"read from {path}",),
    )


def _entry(line: str, number: int, path: str) -> tuple[int, tuple[int, int], tuple[str, int, float] | None]:
    cells = [cell.strip() for cell in line.strip().rstrip(",").split(",")]
    hint = "write gpu, percent, number, model, batch and duty cycle in ms in a line, such as 0,40,0,resnet50,16,25.5"
    try:
        gpu, percent, which = (int(cell) for cell in cells[:3])
        if not 0 < percent <= 100 or gpu < 0 or which < 0:
            raise ValueError
        if cells[3] == "reserved":
            return gpu, (percent, which), None
        batch, duty = int(cells[4]), float(cells[5])
        if batch < 1 or not (isfinite(duty) and duty >= 0) or len(cells) != 6:
            raise ValueError
    except (ValueError, IndexError):
        raise ConfigError(f"{line.strip()!r} is not a valid gpu-let", path=path, line=number, hint=hint) from None
    return gpu, (percent, which), (cells[3], batch, duty)


def _gpu_let(
    share: float, entries: list[tuple[str, int, float]], profiles: Profiles, slos: dict[str, float]
) -> PlannedGpuLet:
    latencies = [profiles.models[model].surface.latency(share, batch) for model, batch, _ in entries]
    duty = max(sum(latencies), *(entry[2] for entry in entries))
    tasks = tuple(
        Task(
            model=model,
            rate=1000 * batch / duty,
            capacity=1000 * batch / duty,
            batch=batch,
            latency_ms=latency,
            worst_ms=duty + latency,
            slo_ms=slos.get(model, duty + latency),
            slowdown=1.0,
        )
        for (model, batch, _), latency in zip(entries, latencies, strict=True)
    )
    return PlannedGpuLet(
        sm=share, duty_ms=duty, occupancy=min(1.0, sum(latencies) / duty), tasks=tasks, why=("as it was read",)
    )
