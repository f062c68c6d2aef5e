"""`gemlet daemon --take-over`, and SIGUSR2: one daemon follows another."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gemlet.daemon.address import Endpoint
from gemlet.daemon.connection import Connection
from gemlet.errors import GemletError
from tests.e2e.programs import SPIN
from tests.waiting import eventually

LIMIT = 4 << 30


def pid(gemlet):
    try:
        with Connection(Endpoint(gemlet.directory / "sim", "simulated")) as daemon:
            return daemon.call("ping")["pid"]
    except GemletError:
        return None


def daemon(gemlet, *arguments):
    process = gemlet.start("daemon", "--simulate", *arguments)
    eventually(lambda: pid(gemlet) == process.pid or process.poll() is not None)
    return process


def left(gemlet):
    return {path.name for path in (gemlet.directory / "sim").iterdir() if path.is_socket()}


def test_it_has_groups_programs_and_sockets(gemlet, tmp_path):
    config, ipc = tmp_path / "gemlet.toml", tmp_path / "ipc"
    config.write_text('[groups.team]\nmax = "50%"\n[groups.other]\n')
    arguments = ("--config", str(config), "--ipc-dir", str(ipc))
    elder = daemon(gemlet, *arguments)
    inode = (ipc / "team").stat().st_ino
    program = gemlet.start("run", "--simulate", "--memory", "4GiB", "-q", "--", "python3", "-c", SPIN, "1000")
    assert program.stdout.readline() == "ready\n"
    assert gemlet("set", "--simulate", "team", "--max", "40%").returncode == 0
    successor = daemon(gemlet, *arguments, "--take-over")
    assert elder.wait(60) == 0
    status = eventually(lambda: known(gemlet, program.pid))
    groups = {group["name"]: group for group in status["groups"]}
    assert groups["team"]["max"] == 0.4
    assert LIMIT in [group["memory"] for group in groups.values()]
    assert (ipc / "team").stat().st_ino == inode
    assert program.poll() is None
    assert "handed over" in elder.stderr.read()
    # What is there goes with the last of them.
    assert (gemlet.directory / "sim" / "daemon.lock").read_text() == f"{successor.pid}\n"
    successor.send_signal(signal.SIGTERM)
    assert successor.wait(60) == 0
    assert left(gemlet) == set()
    assert not (ipc / "team").exists()


def known(gemlet, client):
    status = json.loads(gemlet("status", "--simulate", "-o", "json").stdout)
    pids = {c["pid"] for d in status["devices"] for g in d["groups"] for c in g["clients"]}
    return status if client in pids else None


def test_a_configuration_that_changed_since_wins(gemlet, tmp_path):
    config = tmp_path / "gemlet.toml"
    config.write_text('[groups.team]\nmax = "50%"\n')
    elder = daemon(gemlet, "--config", str(config))
    assert gemlet("set", "--simulate", "team", "--max", "40%").returncode == 0
    other = tmp_path / "other.toml"
    other.write_text('[groups.team]\nmax = "60%"\n')
    daemon(gemlet, "--config", str(other), "--take-over")
    assert elder.wait(60) == 0
    status = json.loads(gemlet("status", "--simulate", "-o", "json").stdout)
    assert [group["max"] for group in status["groups"]] == [0.6]


def test_one_that_cannot_start_leaves_the_other_alone(gemlet, tmp_path):
    elder = daemon(gemlet)
    broken = tmp_path / "broken.toml"
    broken.write_text("[groups.team]\nmin = 2\n")
    done = gemlet("daemon", "--simulate", "--config", str(broken), "--take-over")
    assert done.returncode == 125
    assert pid(gemlet) == elder.pid


def test_a_successor_that_ends_half_way_leaves_the_other_going(gemlet):
    """It asks and never says that it runs."""
    elder = daemon(gemlet)
    path = gemlet.directory / "successor"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        listener.listen()
        with Connection(Endpoint(gemlet.directory / "sim", "simulated")) as asked:
            asked.send("take_over", socket=str(path))
            channel, _ = listener.accept()
            channel.recv(1 << 17)
            with Connection(Endpoint(gemlet.directory / "sim", "simulated")) as other:
                other.send("ping")  # waits for how this ends
                channel.close()
                assert other.reply()["pid"] == elder.pid
            with pytest.raises(GemletError, match="cannot be handed over"):
                asked.reply()
            assert asked.call("ping")["pid"] == elder.pid
    program = gemlet("run", "--simulate", "-q", "--", "python3", "-c", SPIN, "0.1")
    assert (program.returncode, program.stderr) == (0, "")


def test_requests_are_answered_all_the_time(gemlet):
    first = daemon(gemlet)
    answered, ended = [], threading.Event()

    def ask():
        try:
            with Connection(Endpoint(gemlet.directory / "sim", "simulated")) as kept:
                while not ended.is_set():
                    answered.append(kept.call("ping")["pid"])
                    with Connection(Endpoint(gemlet.directory / "sim", "simulated")) as fresh:
                        answered.append(fresh.call("ping")["pid"])
        except GemletError as error:
            answered.append(error)

    asking = [threading.Thread(target=ask) for _ in range(3)]
    for thread in asking:
        thread.start()
    daemons = [first]
    try:
        for _ in range(3):
            daemons.append(daemon(gemlet, "--take-over"))
            assert daemons[-2].wait(60) == 0
    finally:
        ended.set()
        for thread in asking:
            thread.join(60)
    assert set(answered) == {each.pid for each in daemons}


def test_without_another_it_starts_as_always(gemlet):
    first = daemon(gemlet, "--take-over")
    assert pid(gemlet) == first.pid


def test_a_signal_starts_the_successor(gemlet):
    elder = daemon(gemlet, "--no-history")
    elder.send_signal(signal.SIGUSR2)
    assert elder.wait(60) == 0
    successor = eventually(lambda: pid(gemlet))
    assert successor != elder.pid
    arguments = Path(f"/proc/{successor}/cmdline").read_text().split("\0")
    assert "--no-history" in arguments
    assert gemlet("stop", "--simulate").returncode == 0


ASK = """
import sys
from gemlet.daemon.address import explicit
from gemlet.daemon.connection import Connection
from gemlet.errors import GemletError
try:
    Connection(explicit(sys.argv[1])).call("take_over", socket=sys.argv[2])
