"""Whether libraries compute whole results on a fraction of the SMs, under MPS: as MPS has it, and under gemlet.

    python -m bench.partial_sms [--sms 8,16,...] [--ways own,whole] [--times 33,66] [--side-by-side 8] [-o RESULT.json]

own    the program sees the SMs that MPS leaves it
whole  `gemlet run --sm`: the program is told of all SMs of the device

A process for each number and way multiplies matrices and convolves in half precision, with shapes of GoogLeNet and of
language models, into memory that holds NaN: what is not written stays NaN, and all is compared with single precision.
``--times``: for these numbers, one after the other, how long a product takes in each way. Needs a GPU and torch; gemlet
starts MPS and stops it again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench.own_mps import mps_of_gemlet
from gemlet.membership import PERCENTAGE

WAYS = ("own", "whole")
ON = 132  # SMs of an H100 or H200
SMS = (
    8, 10, 12, 14, 18, 22, 26, 30, 34, 38, 42, 46, 50, 54, 58, 60, 62, 66, 68, 72, 76, 80, 84, 88, 92, 96, 98, 100, 104,
    108, 112, 116, 120, 124, 128, 132,
)  # fmt: skip
PRODUCTS = [(8, 1024, 1000), (64, 4096, 4096), (512, 1024, 4096), (2048, 2048, 2048), (25088, 64, 64)]  # m, k, n
# Of one pixel, most of what GoogLeNet has: images, channels in, channels out, width.
CONVOLUTIONS = [
    (8, 64, 64, 56),
    (8, 192, 96, 28),
    (8, 256, 128, 28),
    (8, 480, 192, 14),
    (8, 832, 384, 7),
    (1, 64, 64, 56),
]
ENOUGH_S = 60
WRONG = 0.02  # of the largest value; half precision is off by a twentieth of that

PROBE = """
import json, sys
import torch
from torch.nn import functional
products, convolutions, timed = json.loads(sys.argv[1])
torch.manual_seed(1)
def some(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.half) / 8
def nothing(*shape):
    return torch.full(shape, float("nan"), device="cuda", dtype=torch.half)
def told(what, result, right):
    off = (torch.nan_to_num(result.float()) - right).abs().max() / right.abs().max()
    unwritten = int(torch.isnan(result).sum())
    return {"what": what, "of": result.numel(), "unwritten": unwritten, "off": round(float(off), 5)}
found, ms = [], None
with torch.inference_mode():
    for m, k, n in products:
        a, b, bias = some(m, k), some(n, k).T, some(n)
        right = a.float() @ b.float()
        what = f"product {m} x {k} x {n}"
        found.append(told(what, torch.mm(a, b, out=nothing(m, n)), right))
        with_bias = torch.addmm(bias, a, b, out=nothing(m, n))
        found.append(told(what + ", bias", with_bias, right + bias.float()))
    for i, c, o, w in convolutions:
        x, y = (some(*each).to(memory_format=torch.channels_last) for each in ((i, c, w, w), (o, c, 1, 1)))
        right = torch.einsum("icwh,oc->iowh", x.float(), y.float()[:, :, 0, 0])
        torch.cuda.empty_cache()
        filled = [nothing(128 << 20)] + [nothing(n << 19) for n in (1, 2, 4, 8, 16, 32) * 2]
        del filled
        found.append(told(f"convolution {i} x {c} to {o} x {w} x {w}", functional.conv2d(x, y), right))
    if timed:
        a, b = some(4096, 4096), some(4096, 4096)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for _ in range(20):
            a @ b
        begin.record()
        for _ in range(200):
            a @ b
        end.record()
        end.synchronize()
        ms = round(begin.elapsed_time(end) / 200, 4)
torch.cuda.synchronize()
about = torch.cuda.get_device_properties(0)
said = {"device": about.name, "torch": torch.__version__, "sees": about.multi_processor_count}
print(json.dumps(said | {"found": found, "ms": ms}))
"""


def command(way: str, sms: int, environment: dict[str, str], *, timed: bool) -> tuple[list[str], dict[str, str]]:
    """What runs the probe on so many SMs, and in which environment."""
    percent = f"{100 * sms / ON:.4f}"
    probe = [sys.executable, "-c", PROBE, json.dumps([PRODUCTS, CONVOLUTIONS, timed])]
    if way == "own":
        return probe, environment | {PERCENTAGE: percent}
    gemlet = [sys.executable, "-m", "gemlet", "run", "-q", "--group", f"sms-{sms}", "--sm", f"{percent}%", "--"]
    return gemlet + probe, environment


def ask(way: str, sms: int, environment: dict[str, str], *, timed: bool = False) -> dict[str, Any]:
    row: dict[str, Any] = {"way": way, "sms": sms, "percent": round(100 * sms / ON, 4)}
    arguments, environment = command(way, sms, environment, timed=timed)
    try:
        done = subprocess.run(
            arguments, env=environment, capture_output=True, text=True, timeout=ENOUGH_S, check=False
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return row | {"error": f"no end after {ENOUGH_S} s"}
    if done.returncode:
        return row | {"error": done.stderr.strip()[-300:]}
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return row | answer


def wrong(row: dict[str, Any]) -> list[str]:
    """Which results are not what they should be, in words."""
    return [
        f"{each['what']}: {each['unwritten']} of {each['of']} not written, off by {each['off']:.2f}"
        for each in row.get("found", ())
        if each["unwritten"] or each["off"] > WRONG
    ]


def line(row: dict[str, Any]) -> str:
    if "error" in row:
        return f"{row['way']:5} {row['sms']:3} SMs: {row['error']}"
    bad = wrong(row)
    took = f"; a product of 4096 x 4096 x 4096 takes {row['ms']} ms" if row["ms"] else ""
    count = f"{len(bad)} of {len(row['found'])} wrong" if bad else "all right"
    return (
        f"{row['way']:5} {row['sms']:3} SMs, sees {row['sees']:3}: {count}{took}{'; such as ' + bad[0] if bad else ''}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sms", default=",".join(map(str, SMS)))
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--times", default="")
    parser.add_argument("--side-by-side", type=int, default=8)
    parser.add_argument("-o", "--out", type=Path)
    o = parser.parse_args()
    asked = [(way, int(sms)) for sms in o.sms.split(",") for way in o.ways.split(",")]
    rows: list[dict[str, Any]] = []

    def tell(row: dict[str, Any]) -> None:
        rows.append(row)
        print(line(row), flush=True)
        if o.out:
            o.out.write_text(json.dumps({"schema": 1, "rows": rows}))

    with mps_of_gemlet() as environment, ThreadPoolExecutor(o.side_by_side) as pool:
        for sms in filter(None, o.times.split(",")):
            for way in o.ways.split(","):
                tell(ask(way, int(sms), environment, timed=True))
        for row in pool.map(lambda one: ask(*one, environment), asked):
            tell(row)
    for way in o.ways.split(","):
        of_way = [row for row in rows if row["way"] == way and "error" not in row]
        print(f"{way}: {sum(bool(wrong(row)) for row in of_way)} of {len(of_way)} numbers of SMs give wrong results")
    return 0


if __name__ == "__main__":
    sys.exit(main())
