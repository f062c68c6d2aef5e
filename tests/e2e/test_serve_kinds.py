"""A server in modelled time with devices of two kinds: each device is as fast as the profiles of its own kind say."""

from __future__ import annotations

import http.client
import json

import msgspec

from gemlet.serve.profiles import modelled, profile
from tests.e2e.serve_process import serving, write_model

MODEL = """
platform: modelled
max_batch: 8
slo: 10s
inputs: [{name: X, datatype: FP32, shape: [4]}]
outputs: [{name: Y, datatype: FP32, shape: [4]}]
"""
TIMES = 400.0  # as slow


def told(server, path, body=None):
    connection = http.client.HTTPConnection(server.http, timeout=60)
    connection.request("GET" if body is None else "POST", path, body)
    response = connection.getresponse()
    text = response.read()
    connection.close()
    assert response.status == 200, text
    return json.loads(text)


def test_devices_of_two_kinds(tmp_path):
    fast = modelled.h200()
    vgg16 = fast.models["vgg16"]
    later = msgspec.structs.replace(vgg16, latency=tuple((s, b, ms * TIMES) for s, b, ms in vgg16.latency))
    slow = msgspec.structs.replace(
        fast, device=msgspec.structs.replace(fast.device, name="slow"), models={"vgg16": later}
    )
    quick = msgspec.structs.replace(fast, models={"resnet50": fast.models["resnet50"]})
    for name, profiles in (("quick", quick), ("slow", slow)):
        (tmp_path / f"{name}.json").write_text(profile.render(profiles))
    folder = tmp_path / "models"
    for name in ("resnet50", "vgg16"):
        write_model(folder, name, MODEL)
    gpus = f"{tmp_path / 'quick.json'}=1,{tmp_path / 'slow.json'}=1"
    with serving(folder, tmp_path / "log", "--executor", "modelled", "--gpus", gpus) as server:
        parameters = told(server, "/v2")["parameters"]
        assert parameters["kinds"] == f"0 {fast.device.name}, 1 slow"
        assert (
            parameters["profiles"] == f"{fast.device.name}: modelled, of resnet50 only; slow: modelled, of vgg16 only"
        )
        assert parameters["plan"] == (
            f"policy nway+type, modelled profiles of {fast.device.name} and modelled profiles of slow"
        )
        plan = told(server, "/v2/plan")
        assert [(gpu["device"], gpu["lets"][0]["tasks"][0]["model"]) for gpu in plan["gpus"]] == [
            (fast.device.name, "resnet50"), ("slow", "vgg16"),
        ]  # fmt: skip
        question = {"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 4], "data": [0, 1, 2, 3]}]}
        for model in ("resnet50", "vgg16"):
            told(server, f"/v2/models/{model}/infer", json.dumps(question))
        share = plan["gpus"][1]["lets"][0]["sm"]
        stats = told(server, "/v2/models/vgg16/stats")["model_stats"][0]
        took_ms = stats["inference_stats"]["compute_infer"]["ns"] / 1e6
        assert took_ms > 0.5 * later.surface.latency(share, 1)  # jitter apart, it slept that long
        assert later.surface.latency(share, 1) > 100 * vgg16.surface.latency(share, 1) > 0
