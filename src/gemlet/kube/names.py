"""Every name that gemlet shows to Kubernetes or to a container, once."""

from __future__ import annotations

DRIVER = "gemlet.dev"  # of the DRA driver, and the domain of everything below
DEVICE_CLASS = "share.gemlet.dev"
CDI_KIND = "k8s.gemlet.dev/share"
CDI_GROUP_KIND = "gemlet.dev/group"  # of `gemlet cdi generate`, for Docker and Podman

SLOT_RESOURCE = "gemlet.dev/share"  # one equal part of a GPU
COMPUTE_RESOURCE = "gemlet.dev/compute-units"  # 1/100 of a GPU's time
MEMORY_RESOURCE = "gemlet.dev/memory-units"  # 256 MiB of its memory
RESOURCES = (SLOT_RESOURCE, COMPUTE_RESOURCE, MEMORY_RESOURCE)

ANNOTATION_MEMORY = "gemlet.dev/memory"
ANNOTATION_COMPUTE = "gemlet.dev/compute"
ANNOTATION_LIMIT = "gemlet.dev/compute-limit"
ANNOTATION_PRIORITY = "gemlet.dev/priority"
ANNOTATION_RESIDENT = "gemlet.dev/resident"
ANNOTATION_CONTAINER = "gemlet.dev/container"
ANNOTATION_GPUS = "gemlet.dev/gpus"
ANNOTATION_TOGETHER = "gemlet.dev/together"
ANNOTATIONS = (
    ANNOTATION_MEMORY,
    ANNOTATION_COMPUTE,
    ANNOTATION_LIMIT,
    ANNOTATION_PRIORITY,
    ANNOTATION_RESIDENT,
    ANNOTATION_CONTAINER,
    ANNOTATION_GPUS,
    ANNOTATION_TOGETHER,
)
ANNOTATION_SM = "gemlet.dev/sm"  # refused, with the reason

TAINT_FAILED = "gemlet.dev/failed"  # of a device in a ResourceSlice: NVML does not show the GPU any more
TAINT_NO_DAEMON = "gemlet.dev/no-daemon"  # nothing enforces shares on this node now

LABEL_TEMPLATE = "gemlet.dev/claim-template"  # on a pod: the ResourceClaimTemplate its claim is made from
LABEL_IGNORE = "gemlet.dev/webhook"  # "ignore" on a pod or a namespace
LABEL_MANAGED = "app.kubernetes.io/managed-by"

CONFIG_API_VERSION = "gemlet.dev/v1alpha1"
CONFIG_KIND = "ShareConfig"

# Inside a container.
HOOK_DIRECTORY = "/opt/gemlet"
SOCKET_DIRECTORY = "/run/gemlet"
MACHINE_DIRECTORY = "/run/gemlet-machine"  # of the simulated machine
SOCKET_NAME = "gemlet.sock"
PRELOAD_FILE = "/etc/ld.so.preload"
START_CHECK = "gemlet-start-check"  # on the node, beside the hook: native/start_check
SHARE_SUFFIX = ".share"  # of the file beside the hook that names the share's socket: native/hook/link/destination.cpp
