"""`gemlet web` over HTTP: who may ask, what may be changed, and what a request may cost."""

from __future__ import annotations

import gzip
import http.client
import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import msgspec
import pytest

from gemlet.config import files
from gemlet.config.loopback import parse_loopback
from gemlet.config.render import render
from gemlet.errors import ConfigError, DaemonUnreachable, InvalidValue, Refused
from gemlet.model import Configuration
from gemlet.monitor.few_connections import MAX_CONNECTIONS
from gemlet.monitor.web import server as web
from gemlet.monitor.web.preview import preview
from gemlet.monitor.web.questions import Questions
from tests.unit.monitor.status_example import example

TOKEN = "a-token-that-nobody-guesses"


class Fake:
    def __init__(self):
        self.asked = []
        self.error = None

    def get(self, path, query):
        if self.error:
            raise self.error
        if path == "/api/large":
            return {"text": "x" * 5000}
        if path != "/api/status":
            raise KeyError(path)
        self.asked.append(query)
        return {"ok": True}

    def post(self, path, body):
        self.asked.append(body)
        return {"path": path}


@pytest.fixture
def fake():
    return Fake()


@pytest.fixture
def server(fake):
    made = web.Server(("127.0.0.1", 0), fake, TOKEN)
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def ask(server, method, path, body=None, **headers):
    connection = http.client.HTTPConnection(*server.server_address[:2], timeout=60)
    connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer, content


BEARER = {"Authorization": f"Bearer {TOKEN}"}
JSON = {"Content_Type": "application/json"}


def test_the_page_is_for_everybody_and_asks_nobody_else(server):
    answer, content = ask(server, "GET", "/", Accept_Encoding="gzip")
    page = gzip.decompress(content)
    assert answer.status == 200
    assert len(page) < 300_000
    assert b"http://" not in page.replace(b"http://www.w3.org", b"")
    assert b"https://" not in page.replace(b"https://github.com/leeoniya/uPlot", b"")  # in uPlot's licence
    policy = answer.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy


@pytest.mark.parametrize(
    "headers", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": TOKEN}, {"Cookie": f"token={TOKEN}"}]
)
@pytest.mark.parametrize(("method", "path"), [("GET", "/api/status"), ("POST", "/api/set"), ("GET", "/api/nothing")])
def test_without_the_token_nothing_is_answered(server, fake, headers, method, path):
    answer, content = ask(server, method, path, b"{}" if method == "POST" else None, **headers, **JSON)
    assert answer.status == 401
    assert "token" in json.loads(content)["error"]["message"]
    assert fake.asked == []


def test_a_token_in_the_address_is_none(server, fake):
    assert ask(server, "GET", f"/api/status?token={TOKEN}")[0].status == 401


def test_with_the_token(server, fake):
    answer, content = ask(server, "GET", "/api/status?group=a%20b", **BEARER)
    assert (answer.status, json.loads(content)) == (200, {"ok": True})
    assert fake.asked == [{"group": "a b"}]
    assert not any(name.lower().startswith("access-control") for name in answer.headers)
    assert ask(server, "GET", "/api/nothing", **BEARER)[0].status == 404
    assert json.loads(gzip.decompress(ask(server, "GET", "/api/large", Accept_Encoding="gzip", **BEARER)[1]))


def test_other_sites_get_no_leave(server, fake):
    answer, _ = ask(server, "OPTIONS", "/api/set", Origin="http://elsewhere", Access_Control_Request_Method="POST")
    assert answer.status == 501
    assert not any(name.lower().startswith("access-control") for name in answer.headers)
    form = {"Content_Type": "application/x-www-form-urlencoded"}  # what a form of another site could send
    assert ask(server, "POST", "/api/set", b"group=g", **BEARER, **form)[0].status == 415
    assert fake.asked == []


@pytest.mark.parametrize(
    ("headers", "status"), [({"Content_Length": "999999"}, 413), ({"Transfer_Encoding": "chunked"}, 400)]
)
def test_large_bodies_are_not_read(server, headers, status):
    with socket.create_connection(server.server_address[:2], timeout=60) as client:
        lines = [f"{name.replace('_', '-')}: {value}" for name, value in {**BEARER, **JSON, **headers}.items()]
        client.sendall("\r\n".join(["POST /api/set HTTP/1.1", "Host: x", *lines, "", ""]).encode())
        assert client.recv(100).startswith(f"HTTP/1.1 {status}".encode())


