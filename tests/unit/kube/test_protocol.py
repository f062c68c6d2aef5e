"""The messages keep the kubelet's numbers."""

from __future__ import annotations

from gemlet.kube import services
from gemlet.kube.protocol import deviceplugin_pb2, dra_pb2


def test_the_wire_is_the_kubelets():
    """Numbers and types of the public API, spelled out as bytes."""
    request = deviceplugin_pb2.RegisterRequest(version="v1beta1", endpoint="s", resource_name="r/x")
    assert request.SerializeToString() == b"\x0a\x07v1beta1\x12\x01s\x1a\x03r/x"
    device = dra_pb2.Device(request_names=["r"], pool_name="p", device_name="d", cdi_device_ids=["k=n"])
    assert device.SerializeToString() == b"\x0a\x01r\x12\x01p\x1a\x01d\x22\x03k=n"
    claim = dra_pb2.Claim(namespace="n", uid="u", name="c")
    assert claim.SerializeToString() == b"\x0a\x01n\x12\x01u\x1a\x01c"


def test_the_services_have_the_kubelets_names():
    assert services.dra_service("v1") == "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
    assert {services.dra_service(version) for version in services.DRA_VERSIONS} <= set(services.SERVICES)
