"""The same questions to a real Triton and to gemlet, with the same repository, unchanged."""

from __future__ import annotations

import contextlib
import json
import subprocess

import pytest

from tests.e2e.serve_process import serving
from tests.triton import client_probes, perf_analyzer, probes
from tests.triton.triton_server import INSTALLED, triton

pytestmark = pytest.mark.skipif(not INSTALLED.exists(), reason="there is no Triton: `make triton-test` installs it")


@pytest.fixture(scope="module")
def answered_alone(tmp_path_factory):
    """Triton's answers to probes, and its metrics. Beside other work a tritonserver 2.51 may die of nested requests."""
    while True:
        with (
            triton(probes.REPOSITORY, tmp_path_factory.mktemp("alone")) as (http, _, metrics),
            contextlib.suppress(ConnectionError),  # another one, until the test's time is over
        ):
            return {"probes": probes.ask_all(f"http://{http}"), "metrics": probes.metrics(f"http://{metrics}")}


@pytest.fixture(scope="module")
def servers(answered_alone, tmp_path_factory):
    """Addresses of HTTP and gRPC, of a Triton that loads what clients want, and of gemlet."""
    root = tmp_path_factory.mktemp("triton")
    with (
        triton(probes.REPOSITORY, root, client_probes.MODELS) as (http, grpc, _),
        serving(probes.REPOSITORY, root / "gemlet") as ours,
    ):
        yield {"triton": (http, grpc), "gemlet": (ours.http, ours.grpc)}


@pytest.fixture(scope="module")
def answered(answered_alone, servers):
    http, _ = servers["gemlet"]
    theirs = answered_alone | {"clients": client_probes.ask_all(*servers["triton"])}
    ours = {"probes": probes.ask_all(f"http://{http}"), "metrics": probes.metrics(f"http://{http}")}
    ours["clients"] = client_probes.ask_all(*servers["gemlet"])
    probes.ANSWERS.write_text(json.dumps(theirs, indent=1, ensure_ascii=False, sort_keys=True) + "\n")
    return json.loads(json.dumps({"triton": theirs, "gemlet": ours}))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["probes", "clients"])
def test_gemlet_answers_as_triton_does_but_where_a_reason_is_given(answered, kind):
    theirs, ours = answered["triton"][kind], answered["gemlet"][kind]
    reason = probes.DIFFERENCES.get if kind == "probes" else client_probes.reason
    differ = {name for name, answer in theirs.items() if ours[name] != answer}
    assert {name: [theirs[name], ours[name]] for name in differ if reason(name) is None} == {}
    assert {name for name in theirs if reason(name) is not None} - differ == set(), "these are not different any more"


def test_every_metric_of_tritons_is_there(answered):
    assert set(answered["triton"]["metrics"]) - set(answered["gemlet"]["metrics"]) == set()


@pytest.mark.timeout(600)
@pytest.mark.skipif(not perf_analyzer.THERE, reason="there is no perf_analyzer: tests/triton/install says why")
@pytest.mark.parametrize("shared_memory", ["none", "system"])
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_perf_analyzer_measures_both(servers, protocol, shared_memory):
    rows = {}
    for which in ("triton", "gemlet"):
        address = servers[which][("http", "grpc").index(protocol)]
        more = {"at_a_time": 4, "requests": 50, "shared_memory": shared_memory}
        rows[which] = perf_analyzer.measured(protocol, address, "simple", **more)
    assert rows["gemlet"].keys() == rows["triton"].keys()
    assert all(float(row["Inferences/Second"]) > 0 for row in rows.values())
    assert all(float(row["Server Compute Infer"]) > 0 for row in rows.values())


EXAMPLES = INSTALLED / "client" / "src" / "python" / "examples"
# Programs of NVIDIA's that both must end well, by what of a server they ask. simple_{http,grpc}_health_metadata wants a
# server named triton; simple_*_model_control wants seven models and another configuration than the files say.
PROGRAMS = (
    "simple_http_infer_client", "simple_http_async_infer_client", "simple_http_string_infer_client",
    "simple_http_shm_client", "simple_http_shm_string_client", "simple_http_aio_infer_client",
    "simple_grpc_infer_client", "simple_grpc_async_infer_client", "simple_grpc_string_infer_client",
    "simple_grpc_shm_client", "simple_grpc_shm_string_client", "simple_grpc_aio_infer_client",
    "simple_grpc_custom_args_client", "simple_grpc_keepalive_client", "grpc_explicit_int_content_client",
)  # fmt: skip


@pytest.mark.skipif(not EXAMPLES.exists(), reason="there are none of NVIDIA's examples: tests/triton/install says why")
@pytest.mark.parametrize("which", ["triton", "gemlet"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_nvidias_examples_end_well(servers, name, which):
    http, grpc = servers[which]
    address = grpc if "grpc" in name else http
    command = [INSTALLED / "bin" / "python", EXAMPLES / f"{name}.py", "-u", address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
