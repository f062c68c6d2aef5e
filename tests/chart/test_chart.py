"""The chart by Helm itself: linted, its values checked, rendered, and every object checked against Kubernetes' schemas.

What the schemas do not have (CEL, quantities, whether a webhook is reached) they do not check.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import trustme

helm = pytest.importorskip("helm_python", reason="`make chart-test` installs Helm")
kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="`make chart-test` installs the schemas")
yaml = pytest.importorskip("yaml", reason="`make chart-test` installs PyYAML")

from gemlet import config  # noqa: E402
from gemlet.cli import main  # noqa: E402
from gemlet.cli.daemon import command as daemon  # noqa: E402
from gemlet.cli.kube import agent, unused, webhook  # noqa: E402
from gemlet.kube import checkpoint, metrics  # noqa: E402
from gemlet.kube.api_server import SERVICE_ACCOUNT, in_cluster  # noqa: E402
from tests.chart.rendering import by_kind, check_lint, check_schemas, render  # noqa: E402
from tests.unit.kube import fakes  # noqa: E402

CHART = Path(__file__).resolve().parents[2] / "packaging" / "chart"
DRA_VERSIONS = ("1.36", "1.37")
OLD_VERSIONS = ("1.30", "1.33", "1.37")
MODES = [
    ({"mode": "device-plugin"}, OLD_VERSIONS),
    ({"mode": "device-plugin", "devicePlugin": {"resources": "units"}, "admission": {"mode": "none"}}, OLD_VERSIONS),
    ({"mode": "dra", "gpuAccess": "cdi", "preloadFile": True, "gpuMemory": "141GiB"}, DRA_VERSIONS),
    ({"mode": "dra", "admission": {"mode": "policy"}, "monitoring": {"podMonitor": True, "rules": True}}, DRA_VERSIONS),
    ({"mode": "device-plugin", "gpuAccess": "simulated", "memoryOversubscription": 1.5}, OLD_VERSIONS),
    (
        {"mode": "dra", "admission": {"certificates": "cert-manager"}, "agent": {"runtimeClassName": "nvidia"}},
        DRA_VERSIONS,
    ),
]


@pytest.fixture(scope="module")
def chart():
    with helm.Chart.load(CHART) as loaded:
        yield loaded


@pytest.mark.parametrize(("values", "_"), MODES)
def test_helm_finds_nothing_wrong(values, _):
    check_lint(CHART, values)


@pytest.mark.parametrize(("values", "versions"), MODES)
def test_every_object_fits_the_schemas_of_its_releases(chart, values, versions):
    check_schemas(render(chart, values), versions)


def test_the_check_of_schemas_finds_mistakes(chart):
    broken = by_kind(render(chart, {"mode": "dra"}), "DaemonSet")
    broken["spec"]["template"]["spec"]["hostPid"] = True
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, "1.37", strict=True)


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"mode": "drA"}, "mode"),
        ({"devicePlugin": {"slotsPerGpu": 0}}, "slotsPerGpu"),
        ({"devicePlugin": {"slots": 4}}, "slots"),
        ({"admission": {"mode": "maybe"}}, "admission"),
        ({"gpuMemory": "a lot"}, "gpuMemory"),
        ({"gpuMemory": "141"}, "gpuMemory"),
        ({"admission": {"plainGpu": {"memory": "16"}}}, "memory"),
        ({"failedGpus": "Evict"}, "failedGpus"),
        ({"kubeletDirectory": "var/lib/kubelet"}, "kubeletDirectory"),
        ({"imagePullSecrets": ["registry"]}, "imagePullSecrets"),
        ({"agent": {"tolerations": ["nvidia.com/gpu"]}}, "tolerations"),
        ({"agent": {"tolerations": [{"key": "gpu", "operator": "exists"}]}}, "operator"),
        ({"agent": {"nodeSelector": {"gpu": True}}}, "nodeSelector"),
        ({"agent": {"affinity": {"nodeAffinty": {}}}}, "affinity"),
        ({"agent": {"resources": {"limits": {"memory": "lots"}}}}, "memory"),
        ({"admission": {"podSelector": {"matchLabels": {"a": "b"}}}}, "podSelector"),
        ({"monitoring": {"labels": {"release": 1}}}, "labels"),
    ],
)
def test_wrong_values_are_refused_by_name(chart, values, word):
    with pytest.raises(helm.HelmError, match=word):
        chart.validate_schema(chart.merge_values(values))


def test_right_values_are_taken(chart):
    given = {
        "imagePullSecrets": [{"name": "registry"}],
        "agent": {
            "nodeSelector": {"gpu": "true"},
            "tolerations": [{"operator": "Exists"}, {"key": "a", "value": "b", "effect": "NoExecute"}],
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {}}},
            "resources": {"requests": {"cpu": 0.5, "memory": "1.5Gi"}, "limits": {"memory": 268435456, "cpu": "1e3"}},
        },
        "admission": {"podSelector": {"app.kubernetes.io/part-of": "training"}},
        "monitoring": {"labels": {"release": "prometheus"}},
    }
    chart.validate_schema(chart.merge_values(given))


def test_claims_are_the_choice_only_where_they_can_take_parts_of_a_device(tmp_path):
    """Kubernetes 1.34 serves resource.k8s.io/v1, and drops what makes a device shareable."""
    copy = tmp_path / "gemlet"
    shutil.copytree(CHART, copy)
    releases = ("v1.20.2", "v1.34.1", "v1.35.9", "v1.36.0", "v1.36.1-gke.100", "v1.37.0")
    capabilities = '(dict "APIVersions" $.Capabilities.APIVersions "KubeVersion" (dict "Version" $release))'
    (copy / "templates" / "faces.yaml").write_text(
        f"{{{{- range $release := `{json.dumps(releases)}` | fromJsonArray }}}}\n"
        f'{{{{ $release }}}}: {{{{ include "gemlet.face" (dict "Values" $.Values "Capabilities" {capabilities}) }}}}\n'
        "{{- end }}\n"
    )
    with helm.Chart.load(copy) as chart:
        made = chart.render(chart.merge_values({}), name="gemlet", namespace="gemlet-system")
    faces = yaml.safe_load(made["gemlet/templates/faces.yaml"])
    assert faces == {release: "dra" if release >= "v1.36" else "slots" for release in releases}


def test_a_policy_that_makes_claims_is_refused_where_there_are_slots(chart):
    with pytest.raises(helm.HelmError, match="set mode: dra"):
        render(chart, {"mode": "device-plugin", "admission": {"mode": "policy"}})


@pytest.mark.parametrize(("values", "_"), MODES)
def test_no_account_is_an_administrator(chart, values, _):
    for entry in render(chart, values):
        if entry["kind"] in ("ClusterRole", "Role"):
            for rule in entry["rules"]:
                assert "*" not in rule["verbs"] + rule["resources"] + rule["apiGroups"]
                assert "secrets" not in rule["resources"]
        if entry["kind"] in ("ClusterRoleBinding", "RoleBinding"):
            assert entry["roleRef"]["name"].startswith("gemlet-")
        if entry["kind"] in ("DaemonSet", "Deployment"):
            for container in entry["spec"]["template"]["spec"]["containers"]:
                assert container["securityContext"]["allowPrivilegeEscalation"] is False
                assert container["securityContext"]["readOnlyRootFilesystem"] is True
                assert not container["securityContext"].get("privileged")


@pytest.mark.parametrize(("values", "_"), MODES)
def test_the_commands_know_the_options_the_chart_gives(chart, values, _):
    for entry in render(chart, values):
        for container in entry.get("spec", {}).get("template", {}).get("spec", {}).get("containers", []):
            command = {"agent": agent, "webhook": webhook, "daemon": daemon, "uninstall": unused}[container["name"]]
            words = [word for word in container["command"] if word.startswith("--")]
            arguments = words + container.get("args", [])
            known = {option for parameter in command.params for option in parameter.opts}
            assert {argument.partition("=")[0] for argument in arguments} <= known
            context = command.make_context("x", arguments, obj=None, default_map={"node": "n1"})
            assert context.params.get("face", "slots") in ("slots", "units", "dra")


def test_commands_in_the_agents_container_find_the_directories_of_the_values(chart, tmp_path, monkeypatch, capsys):
    """`kubectl exec ... -c agent -- gemlet status --node`, as the documents have it."""
    values = {"directory": str(tmp_path / "state"), "runtimeDirectory": str(tmp_path / "run")}
    pod = by_kind(render(chart, values), "DaemonSet")["spec"]["template"]["spec"]
    container = next(each for each in pod["containers"] if each["name"] == "agent")
    environment = {each["name"]: each["value"] for each in container["env"] if "value" in each}
    assert environment["GEMLET_SOCKET"] == values["runtimeDirectory"]
    for name in ("GEMLET_SOCKET", "GEMLET_KUBE_SHARES_DIRECTORY"):
        monkeypatch.setenv(name, environment[name])
    (tmp_path / "state").mkdir()
    checkpoint.save(tmp_path / "state" / "checkpoint.json", [fakes.claim_share("u1", group="default/train")])
    for arguments in (["status", "--node"], ["kube", "shares"]):
        assert main.run(arguments) == 0
        assert "default/train" in capsys.readouterr().out


@pytest.mark.parametrize("mode", ["dra", "device-plugin"])
def test_only_what_asks_the_apiserver_has_a_token(chart, mode, tmp_path):
    objects = render(chart, {"mode": mode})
    pod = by_kind(objects, "DaemonSet")["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    (volume,) = [each for each in pod["volumes"] if "projected" in each]
    mounts = {
        container["name"]: [mount for mount in container["volumeMounts"] if mount["name"] == volume["name"]]
        for container in pod["containers"]
    }
    assert mounts["daemon"] == []
    (mount,) = mounts["agent"]
    assert (mount["mountPath"], mount["readOnly"]) == (str(SERVICE_ACCOUNT), True)
    token, authority = volume["projected"]["sources"]
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "ca.crt"))
    access = in_cluster("10.0.0.1", "443", tmp_path)
    assert {access.token.name, access.authority.name} == {
        token["serviceAccountToken"]["path"],
        authority["configMap"]["items"][0]["path"],
    }
    webhook_pod = by_kind(objects, "Deployment")["spec"]["template"]["spec"]
    assert webhook_pod.get("automountServiceAccountToken", True) is (mode == "dra"), "it makes templates there"


@pytest.mark.parametrize(("access", "allowed"), [("simulated", True), ("runtime", False), ("cdi", False)])
def test_pods_among_the_host_s_processes_are_admitted_for_simulated_gpus_only(chart, access, allowed):
    pod = by_kind(render(chart, {"gpuAccess": access}), "Deployment")["spec"]["template"]["spec"]
    assert ("--allow-host-pid" in pod["containers"][0]["args"]) is allowed


@pytest.mark.parametrize("paths", [[], ["/data", "/mnt/mo,dels"]])
def test_the_webhook_and_the_nodes_let_pods_mount_the_same_directories(chart, paths):
    objects = render(chart, {"hostPaths": paths})
    webhook = by_kind(objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    agent = by_kind(objects, "DaemonSet")["spec"]["template"]["spec"]["containers"][1]
    for container in (webhook, agent):
        given = [argument for argument in container["args"] if argument.startswith("--host-path")]
        assert given == [f"--host-path={path}" for path in paths]


def test_the_daemons_configuration_is_one_it_reads(chart, tmp_path):
    file = tmp_path / "gemlet.toml"
    file.write_text(by_kind(render(chart, {}), "ConfigMap")["data"]["gemlet.toml"])
    assert config.load(file).host_memory == 16 * 1024**3


def test_the_certificate_is_for_the_service_and_by_the_authority_in_the_configuration(chart):
    from base64 import b64decode

    from cryptography import x509

    objects = render(chart, {"mode": "dra"})
    certificate = x509.load_pem_x509_certificate(b64decode(by_kind(objects, "Secret")["data"]["tls.crt"]))
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["gemlet-webhook.gemlet-system.svc"]
    bundle = by_kind(objects, "MutatingWebhookConfiguration")["webhooks"][0]["clientConfig"]["caBundle"]
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(b64decode(bundle)))


def test_a_webhook_that_is_down_stops_only_pods_that_ask(chart):
    translating, hook = by_kind(render(chart, {"mode": "dra"}), "MutatingWebhookConfiguration")["webhooks"]
    assert "nvidia.com/gpu" in translating["matchConditions"][0]["expression"]
    assert {"key": "gemlet.dev/translate", "operator": "In", "values": ["enabled"]} in translating["namespaceSelector"][
        "matchExpressions"
    ], "only where it is asked for"
    assert hook["failurePolicy"] == "Fail"
    assert hook["sideEffects"] == "NoneOnDryRun", "a template may be made"
    assert translating["sideEffects"] == "None"
    assert "gemlet.dev/" in hook["matchConditions"][0]["expression"]
    excluded = hook["namespaceSelector"]["matchExpressions"][0]["values"]
    assert excluded == ["kube-system", "gemlet-system"]


def test_no_pod_is_translated_about_whose_share_the_webhook_is_not_asked_then(chart):
    """It would lose what it asked for, and start without any share."""
    objects = render(chart, {"admission": {"podSelector": {"gpu": "shared"}}})
    translating, hook = by_kind(objects, "MutatingWebhookConfiguration")["webhooks"]
    assert hook["objectSelector"]["matchLabels"] == {"gpu": "shared"}
    assert translating["objectSelector"] == hook["objectSelector"]
    left_out = translating["namespaceSelector"]["matchExpressions"]
    assert all(each in left_out for each in hook["namespaceSelector"]["matchExpressions"])


@pytest.mark.parametrize(("values", "_"), MODES)
def test_the_webhook_is_not_asked_about_the_charts_own_pods(chart, values, _):
    """By a label of theirs: Kubernetes 1.20 gives namespaces none with their name."""
    objects = render(chart, values)
    templates = [each["spec"]["template"] for each in objects if "template" in each.get("spec", {})]
    assert templates
    for each in templates:
        assert each["metadata"]["labels"]["gemlet.dev/webhook"] == "ignore"
    for hook in [each for entry in objects for each in entry.get("webhooks", ())]:
        ignored = {"key": "gemlet.dev/webhook", "operator": "NotIn", "values": ["ignore"]}
        assert ignored in hook["objectSelector"]["matchExpressions"]


@pytest.mark.parametrize(
    ("values", "classes"),
    [
        ({}, ["system-node-critical", "system-cluster-critical"]),
        ({"admission": {"mode": "none"}}, ["system-node-critical"]),
        ({"agent": {"priorityClassName": ""}}, ["system-cluster-critical"]),
        ({"agent": {"priorityClassName": "mine"}, "admission": {"priorityClassName": ""}}, None),
    ],
)
def test_pods_of_the_systems_priority_have_a_quota(chart, values, classes):
    """GKE admits them only where there is one: "insufficient quota to match these scopes"."""
    objects = render(chart, values)
    pods = [each["spec"]["template"]["spec"] for each in objects if each["kind"] in ("DaemonSet", "Deployment")]
    named = {pod["priorityClassName"] for pod in pods if "priorityClassName" in pod}
    assert {each for each in named if each.startswith("system-")} == set(classes or ())
    quotas = [each["spec"]["scopeSelector"]["matchExpressions"] for each in objects if each["kind"] == "ResourceQuota"]
    assert [each[0]["values"] for each in quotas] == ([classes] if classes else [])


def test_one_node_does_not_take_the_webhook_with_it(chart):
    pod = by_kind(render(chart, {}), "Deployment")["spec"]["template"]
    (spread,) = pod["spec"]["topologySpreadConstraints"]
    assert spread["labelSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()


def test_the_rules_are_about_metrics_that_there_are(chart):
    values = {"monitoring": {"podMonitor": True, "rules": True, "labels": {"release": "prometheus"}}}
    objects = render(chart, values)
    rules = by_kind(objects, "PrometheusRule")
    expressions = [rule["expr"] for group in rules["spec"]["groups"] for rule in group["rules"]]
    named = set(re.findall(r"gemlet_pod_\w+", " ".join(expressions)))
    assert len(named) >= 6
    assert named <= {*metrics.GAUGES, *(f"{name}_total" for name in metrics.COUNTERS)}
    monitor = by_kind(objects, "PodMonitor")
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    agent_labels = by_kind(objects, "DaemonSet")["spec"]["template"]["metadata"]["labels"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= agent_labels.items()
    assert not [entry for entry in render(chart, {}) if entry["apiVersion"].startswith("monitoring")]


def test_the_rules_fire_for_pods_that_are_kept_back_and_for_no_others(chart, tmp_path):
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is missing: apt-get install prometheus")
    rules = by_kind(render(chart, {"monitoring": {"rules": True}}), "PrometheusRule")["spec"]
    (tmp_path / "rules.yml").write_text(json.dumps(rules))
    shutil.copy(Path(__file__).with_name("alerts.yml"), tmp_path)
    command = [promtool, "test", "rules", tmp_path / "alerts.yml"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_chart_is_of_this_version():
    import gemlet

    text = (CHART / "Chart.yaml").read_text()
    assert re.search(rf"^appVersion: {re.escape(gemlet.__version__)}$", text, re.MULTILINE)
