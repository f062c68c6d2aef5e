"""`gemlet kube`: what is said where it cannot run."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from gemlet.cli import kube, main
from gemlet.cli.kube import command
from gemlet.errors import GemletError
from gemlet.kube import cdi, shares_table
from gemlet.kube.permits import Permits
from tests.unit.kube import fakes


def refusal(*arguments, **environment):
    given = {"KUBERNETES_SERVICE_HOST": None, "KUBERNETES_SERVICE_PORT": None, "NODE_NAME": None} | environment
    result = CliRunner().invoke(command, arguments, env=given)
    assert result.exit_code
    return result


def test_outside_a_cluster_a_kubeconfig_is_asked_for():
    error = refusal("agent", "--node", "n1").exception
    assert isinstance(error, GemletError)
    assert "--kubeconfig" in error.hint


def test_a_node_needs_a_name():
    assert "--node" in refusal("agent").output


def test_a_webhook_needs_a_certificate(tmp_path):
    error = refusal("webhook", "--certificates", str(tmp_path)).exception
    assert isinstance(error, GemletError)
    assert "kubernetes.io/tls" in error.hint


@pytest.mark.parametrize(
    "arguments", [("agent", "--face", "mig"), ("agent", "--slots", "0"), ("webhook", "--port", "0")]
)
def test_wrong_options_are_named(arguments):
    assert arguments[1] in refusal(*arguments).output


def test_shares_are_listed_by_pod(node, run, tmp_path):
    assert "`gemlet kube shares --directory DIR`" in refusal("shares", "--directory", str(tmp_path)).exception.hint
    run(node.book.open(fakes.claim_share("u1", group="default/train")))
    table = CliRunner().invoke(command, ["shares", "--directory", str(node.path)])
    row = ["default/train", "16Gi", "-", "-", "25", "25", "-", "-", "normal", fakes.FIRST]
    assert table.output.splitlines()[1].split() == row, "no daemon answers, and what was given is known all the same"
    document = json.loads(CliRunner().invoke(command, ["shares", "--directory", str(node.path), "-o", "json"]).output)
    assert document["schema"] == 1
    assert document["shares"][0]["amounts"]["compute"] == 25
    assert document["shares"][0]["usage"] is None


def test_pods_that_may_not_start_in_a_share_are_listed_with_the_reason(node, run):
    run(node.book.open(fakes.claim_share("u1")))
    permits = Permits(node.permits)
    permits.say("claim-u1", "good", None)
    permits.say("claim-u1", "hostile", "env[LD_PRELOAD]: would let the program escape")
    (share,) = json.loads(CliRunner().invoke(command, ["shares", "--directory", str(node.path), "-o", "json"]).output)[
        "shares"
    ]
    assert share["refused"] == {"hostile": "env[LD_PRELOAD]: would let the program escape"}


def test_the_share_of_a_claim_without_its_file_is_withheld(node, run):
    """As of one that could not be restored; a slot has none."""
    run(node.book.open(fakes.claim_share("u1")))
    run(node.book.open(fakes.slot_share()))
    cdi.remove(node.cdi, "claim-u1")
    where = ["shares", "--directory", str(node.path), "--cdi-directory", str(node.cdi), "-o", "json"]
    shares = json.loads(CliRunner().invoke(command, where).stdout)["shares"]
    assert {share["id"]: share["state"] for share in shares} == {"claim-u1": "withheld", "claim-s0": "open"}


def test_a_table_shows_use_beside_grants():
    share = fakes.claim_share("u1", group="default/train")
    client = {"pid": 7, "swap": {"swapped": 2 * 1024**3}}
    group = {"name": "default/train", "memory_used": 5 * 1024**3, "share": {"10s": 0.231}, "throttled_s": 61.2}
    group["clients"] = [client, {"pid": 8, "swap": None}]
    status = {"devices": [{"uuid": fakes.FIRST, "groups": [group, group | {"name": "another"}]}]}
    usage = shares_table.usage_by_share([share], status)
    assert usage[share.id][fakes.FIRST]["pids"] == [7, 8]
    row = shares_table.table([share], usage).splitlines()[1].split()
    assert row == ["default/train", "16Gi", "5", "GiB", "2", "GiB", "25", "25", "23", "61s", "normal", fakes.FIRST]


def test_status_node_is_another_name_of_it(monkeypatch, capsys, node, run):
    monkeypatch.setattr(kube, "STATE_DIRECTORY", str(node.path))
    (node.path / "hook").mkdir()
    assert main.run(["status", "--node"]) == 0  # no share was ever opened
    assert capsys.readouterr().out.split()[:2] == ["SHARE", "MEMORY"]
    run(node.book.open(fakes.claim_share("u1", group="default/train")))
    assert main.run(["status", "--node"]) == 0
    assert "default/train" in capsys.readouterr().out
    assert main.run(["status", "--node", "-w"]) == 2
    assert "do not go together" in capsys.readouterr().err
