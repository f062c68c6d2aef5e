"""`gemlet serve` as a user of a cluster installs it: its chart, by Helm, and a client of its Services."""

from __future__ import annotations

import http.client
import json
import os
import random
import ssl
from base64 import b64decode
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.cluster.processes import eventually
from tests.cluster.release import helm

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.cluster.cluster import Cluster

CHART = Path(__file__).resolve().parents[2] / "packaging" / "serve-chart"
IMAGE = Path(os.environ.get("GEMLET_IMAGE", "/nonexistent")).with_name("gemlet-serve.tar")
RELEASE, NAMESPACE, PORT = "vision", "models", 8000  # as in docs/serving/deploy.md
POLICY = "simulated-machine"


class Frontends:
    """The chart's release in a cluster."""

    def __init__(self, cluster: Cluster, namespace: str = NAMESPACE) -> None:
        self._cluster = cluster
        self.namespace = namespace
        self._helm = helm.Config(kubeconfig_path=cluster.admin, namespace=namespace)

    def install(self, values: Mapping[str, Any]) -> None:
        with helm.Chart.load(CHART) as chart:
            self._helm.install(chart, RELEASE, dict(values), namespace=self.namespace, create_namespace=True)

    def uninstall(self) -> None:
        self._helm.uninstall(RELEASE, timeout=120)

    def pods(self) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = self._cluster.get("pods", "-n", self.namespace)["items"]
        return items

    def restarts(self) -> dict[str, int]:
        """By pod, of those that are not ending."""
        staying = [pod for pod in self.pods() if "deletionTimestamp" not in pod["metadata"]]
        return {pod["metadata"]["name"]: _restarts(pod["status"].get("containerStatuses", [])) for pod in staying}

    def ready(self, service: str = RELEASE) -> dict[str, str]:
        """Address of each frontend to which ``service`` sends requests now, by pod: what a kube-proxy goes by."""
        label = f"kubernetes.io/service-name={service}"
        slices = self._cluster.get("endpointslices", "-n", self.namespace, "-l", label)["items"]
        return {
            endpoint["targetRef"]["name"]: endpoint["addresses"][0]
            for each in slices
            for endpoint in each.get("endpoints") or []
            if endpoint["conditions"].get("ready")
        }

    def left(self) -> list[str]:
        """What is in the namespace besides what each namespace has."""
        kinds = (
            "pods,deployments,replicasets,services,endpointslices,secrets,resourceclaims,resourceclaimtemplates,"
            "poddisruptionbudgets"
        )
        return self._cluster.kubectl("-n", self.namespace, "get", kinds, "-o", "name").split()

    def client(self) -> Client:
        """One that has the token and trusts the authority, both out of the secrets."""

        def secret(name: str, key: str) -> str:
            data = self._cluster.get("secret", "-n", self.namespace, f"{RELEASE}-{name}")["data"]
            return b64decode(data[key]).decode()

        context = ssl.create_default_context(cadata=secret("tls", "ca.crt"))
        return Client(self, context, secret("tokens", "tokens").strip())


def _restarts(statuses: list[dict[str, Any]]) -> int:
    return sum(status["restartCount"] for status in statuses)


@dataclass(frozen=True)
class Client:
    """Knows the servers by their Service's name alone."""

    frontends: Frontends
    context: ssl.SSLContext
    token: str

    def anywhere(self, service: str = RELEASE) -> list[str]:
        """What any of the frontends that are ready says; there is no kube-proxy here, so it is chosen as one does."""
        return self.said(random.choice(list(self.frontends.ready(service).values())), service=service)

    def languages(self, address: str, *, service: str = RELEASE) -> list[str]:
        """Which language a frontend finds two sentences to be in, once it finds it in time."""
        answer: list[str] = eventually(lambda: self.said(address, service=service), "an answer in time")
        return answer

    def said(self, address: str, *, service: str = RELEASE) -> list[str]:
        """The same at once; [] if a busy machine makes it later than the model's 50 ms, and the server says so."""
        text = {"name": "TEXT", "datatype": "BYTES", "shape": [2, 1]}
        body = {"inputs": [text | {"data": ["the house is on a hill", "das ist nicht der Hund"]}]}
        status, said = self.ask(address, "/v2/models/language/infer", body, service=service, token=self.token)
        if status == 504 and json.loads(said)["reason"] == "deadline":
            return []
        assert status == 200, said
        return next(output["data"] for output in json.loads(said)["outputs"] if output["name"] == "LANGUAGE")

    def ask(self, address: str, path: str, body: object, *, service: str = RELEASE, token: str = "") -> tuple[int, str]:
        connection = _Named(address, f"{service}.{self.frontends.namespace}.svc", self.context)
        try:
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            connection.request("POST", path, json.dumps(body), headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()


class _Named(http.client.HTTPSConnection):
    """To an address, by the name that the certificate must have."""

    def __init__(self, address: str, name: str, context: ssl.SSLContext) -> None:
        super().__init__(address, PORT, timeout=30, context=context)
        self._name, self._trust = name, context

    def connect(self) -> None:
        http.client.HTTPConnection.connect(self)
        self.sock = self._trust.wrap_socket(self.sock, server_hostname=self._name)


def policy() -> list[dict[str, Any]]:
    """Lets the frontends use simulated GPUs: these belong to root, and know programs by the host's process ids.

    Of the apiserver, so that the chart is installed as it is.
    """
    security = "Object.spec.securityContext{runAsUser: 0, runAsNonRoot: false}"
    expression = f"Object{{spec: Object.spec{{hostPID: true, securityContext: {security}}}}}"
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    selector = {"matchLabels": {"kubernetes.io/metadata.name": NAMESPACE}}
    spec = {
        "failurePolicy": "Fail", "reinvocationPolicy": "Never",
        "matchConstraints": {"resourceRules": [rule], "namespaceSelector": selector},
        "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}}],
    }  # fmt: skip
    return [
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": kind,
            "metadata": {"name": POLICY},
            "spec": content,
        }
        for kind, content in (
            ("MutatingAdmissionPolicy", spec),
            ("MutatingAdmissionPolicyBinding", {"policyName": POLICY}),
        )
    ]
