"""ParvaGPU's public planning data (SC'24, github.com/MunQ-Lee/ParvaGPU_SC24, MIT) as profiles and demands.

Measured by its authors on an A100-80GB by MIG size, batch and number of processes. Used here: one process, and a share
of p of the SMs counts as 7 p slices. There is no memory and no interference in it.
"""

from __future__ import annotations

import csv
from pathlib import Path

from gemlet.serve.plan.model import Demand
from gemlet.serve.profiles.profile import Device, ModelProfile, Profiles

DATA = Path(__file__).parent / "data" / "parvagpu"
SETS = ("S1", "S2", "S3", "S4", "S5", "S6")
MAX_BATCH = 128
NEVER_MS = 1e9


def profiles(folder: Path = DATA) -> Profiles:
    """All models of ``folder``."""
    models = {path.stem: _model(path) for path in sorted((folder / "prof_data").glob("*.csv"))}
    device = Device(name="NVIDIA A100-SXM4-80GB", sms=98, sm_step=14, memory_mib=81_920)  # MIG leaves 98 of 108 SMs
    return Profiles(
        origin="imported", device=device, models=models, note="ParvaGPU (SC'24), github.com/MunQ-Lee/ParvaGPU_SC24, MIT"
    )


def _model(path: Path) -> ModelProfile:
    points = []
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            size, batch, processes = (int(row[key]) for key in ("Mig instance", "Batch size", "Workload Number"))
            throughput = float(row["Throughput"])
            if processes == 1 and batch <= MAX_BATCH:
                # The latency column has fewer digits; 0 is what did not fit into the slice's memory.
                points.append((size / 7, batch, 1000 * batch / throughput if throughput > 0 else NEVER_MS))
    return ModelProfile(latency=tuple(points))


def demands(folder: Path = DATA) -> dict[str, tuple[Demand, ...]]:
    """The six request sets; columns of the files are the models in alphabetical order."""
    models = sorted(path.stem for path in (folder / "prof_data").glob("*.csv"))
    rates, slos = (
        list(csv.reader((folder / "SLO" / name).read_text().splitlines()))
        for name in ("SLO_req_rate.csv", "SLO_latency.csv")
    )
    return {
        name: tuple(
            Demand(model=model, rate=float(rate), slo_ms=float(slo))
            for model, rate, slo in zip(models, rate_row, slo_row, strict=True)
            if rate != "N/A"
        )
        for name, rate_row, slo_row in zip(SETS, rates, slos, strict=True)
    }
