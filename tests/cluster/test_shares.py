"""Shares on a real node, as slots and as claims: webhook, stock scheduler, kubelet, agent, daemon, hook. The GPU is
simulated."""

from __future__ import annotations

import base64
import json
import math
import os
import re
import signal
import sys
import time
from datetime import UTC, datetime, timedelta

import pytest

from tests.cluster.claims import claiming, template
from tests.cluster.cluster import Refused, pod
from tests.cluster.face import only_slots
from tests.cluster.processes import eventually, memory
from tests.cluster.reading import SHARE, later, lines, metrics, shares
from tests.cluster.release import NAMESPACE


def state(cluster):
    """What the agent keeps on the node."""
    return cluster.node.fixed / "var/lib/gemlet"


def test_a_pod_gets_exactly_the_part_it_asks_for(cluster, face):
    """E1: pod -> webhook -> scheduler -> kubelet -> agent -> hook."""
    begun = time.monotonic()
    cluster.create(pod("a", "probe", "8", annotations=SHARE))
    eventually(lambda: lines(cluster, "a", "total"), "first CUDA call")
    print(f"\npod created to first CUDA call under the hook: {time.monotonic() - begun:.2f} s", file=sys.stderr)
    asks_for(cluster, face)
    assert lines(cluster, "a", "total") == ["16384"]
    eventually(lambda: cluster.phase("a") == "Succeeded", "its end")
    assert lines(cluster, "a", "refused") == ["16385"], "a byte more than the share is refused"
    measured = sum(shares(cluster, "a")[1:]) / len(shares(cluster, "a")[1:])
    print(f"measured share of a hard 25 %, alone: {measured:.1f} %", file=sys.stderr)
    assert 0 < measured <= 30, "alone on the GPU, and still held to its share"


def asks_for(cluster, face):
    """What the webhook made of the pod's annotations."""
    made = cluster.get("pod", "a")["spec"]["containers"][0]["resources"]
    if face.name == "slots":
        assert made["limits"] == {"gemlet.dev/share": "1"}
        return
    assert made["claims"] == [{"name": "gemlet"}]
    (status,) = cluster.get("pod", "a")["status"]["resourceClaimStatuses"]
    claim = cluster.get("resourceclaim", status["resourceClaimName"])
    (result,) = claim["status"]["allocation"]["devices"]["results"]
    assert result["consumedCapacity"] == {"memory": "16Gi", "compute": "25"}


def test_a_full_node_makes_pods_wait(cluster, face):
    """E2."""
    names = [f"p{number}" for number in range(8)]
    for name in names:
        cluster.create(pod(name, "sleep", "1000", annotations=SHARE))
    eventually(lambda: all(cluster.phase(name) == "Running" for name in names), "eight pods")
    cluster.create(pod("late", "sleep", "1000", annotations=SHARE))
    eventually(lambda: face.waits in cluster.events("late"), "the event that says why")
    assert cluster.phase("late") == "Pending"
    cluster.delete("p3")
    eventually(lambda: cluster.phase("late") == "Running", "its turn")
    held = {path.name for path in (state(cluster) / "shares").iterdir()}
    assert len(held) == 8, "the ended pod's share is gone as soon as its slot is taken"


def test_a_restarted_kubelet_finds_the_plugin_again(cluster, face):
    """E3."""
    cluster.create(pod("a", "probe", "1000", annotations=SHARE))
    eventually(lambda: len(shares(cluster, "a")) >= 2, "work")
    eventually(lambda: cluster.phase("a") == "Running", "the status of the work")
    before = cluster.get("pod", "a")["status"]["containerStatuses"][0]
    registrations = face.registrations(cluster, cluster.node)
    kubelet = cluster.node.parts["kubelet"]
    kubelet.stop()
    kubelet.start()
    begun = time.monotonic()
    eventually(lambda: face.registrations(cluster, cluster.node) > registrations, "registration")
    print(f"\nregistered again {time.monotonic() - begun:.1f} s after the kubelet's start", file=sys.stderr)
    eventually(lambda: face.offered(cluster) == face.full and cluster.ready(), "slots back")
    count = len(shares(cluster, "a"))
    eventually(lambda: len(shares(cluster, "a")) >= count + 2, "more work")
    after = cluster.get("pod", "a")["status"]["containerStatuses"][0]
    assert (after["containerID"], after["restartCount"]) == (before["containerID"], 0)
    cluster.create(pod("b", "probe", annotations=SHARE))
    eventually(lambda: lines(cluster, "b", "total") == ["16384"], "a new pod")


