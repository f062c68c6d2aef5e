"""What is sent: arrivals in parts, tensors from metadata, whole messages; and reports from recordings."""

from __future__ import annotations

import csv
import dataclasses
import io
from array import array
from math import nan

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemlet.errors import InvalidValue
from gemlet.inference_protocol import tensors
from gemlet.load import arrivals, inputs, intervals, messages, report, table
from gemlet.load.http_client import reason
from gemlet.load.inputs import Declared
from gemlet.load.job import Address, Job, Stream
from gemlet.load.model_metadata import ServerTimes
from gemlet.load.recording import Recording
from gemlet.load.report import Report

ADDRESS = Address("http", "127.0.0.1", 8000)


@given(parts=st.integers(1, 7), seed=st.integers(0, 50))
def test_all_parts_together_are_the_same_arrivals(parts: int, seed: int) -> None:
    streams = tuple(
        Stream(model=model, rate=arrivals.constant(rate), messages=(b"",)) for model, rate in (("a", 90), ("b", 20))
    )
    job = Job(address=ADDRESS, streams=streams, seconds=2.0, seed=seed)
    whole = list(job.schedule())
    assert whole == sorted(whole)
    assert sorted(entry for part in range(parts) for entry in job.schedule(part, parts)) == whole


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("localhost:9000", ("http", "localhost", 9000)),
        ("http://10.0.0.1", ("http", "10.0.0.1", 8000)),
        ("grpc://[::1]:8001/", ("grpc", "::1", 8001)),
        ("https://example.org", ("https", "example.org", 443)),
    ],
)
def test_addresses(url: str, expected: tuple[str, str, int]) -> None:
    address = Address.parse(url)
    assert (address.scheme, address.host, address.port) == expected


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://x:99999", "http://x/v2/models/m"])
def test_text_that_is_not_an_address(url: str) -> None:
    with pytest.raises(InvalidValue):
        Address.parse(url)


@pytest.mark.parametrize("datatype", [*tensors.ELEMENTS, "BYTES"])
def test_tensors_of_every_datatype_are_what_they_say(datatype: str) -> None:
    declared = [Declared("x", datatype, (-1, 3, 4))]
    one, two, other = (inputs.make(declared, 2, {}, np.random.default_rng(seed))[0] for seed in (1, 1, 2))
    assert one.shape == (2, 3, 4)
    assert one.data == two.data
    assert one.data != other.data
    array = tensors.to_array(one.data, datatype, one.shape)
    assert len(one.elements()) == 24
    if datatype.startswith("FP"):
        assert np.isfinite(array).all()
    if datatype.startswith("INT"):
        assert (array >= 0).all()
        assert (array < 100).all()  # numbers of tokens, places in embeddings


def test_sizes_that_metadata_leave_open_are_asked_for() -> None:
    declared = [Declared("tokens", "INT64", (-1, -1))]
    with pytest.raises(InvalidValue, match="tokens") as error:
        inputs.make(declared, 1, {}, np.random.default_rng(1))
    assert error.value.hint == "give it, such as --shape tokens:16"
    assert inputs.make(declared, 4, {"tokens": (128,)}, np.random.default_rng(1))[0].shape == (4, 128)
    with pytest.raises(InvalidValue, match="not \\[1, 2\\]"):
        inputs.make(declared, 1, {"tokens": (1, 2)}, np.random.default_rng(1))
    with pytest.raises(InvalidValue, match="no batch dimension"):
        inputs.make([Declared("x", "FP32", (3,))], 2, {}, np.random.default_rng(1))


