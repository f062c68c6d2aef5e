"""Shares of GPUs for pods: the node agent, its two interfaces to the kubelet, and the admission webhook.

agent.py         `gemlet kube agent`: the tasks of a node
book.py          opens and closes shares: directory, daemon, CDI, checkpoint
permits.py       which pods may start in which shares of claims
retries.py strangers.py    when what has failed is tried again. Pure; what is on the node and nobody's
share.py checkpoint.py    one share; all of a node, on disk
request.py ask.py quantity.py    what a pod and each of its containers may ask for. Pure
escape.py translate.py    what would take a pod out of its share; pods that were written for others. Pure
edits.py cdi.py  what a container needs to be in a share; the same as a file for a container runtime
host.py inventory.py    what the agent puts on its node; the GPUs there, from NVML and sysfs
device_plugin.py slots.py units.py kubelet_socket.py    the device plugin
unit_claims.py   pods that ask by units, where GPUs are offered by claims. Pure
placement.py     in which order a node's GPUs are to be taken. Pure
dra.py claims.py slices.py plugin_socket.py             the DRA driver
services.py rpc.py    the kubelet's gRPC services by name; served and called at sockets
pods.py reaper.py pod_resources.py    annotations that change; shares whose containers are gone; whose device is whose
kubelet_checkpoint.py    which pod that is, by uid;  device_choices.py: which pods chose devices by the runtime
webhook.py admission.py pod_shape.py templates.py webhook_limits.py    the webhook
daemon_link.py api_server.py http_connection.py foreign_json.py    what is asked of the daemon and of the apiserver
queues.py        who comes when, so that nobody keeps the others waiting. Knows nothing of the rest
pod_events.py    what a pod is told, such as why it was refused, and who tells it;  lost_gpus.py: that a GPU has failed
metrics.py http_pages.py shares_table.py holders.py    what people are shown
names.py         every name that Kubernetes or a container sees
"""