BEARER_LINE = f"Authorization: Bearer {TOKEN}\r\n".encode()
FIELDS = b"&".join(b"f%d=1" % number for number in range(20))


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", 400),
        (b"\r\n", 400),
        (b"GET\r\n\r\n", 400),
        (b"GET / HTTP/x.y\r\n\r\n", 400),
        (b"GET http://[::1/ HTTP/1.1\r\n\r\n", 400),
        (b"HEAD http://[ HTTP/1.1\r\n\r\n", 400),
        (b"GET /api/status?" + FIELDS + b" HTTP/1.1\r\n" + BEARER_LINE + b"\r\n", 400),
        (b"POST /api/set HTTP/1.1\r\n" + BEARER_LINE + b"\r\n", 400),
        (b"POST /api/set HTTP/1.1\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n", 400),
        (b"POST /api/set HTTP/1.1\r\nContent-Length: \xb2\r\n\r\n", 400),
        (b"POST /api/set HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST /api/set HTTP/1.1\r\nContent-Length: 5\r\n\r\n{}", 400),
        (b"BREW / HTTP/1.1\r\n\r\n", 501),
        (b"GET / HTTP/2.0\r\n\r\n", 505),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 200 + b"\r\n", 431),
    ],
)
def test_a_request_that_makes_no_sense_is_answered_and_its_connection_ended(server, fake, request_bytes, status):
    with socket.create_connection(server.server_address[:2], timeout=60) as client:
        client.sendall(request_bytes)
        client.shutdown(socket.SHUT_WR)
        answer = http.client.HTTPResponse(client, method="HEAD" if request_bytes.startswith(b"HEAD") else "GET")
        answer.begin()
        assert (answer.status, answer.headers["Connection"]) == (status, "close")
        assert request_bytes.startswith(b"HEAD") or json.loads(answer.read())["error"]["message"]
    assert not fake.asked


@pytest.mark.parametrize("begun", [b"GET / HTTP/1.1\r\nA: ", b"POST /api/set HTTP/1.1\r\nContent-Length: 5\r\n\r\n{"])
def test_a_request_that_does_not_end_is_answered(server, monkeypatch, begun):
    monkeypatch.setattr(web.Handler, "timeout", 0.2)
    with socket.create_connection(server.server_address[:2], timeout=60) as client:
        client.sendall(begun)
        assert client.recv(100).startswith(b"HTTP/1.1 408")


def test_a_defect_costs_one_answer(server, fake):
    fake.error = RuntimeError("a defect")
    answer, content = ask(server, "GET", "/api/status", **BEARER)
    assert answer.status == 500
    assert "defect" in json.loads(content)["error"]["message"]


@pytest.mark.parametrize(
    ("error", "status"),
    [(DaemonUnreachable("no daemon"), 503), (Refused("no", hint="ask"), 409), (InvalidValue("bad"), 502)],
)
def test_errors_say_what_to_do(server, fake, error, status):
    fake.error = error
    answer, content = ask(server, "GET", "/api/status", **BEARER)
    assert answer.status == status
    assert json.loads(content)["error"] == {"message": str(error), "hint": error.hint}


def test_nobody_keeps_others_from_the_page_by_connections_without_a_request(server):
    """Of another user of the machine, who has no token."""
    host, port = server.server_address[:2]
    held = [socket.create_connection((host, port), timeout=60) for _ in range(MAX_CONNECTIONS)]
    for connection in held[::2]:
        connection.sendall(b"POST /api/set HTTP/1.1\r\nContent-Length: 10\r\n\r\n{")  # and no more of it
    for _ in range(3):
        held += [socket.create_connection((host, port), timeout=60) for _ in range(MAX_CONNECTIONS)]
        assert ask(server, "GET", "/api/status", **BEARER)[0].status == 200
    assert held[0].recv(1) == b""  # it was the first to go
    for connection in held:
        connection.close()


