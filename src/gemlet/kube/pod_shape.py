"""The shape of a pod, as far as admission reads it: a text is a text, and not a list of a thousand texts.

The apiserver holds the pods it asks about to this shape. But any pod may send a review, and what a refusal quotes,
sorts and compares is bounded only if it is of the type that it should be.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from gemlet.decoding import convert

# Of a text: of all annotations together, for Kubernetes; of a variable 128 KiB, for Linux.
MOST_CHARACTERS = 256 * 1024

Text = Annotated[str, msgspec.Meta(max_length=MOST_CHARACTERS)]
Quantities = dict[Text, Text | int | float]


class _Named(msgspec.Struct):
    name: Text


class _Claim(msgspec.Struct):
    name: Text
    resourceClaimTemplateName: Text | None = None  # noqa: N815


class _Resources(msgspec.Struct):
    limits: Quantities | None = None
    requests: Quantities | None = None
    claims: list[_Named] | None = None


class _Capabilities(msgspec.Struct):
    add: list[Text] | None = None


class _Security(msgspec.Struct):
    privileged: bool | None = None
    capabilities: _Capabilities | None = None


class _Mount(msgspec.Struct):
    name: Text
    mountPath: Text  # noqa: N815
    readOnly: bool | None = None  # noqa: N815


class _Block(msgspec.Struct):
    devicePath: Text  # noqa: N815


class _Variable(msgspec.Struct):
    name: Text
    value: Text | None = None


class _Container(msgspec.Struct):
    name: Text
    env: list[_Variable] | None = None
    resources: _Resources | None = None
    securityContext: _Security | None = None  # noqa: N815
    volumeMounts: list[_Mount] | None = None  # noqa: N815
    volumeDevices: list[_Block] | None = None  # noqa: N815
    terminationMessagePath: Text | None = None  # noqa: N815


class _HostPath(msgspec.Struct):
    path: Text


class _Volume(msgspec.Struct):
    name: Text
    hostPath: _HostPath | None = None  # noqa: N815


class _Spec(msgspec.Struct):
    containers: list[_Container] | None = None
    initContainers: list[_Container] | None = None  # noqa: N815
    volumes: list[_Volume] | None = None
    resourceClaims: list[_Claim] | None = None  # noqa: N815
    schedulerName: Text | None = None  # noqa: N815
    hostPID: bool | None = None  # noqa: N815
    hostUsers: bool | None = None  # noqa: N815
    hostNetwork: bool | None = None  # noqa: N815


class _Metadata(msgspec.Struct):
    name: Text | None = None
    generateName: Text | None = None  # noqa: N815
    annotations: dict[Text, Text] | None = None


class _Pod(msgspec.Struct):
    metadata: _Metadata | None = None
    spec: _Spec | None = None


def check(pod: dict[str, Any]) -> None:
    """Raises msgspec.ValidationError."""
    convert(pod, _Pod)
