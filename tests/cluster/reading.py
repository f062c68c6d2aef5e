"""What the tests' pods say of themselves, and what the agent says of them."""

from __future__ import annotations

import urllib.request
from typing import TYPE_CHECKING

from tests.cluster.processes import eventually

if TYPE_CHECKING:
    from tests.cluster.cluster import Cluster

SHARE = {"gemlet.dev/memory": "16Gi", "gemlet.dev/compute": "25"}
SECONDS = 8


def lines(cluster: Cluster, name: str, word: str) -> list[str]:
    """The second word of each line of a pod's probe that begins with ``word``."""
    return [line.split()[1] for line in cluster.log(name).splitlines() if line.startswith(word)]


def shares(cluster: Cluster, name: str) -> list[float]:
    """Percent of time, a second each."""
    return [float(value) for value in lines(cluster, name, "share")]


def later(cluster: Cluster, name: str, seconds: int = SECONDS) -> float:
    """Percent of time over the next ``seconds`` in which a pod works.

    Of them together: a pod that waited for a processor of the host may make up for it in the next second.
    """
    before = len(shares(cluster, name))
    eventually(lambda: len(shares(cluster, name)) >= before + seconds, f"{seconds} s of work")
    return sum(shares(cluster, name)[-seconds:]) / seconds


def metrics(cluster: Cluster, name: str) -> dict[str, float]:
    """The agent's metrics of one pod, without what all their names begin with."""
    address = cluster.gemlet.agent(cluster.node)["status"]["podIP"]
    text = urllib.request.urlopen(f"http://{address}:9533/metrics").read().decode()
    own = [line for line in text.splitlines() if f'pod="{name}"' in line]
    return {line.partition("{")[0].removeprefix("gemlet_pod_"): float(line.split()[-1]) for line in own}