def test_a_restarted_runtime_leaves_running_pods_in_their_shares(cluster, face):
    """containerd: the containers' own shims go on without it."""
    cluster.create(pod("a", "probe", "1000", annotations=SHARE))
    eventually(lambda: len(shares(cluster, "a")) >= 2, "work")
    eventually(lambda: cluster.phase("a") == "Running", "the status of the work")
    containerd = cluster.node.parts["containerd"]
    containerd.stop()
    containerd.start()
    eventually(lambda: face.offered(cluster) == face.full and cluster.ready(), "slots")
    assert later(cluster, "a") <= 30, "held to its share"
    assert cluster.get("pod", "a")["status"]["containerStatuses"][0]["restartCount"] == 0
    cluster.create(pod("b", "probe", annotations=SHARE))
    eventually(lambda: lines(cluster, "b", "total") == ["16384"], "a new pod")


@pytest.mark.parametrize("part", ["agent", "daemon"])
def test_a_killed_part_leaves_running_pods_in_their_shares(cluster, face, part):
    """E4."""
    cluster.create(pod("a", "probe", "1000", annotations=SHARE))
    eventually(lambda: len(shares(cluster, "a")) >= 2, "work")
    cluster.gemlet.kill(part, cluster.node)
    face.ready(cluster)
    assert later(cluster, "a") <= 30, f"held to its share after the {part} was killed"
    assert cluster.get("pod", "a")["status"]["containerStatuses"][0]["restartCount"] == 0
    cluster.create(pod("b", "probe", annotations=SHARE))
    eventually(lambda: lines(cluster, "b", "total") == ["16384"], "a new pod")


def test_without_the_webhook_plain_pods_start_and_shares_are_refused(cluster, face):
    """E5."""
    scale_webhook(cluster, 0)
    try:
        cluster.create(pod("plain", "sleep", "1000"))
        # Its pods may answer for a moment after their addresses have gone.
        eventually(lambda: "pods.gemlet.dev" in refusal(cluster), "refusal")
        eventually(lambda: cluster.phase("plain") == "Running", "a plain pod")
    finally:
        scale_webhook(cluster, 2)
    eventually(lambda: cluster.takes(pod("a", "probe", annotations=SHARE)), "the webhook again")
    eventually(lambda: lines(cluster, "a", "total") == ["16384"], "its first CUDA call")


def scale_webhook(cluster, replicas):
    cluster.kubectl("-n", NAMESPACE, "scale", "deployment", "gemlet-webhook", f"--replicas={replicas}")

    def addresses():
        subsets = cluster.get("endpoints", "-n", NAMESPACE, "gemlet-webhook").get("subsets") or []
        return [address for subset in subsets for address in subset.get("addresses") or []]

    eventually(lambda: len(addresses()) == replicas, "the webhook's addresses")


def test_a_new_certificate_fails_no_admission(cluster, face):
    """E6: first the authority of the next certificates is trusted too, then they come."""
    change_secret(cluster, {"ca.crt": secret(cluster)["ca.crt"] + cluster.pki.ca.cert_pem.bytes()})
    cluster.gemlet.upgrade()
    name = f"gemlet-webhook.{NAMESPACE}.svc"
    for number in range(40):
        if number % 10 == 5:
            change_secret(cluster, dict(zip(("tls.crt", "tls.key"), cluster.pki.pair(name, common=name), strict=True)))
        assert refusal(cluster) == ""
        time.sleep(0.2)
    eventually(lambda: cluster.gemlet.log("webhook", cluster.node).count("taken") >= 2, "the last one taken")
    assert refusal(cluster) == ""


def test_a_refusal_names_an_expired_certificate(cluster, face):
    """Of an authority that is trusted: by the test before, or by this one."""
    authority = cluster.pki.ca.cert_pem.bytes()
    if authority not in secret(cluster)["ca.crt"]:
        change_secret(cluster, {"ca.crt": secret(cluster)["ca.crt"] + authority})
        cluster.gemlet.upgrade()
    name = f"gemlet-webhook.{NAMESPACE}.svc"
    yesterday = datetime.now(UTC) - timedelta(days=1)
    for until in (yesterday, None):
        pair = cluster.pki.pair(name, common=name, until=until)
        change_secret(cluster, dict(zip(("tls.crt", "tls.key"), pair, strict=True)))
        if until:  # connections that are open keep the certificate they began with
            cluster.kubectl("-n", NAMESPACE, "rollout", "restart", "deployment", "gemlet-webhook")
            cluster.gemlet.wait()
            eventually(lambda: "certificate has expired" in refusal(cluster), "refusal")
    eventually(lambda: all(refusal(cluster) == "" for _ in range(4)), "admission again")


