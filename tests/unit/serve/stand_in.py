"""A server of no-op models without sockets and processes, for tests of the code in front of these."""

from __future__ import annotations

from gemlet.serve.dispatch.call import Refusal
from gemlet.serve.dispatch.engine import EMPTY, Engine
from gemlet.serve.dispatch.served import ServedModel
from gemlet.serve.models.specification import ModelSpec, TensorSpec
from gemlet.serve.server.catalog import Known
from gemlet.serve.server.fleet import Fleet, _with_own
from gemlet.serve.server.frontend.http_connection import Connection
from gemlet.serve.server.frontend.http_server import HttpServer
from gemlet.serve.server.frontend.logs import LogTail
from gemlet.serve.server.frontend.regions import Regions
from gemlet.serve.server.frontend.shared_text import SharedTexts
from gemlet.serve.server.frontend.unpacking import Unpacking


def model(name="echo", *, inputs=(("X", "FP32", (-1,)),), outputs=(("Y", "FP32", (-1,)),), **more):
    return ModelSpec(
        name=name,
        directory="",
        platform=more.pop("platform", "noop"),
        inputs=tuple(TensorSpec(*each) for each in inputs),
        outputs=tuple(TensorSpec(*each) for each in outputs),
        max_batch=more.pop("max_batch", 8),
        **more,
    )


class Service:
    def __init__(self, *specs):
        self.engine = Engine()
        for spec in specs or (model(),):
            self.engine.models[spec.name] = ServedModel(spec)
        self.fleet = Fleet(self.engine, ())
        specs = {name: served.spec for name, served in self.engine.models.items()}
        self.engine.adopt(_with_own(EMPTY, specs), self.fleet._route)
        self.regions = Regions()
        self.unpacking = Unpacking()
        self.logs = LogTail()
        self.texts = SharedTexts(self)
        self.ready = True

    def model(self, name, version=""):
        if name not in self.engine.models:
            raise Refusal("unknown", f"there is no model {name!r}")
        return self.engine.models[name].spec

    def model_ready(self, name, version=""):
        self.model(name)
        return True

    def index(self):
        return [Known(name, "1", "READY", "") for name in self.engine.models]

    async def load(self, name, peer):
        raise Refusal("unknown", name)

    unload = load

    def plan(self):
        return EMPTY

    def runs_on(self):
        return {"executor": "none"}

    def restarts(self):
        return {}


class Transport:
    """What a connection writes, and whether it was closed or paused."""

    def __init__(self):
        self.written = bytearray()
        self.closed = False
        self.reading = True
        self.unread = 0

    def write(self, data):
        assert not self.closed
        self.written += data

    def close(self):
        self.closed = True

    abort = close

    def get_write_buffer_size(self):
        return self.unread

    def get_extra_info(self, _):
        return None

    def is_closing(self):
        return self.closed

    def pause_reading(self):
        self.reading = False

    def resume_reading(self):
        self.reading = True


def connect(service, server=None):
    """A connection of a server that listens nowhere, and its transport. Within a running loop."""
    connection = Connection(server or HttpServer(service))
    transport = Transport()
    connection.connection_made(transport)
    return connection, transport


def replies(written):
    """(status, headers, body) of each reply in these bytes."""
    found = []
    rest = bytes(written)
    while rest:
        head, _, rest = rest.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines)
        length = int(headers["Content-Length"])
        found.append((int(first.split(" ")[1]), headers, rest[:length]))
        rest = rest[length:]
    return found
