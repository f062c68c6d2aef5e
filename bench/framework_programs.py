"""Programs as people write them, for bench.frameworks: each prints one number, the same one with and without gemlet.

Where memory is to move, BALLAST takes the place of "# ballast", so that there is something to move.
ALLOCATORS are the ways to ask for memory that frameworks have. Each takes 256 MiB at a time until it is refused, prints
"total TOTAL" (bytes the framework believes the device has) and "held BYTES", and waits for a line.
"""

from __future__ import annotations

TRAIN = """
# ballast
torch.manual_seed(0)
m = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512)).cuda()
o = torch.optim.AdamW(m.parameters())
x = torch.randn(256, 512, device="cuda")
for _ in range(30):
    o.zero_grad(); l = (m(x) - x).square().mean(); l.backward(); o.step()
print("%.9e" % l.item())
"""

PROGRAMS = {
    "torch": "import torch" + TRAIN,
    "torch graph": """
import torch
# ballast
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
# ballast
torch.manual_seed(0)
@torch.compile
def f(x): return (x.sin() * x.cos()).sum(-1).relu()
x = torch.randn(4096, 4096, device="cuda")
for _ in range(5): y = f(x)
print("%.9e" % y.double().sum().item())
""",
    "torch compile, graphs": """
import torch
# ballast
torch.manual_seed(0)
m = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512)).cuda()
f = torch.compile(m, mode="reduce-overhead")
o = torch.optim.SGD(m.parameters(), lr=0.1)
x = torch.randn(256, 512, device="cuda")
for _ in range(10):
    torch.compiler.cudagraph_mark_step_begin()
    o.zero_grad(); l = (f(x) - x).square().mean(); l.backward(); o.step()
print("%.9e" % l.item())
""",
    "torch profiler": """
import torch
from torch.profiler import ProfilerActivity, profile
# ballast
torch.manual_seed(0)
x = torch.randn(1024, 1024, device="cuda")
with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], profile_memory=True) as p:
    for _ in range(20): y = torch.tanh(x @ x)
    torch.cuda.synchronize()
kernels = sum(e.count for e in p.key_averages() if e.device_type == torch.autograd.DeviceType.CUDA)
print("%.9e %d" % (y.double().sum().item(), kernels >= 40))
""",
    "torch cudaMallocAsync": """
import os; os.environ["PYTORCH_ALLOC_CONF"] = os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "backend:cudaMallocAsync"
import torch"""
    + TRAIN,
    "torch expandable segments": """
import os; os.environ["PYTORCH_ALLOC_CONF"] = os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
import torch"""
    + TRAIN,
    "torch pinned copies": """
import torch
# ballast
torch.manual_seed(0)
host = [torch.randn(1 << 22).pin_memory() for _ in range(4)]
s, total = torch.cuda.Stream(), torch.zeros((), dtype=torch.float64, device="cuda")
for h in host * 4:
    with torch.cuda.stream(s): d = h.to("cuda", non_blocking=True)
    torch.cuda.current_stream().wait_stream(s); d.record_stream(torch.cuda.current_stream())
    total += d.double().sum()
own = torch.randn(1 << 20)
assert torch.cuda.cudart().cudaHostRegister(own.data_ptr(), own.numel() * 4, 0) == 0
total += own.to("cuda", non_blocking=True).double().sum()
torch.cuda.synchronize(); torch.cuda.cudart().cudaHostUnregister(own.data_ptr())
print("%.9e" % total.item())
""",
    "torch attention": """
import torch
from torch.nn.functional import scaled_dot_product_attention
# ballast
torch.manual_seed(0)
q, k, v = (torch.randn(4, 16, 1024, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
for _ in range(5): y = scaled_dot_product_attention(q, k, v, is_causal=True)
y.square().mean().backward()
print("%.9e" % y.double().sum().item())
""",
    "torch tensors between processes": """
import torch, torch.multiprocessing as mp
def child(q, back):
    back.put(("%.9e" % q.get().double().sum().item(),))
    back.close(); back.join_thread()
if __name__ == "__main__":
    mp.set_start_method("spawn")
    torch.manual_seed(0)
    q, back = mp.Queue(), mp.Queue()
    p = mp.Process(target=child, args=(q, back), daemon=True); p.start()
    x = torch.randn(1 << 24, device="cuda"); q.put(x)
    print(*back.get(timeout=30)); p.join(30)
    assert p.exitcode == 0
""",
    "torch one rank of NCCL": """
import os, torch, torch.distributed as dist
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29517", NCCL_NVLS_ENABLE="0")
dist.init_process_group("nccl", rank=0, world_size=1, device_id=torch.device("cuda:0"))
# ballast
torch.manual_seed(0)
m = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1024, 1024).cuda())
x = torch.randn(64, 1024, device="cuda")
for _ in range(10): l = m(x).square().mean(); l.backward()
dist.all_reduce(l.detach()); print("%.9e" % l.item())
dist.destroy_process_group()
""",
    "torch many streams and threads": """
import threading, torch
# ballast
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
# ballast
x = torch.zeros(8, device="cuda")
for b in torch.utils.data.DataLoader(D(), batch_size=8, num_workers=2, pin_memory=True): x += b.cuda().sum(0)
print("%.9e" % x.sum().item())
""",
    "jax": """
import os; os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
os.environ["XLA_FLAGS"] = "--xla_gpu_autotune_level=0"  # else it takes the kernel that was faster by chance
import jax, jax.numpy as jnp
# ballast
x = jax.random.normal(jax.random.PRNGKey(0), (1024, 1024))
f = jax.jit(lambda x: jnp.tanh(x @ x).sum())
for _ in range(10): y = f(x)
print("%.9e" % float(y))
""",
    "jax scan, as it comes": """
import os; os.environ["XLA_FLAGS"] = "--xla_gpu_autotune_level=0"
import jax, jax.numpy as jnp
# ballast
x = jax.random.normal(jax.random.PRNGKey(0), (256, 256))
f = jax.jit(lambda x: jax.lax.scan(lambda c, _: (jnp.tanh(c @ x), c.mean()), x, None, length=200)[1].sum())
print("%.9e" % float(f(x)))
""",
    "jax, allocator of the driver": """
import os; os.environ["XLA_PYTHON_CLIENT_ALLOCATOR"] = "cuda_async"
os.environ["XLA_FLAGS"] = "--xla_gpu_autotune_level=0"
import jax, jax.numpy as jnp
# ballast
x = jax.random.normal(jax.random.PRNGKey(0), (1024, 1024))
f = jax.jit(lambda x: jnp.tanh(x @ x).sum())
for _ in range(10): y = f(x)
print("%.9e" % float(y))
""",
    "cupy": """
import cupy as cp
# ballast
x = cp.arange(1 << 20, dtype=cp.float64).reshape(1024, 1024) / (1 << 20)
for _ in range(10): y = cp.tanh(x @ x).sum()
print("%.9e" % float(y))
""",
    "cupy async pool, kernel, managed": """
import cupy as cp
cp.cuda.set_allocator(cp.cuda.MemoryAsyncPool().malloc)
# ballast
k = cp.RawKernel("extern \\\\"C\\\\" __global__ void f(float* x, int n) {"
    " int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) x[i] = x[i] * 2 + i; }", "f")
x = cp.ones(1 << 20, dtype=cp.float32)
for _ in range(10): k((4096,), (256,), (x, cp.int32(1 << 20)))
with cp.cuda.using_allocator(cp.cuda.MemoryPool(cp.cuda.malloc_managed).malloc):
    y = cp.arange(1 << 20, dtype=cp.float64)
print("%.9e" % float(x.astype(cp.float64).sum() + y.sum()))
""".replace('\\\\"', '\\"'),
    "triton": """
import torch, triton, triton.language as tl
@triton.autotune([triton.Config({"B": b}) for b in (256, 1024)], key=["n"])
@triton.jit
def add(x, y, o, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(o + i, tl.load(x + i, i < n) + tl.load(y + i, i < n), i < n)
# ballast
torch.manual_seed(0)
x, y = (torch.randn(1 << 22, device="cuda") for _ in range(2)); o = torch.empty_like(x)
for _ in range(10): add[lambda meta: (triton.cdiv(o.numel(), meta["B"]),)](x, y, o, o.numel())
print("%.9e" % o.double().sum().item())
""",
}

