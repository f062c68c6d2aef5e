"""Modelled profiles: a roofline on data-sheet numbers, for machines and models that have not been measured yet.

Every profile made here has ``origin = "modelled"``. A model is a handful of counts
(multiply-adds, parameters, traffic of activations), a device what its data sheet says, and the latency is

    L(s, b) = kernels * launch + b * flops / (peak * efficiency * min(s, fill * b)) + traffic(b) / bandwidth(s)

``fill`` is the part of the device that one request can keep busy: below it more SMs change nothing, which is why small
models share a device well. Half of the SMs or so saturate the memory, so bandwidth(s) = bandwidth * min(1, s / 0.4).
"""

from __future__ import annotations

from dataclasses import dataclass

from gemlet.serve.profiles.profile import Device, ModelProfile, Profiles, Vector

SHARES = (0.125, 0.25, 0.375, 0.5, 0.75, 1.0)
BATCHES = (1, 2, 4, 8, 16, 32, 64)
LAUNCH_MS = 0.002  # of a kernel inside a CUDA graph; an assumption, like the next three
EFFICIENCY = 0.35  # of the peak that ordinary kernels reach
SATURATION = 0.4  # the share of the SMs that is enough for the memory's whole bandwidth
L2_PART = 0.3  # how much of the traffic an L2 thrasher turns from hits into misses


@dataclass(frozen=True, slots=True)
class Architecture:
    """Counts for one request in half precision: operations, bytes of activations moved, bytes of weights, kernels."""

    gflop: float
    activation_mb: float
    weights_mb: float
    kernels: int
    fill: float


# Operations are twice the published multiply-adds, weights two bytes a parameter; traffic and fill are estimates.
ARCHITECTURES: dict[str, Architecture] = {
    "lenet1": Architecture(0.0008, 0.05, 0.12, 12, 0.002),
    "lenet2": Architecture(0.0008, 0.05, 0.12, 12, 0.002),
    "lenet3": Architecture(0.0008, 0.05, 0.12, 12, 0.002),
    "lenet4": Architecture(0.0008, 0.05, 0.12, 12, 0.002),
    "lenet5": Architecture(0.0008, 0.05, 0.12, 12, 0.002),
    "lenet6": Architecture(0.0008, 0.05, 0.12, 12, 0.002),
    "googlenet": Architecture(3.0, 22.0, 13.0, 70, 0.06),
    "resnet50": Architecture(8.2, 60.0, 51.0, 60, 0.08),
    "ssd-mobilenetv1": Architecture(2.4, 60.0, 14.0, 70, 0.06),
    "vgg16": Architecture(31.0, 54.0, 277.0, 24, 0.25),
    "mnasnet1_0": Architecture(0.65, 34.0, 8.8, 60, 0.04),
    "mobilenet_v2": Architecture(0.6, 40.0, 7.0, 60, 0.04),
    "densenet161": Architecture(15.6, 180.0, 57.0, 190, 0.10),
    "bert": Architecture(22.4, 50.0, 220.0, 90, 0.15),  # base, 128 tokens
    "decoder": Architecture(0.25, 8.0, 248.0, 80, 0.02),  # 124 M parameters, one token
    "dlrm": Architecture(0.02, 30.0, 2000.0, 20, 0.05),  # rows of embeddings, not whole tables, are read
}


def h200() -> Profiles:
    """Every architecture above on an H200 as its data sheet describes it: 989 TFLOP/s, 4.8 TB/s, 132 SMs, 141 GB."""
    device = Device(name="NVIDIA H200 (modelled)", sms=132, sm_step=8, memory_mib=143_000)
    models = {name: profile(counts, tflops=989.0, tb_per_s=4.8) for name, counts in ARCHITECTURES.items()}
    note = "computed by a roofline from data-sheet numbers; nothing in here was measured"
    return Profiles(origin="modelled", device=device, models=models, note=note)


def profile(counts: Architecture, *, tflops: float, tb_per_s: float) -> ModelProfile:
    """One architecture on a device with that peak and bandwidth."""

    def parts(share: float, batch: int) -> tuple[float, float, float]:
        launch = counts.kernels * LAUNCH_MS
        compute = batch * counts.gflop / (tflops * EFFICIENCY * min(share, counts.fill * batch))  # GFLOP by TFLOP/s: ms
        read = min(counts.weights_mb, 300.0)  # a table of embeddings is not read as a whole
        memory = (read + batch * counts.activation_mb) / (tb_per_s * 1000 * min(1.0, share / SATURATION))
        return launch, compute, memory

    launch, compute, memory = parts(1.0, 32)
    total = launch + compute + memory
    busy = Vector(dram=round(memory / total, 3), l2=round(0.6 * memory / total, 3), compute=round(compute / total, 3))
    hurt = Vector(
        dram=round(memory / total, 3), l2=round(L2_PART * memory / total, 3), compute=round(compute / total, 3)
    )
    return ModelProfile(
        latency=tuple((s, b, round(sum(parts(s, b)), 5)) for s in SHARES for b in BATCHES),
        weights_mib=counts.weights_mb,
        activation_mib=counts.activation_mb / 2,  # written and read; live for less than the whole pass
        variation=0.03,
        sensitivity=hurt,
        pressure=busy,
    )
