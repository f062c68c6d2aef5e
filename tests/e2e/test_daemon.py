"""`gemlet daemon` in the foreground and the verbs around it, with the real native server."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gemlet.daemon.address import Endpoint
from gemlet.daemon.connection import Connection
from gemlet.errors import DaemonUnreachable
from tests.e2e.programs import SPIN
from tests.waiting import eventually

NATIVE = "[groups.team]\nmin = {}\nmax = 0.9\n"
KEYFILE = "[team]\nMinUtil = {}\nMaxUtil = 0.9\nMemoryLimit = 8GiB\n"
TABLE = "1\nteam {} 0.9 1000000\n"


def connection(gemlet):
    give_up = time.monotonic() + 60
    while True:
        try:
            return Connection(Endpoint(gemlet.directory / "sim", "simulated"))
        except DaemonUnreachable:
            ended = gemlet.started[-1]
            assert ended.poll() is None, ended.stderr.read()
            assert time.monotonic() < give_up
            time.sleep(0.01)


def foreground(gemlet, *arguments):
    return gemlet.start("daemon", "--simulate", *arguments)


@pytest.mark.parametrize(
    ("name", "form"), [("gemlet.toml", NATIVE), ("resource.conf", KEYFILE), ("resource-config.txt", TABLE)]
)
@pytest.mark.parametrize("how", ["in place", "rename"])
def test_reload(gemlet, tmp_path, name, form, how):
    path = tmp_path / name
    path.write_text(form.format(0.2))
    foreground(gemlet, "--config", str(path))
    with connection(gemlet) as daemon:
        for share in (0.3, 0.7):
            if how == "in place":
                path.write_text(form.format(share))
            else:
                fresh = Path(f"{path}.fresh")
                fresh.write_text(form.format(share))
                fresh.rename(path)
            eventually(lambda share=share: daemon.call("status")["groups"][0]["min"] == share)


def test_malformed_reload_keeps_what_runs(gemlet, tmp_path):
    path = tmp_path / "gemlet.toml"
    path.write_text(NATIVE.format(0.2))
    process = foreground(gemlet, "--config", str(path))
    with connection(gemlet) as daemon:
        path.write_text(NATIVE.format('"lots"'))
        eventually(lambda: daemon.call("status")["daemon"]["config_error"])
        assert daemon.call("status")["groups"][0]["min"] == 0.2
    process.terminate()
    _, log = process.communicate(timeout=60)
    assert process.returncode == 0
    assert f"{path}:2:" in log
    assert "hint" in log


def test_malformed_at_start_is_an_error_with_its_place(gemlet, tmp_path):
    path = tmp_path / "gemlet.toml"
    path.write_text("[groups.team]\nmin = 2\n")
    done = gemlet("daemon", "--simulate", "--config", str(path))
    assert done.returncode == 125
    assert f"error: {path}:2:" in done.stderr


def test_sigterm_ends_it_cleanly(gemlet):
    process = foreground(gemlet)
    connection(gemlet).close()
    process.send_signal(signal.SIGTERM)
    _, log = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "stopped" in log
    left = {path.name for path in (gemlet.directory / "sim").iterdir() if path.is_socket()}
    assert left == set()


def test_the_end_of_its_terminal_ends_it_cleanly(gemlet):
    pid, terminal = pty.fork()
    command = gemlet.command("daemon", "--simulate")
    if pid == 0:
        os.execve(command[0], command, gemlet.environment())
    try:
        said = b""
        while b" started pid=" not in said:
            said += os.read(terminal, 1 << 16)
    finally:
        os.close(terminal)
        _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert not [path for path in (gemlet.directory / "sim").iterdir() if path.is_socket()]


def test_without_a_terminal_a_hangup_ends_nothing(gemlet):
    """Many daemons read their configuration then, so people send it: they do not mean to end this one."""
    process = gemlet.start("daemon", "--simulate", new_session=True)
    with connection(gemlet) as daemon:
        process.send_signal(signal.SIGHUP)
        assert any("SIGHUP" in line for line in process.stderr)
        assert daemon.call("ping")["pid"] == process.pid
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 0


def test_a_log_that_nobody_reads_holds_up_nobody(gemlet):
    """As on a terminal that is held: users cause lines, and would keep each other out."""
    process = foreground(gemlet)
    with connection(gemlet) as daemon:
        fcntl.fcntl(process.stderr, fcntl.F_SETPIPE_SZ, 4096)
        for _ in range(20):
            daemon.call("note", topic="test", text="x" * 400)
        assert daemon.call("ping")["pid"] == process.pid
    process.terminate()
    _, log = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "stopped" in log


def test_a_second_one_names_the_first(gemlet):
    first = foreground(gemlet)
    connection(gemlet).close()
    done = gemlet("daemon", "--simulate")
    assert done.returncode == 125
    assert f"(pid {first.pid})" in done.stderr


def test_it_starts_over_the_sockets_of_a_killed_one(gemlet):
    first = foreground(gemlet)
    connection(gemlet).close()
    first.kill()
    first.wait()
    assert (gemlet.directory / "sim" / "api.sock").is_socket()
    second = foreground(gemlet)
    with connection(gemlet) as daemon:
        assert daemon.call("ping")["pid"] == second.pid


def test_gemini_layout(gemlet, tmp_path):
    config, ipc = tmp_path / "resource.conf", tmp_path / "ipc"
    config.write_text(KEYFILE.format(0.2))
    foreground(gemlet, "--config", str(config), "--ipc-dir", str(ipc))
    connection(gemlet).close()
    exports = gemlet("env", "--simulate", "--group", "team").stdout
    variables = dict(line.removeprefix("export ").split("=", 1) for line in exports.splitlines())
    assert variables["GEMLET_LIMITS"] == "memory=8589934592,max=900000"
    variables = {name: value.strip("'") for name, value in variables.items() if name.startswith(("LD_", "GEMLET_SIM"))}
    environment = gemlet.environment(**variables, GEMINI_IPC_DIR=str(ipc), GEMINI_GROUP_NAME="team")
    program = subprocess.Popen([sys.executable, "-c", SPIN, "600"], env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert program.stdout.readline() == "ready\n"
        with connection(gemlet) as daemon:
            eventually(lambda: daemon.call("status")["groups"][0]["clients"] == 1)
    finally:
        program.kill()
        program.communicate()


def test_status_json_has_its_documented_shape(gemlet):
    foreground(gemlet)
    connection(gemlet).close()
    document = json.loads(gemlet("status", "--simulate", "-o", "json").stdout)
    assert document["schema"] == 2
    assert document["simulated"] is True
    keys = {
        "schema",
        "simulated",
        "daemon",
        "devices",
        "groups",
        "events",
        "mps",
        "outside",
        "unmanaged",
        "ungoverned",
        "problem",
        "labels",
    }
    assert document.keys() == keys
    assert document["problem"] is None
    device = document["devices"][0]
    assert {"index", "uuid", "name", "memory_total", "utilization", "share", "groups"} <= device.keys()
    assert device["uuid"].startswith("GPU-")
    assert gemlet("status", "--simulate", "-o", "csv").stdout.startswith("device,uuid,group,")


def test_doctor(gemlet):
    foreground(gemlet)
    connection(gemlet).close()
    done = gemlet("doctor", "-o", "json")
    report = json.loads(done.stdout)
    verdicts = {check["name"]: check["verdict"] for check in report["checks"]}
    assert verdicts["hook works"] == "ok", done.stdout
    assert verdicts["native module"] == "ok"
    assert verdicts["daemon (simulated)"] == "ok"
    assert report["ok"] is True
    assert done.returncode == 0
    assert "hook works" in gemlet("doctor").stdout


def test_metrics_over_http(gemlet):
    import socket
    import urllib.request

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    served = foreground(gemlet, "--metrics-port", str(port))
    with connection(gemlet) as daemon:
        assert "gemlet_daemon_info" in daemon.call("metrics")

    def text():
        return urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60).read().decode()

    eventually(lambda: "gemlet_device_memory_total_bytes{" in text())  # it shows the last status, made once a second
    assert 'simulated="true"' in text()
    served.terminate()
    _, log = served.communicate(timeout=60)
    assert log.splitlines()[-1].endswith("stopped"), log


def test_screenshot(gemlet, tmp_path):
    foreground(gemlet)
    connection(gemlet).close()
    assert gemlet("top", "--simulate", "--screenshot", str(tmp_path / "top.svg")).returncode == 0
    assert (tmp_path / "top.svg").read_text().startswith("<svg")


AUDIT = '[audit]\npolicy = "stop"\nafter = "0.1s"\n'


def test_a_program_outside_gemlet_is_listed_and_stopped(gemlet, tmp_path):
    config = tmp_path / "gemlet.toml"
    config.write_text(AUDIT)
    foreground(gemlet, "--config", str(config))
    connection(gemlet).close()
    gemlet("run", "-q", "--simulate", "--group", "team", "--", "true")
    exports = gemlet("env", "--simulate", "--group", "team").stdout
    variables = dict(line.removeprefix("export ").split("=", 1) for line in exports.splitlines())
    outside = {name: variables[name].strip("'") for name in ("LD_LIBRARY_PATH", "GEMLET_SIM_DIR")}
    environment = gemlet.environment(**outside)
    program = subprocess.Popen([sys.executable, "-c", SPIN, "600"], env=environment, stdout=subprocess.PIPE, text=True)
    inside = gemlet.start("run", "-q", "--simulate", "--", sys.executable, "-c", SPIN, "600")
    try:
        assert program.stdout.readline() == inside.stdout.readline() == "ready\n"
        seen = gemlet("audit", "--simulate", "-o", "json")
        assert seen.returncode == 1
        assert [who["pid"] for who in json.loads(seen.stdout)["outside"]] == [program.pid]
        shown = gemlet("audit", "--simulate").stdout
        assert str(program.pid) in shown
        eventually(lambda: "stopped" in gemlet("audit", "--simulate").stdout)
        state = Path(f"/proc/{program.pid}/stat").read_text().rpartition(")")[2].split()[0]
        assert state == "T"
    finally:
        program.kill()
        program.communicate()
    assert gemlet("audit", "--simulate").returncode == 0


def test_history_of_a_simulated_program_survives_a_killed_daemon(gemlet):
    start = gemlet.start("daemon", "--simulate")
    eventually(lambda: gemlet("status", "--simulate").returncode == 0)
    program = gemlet.start("run", "--simulate", "--group", "g", "--min", "30%", "--", sys.executable, "-c", SPIN, "120")

    def recorded():
        done = gemlet("history", "g", "--simulate", "-o", "json")
        document = json.loads(done.stdout) if done.returncode == 0 else {"series": []}
        return document if any((s["values"]["share"][-3:] or [0])[0] for s in document["series"]) else None

    document = eventually(recorded)
    assert document["schema"] == 1
    assert document["simulated"]
    assert document["kept"] is None
    [series] = document["series"]
    assert 0.3 in series["values"]["min"]
    start.kill()
    start.wait()
    again = gemlet.start("daemon", "--simulate")
    eventually(lambda: gemlet("status", "--simulate").returncode == 0)
    table = gemlet("history", "g", "--simulate", "--since", "10m")
    assert "SIMULATED MACHINE" in table.stdout
    plot = gemlet("history", "--simulate", "-o", "plot")
    assert "all groups on GPU-" in plot.stdout
    csv = gemlet("history", "g", "--simulate", "-o", "csv").stdout.splitlines()
    assert csv[0].startswith("time,device,group,share,target,min,max")
    assert len(csv) > 2
    program.kill()
    again.terminate()
