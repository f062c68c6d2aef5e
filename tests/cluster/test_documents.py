"""What docs/kubernetes.md shows people to write, as the apiserver and those that it asks take it."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from tests.cluster.cluster import Refused, pod
from tests.cluster.kubernetes import OLD
from tests.cluster.processes import eventually
from tests.cluster.reading import SHARE, lines

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "kubernetes.md"
COMMANDS = re.findall(r"^ {4}kubectl (.*)$", DOCUMENT.read_text(), re.MULTILINE)
(STATUS,) = {command for command in COMMANDS if command.startswith("exec")}
SHOWN = re.findall(r"^```yaml\n(.*?)^```", DOCUMENT.read_text(), re.DOTALL | re.MULTILINE)
# A file of the scheduler's, which here has the same; and Kueue's objects, which test_kueue.py takes to Kueue.
ELSEWHERE = ("kubescheduler.config.k8s.io", "kueue.x-k8s.io")
OBJECTS = {
    (re.findall(r"^kind: (\w+)", text, re.MULTILINE)[0], re.findall(r"\bname: ([\w-]+)", text)[0]): text
    for text in SHOWN
    if not any(group in text for group in ELSEWHERE)
}

pytestmark = pytest.mark.skipif(OLD, reason="Kubernetes 1.20 has neither claims nor policies")


def taken(cluster, text):
    """What the apiserver would keep, one document after another."""
    return cluster.kubectl("create", "--dry-run=server", "-o", "json", "-f", "-", text=text)


@pytest.mark.parametrize(("kind", "name"), OBJECTS)
def test_what_the_document_shows_is_taken(cluster, face, kind, name):
    assert f'"kind": "{kind}"' in taken(cluster, OBJECTS[kind, name])


def test_the_pod_to_try_shows_what_is_promised_of_it(cluster, face):
    """As it stands there for simulated GPUs, with the chart's image: its share is used, and not more of it."""
    cluster.kubectl("apply", "-f", "-", text=OBJECTS["Pod", "try"].replace("# hostPID", "hostPID"))

    def used():
        """The share, once the 25 % that it has been held to show: in its first second it may have had more."""
        try:
            said = cluster.gemlet.execute(cluster.node, "agent", "gemlet", "status", "--node", "-o", "json")
        except Refused:
            return None  # the node's first share is not written yet
        shares = json.loads(said)["shares"]
        usage = [each["share"] or 0 for share in shares for each in (share["usage"] or {}).values()]
        return shares[0] if len(usage) == 1 and 0.1 < usage[0] <= 0.3 else None

    share = eventually(used, "its work")
    assert share["pod"]["name"] == "try"
    assert (share["amounts"]["memory"], share["amounts"]["compute"]) == (8 * 2**30, 25)
    assert "default/try" in cluster.kubectl(*shlex.split(STATUS))


def test_the_pod_of_the_document_asks_for_a_share(cluster, face):
    made = json.loads(taken(cluster, OBJECTS["Pod", "train"]))
    (container,) = made["spec"]["containers"]
    if face.name == "dra":
        (claim,) = made["spec"]["resourceClaims"]
        assert container["resources"]["claims"] == [{"name": claim["name"]}]
    else:
        assert container["resources"]["limits"] == {"gemlet.dev/share": "1"}


def test_its_commands_say_what_is_promised(cluster, face):
    cluster.create(pod("train", "probe", "1000", annotations=SHARE))
    eventually(lambda: lines(cluster, "train", "total"), "first CUDA call")
    said = {command: cluster.kubectl(*shlex.split(command)) for command in COMMANDS}
    assert "default/train" in said[STATUS]
    assert "pod/train annotated" in "".join(said.values())


def test_a_pod_in_a_namespace_of_the_strictest_level_asks_for_a_share(cluster, face):
    """Nothing that a share needs is in the pod itself, where Pod Security would see it."""
    level = {"pod-security.kubernetes.io/enforce": "restricted"}
    cluster.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "strict", "labels": level}})
    asks = pod("train", "probe", annotations=SHARE)
    asks["metadata"]["namespace"] = "strict"
    try:
        with pytest.raises(Refused, match="hostPID"):  # which the simulated machine needs, and a GPU does not
            cluster.create(asks)
        del asks["spec"]["hostPID"]
        asks["spec"]["securityContext"] = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
        least = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
        asks["spec"]["containers"][0]["securityContext"] = least
        (container,) = json.loads(taken(cluster, json.dumps(asks)))["spec"]["containers"]
        assert container["resources"]
    finally:
        cluster.kubectl("delete", "namespace", "strict")
