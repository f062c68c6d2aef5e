"""One cluster for all tests of this folder; `tests/cluster/run` makes the place for it."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cluster import kubernetes
from tests.cluster.face import FACES
from tests.cluster.processes import RUN

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster.cluster import Cluster
    from tests.cluster.face import Face


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if RUN.is_dir():
        return
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.skip(reason="these run in namespaces of their own: `make cluster-test`"))


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    from tests.cluster.cluster import Cluster  # needs Helm

    made = Cluster()
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="session", params=kubernetes.FACES)
def face(request: pytest.FixtureRequest, cluster: Cluster) -> Face:
    """gemlet as it offers its GPUs in one way: pytest runs all tests of the one before those of the other."""
    made = FACES[request.param]
    if made.name not in kubernetes.FACES:
        pytest.skip("this Kubernetes has no claims: `make cluster-test` runs on one that has")
    cluster.gemlet.use(made.values)
    made.ready(cluster)
    return made


@pytest.fixture(autouse=True)
def clean(request: pytest.FixtureRequest) -> Iterator[None]:
    """No pod outlives its test. The time of each test is printed, because it is part of the promises."""
    cluster = request.getfixturevalue("cluster") if "cluster" in request.fixturenames else None
    begun = time.monotonic()
    yield
    print(f"\n{request.node.name}: {time.monotonic() - begun:.1f} s", file=sys.stderr)
    if cluster is None:
        return
    names = [item["metadata"]["name"] for item in cluster.get("pods")["items"]]
    cluster.delete(*names)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    outcome = yield
    report = outcome.get_result()
    if report.failed:
        own = "fixed/var/log/pods/gemlet-system_*/*/*.log"
        for log in sorted([*RUN.glob("log/*.log"), *RUN.glob(own), *RUN.glob(f"n*/{own}")]):
            lines = log.read_text(errors="replace").splitlines()[-20:]
            report.sections.append((str(log.relative_to(RUN)), "\n".join(lines)))
