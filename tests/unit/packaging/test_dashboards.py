"""The dashboard and the alerts: every query asks for metrics that there are, and a real Prometheus answers it."""

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

import pytest
import yaml

from gemlet.monitor import metrics
from tests.unit.monitor.status_example import example

PACKAGING = Path(__file__).resolve().parents[3] / "packaging"
RULES = PACKAGING / "prometheus/gemlet.rules.yml"
DASHBOARDS = sorted((PACKAGING / "grafana").glob("*.json"))
VARIABLES = {"$instance": ".*", "$device": ".*", "$__rate_interval": "30s"}


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
    there = set(re.findall(r"^(gemlet_\w+)", metrics.render(example()), re.MULTILINE))
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
    """The example's metrics, whose counters grow with each scrape."""
    scrapes = itertools.count(1)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            number = next(scrapes)
            text = re.sub(
                r"^(\w+_total\{.*\}) .*$",
                lambda line: f"{line[1]} {number}",
                metrics.render(example()),
                flags=re.MULTILINE,
            ).encode()
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
