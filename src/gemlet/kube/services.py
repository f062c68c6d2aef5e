"""The kubelet's gRPC services by their names on the wire. Instead of generated stubs, which have no types."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gemlet.kube.protocol import deviceplugin_pb2 as plugin
from gemlet.kube.protocol import dra_pb2 as dra
from gemlet.kube.protocol import drahealth_pb2 as health
from gemlet.kube.protocol import podresources_pb2 as pods
from gemlet.kube.protocol import registration_pb2 as registration

if TYPE_CHECKING:
    from google.protobuf.message import Message

DEVICE_PLUGIN_VERSION = "v1beta1"
DRA_VERSIONS = ("v1", "v1beta1")  # the best first; their messages are the same
HEALTH_VERSIONS = ("v1beta1", "v1alpha1")

# service -> method -> request, response, whether the response is a stream
Methods = dict[str, tuple[type["Message"], type["Message"], bool]]
_DRA: Methods = {
    "NodePrepareResources": (dra.NodePrepareResourcesRequest, dra.NodePrepareResourcesResponse, False),
    "NodeUnprepareResources": (dra.NodeUnprepareResourcesRequest, dra.NodeUnprepareResourcesResponse, False),
}
_HEALTH: Methods = {"NodeWatchResources": (health.NodeWatchResourcesRequest, health.NodeWatchResourcesResponse, True)}
SERVICES: dict[str, Methods] = {
    "v1beta1.Registration": {"Register": (plugin.RegisterRequest, plugin.Empty, False)},
    "v1beta1.DevicePlugin": {
        "GetDevicePluginOptions": (plugin.Empty, plugin.DevicePluginOptions, False),
        "ListAndWatch": (plugin.Empty, plugin.ListAndWatchResponse, True),
        "GetPreferredAllocation": (plugin.PreferredAllocationRequest, plugin.PreferredAllocationResponse, False),
        "Allocate": (plugin.AllocateRequest, plugin.AllocateResponse, False),
        "PreStartContainer": (plugin.PreStartContainerRequest, plugin.PreStartContainerResponse, False),
    },
    "pluginregistration.Registration": {
        "GetInfo": (registration.InfoRequest, registration.PluginInfo, False),
        "NotifyRegistrationStatus": (
            registration.RegistrationStatus,
            registration.RegistrationStatusResponse,
            False,
        ),
    },
    "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin": _DRA,
    "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin": _DRA,
    **{f"{version}.DRAResourceHealth": _HEALTH for version in HEALTH_VERSIONS},
    "v1.PodResourcesLister": {"List": (pods.ListPodResourcesRequest, pods.ListPodResourcesResponse, False)},
}


def dra_service(version: str) -> str:
    """Full name of the DRA service of a version."""
    return f"k8s.io.kubelet.pkg.apis.dra.{version}.DRAPlugin"
