"""The same questions to a real Triton and to gemlet, with the same repository, unchanged."""

from __future__ import annotations

import json

import pytest

from tests.e2e.serve_process import serving
from tests.triton import probes
from tests.triton.triton_server import INSTALLED, triton

pytestmark = pytest.mark.skipif(not INSTALLED.exists(), reason="there is no Triton: `make triton-test` installs it")


@pytest.fixture(scope="module")
def answered(tmp_path_factory):
    root = tmp_path_factory.mktemp("triton")
    with triton(probes.REPOSITORY, root) as (http, metrics):
        found = {"probes": probes.ask_all(http), "metrics": probes.metrics(metrics)}
    probes.ANSWERS.write_text(json.dumps(found, indent=1, ensure_ascii=False, sort_keys=True) + "\n")
    return found


@pytest.mark.timeout(600)
def test_gemlet_answers_as_triton_does_but_where_a_reason_is_given(answered, tmp_path):
    with serving(probes.REPOSITORY, tmp_path / "log") as server:
        ours = probes.ask_all(f"http://{server.http}")
        metrics = probes.metrics(f"http://{server.http}")
    differ = {name for name, answer in answered["probes"].items() if ours[name] != answer}
    assert {name: [answered["probes"][name], ours[name]] for name in differ - probes.DIFFERENCES.keys()} == {}
    assert probes.DIFFERENCES.keys() - differ == set(), "these are not different any more"
    assert set(answered["metrics"]) - set(metrics) == set()
