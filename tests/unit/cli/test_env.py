from __future__ import annotations

from gemlet.cli.env import _docker_options
from gemlet.cli.environment import Membership


def test_a_container_gets_mps_with_the_memory_its_server_shares(tmp_path, monkeypatch):
    (tmp_path / "libgemhook.so.1").touch()
    monkeypatch.setenv("GEMLET_LIB_DIR", str(tmp_path))
    plain = _docker_options(Membership(group="g", socket="/run/x/gemlet.sock"))
    assert "-v /run/x:/run/x" in plain
    assert "--ipc=host" not in plain
    mps = {"CUDA_MPS_PIPE_DIRECTORY": "/run/x/mps/pipe", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "30"}
    under = _docker_options(Membership(group="g", socket="/run/x/gemlet.sock", mps=mps))
    assert "--ipc=host" in under
    assert "-e CUDA_MPS_PIPE_DIRECTORY=/run/x/mps/pipe" in under
    assert "-e CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=30" in under