def refusal(cluster):
    """Why a pod that asks for a share is refused, "" if it is not. A dry run passes admission and makes no pod."""
    entry = json.dumps(pod("p", "true", annotations=SHARE))
    try:
        cluster.kubectl("create", "--dry-run=server", "-f", "-", text=entry)
    except Refused as error:
        return str(error)
    return ""


def secret(cluster):
    data = cluster.get("secret", "-n", NAMESPACE, "gemlet-webhook")["data"]
    return {file: base64.b64decode(content) for file, content in data.items()}


def change_secret(cluster, files):
    data = {file: base64.b64encode(content).decode() for file, content in files.items()}
    cluster.kubectl("-n", NAMESPACE, "patch", "secret", "gemlet-webhook", "-p", json.dumps({"data": data}))


def test_bad_input_is_refused_with_the_field_and_the_hint(cluster, face):
    for asked, text in (
        (SHARE | {"gemlet.dev/compute": "0"}, r"annotations\[gemlet.dev/compute\]: 0 is not from 1 to 100"),
        (SHARE | {"gemlet.dev/compute": "101"}, "write percent of one GPU's time"),
        (SHARE | {"gemlet.dev/memory": "200Gi"}, "more than a GPU has; ask for"),
        (SHARE | {"gemlet.dev/sm": "50"}, r"annotations\[gemlet.dev/sm\]: .*it needs MPS.*leave it out"),
        (SHARE | {"gemlet.dev/resident": "16Gi"}, r"annotations\[gemlet.dev/resident\]: .*leave it out"),
        (SHARE | {"gemlet.dev/computes": "1"}, "did you mean gemlet.dev/compute"),
    ):
        with pytest.raises(Refused, match=text):
            cluster.create(pod("bad", "probe", annotations=asked))
    with pytest.raises(Refused, match=r"env\[LD_PRELOAD\]"):
        cluster.create(pod("bad", "probe", annotations=SHARE, env=[{"name": "LD_PRELOAD", "value": "x"}]))


@only_slots
def test_two_slots_without_the_webhook_are_refused_by_the_node(cluster, face):
    two = pod("two", "probe", resources={"limits": {"gemlet.dev/share": "2"}})
    two["metadata"]["labels"]["gemlet.dev/webhook"] = "ignore"
    cluster.create(two)
    eventually(lambda: cluster.phase("two") == "Failed", "refusal")
    assert "exactly one slot, not 2; ask for 1" in cluster.get("pod", "two")["status"]["message"]


def test_what_would_leave_its_share_is_refused_by_the_node_too(cluster, face):
    """The webhook is not asked about this pod; its own LD_PRELOAD would come after the node's."""
    out = pod("out", "probe", env=[{"name": "LD_PRELOAD", "value": "/x.so"}])
    if face.name == "slots":
        out["spec"]["containers"][0]["resources"] = {"limits": {"gemlet.dev/share": "1"}}
        out["metadata"]["labels"]["gemlet.dev/webhook"] = "ignore"
        cluster.create(out)
    else:
        cluster.create(template("out"), claiming(out, "out"))
    eventually(
        lambda: "env[LD_PRELOAD]: would let the program escape" in cluster.events("out"), "an event that says why"
    )
    assert "remove it: gemlet sets it" in cluster.events("out")
    assert lines(cluster, "out", "total") == [], "it has not started"


def test_a_refusal_names_a_daemon_that_does_not_answer(cluster, face):
    """And then nothing more is offered: a pod had better wait than be refused for good."""
    daemon = cluster.gemlet.pid("daemon", cluster.node)
    said = "the daemon at /run/gemlet/api.sock does not answer; see the log of the container"
    os.kill(daemon, signal.SIGSTOP)
    try:
        cluster.create(pod("a", "probe", annotations=SHARE))
        if face.name == "slots":
            eventually(lambda: cluster.phase("a") == "Failed", "refusal")
            assert said in cluster.get("pod", "a")["status"]["message"]
        else:  # the kubelet tries again
            eventually(lambda: said in cluster.events("a"), "an event that says why")
        eventually(lambda: face.offered(cluster) == 0, "nothing on offer")
        cluster.create(pod("b", "probe", annotations=SHARE))
        eventually(lambda: face.waits in cluster.events("b"), "the event that says why")
    finally:
        os.kill(daemon, signal.SIGCONT)
    if face.name == "dra":
        eventually(lambda: lines(cluster, "a", "total") == ["16384"], "the kubelet's next try")
    eventually(lambda: lines(cluster, "b", "total") == ["16384"], "its turn")


