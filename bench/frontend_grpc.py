"""What a request costs the server over gRPC and over HTTP/1.1: a no-op model, 16 FP32 values, one client for both.

    .venv/bin/python -m bench.frontend_grpc                    five rounds; medians
    .venv/bin/python -m bench.frontend_grpc --rounds 1 --json

The client is nghttp2's `h2load` (apt-get install nghttp2-client), written in C. It waits for each reply, so the rate
says as much of the machine and the client as of the server; the server's processor time a request is the number to
compare.
Rounds alternate between the two, so that other work on the machine falls on both.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil

from bench.frontend import CONFIG
from bench.live_server import LiveServer, processor_seconds
from gemlet.inference_protocol import inference_pb2

ELEMENTS = 16
SHAPES = ((1, 1), (16, 1), (64, 1), (1, 64))  # (connections, requests at a time of each); HTTP/1.1 has one at a time
WARM_UP = 300
TRAILERS = "te: trailers"  # codespell:ignore te


def bodies(folder: Path) -> dict[str, list[str]]:
    """Arguments of h2load by protocol, its request in a file."""
    message = inference_pb2.ModelInferRequest(model_name="echo", raw_input_contents=[bytes(4 * ELEMENTS)])
    message.inputs.add(name="X", datatype="FP32", shape=[1, ELEMENTS])
    data = message.SerializeToString()
    (folder / "grpc").write_bytes(b"\0" + len(data).to_bytes(4, "big") + data)
    one = {"name": "X", "datatype": "FP32", "shape": [1, ELEMENTS], "parameters": {"binary_data_size": 4 * ELEMENTS}}
    header = json.dumps({"parameters": {"binary_data_output": True}, "inputs": [one]}).encode()
    (folder / "http").write_bytes(header + bytes(4 * ELEMENTS))
    return {
        "grpc": ["-d", str(folder / "grpc"), "-H", "content-type: application/grpc", "-H", TRAILERS],
        "http": ["-d", str(folder / "http"), "--h1", "-H", f"Inference-Header-Content-Length: {len(header)}"],
    }


def sent(arguments: list[str], url: str, count: int, connections: int, streams: int) -> float:
    """Requests/s. Raises RuntimeError if one has no answer."""
    shape = ["-n", str(count), "-c", str(connections), "-m", str(streams), "-t", "1"]
    words = subprocess.run(["h2load", *shape, *arguments, url], capture_output=True, text=True, check=True).stdout
    succeeded, rate = re.search(r"(\d+) succeeded", words), re.search(r"([\d.]+) req/s", words)
    if succeeded is None or rate is None or int(succeeded[1]) != count:
        raise RuntimeError(words)
    return float(rate[1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found: dict[tuple[str, int, int], list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "models" / "echo" / "1").mkdir(parents=True)
        (folder / "models" / "echo" / "config.yaml").write_text(CONFIG.format(slo="60s", elements=ELEMENTS))
        asked = bodies(folder)
        with LiveServer(folder / "models", folder / "log", "--executor", "cpu") as server:
            process = psutil.Process(server.process.pid)
            urls = {
                "grpc": f"http://{server.document['grpc']}/inference.GRPCInferenceService/ModelInfer",
                "http": f"{server.http}/v2/models/echo/infer",
            }
            cases = [(kind, *shape) for shape in SHAPES for kind in asked if kind == "grpc" or shape[1] == 1]
            for kind, url in urls.items():
                sent(asked[kind], url, WARM_UP, 1, 1)
            for _ in range(given.rounds):
                for kind, connections, streams in cases:
                    before = processor_seconds(process)
                    rate = sent(asked[kind], urls[kind], given.requests, connections, streams)
                    cost = 1e6 * (processor_seconds(process) - before) / given.requests
                    found.setdefault((kind, connections, streams), []).append((cost, rate))
    rows = [
        {
            "protocol": kind, "connections": connections, "at_a_time": streams,
            "server_cpu_us": round(statistics.median(cost for cost, _ in each), 1),
            "rate": round(statistics.median(rate for _, rate in each), 1),
        }
        for (kind, connections, streams), each in found.items()
    ]  # fmt: skip
    if given.json:
        print(json.dumps({"schema": 1, "rounds": given.rounds, "cases": rows}, indent=1))
        return 0
    print("protocol  connections  each at a time  server's CPU a request  requests/s")
    for row in rows:
        print("{protocol:8}{connections:>13}{at_a_time:>16}{server_cpu_us:>21} us{rate:>12}".format_map(row))
    return 0


if __name__ == "__main__":
    sys.exit(main())
