"""The chart of `gemlet serve`: linted, its values checked, rendered, every object checked against Kubernetes' schemas,
and a server started with the files and options that a pod would have."""

from __future__ import annotations

import http.client
import ssl
from base64 import b64decode
from pathlib import Path

import pytest

helm = pytest.importorskip("helm_python", reason="`make chart-test` installs Helm")
pytest.importorskip("kubernetes_validate", reason="`make chart-test` installs the schemas")

from gemlet.cli.serve import command  # noqa: E402
from gemlet.kube import names  # noqa: E402
from gemlet.kube.ask import asks  # noqa: E402
from tests.chart.rendering import by_kind, check_lint, check_schemas, render  # noqa: E402
from tests.e2e.serve_process import serving, write_model  # noqa: E402

CHART = Path(__file__).resolve().parents[2] / "packaging" / "serve-chart"
CLAIMS, OLD = ("1.36", "1.37"), ("1.30", "1.33", "1.37")
VOLUME = {"volume": {"persistentVolumeClaim": {"claimName": "models"}}, "path": "vision/live", "watch": True}
ADD = (
    "platform: noop\nmax_batch: 4\nslo: 60s\ninputs: [{name: X, datatype: FP32, shape: [-1]}]\n"
    "outputs: [{name: Y, datatype: FP32, shape: [-1]}]\n"
)
VALUES = [
    ({}, CLAIMS),
    ({"replicas": 3, "models": VOLUME, "gpu": {"count": 2}, "options": ["--profiles=h200"]}, CLAIMS),
    ({"gpu": {"from": "annotations", "memory": "8Gi", "compute": 50}, "annotations": {"team": "vision"}}, OLD),
    ({"gpu": {"from": "device", "count": 2}, "runtimeClassName": "nvidia", "service": {"type": "LoadBalancer"}}, OLD),
    ({"gpu": {"from": "none"}, "resources": {"limits": {"memory": "8Gi"}}, "labels": {"team": "vision"}}, OLD),
    ({"gpu": {"from": "none"}, "tls": {"certificates": "cert-manager"}, "monitoring": {"podMonitor": True}}, OLD),
    (
        {
            "tls": {"certificates": "secret", "secret": "company-tls"},
            "tokens": {"secret": "clients"},
            "environment": [{"name": "OTEL_SERVICE_NAME", "value": "models"}],
        },
        CLAIMS,
    ),
]


@pytest.fixture(scope="module")
def chart():
    with helm.Chart.load(CHART) as loaded:
        yield loaded


def objects_of(chart, values):
    return render(chart, values, name="vision", namespace="team")


def pod_of(objects):
    return by_kind(objects, "Deployment")["spec"]["template"]


@pytest.mark.parametrize(("values", "_"), VALUES)
def test_helm_finds_nothing_wrong(values, _):
    check_lint(CHART, values)


@pytest.mark.parametrize(("values", "versions"), VALUES)
def test_every_object_fits_the_schemas_of_its_releases(chart, values, versions):
    check_schemas(objects_of(chart, values), versions)


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"gpu": {"from": "magic"}}, "from"),
        ({"gpu": {"compute": 0}}, "compute"),
        ({"gpu": {"memory": "16"}}, "memory"),
        ({"models": {"path": "/models"}}, "path"),
        ({"options": ["--watch", "models"]}, "options"),
        ({"tls": {"certificates": "secret"}}, "secret"),
        ({"replica": 2}, "replica"),
        ({"environment": {"A": "b"}}, "environment"),
        ({"environment": [{"name": "A", "value": 1}]}, "value"),
        ({"models": {"volume": {"emptyDir": {}, "hostPath": {}}}}, "volume"),
        ({"tls": {"issuer": {"reference": "company"}}}, "issuer"),
        ({"tolerations": [{"keys": "gpu"}]}, "tolerations"),
        ({"labels": {"team": 1}}, "labels"),
    ],
)
def test_wrong_values_are_refused_by_name(chart, values, word):
    with pytest.raises(helm.HelmError, match=word):
        chart.validate_schema(chart.merge_values(values))


