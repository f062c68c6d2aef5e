"""The dashboards and the alerts: every query asks for metrics that there are, and a real Prometheus answers it."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace

import msgspec
import pytest
import yaml

from gemlet.kube import metrics as kube_metrics
from gemlet.monitor import metrics
from gemlet.serve.dispatch.statistics import Statistics
from gemlet.serve.plan.model import Gpu, Plan, PlannedGpuLet, Task
from gemlet.serve.server.frontend import metrics as serve_metrics
from tests.unit.kube import fakes
from tests.unit.monitor.status_example import example

PACKAGING = Path(__file__).resolve().parents[3] / "packaging"
RULES = PACKAGING / "prometheus/gemlet.rules.yml"
DASHBOARDS = sorted((PACKAGING / "grafana").glob("*.json"))
VARIABLES = {"$__rate_interval": "30s"} | dict.fromkeys(("$instance", "$device", "$namespace", "$pod", "$model"), ".*")
GROWS = re.compile(r"^(\w+_(?:total|bucket|count|sum)(?:\{.*\})?) (.*)$", re.MULTILINE)


def of_pods():
    """Of a node's agent."""
    share = fakes.claim_share("u1")
    [group] = [group for group in example().devices[0].groups if group.clients]
    group = msgspec.to_builtins(group) | {"name": share.group, "resident_limit": 1 << 30}
    labels = [{"uuid": gpu, "label": share.group, "busy_s": 1.0} for gpu in share.gpus]
    devices = [{"uuid": gpu, "groups": [group]} for gpu in share.gpus]
    return kube_metrics.render([share], {"devices": devices, "labels": labels})


def of_models():
    """Of a model server."""
    counted = Statistics()
    for number in range(50):
        counted.answered(1, 1.0, 2.0, 1.0 + number, slo_ms=40.0)
    counted.refuse("late", 50.0)
    counted.ran(4, 3.0)
    spec = SimpleNamespace(name="m", version=1, label="m")
    task = Task(model="m", rate=80, capacity=90, batch=4, latency_ms=3, worst_ms=9, slo_ms=40, slowdown=1)
    gpu_let = PlannedGpuLet(sm=0.4, duty_ms=5, occupancy=0.8, tasks=(task,))
    plan = Plan(
        policy="gpulet",
        device="H200",
        origin="measured",
        gpus=(Gpu(index=0, memory_mib=1.0, gpu_lets=(gpu_let,)),),
        demands=(),
    )
    engine = SimpleNamespace(
        models={"m": SimpleNamespace(spec=spec, statistics=counted, memory=1 << 30)},
        waiting=lambda _: 2,
        serves=lambda _: True,
        in_flight=3,
    )
    server = SimpleNamespace(engine=engine, restarts=lambda: {0: 1}, plan=lambda: plan)
    return serve_metrics.render(server).decode()


def everything():
    return metrics.render(example()) + of_pods() + of_models()


def panels():
    return [panel for path in DASHBOARDS for panel in json.loads(path.read_text())["panels"]]


def queries():
    """Every query with its variables filled in."""
    found = [target["expr"] for panel in panels() for target in panel["targets"]]
    for variable, value in VARIABLES.items():
        found = [query.replace(variable, value) for query in found]
    return found


def alerts():
    return [rule["expr"] for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def test_every_metric_that_is_asked_for_is_there():
    there = set(re.findall(r"^(gemlet_\w+)", everything(), re.MULTILINE))
    asked = {name for query in queries() + alerts() for name in re.findall(r"\bgemlet_\w+", query)}
    assert asked
    assert asked <= there


def test_a_dashboard_takes_any_data_source():
    assert DASHBOARDS
    for panel in panels():
        for one in (panel, *panel["targets"]):
            assert one["datasource"]["uid"] == "${datasource}"


@pytest.fixture(scope="module")
def exporter():
    """The metrics of a daemon, an agent and a model server, whose counters grow with each scrape."""
    scrapes = itertools.count(1)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            number = next(scrapes)
            text = GROWS.sub(lambda line: f"{line[1]} {(float(line[2]) or 1.0) * number}", everything()).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def prometheus(exporter, tmp_path_factory):
    """Asks a Prometheus server that scrapes the example: rows of a query."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("prometheus is missing: apt-get install prometheus")
    folder = tmp_path_factory.mktemp("prometheus")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = folder / "prometheus.yml"
    scrape = {"job_name": "gemlet", "static_configs": [{"targets": [f"127.0.0.1:{exporter}"]}]}
    config.write_text(yaml.safe_dump({"global": {"scrape_interval": "1s"}, "scrape_configs": [scrape]}))
    command = [
        program,
        f"--config.file={config}",
        f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:

        def ask(query):
            words = urllib.parse.urlencode({"query": query})
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/query?{words}", timeout=60) as answer:
                return json.load(answer)["data"]["result"]

        give_up = time.monotonic() + 60
        while time.monotonic() < give_up:
            try:
                if ask("count_over_time(gemlet_daemon_info[1m]) > 2"):
                    break
            except OSError:
                assert server.poll() is None
            time.sleep(0.2)
        yield ask
        server.terminate()


@pytest.mark.parametrize("query", queries())
def test_prometheus_answers_the_queries_of_panels(prometheus, query):
    assert prometheus(query)


@pytest.mark.parametrize("query", alerts())
def test_prometheus_takes_the_alerts(prometheus, query):
    prometheus(query)  # raises for what is no query; none of them has to fire


def test_the_rules_are_rules():
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is missing: apt-get install prometheus")
    done = subprocess.run([promtool, "check", "rules", str(RULES)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
