"""`gemlet kube`: what is said where it cannot run."""

from __future__ import annotations

import json
import sys

import pytest
from click.testing import CliRunner

from gemlet.cli.kube import command
from gemlet.errors import GemletError

fakes = sys.modules["kube_fakes"]


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
    assert "no agent has run here" in refusal("shares", "--directory", str(tmp_path)).exception.hint
    run(node.book.open(fakes.claim_share("u1", group="default/train")))
    table = CliRunner().invoke(command, ["shares", "--directory", str(node.path)])
    assert table.output.splitlines()[1].split() == ["default/train", "16Gi", "25", "25", "normal", fakes.FIRST]
    document = json.loads(CliRunner().invoke(command, ["shares", "--directory", str(node.path), "-o", "json"]).output)
    assert document["schema"] == 1
    assert document["shares"][0]["amounts"]["compute"] == 25
