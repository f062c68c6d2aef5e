"""A checkpoint that was damaged: what it does not account for may be in use, and stays until that is known."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from gemlet.errors import DaemonUnreachable
from gemlet.kube import cdi
from gemlet.kube.device_plugin import Gpus
from gemlet.kube.dra import DraDriver, claim_path
from gemlet.kube.pod_resources import KubeletUnreachable
from gemlet.kube.share import Pod, group_name
from tests.unit.kube import fakes
from tests.unit.kube.test_dra import allocated
from tests.unit.kube.test_followed_pods import claiming_pod

SLOT = "gemlet.dev/share"


def slot_share(number=0):
    made = fakes.claim_share(
        group=f"default/p{number}/c", pod=Pod(namespace="default", name=f"p{number}", container="c")
    )
    devices = {SLOT: (f"{fakes.FIRST}::{number}",)}
    return msgspec.structs.replace(
        made, id=f"slot-{number}", claim=None, claim_uid="", requests={}, devices=devices, opened=1.0
    )


@pytest.fixture
def file(node):
    return node.path / "checkpoint.json"


def truncated(data):
    return data[: len(data) // 2]


DAMAGES = {
    "empty": lambda data: b"",
    "truncated": truncated,
    "not JSON": lambda data: b"\0" * len(data),
    "not UTF-8": lambda data: b"\xff" + data,
    "another version": lambda data: data.replace(b'"version":1', b'"version":2'),
    "not an object": lambda data: b"[]",
    "an entry of another kind": lambda data: data.replace(b'"gpus":[', b'"gpus":5,"other":['),
    "deeply nested": lambda data: b'{"version":1,"shares":[' + b"[" * 100_000,
}


@pytest.mark.parametrize("name", ["", ".", "..", "../..", "a/../..", "/srv", "a\0", "x" * 250])
def test_an_id_that_leads_elsewhere_is_damage(node, run, file, name):
    run(node.book.open(fakes.claim_share("u1")))
    document = json.loads(file.read_bytes())
    document["shares"].append(document["shares"][0] | {"id": name, "group": "other/share"})
    document["unaccounted"] = [name]
    file.write_text(json.dumps(document))
    after = node.restart()
    assert set(after.shares) == {"claim-u1"}
    run(after.restore())
    run(after.close(name))
    assert file.exists()
    assert Path(after.socket("claim-u1")).exists()


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_whatever_is_in_use_stays(node, run, file, caplog, damage):
    run(node.book.open(fakes.claim_share("u1")))
    run(node.book.open(slot_share(0)))
    data = file.read_bytes()
    groups = set(node.daemon.opened)
    file.write_bytes(damage(data))
    for _ in range(3):  # neither then nor when the agent starts again
        after = node.restart()
        run(after.restore())
        assert set(node.daemon.opened) == groups
        assert Path(after.socket("claim-u1")).exists()
        assert Path(after.socket("slot-0")).exists()
        assert cdi.share_ids(node.cdi) == {"claim-u1"}
        assert not after.incomplete(run(node.daemon.shares())), "or the agent would restore every two seconds"
    (kept,) = node.path.glob("checkpoint.json.damaged-*")
    assert kept.read_bytes() == damage(data)
    assert "error: the checkpoint" in caplog.text
    assert "hint: " in caplog.text


def test_a_checkpoint_that_is_gone_is_a_damaged_one(node, run, file):
    run(node.book.open(fakes.claim_share("u1")))
    file.unlink()
    run(node.restart().restore())
    assert set(node.daemon.opened) == {"default/u1"}
    assert node.book.unaccounted == {"claim-u1"}


def test_a_new_node_has_nothing_to_tell(node, caplog):
    node.restart()
    assert caplog.text == ""
    assert list(node.path.iterdir()) == [node.shares]


def test_the_whole_entries_of_a_truncated_file_are_taken(node, run, file):
    for number in range(4):
        run(node.book.open(slot_share(number)))
    data = file.read_bytes()
    file.write_bytes(data[: data.index(b"slot-3")])
    after = node.restart()
    assert list(after.shares) == ["slot-0", "slot-1", "slot-2"]
    assert after.shares["slot-2"] == slot_share(2)
    assert after.unaccounted == {"slot-3"}


def test_what_a_whole_checkpoint_does_not_name_is_removed_as_before(node, run, file):
    run(node.book.open(fakes.claim_share("u1")))
    document = json.loads(file.read_text())
    file.write_text(json.dumps(document | {"shares": []}))
    run(node.restart().restore())
    assert node.leftovers() == []


def lost(node, run, file, *shares):
    for share in shares:
        run(node.book.open(share))
    file.write_bytes(b"{")
    after = node.restart()
    run(after.restore())
    return after


def test_a_claim_that_is_unprepared_goes(node, run, file):
    after = lost(node, run, file, fakes.claim_share("u1"))
    run(after.close("claim-u1"))
    run(after.restore())
    assert node.leftovers() == []


def test_a_claim_that_is_prepared_again_is_accounted_for(node, run, file):
    after = lost(node, run, file, fakes.claim_share("u1"))
    run(after.open(fakes.claim_share("u1")))
    assert (set(after.shares), after.unaccounted) == ({"claim-u1"}, set())
    assert set(node.restart().shares) == {"claim-u1"}


def test_one_that_cannot_be_accounted_for_again_stays_as_it_is(node, run, file):
    after = lost(node, run, file, fakes.claim_share("u1"))
    node.daemon.down = True
    with pytest.raises(DaemonUnreachable):
        run(after.open(fakes.claim_share("u1")))
    assert (after.shares, after.unaccounted) == ({}, {"claim-u1"})
    assert Path(after.socket("claim-u1")).exists()
    assert cdi.share_ids(node.cdi) == {"claim-u1"}


def test_claims_are_found_by_the_groups_that_the_daemon_has(node, run, file):
    api, gpus = fakes.FakeApi(), Gpus()
    run(gpus.set(fakes.GPUS))
    api.objects[claim_path("default", "u1")] = allocated("u1", pods=())
    after = lost(node, run, file, fakes.claim_share("u1"), slot_share(0), fakes.claim_share("gone"))
    asked = []
    get = api.get
    api.get = lambda path, **query: asked.append(path) or get(path, **query)
    run(DraDriver(after, gpus, api, pool="n1").adopt())
    assert sorted(set(asked)) == [claim_path("default", "gone"), claim_path("default", "u1")]
    assert set(after.shares) == {"claim-u1"}
    assert after.unaccounted == {"slot-0", "claim-gone"}


def test_claims_whose_groups_do_not_name_them_are_found_by_their_pods(node, run, file):
    """Of a long name a group has a part. Pods that came later to use such a claim never started."""
    namespace, name = "n" * 63, "c" * 240
    api, gpus = fakes.FollowedApi(), Gpus()
    run(gpus.set(fakes.GPUS))
    claim = allocated("u1", pods=())
    claim["metadata"] |= {"namespace": namespace, "name": name}
    api.objects[claim_path(namespace, name)] = claim
    share = msgspec.structs.replace(fakes.claim_share("u1"), group=group_name(namespace, name), claim=(namespace, name))
    after = lost(node, run, file, share)
    follower = fakes.follower(api, node)
    driver = DraDriver(after, gpus, api, pool="n1", look_again=follower.look_again, in_use=follower.claims)
    run(driver.adopt())
    assert after.unaccounted == {"claim-u1"}
    pod = claiming_pod("p", name)
    pod["metadata"]["namespace"] = namespace
    api.objects[f"/api/v1/namespaces/{namespace}/pods/p"] = pod
    run(follower._check(pod))
    run(driver.adopt())
    assert (set(after.shares), after.unaccounted) == ({"claim-u1"}, set())
    assert node.may_start() == {"p"}


def test_claims_are_closed_whether_the_kubelet_tells_of_slots_or_not(node, run, file):
    class Silent:
        async def assignments(self):
            raise KubeletUnreachable("no answer")

    after = lost(node, run, file, slot_share(0))
    run(after.open(fakes.claim_share("u1")))
    looker = fakes.reaper(after, Silent(), fakes.FakeApi())
    for _ in range(2):
        with pytest.raises(KubeletUnreachable):
            run(looker.look())
    assert set(after.shares) == set()
    assert after.unaccounted == {"slot-0"}


def test_slots_go_when_no_container_has_one_that_the_book_does_not_know(node, run, file):
    after = lost(node, run, file, slot_share(0), slot_share(1))
    run(after.open(slot_share(2)))
    kubelet = fakes.FakeKubelet()
    holder = Pod(namespace="default", name="p", container="c")
    kubelet.holders = {(SLOT, f"{fakes.FIRST}::{number}"): holder for number in (1, 2)}
    looker = fakes.reaper(after, kubelet, fakes.FakeApi())
    for _ in range(3):
        assert run(looker.look()) == []
    del kubelet.holders[SLOT, f"{fakes.FIRST}::1"]
    assert run(looker.look()) == [], "an answer may be a moment too early"
    assert sorted(run(looker.look())) == ["slot-0", "slot-1"]
    run(after.restore())
    assert node.leftovers() == ["slot-2", "default/p2/c", "slot-2"]


def test_slots_stay_while_a_kubelet_that_knows_no_pods_yet_remembers_one_that_is_here(node, run, file):
    after = lost(node, run, file, slot_share(0))
    kubelet, api = fakes.FakeKubelet(), fakes.FakeApi()
    kubelet.uids[SLOT, f"{fakes.FIRST}::0"] = "u"
    meta = {"namespace": "default", "name": "p", "uid": "u"}
    api.objects["/api/v1/pods"] = {"items": [{"metadata": meta, "spec": {"nodeName": "n1"}}]}
    looker = fakes.reaper(after, kubelet, api)
    for _ in range(3):
        assert run(looker.look()) == []
    api.objects["/api/v1/pods"] = {"items": []}
    assert [run(looker.look()) for _ in range(2)] == [[], ["slot-0"]]


def test_a_pod_of_the_same_name_gets_the_name(node, run, file, monkeypatch):
    """As of a StatefulSet: the one before is gone, and the daemon has its group at another socket."""
    after = lost(node, run, file, slot_share(0))
    fakes.one_socket_each(node.daemon, monkeypatch)
    new = msgspec.structs.replace(slot_share(1), group="default/p0/c")
    run(after.open(new))
    assert node.daemon.opened["default/p0/c"][1] == after.socket("slot-1")
