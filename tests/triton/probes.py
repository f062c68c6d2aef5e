"""Requests that a Triton server and gemlet have to answer alike. Error messages may differ, and are not compared."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from pathlib import Path

REPOSITORY = Path(__file__).parent / "repository"
ANSWERS = Path(__file__).parent / "answers.json"
MODES = (
    "", "tell", "error", "code UNKNOWN", "code INTERNAL", "code NOT_FOUND", "code INVALID_ARG", "code UNAVAILABLE",
    "code UNSUPPORTED", "code ALREADY_EXISTS", "code CANCELLED", "raise", "too few", "one is missing", "one too many",
    "other datatype", "other rows", "not an array", "in place", "strides", "dlpack", "zwölf",
)  # fmt: skip
# Where gemlet answers otherwise, and why. docs/serving/coming-from-triton.md tells people.
DIFFERENCES = {
    "add_sub, too short": "a request that does not fit the model is the client's fault: 400, not 500",
    "says without the input that it needs": "the same",
    "not ready": "a model that there is not is 404, not 400",
    "ready": "the answer has a body, by the Open Inference Protocol",
    "says 'code UNKNOWN'": "an error of the model is 500 unless its code says that the request is to blame",
    "says 'code CANCELLED'": "the same",
}
METRIC = re.compile(r"^(nv_inference_[a-z_]+){", re.MULTILINE)


def _says(mode, **more):
    rows = more.pop("rows", 1)
    inputs = [{"name": "X", "datatype": "FP32", "shape": [rows, 2], "data": list(range(2 * rows))}]
    if mode is not None:
        inputs.append({"name": "MODE", "datatype": "BYTES", "shape": [rows, 1], "data": [mode] * rows})
    return "/v2/models/says/infer", {"inputs": inputs, **more}


def _add_sub(model="add_sub", first=(1, 2, 3, 4), **more):
    inputs = [
        {"name": "INPUT0", "datatype": "FP32", "shape": [4], "data": list(first)},
        {"name": "INPUT1", "datatype": "FP32", "shape": [4], "data": [1, 1, 1, 1]},
    ]
    return f"/v2/models/{model}/infer", {"inputs": inputs, **more}


def _bls(named):
    path, body = _add_sub("bls")
    body["inputs"].append({"name": "MODEL", "datatype": "BYTES", "shape": [1], "data": [named]})
    return path, body


def _auto(*shape, datatype="INT64"):
    data = list(range(shape[0] * shape[1]))
    return "/v2/models/auto/infer", {"inputs": [{"name": "IN", "datatype": datatype, "shape": shape, "data": data}]}


PROBES = {
    **{f"says {mode!r}": _says(mode) for mode in MODES},
    "says, three rows": _says("", rows=3),
    "says, nine rows": _says("", rows=9),
    "says without its optional input": _says(None),
    "says tell, with an id and parameters": _says(
        "tell", id="seven", parameters={"mine": 3, "word": "x", "timeout": 5_000_000}
    ),
    "says tell, one output asked for": _says("tell", outputs=[{"name": "TOLD"}]),
    "says one is missing, that one asked for": _says("one is missing", outputs=[{"name": "Y"}]),
    "says, an output that there is not": _says("", outputs=[{"name": "Z"}]),
    "says without the input that it needs": ("/v2/models/says/infer", {"inputs": _says("")[1]["inputs"][1:]}),
    "add_sub": _add_sub(),
    "add_sub, not a number": _add_sub(first=(1, 2, 3, float("inf"))),
    "add_sub, too short": _add_sub(first=(1, 2, 3)),
    "add_sub, of a version": ("/v2/models/add_sub/versions/1/infer", _add_sub()[1]),
    "add_sub, of no version": ("/v2/models/add_sub/versions/2/infer", _add_sub()[1]),
    "bls to add_sub": _bls("add_sub"),
    "bls to nobody": _bls("nobody"),
    "auto": _auto(2, 3),
    "auto, too many rows": _auto(5, 3),
    "auto, another datatype": _auto(2, 3, datatype="INT32"),
    "nobody": ("/v2/models/nobody/infer", _add_sub()[1]),
    **{f"metadata of {model}": (f"/v2/models/{model}", None) for model in ("add_sub", "bls", "auto", "says")},
    **{f"configuration of {model}": (f"/v2/models/{model}/config", None) for model in ("add_sub", "auto", "says")},
    "index": ("/v2/repository/index", {}),
    "ready": ("/v2/models/says/ready", None),
    "not ready": ("/v2/models/nobody/ready", None),
}


def ask(server, path, body):
    """Status, and what of the answer has to be the same. ``server``: http://HOST:PORT."""
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(server + path, data), timeout=60) as answer:
            text = answer.read()
            return [answer.status, _essence(path, json.loads(text)) if text.strip() else None]
    except urllib.error.HTTPError as error:
        error.read()
        return [error.code, None]


def ask_all(server):
    """Every probe, by name."""
    return {name: ask(server, *probe) for name, probe in PROBES.items()}


def metrics(server):
    """Names of metrics, from the address that has /metrics."""
    with urllib.request.urlopen(f"{server}/metrics", timeout=60) as answer:
        return sorted(set(METRIC.findall(answer.read().decode())))


def _essence(path, answer):
    if path.endswith("/config"):
        known = {key: answer.get(key, 0) for key in ("name", "max_batch_size")}
        tensors = {
            side: [{key: each[key] for key in ("name", "data_type", "dims")} for each in answer[side]]
            for side in ("input", "output")
        }
        return known | tensors
    if path.endswith("/index"):
        return sorted([each["name"], each["version"], each["state"]] for each in answer)
    return answer