@only_slots
def test_a_gpu_that_fails_takes_no_more_slots_and_its_pod_is_told(cluster, face):
    """With claims: in test_claims.py."""
    cluster.create(pod("a", "sleep", "1000", annotations=SHARE))
    eventually(lambda: cluster.phase("a") == "Running", "its start")
    (share,) = json.loads((state(cluster) / "checkpoint.json").read_text())["shares"]
    (uuid,) = share["gpus"]
    lost = next(device["index"] for device in cluster.gemlet.status(cluster.node)["devices"] if device["uuid"] == uuid)
    cluster.gemlet.lose(cluster.node, lost)
    try:
        eventually(lambda: face.offered(cluster) == 4, "the slots of one GPU")
        eventually(lambda: f"{uuid} does not answer any more" in cluster.events("a"), "an event that says so")
        cluster.create(pod("b", "probe", "1000", annotations=SHARE))
        eventually(lambda: lines(cluster, "b", "total") == ["16384"], "first CUDA call on the other GPU")
    finally:
        cluster.gemlet.lose(cluster.node, lost, lost=False)
    face.ready(cluster)
    cluster.delete("a")
    names = [f"p{number}" for number in range(7)]
    cluster.create(*(pod(name, "probe", "1000", annotations=SHARE) for name in names))
    for name in names:
        eventually(lambda name=name: lines(cluster, name, "total") == ["16384"], "first CUDA call on either GPU")


def test_an_annotation_changes_a_running_pod(cluster, face):
    """GaiaGPU's dynamic allocation, and an event for an invalid one."""
    cluster.create(pod("a", "probe", "1000", annotations=SHARE))
    eventually(lambda: len(shares(cluster, "a")) >= 2, "work")
    cluster.kubectl("annotate", "pod", "a", "gemlet.dev/compute-limit=100")
    eventually(lambda: shares(cluster, "a")[-1] > 45, "the free time of the GPU")
    cluster.kubectl("annotate", "--overwrite", "pod", "a", "gemlet.dev/compute-limit=7")
    eventually(lambda: "compute-limit]: 7 is not valid: expected 25" in cluster.events("a"), "an event that says why")


def test_metrics_are_by_pod(cluster, face):
    cluster.create(pod("a", "probe", "1000", annotations=SHARE))
    eventually(lambda: len(shares(cluster, "a")) >= 3, "work")
    seen = metrics(cluster, "a")
    assert (seen["share_min"], seen["share_max"], seen["processes"]) == (0.25, 0.25, 1)
    assert seen["memory_limit_bytes"] == 16 * 2**30
    assert 0 < seen["memory_bytes"] < 2**30, "a context"
    assert seen["memory_swapped_bytes"] == 0
    assert seen["device_seconds_total"] > 0
    assert seen["throttled_seconds_total"] > 0, "alone, it waits for its own maximum only"


def test_the_seconds_of_the_pods_are_those_of_the_gpus(cluster, face):
    """What they are charged for can be more than the simulated machine's own account of what it worked, but is never
    less: where processors are scarce, a pod is charged for the time that its work waited for one. Their parts of the
    busy time sum to what the driver said of the GPU: it looks back 200 ms once a second, so that the machine's own
    account is a sample apart."""
    names = ("busy-a", "busy-b", "busy-c")
    said_before = still(lambda: driver_busy(cluster), "the account of what was before")
    labels_before = busy_by_label(cluster)
    before = cluster.gemlet.busy(cluster.node)
    begun = time.monotonic()
    elastic = SHARE | {"gemlet.dev/compute-limit": "100"}
    for name in names:
        cluster.create(pod(name, "sh", "-c", "probe 20; sleep 1000", annotations=elastic))
    eventually(lambda: all("done" in cluster.log(name) for name in names), "their work")
    elapsed = time.monotonic() - begun
    spent = cluster.gemlet.busy(cluster.node) - before

    def of_all(metric):
        return {name: metrics(cluster, name)[metric] for name in names}

    def account():
        return (round(driver_busy(cluster) - said_before, 3), of_all("busy_seconds_total"))

    driver, busy = still(account, "the account of the last second")
    used = of_all("device_seconds_total")
    print(
        f"\nGPU seconds busy by pod {busy}, by the driver {driver}, by the machine {spent:.3f}; charged {used} of"
        f" {elapsed:.1f} s",
        file=sys.stderr,
    )
    assert spent > 1
    assert sum(used.values()) >= 0.98 * spent
    assert sum(used.values()) <= 1.02 * elapsed, "all are on one GPU"
    assert sum(busy.values()) == pytest.approx(driver, rel=0.02), grown(labels_before, cluster)


