"""Models of a server, from what it says of itself."""

from __future__ import annotations

import itertools
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from gemlet.errors import GemletError
from gemlet.monitor.web import serving
from gemlet.monitor.web.serving import Sample, Serving, models, quantile, read
from tests.unit.packaging.test_dashboards import of_models

PLAN = {
    "gpus": [
        {
            "index": 1,
            "lets": [
                {
                    "sm": 0.4,
                    "tasks": [
                        {"model": "m", "rate": 80.0, "capacity": 100.0, "batch": 4, "worst_ms": 9.0, "slo_ms": 20.0}
                    ],
                }
            ],
        }
    ]
}


def text(answered, late, refused, buckets, waiting=0):
    lines = [
        f'gemlet_serve_requests_total{{model="m",outcome="answered",version="1"}} {answered}',
        f'gemlet_serve_requests_total{{model="m",outcome="late",version="1"}} {refused}',
        f'gemlet_serve_late_total{{model="m",version="1"}} {late}',
        f'gemlet_serve_queue{{model="m",version="1"}} {waiting}',
        "gemlet_serve_in_flight 3.0",
    ]
    lines += [
        f'gemlet_serve_latency_seconds_bucket{{le="{bound}",model="m",version="1"}} {count}'
        for bound, count in buckets.items()
    ]
    return "\n".join(lines) + "\n"


def test_what_a_server_writes_is_read():
    """The text of the server's own frontend: 50 answers of 1 to 50 ms, ten of them late, and one that was refused."""
    then, now = Sample(0.0, {}, {}), Sample(10.0, read(of_models()), {})
    (row,) = models(then, now)
    assert (row["model"], row["version"], row["rate"], row["waiting"]) == ("m", "1", 5.1, 2.0)
    assert row["attained"] == pytest.approx(40 / 51, abs=0.03)
    assert 0.02 < row["p50_s"] < 0.03
    assert 0.04 < row["p99_s"] <= 0.05


@pytest.mark.parametrize("labels", list(itertools.permutations(['model="a\\"b\\\\{"', 'version="2"', 'le="+Inf"'])))
def test_labels_have_no_order(labels):
    found = read(f"gemlet_serve_latency_seconds_bucket{{{','.join(labels)}}} 7.0\n")
    assert found == {("gemlet_serve_latency_seconds_bucket", ('a"b\\{', "2"), "+Inf"): 7.0}


def test_rates_and_answers_in_time_are_those_between_two_looks():
    then = Sample(100.0, read(text(1000, 10, 5, {"0.01": 900, "0.1": 1000, "+Inf": 1000})), {})
    now = Sample(110.0, read(text(1900, 19, 105, {"0.01": 1700, "0.1": 1890, "+Inf": 1900}, waiting=2)), PLAN)
    (row,) = models(then, now)
    assert (row["model"], row["version"], row["rate"], row["waiting"]) == ("m", "1", 100.0, 2.0)
    assert row["attained"] == pytest.approx((900 - 9) / 1000)  # who was refused is not served in time either
    assert 0 < row["p50_s"] < 0.01
    assert row["p99_s"] is None or row["p99_s"] > 0.01
    assert row["places"] == [
        {"gpu": 1, "sm": 0.4, "rate": 80.0, "capacity": 100.0, "batch": 4, "worst_ms": 9.0, "slo_ms": 20.0}
    ]


def test_without_requests_nothing_is_said():
    sample = Sample(1.0, read(text(0, 0, 0, {"0.01": 0, "+Inf": 0})), {})
    (row,) = models(sample, sample)
    assert [row[key] for key in ("rate", "attained", "p50_s", "p99_s", "places")] == [None, None, None, None, []]


def test_quantiles_of_cumulative_buckets():
    assert quantile({0.1: 50.0, 0.2: 100.0, float("inf"): 100.0}, 0.75) == pytest.approx(0.15)
    assert quantile({0.1: 50.0, float("inf"): 100.0}, 0.99) is None
    assert quantile({}, 0.5) is None


@pytest.fixture
def server():
    answers = {"/metrics": text(5, 0, 0, {"0.01": 5, "+Inf": 5}), "/v2/plan": json.dumps(PLAN)}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            body = answers.get(self.path)
            self.send_response(200 if body else 401)
            self.end_headers()
            self.wfile.write((body or "").encode())

        def log_message(self, *_):
            pass

    made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.answers = answers
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def test_a_server_is_asked_when_the_page_asks(server, monkeypatch):
    monkeypatch.setattr(serving, "LEAST", 0.0)
    asks = Serving(server.server_address)
    assert asks.answer()["models"][0]["rate"] is None
    server.answers["/metrics"] = text(25, 0, 0, {"0.01": 25, "+Inf": 25})
    answer = asks.answer()
    assert answer["models"][0]["rate"] == pytest.approx(20 / answer["seconds"])
    del server.answers["/metrics"]
    with pytest.raises(GemletError, match="answers 401"):
        asks.answer()


def test_no_server():
    with pytest.raises(GemletError, match=r"gemlet serve does not answer at 127\.0\.0\.1:1"):
        Serving(("127.0.0.1", 1)).answer()


@pytest.mark.parametrize(
    ("metrics", "plan"),
    [
        ("<html>", "<html>"),
        (text(1, 0, 0, {}), "[1, 2]"),
        (text(1, 0, 0, {}), '{"gpus": 7}'),
        (text(1, 0, 0, {}), '{"gpus": [{"lets": [{"tasks": [{"model": "m"}]}]}]}'),
        (text(1, 0, 0, {}), '{"gpus": [{"index": 0, "lets": [{"sm": NaN, "tasks": [{"model": "m"}]}]}]}'),
        (text(1, 0, 0, {}), "[" * 100_000),
        (text("x", 0, 0, {}), "{}"),
        (text("nan", 0, 0, {}), "{}"),
        (text(1, 0, 0, {"often": 1}), "{}"),
    ],
)
def test_what_answers_there_may_be_no_server(server, metrics, plan):
    server.answers.update({"/metrics": metrics, "/v2/plan": plan})
    with pytest.raises(GemletError, match="gemlet serve"):
        Serving(server.server_address).answer()


@pytest.mark.parametrize(
    "metrics",
    [
        "gemlet_serve_queue{" + "a" * 1_000_000 + "} 1\n",
        'gemlet_serve_queue{model="' + 'a\\"' * 300_000 + "} 1\n",
        "\n".join(f'gemlet_serve_queue{{model="m{number}",version="1"}} 1' for number in range(40_000)),
    ],
    ids=["a long label", "a text without an end", "many models"],
)
def test_the_time_to_read_grows_with_the_length(metrics):
    began = time.process_time()
    models(Sample(0.0, {}, {}), Sample(1.0, read(metrics), {}))
    assert time.process_time() - began < 30  # it was hours


def test_a_server_that_takes_its_time_keeps_nobody_else(monkeypatch):
    monkeypatch.setattr(serving, "SECONDS", 0.5)
    end = threading.Event()

    class Slow(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            while not end.wait(0.05):
                self.wfile.write(b"a")

        def log_message(self, *_):
            pass

    slow = ThreadingHTTPServer(("127.0.0.1", 0), Slow)
    thread = threading.Thread(target=slow.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        asks = Serving(slow.server_address)
        said = []

        def ask():
            try:
                asks.answer()
            except GemletError as error:
                said.append(str(error))

        several = [threading.Thread(target=ask, daemon=True) for _ in range(4)]
        for each in several:
            each.start()
        for each in several:
            each.join(60)
        assert len(said) == len(several)
    finally:
        end.set()
        slow.shutdown()
        thread.join()
        slow.server_close()