@pytest.mark.parametrize(("values", "_"), VALUES)
def test_the_containers_can_do_little_and_ask_for_what_the_command_knows(chart, values, _):
    pod = pod_of(objects_of(chart, values))["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["automountServiceAccountToken"] is False
    for container in pod["containers"] + pod.get("initContainers", []):
        security = container["securityContext"]
        assert security["allowPrivilegeEscalation"] is False
        assert security["readOnlyRootFilesystem"] is True
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert {"cpu", "memory"} <= container["resources"]["requests"].keys(), "else a quota refuses the pod"
    (container,) = pod["containers"]
    given = command.make_context("serve", list(container["args"]), obj=None, help_option_names=["-h", "--help"]).params
    assert given["host"] == "0.0.0.0"
    assert all(given[name] for name in ("tls_certificate", "tls_key", "token_file"))
    assert given["drain"] < pod["terminationGracePeriodSeconds"] - 5, "it sleeps before it ends"


@pytest.mark.parametrize("origin", ["claim", "annotations", "device", "none"])
def test_each_frontend_has_a_part_of_a_gpu_of_its_own(chart, origin):
    objects = objects_of(chart, {"replicas": 2, "gpu": {"from": origin, "memory": "8Gi", "compute": 40, "count": 2}})
    pod = pod_of(objects)
    (container,) = pod["spec"]["containers"]
    claims = [entry for entry in objects if entry["kind"] == "ResourceClaimTemplate"]
    asked = asks(pod)
    devices = container["resources"].get("limits", {}).get("nvidia.com/gpu")
    if origin == "claim":
        (claim,) = claims
        (each,) = claim["spec"]["spec"]["devices"]["requests"]
        assert each["exactly"]["deviceClassName"] == names.DEVICE_CLASS
        assert each["exactly"]["capacity"]["requests"] == {"memory": "8Gi", "compute": "40"}
        (wanted,) = pod["spec"]["resourceClaims"]
        assert wanted["resourceClaimTemplateName"] == claim["metadata"]["name"]
        assert container["resources"]["claims"] == [{"name": wanted["name"]}]
    assert bool(claims) == (origin == "claim")
    assert bool(asked) == (origin == "annotations")
    assert devices == (2 if origin == "device" else None)


def test_any_frontend_is_behind_one_name_and_each_behind_another(chart):
    objects = objects_of(chart, {})
    labels = pod_of(objects)["metadata"]["labels"]
    (container,) = pod_of(objects)["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    given = command.make_context("serve", list(container["args"]), obj=None, help_option_names=["-h", "--help"]).params
    assert ports == {"http": given["http_port"], "grpc": given["grpc_port"]}
    for name, address in (("vision", None), ("vision-each", "None")):
        service = by_kind(objects, "Service", name)["spec"]
        assert service.get("clusterIP") == address
        assert service["selector"].items() <= labels.items()
        assert {port["targetPort"] for port in service["ports"]} == set(ports)


@pytest.mark.parametrize("values", [{}, {"monitoring": {"podMonitor": True}}])
def test_prometheus_has_the_token_and_the_authority(chart, values):
    objects = objects_of(chart, values)
    monitors = [entry for entry in objects if entry["kind"] == "PodMonitor"]
    assert len(monitors) == len(values)
    for monitor in monitors:
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        for given in (endpoint["authorization"]["credentials"], endpoint["tlsConfig"]["ca"]["secret"]):
            assert given["key"] in by_kind(objects, "Secret", given["name"])["data"]


def test_a_server_with_a_pods_files_and_options_answers_who_has_the_token(chart, tmp_path):
    objects = objects_of(chart, {"gpu": {"from": "none"}, "models": VOLUME})
    pod = pod_of(objects)["spec"]
    (container,) = pod["containers"]
    secrets = {each["name"]: each["secret"] for each in pod["volumes"] if "secret" in each}
    folders = {}
    for mount in container["volumeMounts"]:
        folder = tmp_path / mount["name"]
        folders[mount["mountPath"]] = folder
        if mount["name"] in secrets:
            _mount(by_kind(objects, "Secret", secrets[mount["name"]]["secretName"]), folder)
    write_model(folders["/models"] / "vision/live", "add", ADD)
    repository, *rest = [
        _moved(argument, folders)
        for argument in container["args"]
        if not argument.startswith(("--http-port", "--grpc-port", "--host"))
    ]
    root = folders["/etc/gemlet/tls"] / "ca.crt"
    token = (folders["/etc/gemlet/tokens"] / "tokens").read_text()
    with serving(repository, tmp_path / "log", "--host", "127.0.0.1", *rest) as server:
        context = ssl.create_default_context(cafile=root)
        for name in ("vision.team.svc", "vision-each.team.svc"):
            assert _get(server, context, name, container["readinessProbe"]["httpGet"]["path"], {}) == 200
            assert _get(server, context, name, "/v2/models/add", {}) == 401
            assert _get(server, context, name, "/v2/models/add", {"Authorization": f"Bearer {token}"}) == 200
        with pytest.raises(ssl.SSLCertVerificationError):
            _get(server, context, "other.team.svc", "/v2", {})


def _moved(argument, folders):
    """``argument`` with what it names below a mount in that mount's folder."""
    option, equals, path = argument.partition("=") if argument.startswith("--") else ("", "", argument)
    for at, folder in folders.items():
        if path.startswith(f"{at}/"):
            return f"{option}{equals}{folder}{path.removeprefix(at)}"
    return argument


def _mount(secret, folder):
    """As the kubelet does it: links to a folder of files that the group may read."""
    (folder / "..data").mkdir(parents=True)
    for key, data in secret["data"].items():
        file = folder / "..data" / key
        file.write_bytes(b64decode(data))
        file.chmod(0o440)
        (folder / key).symlink_to(Path("..data", key))


def _get(server, context, name, path, headers):
    """The status of the answer, from who calls the server by that name."""

    class Named(http.client.HTTPSConnection):
        def connect(self):
            http.client.HTTPConnection.connect(self)
            self.sock = context.wrap_socket(self.sock, server_hostname=name)

    connection = Named(server.http, timeout=60)
    try:
        connection.request("GET", path, headers=headers)
        return connection.getresponse().status
    finally:
        connection.close()
