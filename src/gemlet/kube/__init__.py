"""gpu-lets in Kubernetes: the node agent, its two faces to the kubelet, and the admission webhook.

request      what a pod may ask for, and what is wrong with it           pure
share        one share as the node knows it                              pure
escape       what would take a container out of its share                pure
edits        what a container needs to be in a share                     pure
cdi          the same for a container runtime: a file for each claim
checkpoint   the shares of this node, on disk
book         opens and closes shares: directory, daemon, CDI, checkpoint
inventory    GPUs as NVML and sysfs show them
slots, units, device_plugin, kubelet_socket     the device plugin
claims, slices, dra, plugin_socket              the DRA driver
admission, templates, webhook, certificates     the webhook
daemon_link  what is asked of the daemon
api_server   what is asked of the apiserver
pod_event    what a pod is told
agent        `gemlet kube agent`: the tasks of a node
"""
