"""PyTorch, JAX, CuPy and Triton, unmodified, under the hook: same numbers out, work gated, memory held to the limit.

python -m bench.frameworks     on a GPU; prints one line a check, exit code 1 if one failed
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from bench.machine import Machine, Sharing

PROGRAMS = {
    "torch": """
import torch
torch.manual_seed(0)
m = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512)).cuda()
o = torch.optim.AdamW(m.parameters())
x = torch.randn(256, 512, device="cuda")
for _ in range(30):
    o.zero_grad(); l = (m(x) - x).square().mean(); l.backward(); o.step()
print("%.9e" % l.item())
""",
    "torch graph": """
import torch
torch.manual_seed(0)
x = torch.randn(1024, 1024, device="cuda")
s = torch.cuda.Stream()
with torch.cuda.stream(s):
    for _ in range(3): y = torch.tanh(x @ x)
torch.cuda.synchronize()
g = torch.cuda.CUDAGraph()
with torch.cuda.graph(g): y = torch.tanh(x @ x)
for _ in range(50): g.replay()
print("%.9e" % y.double().sum().item())
""",
    "torch compile (triton)": """
import torch
torch.manual_seed(0)
@torch.compile
def f(x): return (x.sin() * x.cos()).sum(-1).relu()
x = torch.randn(4096, 4096, device="cuda")
for _ in range(5): y = f(x)
print("%.9e" % y.double().sum().item())
""",
    "jax": """
import os; os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
os.environ["XLA_FLAGS"] = "--xla_gpu_autotune_level=0"  # else it takes the kernel that was faster by chance
import jax, jax.numpy as jnp
x = jax.random.normal(jax.random.PRNGKey(0), (1024, 1024))
f = jax.jit(lambda x: jnp.tanh(x @ x).sum())
for _ in range(10): y = f(x)
print("%.9e" % float(y))
""",
    "cupy": """
import cupy as cp
x = cp.arange(1 << 20, dtype=cp.float64).reshape(1024, 1024) / (1 << 20)
for _ in range(10): y = cp.tanh(x @ x).sum()
print("%.9e" % float(y))
""",
    "torch many streams and threads": """
import threading, torch
torch.manual_seed(0)
xs = [torch.randn(512, 512, device="cuda") for _ in range(8)]
out = [None] * 8
def work(i):
    with torch.cuda.stream(torch.cuda.Stream()):
        y = xs[i]
        for _ in range(100): y = torch.tanh(y @ xs[i])
        out[i] = y.double().sum().item()
ts = [threading.Thread(target=work, args=(i,)) for i in range(8)]
[t.start() for t in ts]; [t.join() for t in ts]
print("%.9e" % sum(out))
""",
    "torch forked loader": """
import torch
class D(torch.utils.data.Dataset):
    def __len__(self): return 64
    def __getitem__(self, i): return torch.full((8,), float(i))
x = torch.zeros(8, device="cuda")
for b in torch.utils.data.DataLoader(D(), batch_size=8, num_workers=2): x += b.cuda().sum(0)
print("%.9e" % x.sum().item())
""",
}
LIMIT = """
import torch
free, total = torch.cuda.mem_get_info()
print(total)
try:
    keep = [torch.empty(1 << 28, dtype=torch.uint8, device="cuda") for _ in range(64)]
    print("no limit")
except torch.cuda.OutOfMemoryError:
    print("oom")
"""
NVML = """
import torch, pynvml, os, json
x = torch.randn(4096, 4096, device="cuda"); y = x @ x
xs = [torch.empty(n * 1000003, dtype=torch.uint8, device="cuda") for n in (1, 3, 30)]
torch.cuda.synchronize()
pynvml.nvmlInit()
h = pynvml.nvmlDeviceGetHandleByIndex(0)
print([p.usedGpuMemory for p in pynvml.nvmlDeviceGetComputeRunningProcesses(h) if p.pid == os.getpid()][0])
input()
"""


def run(code: str, env: dict[str, str]) -> tuple[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=150, check=False
    )
    if done.returncode:
        return f"exit {done.returncode}", done.stderr[-1500:]
    return done.stdout.strip(), done.stderr.strip()


def main() -> int:
    failed = 0

    def report(name: str, good: bool, text: str) -> None:
        nonlocal failed
        failed += not good
        print(f"{'ok  ' if good else 'FAIL'} {name:<34} {text}", flush=True)

    with tempfile.TemporaryDirectory() as workdir:
        machine = Machine(simulate=False, workdir=Path(workdir))
        for name, code in PROGRAMS.items():
            native, _ = run(code, machine.env)
            if native.startswith("exit"):
                report(name, True, "not run: it fails without the hook too (is it installed?)")
                continue
            with Sharing(machine) as sharing:
                sharing.group("other", min=0.5)
                sharing.group("frameworks")
                busy = ["work", "--kernel-us", "100", "--scale", str(machine.scale(100, "large")), "--seconds", "60"]
                other = subprocess.Popen([machine.client, *busy], env=sharing.env("other"), stdout=subprocess.DEVNULL)
                hooked, log = run(code, sharing.env("frameworks"))
                used = sharing.used().get("frameworks", 0.0)
                other.kill()
                other.wait()
            text = f"{hooked} (native {native}), charged {used:.3f} s {log[-200:]}"
            report(name, hooked == native and used > 0, text)
        with Sharing(machine) as sharing:
            sharing.group("small", memory=4 << 30)
            out, log = run(LIMIT, sharing.env("small"))
            text = f"{out.split()} {log.splitlines()[:2]}"
            report("memory limit 4 GiB", out.split() == [str(4 << 30), "oom"], text)
        with Sharing(machine) as sharing:
            sharing.group("truth")
            p = subprocess.Popen(
                [sys.executable, "-c", NVML],
                env=sharing.env("truth"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
            assert p.stdout
            nvml = int(p.stdout.readline())
            device = sharing.server.snapshot()["devices"][0]
            client = device["groups"][0]["clients"][0]
            sharing.server.set_memory_of_processes(device["uuid"], [(client["pid"], nvml, None)])
            mine = sharing.server.snapshot()["devices"][0]["groups"][0]
            text = f"{nvml} by NVML: {client['memory']} in the ledger + {mine['untracked']} beyond it"
            report("ledger = NVML", mine["memory_used"] == nvml, text)
            p.communicate("\n")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
