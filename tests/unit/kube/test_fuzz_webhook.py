"""Any review is answered: allowed with a patch that applies, refused with words, or not understood; never a defect.

A pod that is allowed is one that no path of its mounts takes out of its share, however it is spelt.
"""

from __future__ import annotations

from functools import partial

import msgspec

from gemlet.kube import admission
from gemlet.kube.admission import Cluster
from gemlet.kube.translate import Defaults, translate
from gemlet.kube.webhook import UNREADABLE, Review, answer
from tests import fuzzing

HOST_PATHS = ("/srv/data",)
FACES = [Cluster(face=face, gpu_memory=140 * 1024**3, host_paths=HOST_PATHS) for face in ("slots", "units", "dra")]


def test_any_review():
    understood = 0
    for data in fuzzing.inputs("webhook"):
        for cluster in FACES:
            try:
                reply = answer(msgspec.json.decode(data, type=Review), partial(admission.patch, cluster=cluster))
                answer(msgspec.json.decode(data, type=Review), partial(translate, defaults=Defaults()))
            except UNREADABLE:
                continue
            understood += 1
            response = reply["response"]
            assert response["allowed"] or response["status"]["message"], (fuzzing.SEED, data)
            if response["allowed"] and "patch" in response:
                check_mounts(msgspec.json.decode(data, type=Review).request.object, data)
            msgspec.json.encode(reply)
    assert understood


def check_mounts(pod, data):
    volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes") or []}
    (container, *others) = pod["spec"]["containers"]
    for mount in [] if others else container.get("volumeMounts") or []:
        path = ((volumes.get(mount["name"]) or {}).get("hostPath") or {}).get("path")
        assert path is None or path.rstrip("/") in HOST_PATHS, (fuzzing.SEED, data)