def still(account, what):
    """``account`` once it does not change any more."""
    seen = [account()]

    def same():
        time.sleep(2.5)  # the daemon asks the driver once a second
        seen.append(account())
        return seen[-1] == seen[-2]

    eventually(same, what)
    return seen[-1]


def driver_busy(cluster):
    """Seconds in which the driver found the node's GPUs busy, as the daemon has them."""
    return sum(device["busy_s"] for device in cluster.gemlet.status(cluster.node)["devices"])


def busy_by_label(cluster):
    """The same by GPU and by who used it, others than pods included."""
    found = cluster.gemlet.status(cluster.node)["labels"]
    return {(label["device"], label["label"]): label["busy_s"] for label in found}


def grown(before, cluster):
    """What each label has more than ``before``: where the seconds went."""
    more = {who: round(busy - before.get(who, 0.0), 3) for who, busy in busy_by_label(cluster).items()}
    used = {who: busy for who, busy in more.items() if busy}
    return f"busy seconds by label: {used}\n{cluster.gemlet.ask(cluster.node, 'audit')}"


def test_a_node_lists_its_shares_by_pod(cluster, face):
    """As by `kubectl exec ... -- gemlet status --node`."""
    cluster.create(pod("a", "probe", "1000", annotations=SHARE))
    eventually(lambda: len(shares(cluster, "a")) >= 2, "work")
    said = cluster.gemlet.execute(cluster.node, "agent", "gemlet", "status", "--node", "-o", "json")
    (share,) = json.loads(said)["shares"]
    assert share["pod"]["name"] == "a"
    assert share["amounts"] == {
        "memory": 16 * 2**30,
        "compute": 25,
        "limit": 25,
        "priority": "normal",
        "resident": None,
    }
    (usage,) = share["usage"].values()
    assert len(usage["pids"]) == 1
    table = cluster.gemlet.execute(cluster.node, "agent", "gemlet", "status", "--node")
    assert re.match(r"default/a(/c|-gemlet-\S+)  16Gi ", table.splitlines()[1]), table


@only_slots
def test_a_pod_that_comes_alone_is_allocated_at_once(cluster, face):
    """Without the crowd of the next test, in which every process waits for a core."""
    before = cluster.node.allocations("gemlet.dev/share")
    for number in range(20):
        cluster.create(pod(f"p{number}", "true", annotations=SHARE))
        eventually(lambda number=number: cluster.phase(f"p{number}") == "Succeeded", "its end")
        cluster.delete(f"p{number}")
    within = cluster.node.allocations("gemlet.dev/share", since=before)
    print(f"\nAllocate as the kubelet measures it, one pod at a time: {within}", file=sys.stderr)
    assert within[math.inf] == 20


def test_many_pods_leave_nothing_behind(cluster, face):
    """100 pods; what is left of them is looked for in every place a share has."""
    before = cluster.node.allocations("gemlet.dev/share") if face.name == "slots" else {}
    for batch in range(10):
        names = [f"p{batch}-{number}" for number in range(10)]
        cluster.create(*(pod(name, "true", annotations=SHARE) for name in names))
        eventually(lambda: cluster.phases() == {"Succeeded"}, "a batch")
        cluster.delete(*names)
    left = state(cluster)
    eventually(lambda: not list((left / "shares").iterdir()), "no directory")
    assert not list((cluster.node.fixed / "run/cdi").glob("*.json"))
    # Written last.
    eventually(lambda: '"shares":[]' in (left / "checkpoint.json").read_text(), "an empty checkpoint")
    if face.name == "slots":
        within = cluster.node.allocations("gemlet.dev/share", since=before)
        print(f"\nAllocate as the kubelet measures it, ten pods at once: {within}", file=sys.stderr)
        assert within[math.inf] == 100
    said = cluster.gemlet.ask(cluster.node, "status", "-o", "json")
    assert [group["name"] for group in json.loads(said)["groups"] if group["origin"] == "share"] == []


def test_the_agent_is_small(cluster, face):
    """After all the work for the tests above; the promise is 50 MB."""
    held = memory(cluster.gemlet.pid("agent", cluster.node))
    print(f"\nagent: {held['Rss'] / 1e6:.0f} MB resident, {held['Pss'] / 1e6:.0f} MB its part of it", file=sys.stderr)
    assert held["Rss"] < 50e6