def test_an_answer_that_is_being_made_is_not_given_up_for_newcomers(server, fake):
    go_on, asked = threading.Event(), threading.Semaphore(0)

    def slow(path, query):
        asked.release()
        assert go_on.wait(60)
        return {"ok": True}

    fake.get = slow
    with ThreadPoolExecutor(MAX_CONNECTIONS) as threads:
        answers = [threads.submit(ask, server, "GET", "/api/status", **BEARER) for _ in range(MAX_CONNECTIONS)]
        for _ in answers:
            assert asked.acquire(timeout=60)
        with socket.create_connection(server.server_address[:2], timeout=60) as one_more:
            assert one_more.recv(1) == b""
        go_on.set()
        assert {answer.result()[0].status for answer in answers} == {200}


def test_a_page_that_only_shows_changes_nothing():
    body = json.dumps({"group": "g", "limits": {"min": 0.5}}).encode()
    with pytest.raises(Refused, match="only shows"):
        Questions([], write=False).post("/api/set", body)
    for wrong in (b"", b"[]", b'{"group": "g", "limits": {"color": 1}}', b'{"group": "g", "limits": {"min": 7}}'):
        with pytest.raises(Refused, match="bad request"):
            Questions([], write=True).post("/api/set", wrong)
    with pytest.raises(KeyError):
        Questions([], write=True).post("/api/shutdown", body)


# --- what others would get -------------------------------------------------------------------------------------------


def saturated(*limits):
    """The example with groups a, b, ... of these (min, max)."""
    one = next(group for device in example().devices for group in device.groups if group.clients)
    groups = tuple(
        replace(one, name=name, min=low, max=high, weight=1.0, priority="normal", sm=1.0, workload="unknown")
        for name, (low, high) in zip("abc", limits, strict=False)
    )
    device = msgspec.structs.replace(example().devices[0], groups=groups, policy="fair")
    return msgspec.structs.replace(example(), devices=(device,))


def test_a_preview_says_what_the_others_would_get():
    [device] = preview(saturated((0.2, 0.2), (0.3, 1.0)), "a", {"min": 0.5, "max": 0.6})["devices"]
    shares = {group["name"]: (group["now"], group["then"]) for group in device["groups"]}
    assert shares["a"] == (pytest.approx(0.2, abs=0.03), pytest.approx(0.55, abs=0.08))
    assert shares["b"][0] - shares["b"][1] > 0.2


@pytest.mark.parametrize("changes", [{"min": 0.7, "max": 0.6}, {"weight": -1.0}])
def test_a_preview_of_what_would_be_refused(changes):
    with pytest.raises(Refused, match="group a"):
        preview(saturated((0.2, 1.0)), "a", changes)


def test_a_preview_of_a_group_that_is_nowhere():
    with pytest.raises(Refused, match="on no device"):
        preview(saturated((0.2, 1.0)), "z", {})


# --- where it listens ------------------------------------------------------------------------------------------------


def test_loopback_addresses():
    assert parse_loopback("127.0.0.1:8080") == ("127.0.0.1", 8080)
    assert parse_loopback("localhost:0") == ("127.0.0.1", 0)
    assert parse_loopback("[::1]:80") == ("::1", 80)


@pytest.mark.parametrize(
    "text", ["", "8080", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:99999", "host:80", ":80"]
)
def test_what_is_no_address(text):
    with pytest.raises(InvalidValue, match="is not an address"):
        parse_loopback(text)


@pytest.mark.parametrize("text", ["0.0.0.0:80", "192.168.1.1:80", "[::]:80"])
def test_addresses_that_others_reach_are_refused(text):
    with pytest.raises(InvalidValue, match="from other machines") as error:
        parse_loopback(text)
    assert "ssh -L" in error.value.hint


def test_web_in_the_configuration():
    read = files.parse('[daemon]\nweb = "127.0.0.1:8080"', "gemlet.toml")
    assert read.web == "127.0.0.1:8080"
    assert files.parse(render(Configuration(web=read.web)), "gemlet.toml").web == read.web
    for wrong in ("8080", '"0.0.0.0:80"', '"127.0.0.1:0"'):
        with pytest.raises(ConfigError, match="web"):
            files.parse(f"[daemon]\nweb = {wrong}", "gemlet.toml")