except GemletError as error:
    print(error)
"""


def test_the_process_that_asks_must_be_the_one_that_listens(gemlet):
    elder = daemon(gemlet)
    path = gemlet.directory / "successor"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        listener.listen()
        asked = subprocess.run(
            [sys.executable, "-c", ASK, str(gemlet.directory / "sim"), str(path)],
            env=gemlet.environment(), capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
    assert "another process listens" in asked.stdout
    assert pid(gemlet) == elder.pid


# A daemon that is asked to hand over, and is killed, or only closes, after so many packets; -1: before it connects.
HALF_WAY = """
import json, os, signal, socket, sys, time
packets, killed = int(sys.argv[2]), sys.argv[3] == "killed"
with socket.socket(socket.AF_UNIX) as listener, open(sys.argv[1] + "/daemon.lock", "w") as lock:
    listener.bind(sys.argv[1] + "/api.sock")
    listener.listen()
    print("ready", flush=True)
    asked, _ = listener.accept()
    path = json.loads(asked.makefile().readline())["socket"]
    if packets >= 0:
        channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        channel.connect(path)
        for packet in [{"kind": "lock", "form": 2}, {"kind": "group", "group": {}}][:packets]:
            socket.send_fds(channel, [json.dumps(packet).encode()], [lock.fileno()])
    if killed:
        os.kill(os.getpid(), signal.SIGKILL)
    if packets >= 0:
        channel.close()
    else:
        asked.sendall(b'{"ok": false, "error": "not now"}\\n')
    time.sleep(600)
"""


def half_way(gemlet, packets, end):
    directory = gemlet.directory / "sim"
    directory.mkdir(mode=0o700, parents=True)
    elder = subprocess.Popen(
        [sys.executable, "-c", HALF_WAY, str(directory), str(packets), end], stdout=subprocess.PIPE, text=True
    )
    gemlet.started.append(elder)
    assert elder.stdout.readline() == "ready\n"
    return elder


@pytest.mark.parametrize("packets", [-1, 0, 1, 2])
def test_one_that_is_killed_while_it_hands_over_is_followed_all_the_same(gemlet, packets):
    """The successor ended, too, and said that the other went on."""
    elder = half_way(gemlet, packets, "killed")
    successor = gemlet.start("daemon", "--simulate", "--take-over")
    assert elder.wait(60) == -signal.SIGKILL
    eventually(lambda: pid(gemlet) == successor.pid or successor.poll() is not None)
    assert successor.poll() is None, successor.stderr.read()
    program = gemlet("run", "--simulate", "-q", "--", "python3", "-c", SPIN, "0.1")
    assert (program.returncode, program.stderr) == (0, "")
    successor.send_signal(signal.SIGTERM)
    assert successor.wait(60) == 0
    assert "ended while it handed over" in successor.stderr.read()


@pytest.mark.parametrize("packets", [-1, 1])
def test_one_that_lives_is_left_alone_by_a_successor_that_got_nothing(gemlet, packets):
    elder = half_way(gemlet, packets, "goes on")
    done = gemlet("daemon", "--simulate", "--take-over")
    assert done.returncode == 125
    assert elder.poll() is None
    assert left(gemlet) == {"api.sock"}