@pytest.mark.parametrize(
    ("datatype", "shape", "message"),
    [
        ("FP32", (1 << 40,), "at most 1073741824"),
        ("BYTES", (1 << 28,), "at most 1073741824"),
        ("INT8", (-5,), "negative"),
    ],
)
def test_sizes_that_no_server_can_mean_are_refused(datatype: str, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        inputs.make([Declared("x", datatype, shape)], 1, {}, np.random.default_rng(1))


def test_an_http_message_is_as_long_as_it_says() -> None:
    made = inputs.make(
        [Declared("x", "FP32", (-1, 5)), Declared("y", "BYTES", (-1, 1))], 1, {}, np.random.default_rng(1)
    )
    head, _, body = messages.http(ADDRESS, "a b", made, binary=True).partition(b"\r\n\r\n")
    fields = dict(line.split(": ", 1) for line in head.decode().splitlines()[1:])
    assert head.startswith(b"POST /v2/models/a%20b/infer HTTP/1.1\r\n")
    assert int(fields["Content-Length"]) == len(body)
    document = msgspec.json.decode(body[: int(fields["Inference-Header-Content-Length"])])
    assert [entry["parameters"]["binary_data_size"] for entry in document["inputs"]] == [20, 20]
    assert body.endswith(made[0].data + made[1].data)
    plain = messages.http(ADDRESS, "m", made, binary=False)
    assert b"Inference-Header" not in plain
    values = msgspec.json.decode(plain.partition(b"\r\n\r\n")[2])["inputs"][0]["data"]
    assert values == pytest.approx(np.frombuffer(made[0].data, np.float32).tolist())


def test_a_grpc_message_says_the_same() -> None:
    from gemlet.inference_protocol import inference_pb2

    made = inputs.make([Declared("x", "FP32", (-1, 5))], 3, {}, np.random.default_rng(1))
    request = inference_pb2.ModelInferRequest.FromString(messages.grpc("m", made))
    assert (request.model_name, list(request.inputs[0].shape)) == ("m", [3, 5])
    assert request.raw_input_contents[0] == made[0].data


def recorded(latencies_ms: list[float | None], late_ms: float = 0.0) -> Recording:
    recording = Recording()
    for number, latency in enumerate(latencies_ms):
        due = number / 100
        opened = recording.open(due)
        if latency is None:
            recording.close(opened, due, due, "503 no")
        else:
            recording.close(opened, due + late_ms / 1000, due + latency / 1000, None)
    return recording


def test_a_report_counts_what_was_due() -> None:
    model = report.of_model("m", recorded([*range(1, 81), *[None] * 20]), 1.0, slo_ms=40.0)
    assert (model.requests, model.answered, model.in_time) == (100, 80, 40)
    assert model.attainment == pytest.approx(0.4)
    assert model.percentiles == {
        50: pytest.approx(40),
        90: pytest.approx(72),
        95: pytest.approx(76),
        99: pytest.approx(80),
    }
    assert model.refused == {"503 no": 20}
    assert (model.offered, model.throughput, model.goodput) == (100, 80, 40)
    assert report.of_model("m", recorded([5.0] * 100), 1.0, slo_ms=None, warmup_s=0.5).requests == 50


def test_no_requests_at_all_do_not_divide_by_zero() -> None:
    model = report.of_model("m", Recording(), 1.0, slo_ms=1.0)
    assert (model.requests, model.attainment, model.percentiles) == (0, 1.0, {})
    assert table.cells(model)[5] == "-"


def test_requests_without_a_reply_are_late_and_not_in_time() -> None:
    recording = recorded([1.0])
    recording.open(0.5)
    model = report.of_model("m", recording, 1.0, slo_ms=10.0)
    assert (model.requests, model.answered, model.sent_late, model.refused) == (2, 1, 1, {"no reply": 1})


def a_report(model: report.ModelReport, *, busy: float = 0.1, waited: int = 0) -> Report:
    return Report(address="x", seconds=1.0, processes=1, busy=busy, waited=waited, models=(model,))


def test_one_late_request_is_one_request() -> None:
    fine = report.of_model("m", recorded([9.0] * 200), 1.0, slo_ms=10.0)
    once = dataclasses.replace(fine, sent_late=1, most_late_ms=1.1)
    assert table.notes(a_report(once))[0].startswith("1 request went out late, by 1.1 ms")
    assert table.notes(a_report(dataclasses.replace(once, sent_late=2)))[0].startswith("2 requests went")


def test_the_bottleneck_is_named() -> None:
    late = report.of_model("m", recorded([9.0] * 100, late_ms=3.0), 1.0, slo_ms=10.0)
    fine = report.of_model("m", recorded([9.0] * 100), 1.0, slo_ms=10.0)
    assert a_report(fine, busy=1.0).bottleneck is None
    assert "--processes" in (a_report(late, busy=0.99).bottleneck or "")
    assert "--connections" in (a_report(late, waited=50).bottleneck or "")
    assert "something else" in (a_report(late).bottleneck or "")


def test_perf_analyzers_columns_sum_to_the_mean_latency() -> None:
    spans = {"success": 9, "queue": 2, "compute_input": 1, "compute_infer": 4, "compute_output": 1}
    after = ServerTimes(dict.fromkeys(spans, 10), {span: ms * 10_000_000 for span, ms in spans.items()})
    model = report.of_model(
        "m", recorded([12.0] * 10, late_ms=0.5), 1.0, slo_ms=20.0, before=ServerTimes(), after=after
    )
    header, row = csv.reader(io.StringIO(table.as_csv([a_report(model)])))
    found = dict(zip(header, row, strict=True))
    assert tuple(header) == table.COLUMNS
    assert [int(found[f"Server {span}"]) for span in ("Queue", "Compute Infer")] == [2000, 4000]
    assert int(found["Client Send"]) == 500
    assert sum(int(found[column]) for column in header[2:9]) == pytest.approx(12_000, abs=5)
    assert found["p99 latency"] == "12000"


def test_recordings_of_several_processes_keep_their_reasons() -> None:
    one, two = Recording(), Recording()
    for recording, message in ((one, "a"), (two, "b"), (two, "a")):
        recording.close(recording.open(0.0), nan, 0.0, message)
    one.add(two)
    assert report.of_model("m", one, 1.0, slo_ms=None).refused == {"a": 2, "b": 1}


def test_reasons_without_their_numbers() -> None:
    assert reason(503, b'{"error": "12.5 ms left,\\n 14 needed"}') == "503 # ms left, # needed"
    assert reason(500, b"<html>") == "500 <html>"
    assert reason(502, b"\xff\xfe") == "502 \ufffd\ufffd"
    assert reason(500, b"\x1b[31mred") == "500 \\x1b[#mred"
    assert reason(500, b"[" * 100_000).startswith("500 [[[")


def test_intervals_are_the_whole_run_by_when_requests_were_due() -> None:
    recording = recorded([10.0, None, 30.0, 10.0])
    recording.due[:] = array("d", [0.2, 2.6, 0.9, 2.1])
    recording.done[:] = array("d", [0.21, nan, 0.93, 2.11])
    found = intervals.cut(recording, 1.0, 4.0, slo_ms=20.0)
    assert [each.at for each in found] == [0.0, 1.0, 2.0, 3.0]
    assert [(each.requests, each.answered, each.in_time) for each in found] == [
        (2, 2, 1),
        (0, 0, 0),
        (2, 1, 1),
        (0, 0, 0),
    ]
    assert [each.p99_ms for each in found] == [pytest.approx(30.0), None, pytest.approx(10.0), None]
    assert sum(each.requests for each in intervals.cut(recording, 0.7, 4.0, slo_ms=None)) == 4
    assert len(intervals.cut(Recording(), 0.1, 0.3, slo_ms=None)) == 3
