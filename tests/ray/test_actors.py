"""Actors that Ray places, each in a group by what `gemlet env --json` prints: docs/integrations/ray.md."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.conftest import gemlet  # noqa: F401  a fixture

ray = pytest.importorskip("ray", reason="`make ray-test` installs Ray")

if TYPE_CHECKING:
    from tests.e2e.conftest import Gemlet

PATIENCE_S = 120.0


class Actor:
    """A program of the CUDA driver API."""

    def look(self) -> tuple[str, int]:
        """Its group, and how much memory its device has, in GiB."""
        import ctypes
        import os

        cuda = ctypes.CDLL("libcuda.so.1")
        context, free, total = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
        assert cuda.cuInit(0) == 0
        assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
        assert cuda.cuCtxSetCurrent(context) == 0
        assert cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
        return os.environ["GEMLET_GROUP"], total.value >> 30


def test_actors_have_the_limits_of_their_groups(gemlet: Gemlet) -> None:  # noqa: F811
    config = gemlet.directory / "gemlet.toml"
    config.write_text('[groups.a]\nmemory = "10GiB"\n[groups.b]\nmemory = "20GiB"\n')
    daemon = gemlet.start("daemon", "--simulate", "--config", str(config))
    while "started" not in daemon.stderr.readline():  # type: ignore[union-attr]
        assert daemon.poll() is None

    def share(group: str) -> dict[str, Any]:
        done = gemlet("env", "--simulate", "--group", group, "--strict", "--json")
        assert done.returncode == 0, done.stderr
        return {"env_vars": json.loads(done.stdout)}

    ray.init(num_cpus=2, num_gpus=1, include_dashboard=False, log_to_driver=False)
    try:
        remote = ray.remote(num_gpus=0.5)(Actor)
        actors = [remote.options(runtime_env=share(group)).remote() for group in ("a", "b")]
        assert ray.get([actor.look.remote() for actor in actors], timeout=PATIENCE_S) == [("a", 10), ("b", 20)]
    finally:
        ray.shutdown()