BALLAST = {
    "torch": 'ballast = torch.ones(3 << 28, device="cuda")',
    "triton": 'ballast = torch.ones(3 << 28, device="cuda")',
    "cupy": "ballast = cp.ones(3 << 28, dtype=cp.float32)",
    "jax": "ballast = jnp.ones(3 << 28, dtype=jnp.float32).block_until_ready()",
}

# What a program among these may not do where its memory moves, by what it is told then.
REFUSED_WHERE_MEMORY_MOVES = {"torch tensors between processes": "cannot be shared with other processes"}

_TORCH = """
import torch
print("total", torch.cuda.mem_get_info()[1])
keep = []
try:
    for _ in range(64): keep.append(torch.empty(1 << 28, dtype=torch.uint8, device="cuda"))
except torch.cuda.OutOfMemoryError: pass
print("held", len(keep) << 28, flush=True); input()
"""


def _torch(conf: str) -> str:
    return f'import os; os.environ["PYTORCH_ALLOC_CONF"] = os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "{conf}"' + _TORCH


_CUPY = """
print("total", cp.cuda.runtime.memGetInfo()[1])
keep = []
try:
    for _ in range(64): keep.append(cp.zeros(1 << 28, dtype=cp.uint8)); cp.cuda.get_current_stream().synchronize()
except (cp.cuda.memory.OutOfMemoryError, cp.cuda.runtime.CUDARuntimeError): pass
print("held", len(keep) << 28, flush=True); input()
"""

_JAX = """
import jax, jax.numpy as jnp
print("total", jax.devices()[0].memory_stats()["bytes_limit"])
keep = []
try:
    for _ in range(64): keep.append(jnp.ones(1 << 28, dtype=jnp.uint8).block_until_ready())
except Exception as failed: assert "RESOURCE_EXHAUSTED" in str(failed), failed
print("held", len(keep) << 28, flush=True); input()
"""

ALLOCATORS = {
    "torch": _TORCH,
    "torch cudaMallocAsync": _torch("backend:cudaMallocAsync"),
    "torch expandable segments": _torch("expandable_segments:True"),
    "cupy": "import cupy as cp" + _CUPY,
    "cupy async pool": "import cupy as cp; cp.cuda.set_allocator(cp.cuda.MemoryAsyncPool().malloc)" + _CUPY,
    "cupy managed": "import cupy as cp; cp.cuda.set_allocator(cp.cuda.MemoryPool(cp.cuda.malloc_managed).malloc)"
    + _CUPY,
    "jax": _JAX,
    "jax, allocator of the driver": 'import os; os.environ["XLA_PYTHON_CLIENT_ALLOCATOR"] = "cuda_async"' + _JAX,
}
