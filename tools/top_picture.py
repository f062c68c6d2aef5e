"""Makes docs/images/top.svg: `gemlet top` while a training, an inference and a notebook share a simulated GPU.

.venv/bin/python tools/top_picture.py [FILE]
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SECONDS = 12  # until the shares over a second have settled
GEMLET = [sys.executable, "-m", "gemlet.cli.main"]

# name, options of `gemlet run`, GiB allocated, microseconds a kernel, kernels in a burst, pause after each burst in ms
PROGRAMS = [
    ("train.py", ["--group", "training", "--min", "50%", "--memory", "60GiB"], 41, 400, 40, 0),
    (
        "serve.py",
        ["--group", "inference", "--min", "20%", "--priority", "latency", "--memory", "24GiB"],
        17,
        300,
        8,
        10,
    ),
    ("explore.py", ["--group", "notebook", "--max", "40%", "--memory", "16GiB"], 9, 200, 100, 0),
]
PROGRAM = """\
import ctypes, sys, time
gib, microseconds, burst = map(int, sys.argv[1:4])
pause = float(sys.argv[4]) / 1000
cuda = ctypes.CDLL("libcuda.so.1")
def check(name, *arguments):
    status = getattr(cuda, name)(*arguments)
    if status:
        raise SystemExit(f"{name}: {status}")
check("cuInit", 0)
context, module, function, pointer = (ctypes.c_void_p() for _ in range(4))
check("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
check("cuCtxSetCurrent", context)
check("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(gib << 30))
check("cuModuleLoadData", ctypes.byref(module), b".visible .entry spin(.param .u64 ns) { ret; }")
check("cuModuleGetFunction", ctypes.byref(function), module, b"spin")
duration = ctypes.c_uint64(microseconds * 1000)
parameters = (ctypes.c_void_p * 1)(ctypes.addressof(duration))
while True:
    for _ in range(burst):
        check("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, None, parameters, None)
    check("cuCtxSynchronize")
    time.sleep(pause)
"""


def main() -> None:
    picture = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/images/top.svg").absolute()
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"GEMLET_RUNTIME_DIR": str(Path(folder, "run"))}
        running = []
        try:
            for name, options, *numbers in PROGRAMS:
                program = Path(folder, name)
                program.write_text(f"#!{sys.executable}\n{PROGRAM}")
                program.chmod(0o755)
                command = [*GEMLET, "run", "--simulate", "-q", *options, "--", f"./{name}", *map(str, numbers)]
                running.append(subprocess.Popen(command, env=environment, cwd=folder))
            time.sleep(SECONDS)
            subprocess.run(
                [*GEMLET, "top", "--simulate", "--screenshot", str(picture)], env=environment, check=True, timeout=60
            )
        finally:
            for process in running:
                process.kill()
                process.wait()
            subprocess.run([*GEMLET, "stop", "--simulate"], env=environment, check=False, timeout=60)


if __name__ == "__main__":
    main()
