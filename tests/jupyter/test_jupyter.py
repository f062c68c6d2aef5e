"""A kernel that `gemlet jupyter install` made, and a server that JupyterHub starts: each has its share."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from tests.e2e.conftest import gemlet  # noqa: F401  a fixture
from tests.waiting import eventually

jupyter_client = pytest.importorskip("jupyter_client", reason="`make jupyter-test` installs it")

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.e2e.conftest import Gemlet

ROOT = Path(__file__).resolve().parents[2]
PROXY = ROOT / "build/jupyter/node_modules/.bin/configurable-http-proxy"
TOKEN = "token-of-the-test"
PATIENCE_S = 120.0
# jupyter_client leaves sockets and loops to the collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
TOTAL = """
import ctypes, os
cuda = ctypes.CDLL("libcuda.so.1"); cuda.cuInit(0); context = ctypes.c_void_p()
cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0); cuda.cuCtxSetCurrent(context)
free, total = ctypes.c_size_t(), ctypes.c_size_t(); cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
print(os.environ["GEMLET_GROUP"], total.value >> 30, os.getpid())
"""


@pytest.fixture
def jupyter(gemlet: Gemlet, monkeypatch: pytest.MonkeyPatch) -> Gemlet:  # noqa: F811
    """A home of its own for Jupyter, and gemlet's variables in this process: kernels are its children."""
    for name, value in gemlet.environment().items():
        monkeypatch.setenv(name, value)
    folders = {"JUPYTER_DATA_DIR": "data", "JUPYTER_RUNTIME_DIR": "runtime", "JUPYTER_CONFIG_DIR": "config"}
    for name, folder in folders.items():
        monkeypatch.setenv(name, str(gemlet.directory / "jupyter" / folder))
    return gemlet


def test_a_kernel_has_its_share_is_interrupted_and_restarted(jupyter: Gemlet) -> None:
    program = str(Path(sys.executable).with_name("jupyter"))
    limits = ("--simulate", "--group", "notes", "--memory", "16GiB")
    installed = jupyter("jupyter", "install", "--jupyter", program, *limits)
    assert installed.returncode == 0, installed.stderr
    kernel, client = jupyter_client.manager.start_new_kernel(kernel_name="python3-gemlet", startup_timeout=PATIENCE_S)
    try:
        assert says(client, TOTAL) == ["notes", "16", str(kernel.provisioner.pid)]
        stop = threading.Timer(1.0, kernel.interrupt_kernel)
        stop.start()
        waits = "import time\ntry: time.sleep(600)\nexcept KeyboardInterrupt: print('interrupted')"
        assert says(client, waits) == ["interrupted"]
        kernel.restart_kernel()
        client.wait_for_ready(timeout=PATIENCE_S)
        assert says(client, TOTAL)[:2] == ["notes", "16"]
    finally:
        client.stop_channels()
        kernel.shutdown_kernel(now=True)


def says(client: Any, code: str) -> list[str]:
    """The words that ``code`` prints in the kernel."""
    heard: list[str] = []
    client.execute_interactive(
        code, timeout=PATIENCE_S, output_hook=lambda message: heard.append(message["content"].get("text", ""))
    )
    return "".join(heard).split()


@pytest.fixture
def hub(jupyter: Gemlet, tmp_path: Path) -> Iterator[str]:
    """The address of a hub whose configuration ends with the one of packaging."""
    if not PROXY.exists():
        pytest.skip("configurable-http-proxy is not installed: npm installs nothing here")
    ports = free_ports(3)
    example = (ROOT / "packaging/jupyter/jupyterhub_config.py").read_text()
    (tmp_path / "jupyterhub_config.py").write_text(f"""
{example.replace('"run", ', '"run", "--simulate", ')}
c.JupyterHub.authenticator_class = "dummy"
c.JupyterHub.spawner_class = "simple"
c.Authenticator.allow_all = True
c.Spawner.args = ["--allow-root"]
c.Spawner.env_keep = {sorted(jupyter.environment())!r}
c.JupyterHub.bind_url = "http://127.0.0.1:{ports[0]}"
c.JupyterHub.hub_port = {ports[1]}
c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:{ports[2]}"
c.ConfigurableHTTPProxy.command = [{str(PROXY)!r}]
c.JupyterHub.services = [{{"name": "test", "api_token": "{TOKEN}", "admin": True}}]
""")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    with (tmp_path / "hub.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "jupyterhub", "-f", "jupyterhub_config.py"],
            cwd=tmp_path,
            env=os.environ | {"PATH": path},
            stdout=log,
            stderr=log,
        )
    address = f"http://127.0.0.1:{ports[1]}/hub/api"
    try:
        eventually(lambda: process.poll() is not None or answers(address), PATIENCE_S)
        assert process.poll() is None, (tmp_path / "hub.log").read_text()
        yield address
    finally:
        ours = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        process.terminate()
        process.wait(timeout=PATIENCE_S)
        for child in ours:
            if child.is_running():
                child.kill()


def test_a_server_of_jupyterhub_is_in_the_group_of_its_user(hub: str, jupyter: Gemlet) -> None:
    ask(f"{hub}/users/nobody", "POST")
    ask(f"{hub}/users/nobody/server", "POST")
    eventually(lambda: ask(f"{hub}/users/nobody")["servers"].get("", {}).get("ready"), PATIENCE_S)
    group, users = ("@hub-nobody", ["nobody"]) if os.geteuid() == 0 else ("hub-nobody", [])
    servers = [p for p in psutil.process_iter(["cmdline"]) if any("singleuser" in w for w in p.info["cmdline"] or ())]
    of_ours = [p.environ() for p in servers if p.environ().get("GEMLET_RUNTIME_DIR") == str(jupyter.directory)]
    assert [(e["GEMLET_GROUP"], e["GEMLET_STRICT"]) for e in of_ours] == [(group, "1")]
    groups = json.loads(jupyter("status", "--simulate", "-o", "json").stdout)["groups"]
    assert [(found["name"], found["max"], found["users"]) for found in groups] == [(group, 0.5, users)]


def ask(url: str, method: str = "GET") -> Any:
    request = urllib.request.Request(url, method=method, headers={"Authorization": f"token {TOKEN}"})
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as reply:
        return json.loads(reply.read() or b"null")


def answers(url: str) -> bool:
    try:
        ask(f"{url}/")
    except (urllib.error.URLError, OSError):
        return False
    return True


def free_ports(count: int) -> list[int]:
    listening = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in listening]
    for one in listening:
        one.close()
    return ports
