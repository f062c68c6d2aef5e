"""`gemlet serve` in the cluster: frontends with a share each of simulated GPUs, behind one Service."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from tests.cluster.cluster import pod
from tests.cluster.face import only_dra
from tests.cluster.kubernetes import OLD
from tests.cluster.processes import BIN, LIMIT, eventually
from tests.cluster.serving import IMAGE, NAMESPACE, POLICY, RELEASE, Frontends, policy

pytestmark = [
    pytest.mark.skipif(OLD, reason="Kubernetes 1.20 has no policy that gives them simulated GPUs"),
    pytest.mark.skipif(not IMAGE.exists(), reason="without its image: `make serve-image`"),
]
DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "serving" / "deploy.md"
ANSWER = ["english", "german"]
SMALL = {"requests": {"cpu": "50m", "memory": "128Mi"}}  # the machine has two cores, and the models are small


@pytest.fixture(scope="module")
def frontends(cluster, face):
    cluster.node.load(IMAGE)
    cluster.kubectl("create", "namespace", NAMESPACE)
    cluster.create(*policy())
    probe = pod("probe", "true")
    probe["metadata"]["namespace"], probe["spec"]["hostPID"] = NAMESPACE, False
    eventually(lambda: changed(cluster, probe), "the policy in use")
    made = Frontends(cluster)
    gpu = {"from": "claim" if face.name == "dra" else "annotations", "memory": "16Gi", "compute": 25}
    made.install({"replicas": 2, "gpu": gpu, "resources": SMALL})
    begun = time.monotonic()
    eventually(lambda: len(made.ready()) == 2, "two frontends")
    print(f"\ntwo frontends ready after {time.monotonic() - begun:.1f} s", file=sys.stderr)
    yield made
    cluster.kubectl("delete", "namespace", NAMESPACE)
    for kind in ("mutatingadmissionpolicies", "mutatingadmissionpolicybindings"):
        cluster.kubectl("delete", kind, POLICY)


def changed(cluster, entry):
    said = cluster.kubectl("create", "--dry-run=server", "-o", "json", "-f", "-", text=json.dumps(entry))
    return json.loads(said)["spec"].get("hostPID")


def held(cluster):
    """The pods of the frontends' namespace that have a share, by the node's agent."""
    said = json.loads(cluster.gemlet.execute(cluster.node, "agent", "gemlet", "status", "--node", "-o", "json"))
    pods = [share["pod"] for share in said["shares"]]
    return sorted({each["name"] for each in pods if each["namespace"] == NAMESPACE})


def test_each_frontend_answers_by_the_services_names(cluster, frontends):
    client = frontends.client()
    for service in (RELEASE, f"{RELEASE}-each"):
        addresses = frontends.ready(service)
        assert len(set(addresses.values())) == 2
        for address in addresses.values():
            assert client.languages(address, service=service) == ANSWER
            assert client.ask(address, "/v2/models/language/infer", {}, service=service)[0] == 401


def test_the_documents_commands_reach_a_server(cluster, frontends, tmp_path):
    """From outside: the secrets, a forwarded port, curl by the Service's name."""
    text = DOCUMENT.read_text()
    begin = text.index("    kubectl --namespace models get secret vision-tokens")
    script = textwrap.dedent(text[begin : text.index("\n\n", begin)])
    assert "port-forward" in script
    environment = {"KUBECONFIG": str(cluster.admin), "PATH": f"{BIN}:{os.environ['PATH']}"}
    said = subprocess.run(
        ["bash", "-ec", f"trap 'kill $(jobs -p)' EXIT\n{script}"],
        cwd=tmp_path, env=os.environ | environment, stdout=subprocess.PIPE, text=True, check=True, timeout=LIMIT,
    ).stdout  # fmt: skip
    assert '"name": "language"' in said or '"name":"language"' in said, said


def test_each_frontend_has_a_share_of_its_own(cluster, frontends):
    assert held(cluster) == sorted(frontends.ready())


def test_a_frontend_that_is_deleted_costs_no_request(cluster, frontends):
    """It leaves its Services, answers what it has, and another takes its share."""
    client, over, failed, answered = frontends.client(), threading.Event(), [], []

    def ask():
        while not over.is_set():
            try:
                answered.append(client.anywhere())
            except (OSError, AssertionError, IndexError) as error:
                failed.append(repr(error))
            time.sleep(0.05)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        before = set(frontends.ready())
        gone = min(before)
        begun = time.monotonic()
        cluster.kubectl("delete", "pod", "-n", NAMESPACE, gone)
        eventually(lambda: len(set(frontends.ready()) - {gone}) == 2, "another frontend")
        print(f"\nanother frontend after {time.monotonic() - begun:.1f} s", file=sys.stderr)
    finally:
        over.set()
        asking.join()
    assert not failed, f"{len(failed)} of {len(failed) + len(answered)}: {failed[:3]}"
    in_time = [answer for answer in answered if answer]
    print(f"\n{len(answered) - len(in_time)} of {len(answered)} requests were late", file=sys.stderr)
    assert in_time
    assert all(answer == ANSWER for answer in in_time)
    eventually(lambda: held(cluster) == sorted(frontends.ready()), "its share taken by the other")


def test_a_server_that_is_killed_comes_back_while_the_other_answers(cluster, frontends):
    client = frontends.client()
    before = frontends.restarts()
    killed, other = sorted(before)
    (status,) = cluster.get("pod", "-n", NAMESPACE, killed)["status"]["containerStatuses"]
    os.kill(cluster.node.container_pid(status["containerID"]), signal.SIGKILL)
    assert client.languages(frontends.ready()[other]) == ANSWER
    eventually(lambda: frontends.restarts()[killed] == before[killed] + 1, "started again")
    eventually(lambda: killed in frontends.ready(), "ready again")
    assert client.languages(frontends.ready()[killed]) == ANSWER
    assert frontends.restarts()[other] == before[other]


def test_uninstalling_leaves_nothing(cluster, frontends):
    assert frontends.left()
    assert held(cluster)
    frontends.uninstall()
    eventually(lambda: not frontends.left(), "the end of all that was installed")
    eventually(lambda: not held(cluster), "the end of its shares")


@only_dra
def test_frontends_without_gpus_serve_the_example_as_an_ordinary_user(cluster, face):
    """The first command of docs/serving/deploy.md; nothing here makes root of the pods."""
    cluster.node.load(IMAGE)
    made = Frontends(cluster, "plain")
    made.install({"replicas": 2, "gpu": {"from": "none"}, "resources": SMALL})
    try:
        eventually(lambda: len(made.ready()) == 2, "two frontends")
        (user,) = {item["spec"]["securityContext"]["runAsUser"] for item in made.pods()}
        assert user > 0
        client = made.client()
        assert all(client.languages(address) == ANSWER for address in made.ready().values())
        made.uninstall()
        eventually(lambda: not made.left(), "the end of all that was installed")
    finally:
        cluster.kubectl("delete", "namespace", made.namespace)
