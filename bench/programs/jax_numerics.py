"""Whether a memory limit changes which product of matrices XLA's autotuner picks, and with it the last bits of answers.

    python bench/programs/jax_numerics.py [--limit 60GiB] [--total 140GiB]      on a GPU, with gemlet on PYTHONPATH
    python bench/programs/jax_numerics.py --one                                 one process: prints its checksum

Runs ``jit(lambda x: (x @ x.T).sum(0))`` on a normal matrix of 1024 x 1024 in processes of its own: native, native
without preallocation, native with the fraction of memory that the limit leaves, and under ``gemlet run --memory``;
each twice, with the autotuner and without it. Prints the sum, a checksum of all bits, and what was picked.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import zlib

WITHOUT_AUTOTUNING = "--xla_gpu_autotune_level=0"
GIB = 1 << 30
LIMIT_S = 120.0
# In a compiled module: targets of library calls, cuBLAS's algorithm, the tiles of a Triton kernel.
PICKED = (
    r'custom_call_target="[^"]+"|"(?:selected_algorithm|block_[mnk]|split_k|kind|autotune_workspace_size)":"?[-\w]+'
)


def one() -> None:
    import jax
    import numpy as np

    x = jax.random.normal(jax.random.PRNGKey(0), (1024, 1024))
    compiled = jax.jit(lambda x: (x @ x.T).sum(0)).lower(x).compile()
    y = np.asarray(compiled(x))
    text = compiled.as_text() or ""
    picked = sorted(set(re.findall(PICKED, text)))
    say = {
        "sum": f"{float(y.sum()):.5f}", "first": float(y[0]).hex(), "bits": f"{zlib.crc32(y.tobytes()):08x}",
        "module": f"{zlib.crc32(text.encode()):08x}", "picked": picked,
        "memory": (jax.devices()[0].memory_stats() or {}).get("bytes_limit"),
    }  # fmt: skip
    print(json.dumps(say))


def ways(limit: str, fraction: float) -> list[tuple[str, dict[str, str], list[str]]]:
    """(words, environment, prefix of the command line)."""
    under = [sys.executable, "-m", "gemlet", "run", "-q"]
    off = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    return [
        ("native", {}, []),
        ("native, no preallocation", off, []),
        (f"native, fraction {fraction:.4f}", {"XLA_PYTHON_CLIENT_MEM_FRACTION": f"{fraction:.6f}"}, []),
        # JAX takes three quarters of what it sees: the same bytes as under the limit.
        (f"native, fraction {0.75 * fraction:.4f}", {"XLA_PYTHON_CLIENT_MEM_FRACTION": f"{0.75 * fraction:.6f}"}, []),
        ("gemlet run", {}, [*under, "--"]),
        (f"gemlet run --memory {limit}", {}, [*under, "--memory", limit, "--"]),
        (f"gemlet run --memory {limit}, no preallocation", off, [*under, "--memory", limit, "--"]),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--one", action="store_true", help="only compute, in this process")
    parser.add_argument("--limit", default="60GiB", help="in GiB, as `gemlet run --memory` takes it")
    parser.add_argument("--total", type=float, default=140.0, help="GiB that the device has")
    parser.add_argument("--repeats", type=int, default=2, help="of each")
    o = parser.parse_args()
    if o.one:
        one()
        return 0
    fraction = float(o.limit.removesuffix("GiB")) / o.total
    failed = 0
    for flags in ("", WITHOUT_AUTOTUNING):
        print(f"== XLA_FLAGS={flags}", flush=True)
        for note, more, prefix in ways(o.limit, fraction):
            for _ in range(o.repeats):
                given = " ".join(part for part in (os.environ.get("XLA_FLAGS", ""), flags) if part)
                env = os.environ | more | {"XLA_FLAGS": given}
                command = [*prefix, sys.executable, __file__, "--one"]
                try:
                    done = subprocess.run(
                        command, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False
                    )
                except subprocess.TimeoutExpired:
                    failed += 1
                    print(f"{note:<48} no end after {LIMIT_S:.0f} s", flush=True)
                    continue
                if done.returncode:
                    failed += 1
                    print(f"{note:<48} exit code {done.returncode}: {done.stderr.strip()[-400:]}", flush=True)
                    continue
                got = json.loads(done.stdout.splitlines()[-1])
                memory = "-" if not got["memory"] else f"{got['memory'] / GIB:.2f} GiB"
                picked = " ".join(got["picked"])
                print(f"{note:<48} {got['sum']} {got['first']} bits {got['bits']} module {got['module']} of {memory}: "
                      f"{picked}", flush=True)  # fmt: skip
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
