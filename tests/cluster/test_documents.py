"""What docs/kubernetes.md shows people to write, as the apiserver and those that it asks take it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cluster.kubernetes import OLD

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "kubernetes.md"
SHOWN = re.findall(r"^```yaml\n(.*?)^```", DOCUMENT.read_text(), re.DOTALL | re.MULTILINE)
OBJECTS = {
    re.findall(r"^kind: (\w+)", text, re.MULTILINE)[0]: text
    for text in SHOWN
    if "KubeSchedulerConfiguration" not in text  # a file of the scheduler's, which here has the same
}

pytestmark = pytest.mark.skipif(OLD, reason="Kubernetes 1.20 has neither claims nor policies")


def taken(cluster, text):
    """What the apiserver would keep, one document after another."""
    return cluster.kubectl("create", "--dry-run=server", "-o", "json", "-f", "-", text=text)


@pytest.mark.parametrize("kind", OBJECTS)
def test_what_the_document_shows_is_taken(cluster, face, kind):
    assert f'"kind": "{kind}"' in taken(cluster, OBJECTS[kind])


def test_the_pod_of_the_document_asks_for_a_share(cluster, face):
    made = json.loads(taken(cluster, OBJECTS["Pod"]))
    (container,) = made["spec"]["containers"]
    if face.name == "dra":
        (claim,) = made["spec"]["resourceClaims"]
        assert container["resources"]["claims"] == [{"name": claim["name"]}]
    else:
        assert container["resources"]["limits"] == {"gemlet.dev/share": "1"}
