"""What a request costs the server's one thread: 5,000 of them a second must leave most of a core.

In calls of functions, which are counted; bench/frontend.py measures the microseconds. The socket is not in it.
"""

from __future__ import annotations

import asyncio
import json

from tests.counting import calls
from tests.unit.serve.stand_in import Service, Transport, connect, model

CALLS = 300  # 210 when this was written, which took 17 us
ELEMENTS = 256
REQUESTS = 50


class Nowhere(Transport):
    def write(self, data):
        self.count = getattr(self, "count", 0) + 1


def message():
    described = {
        "name": "X",
        "datatype": "FP32",
        "shape": [1, ELEMENTS],
        "parameters": {"binary_data_size": 4 * ELEMENTS},
    }
    header = json.dumps({"parameters": {"binary_data_output": True}, "inputs": [described]}).encode()
    return (
        b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: test\r\nContent-Length: %d\r\n"
        b"Inference-Header-Content-Length: %d\r\n\r\n" % (len(header) + 4 * ELEMENTS, len(header))
    ) + header + bytes(4 * ELEMENTS)  # fmt: skip


def test_a_request_costs_few_calls():
    async def run():
        tensor = (("X", "FP32", (ELEMENTS,)),)
        connection, _ = connect(Service(model(inputs=tensor, outputs=(("Y", "FP32", (ELEMENTS,)),))))
        connection._transport = transport = Nowhere()
        request = message()
        connection.data_received(request)  # the first one imports and fills caches
        counted = []
        for _ in range(REQUESTS):
            counted.append(calls(lambda: connection.data_received(request)))
            await asyncio.sleep(0)  # what is small waits only for what came before it in one turn of the loop
        assert transport.count == REQUESTS + 1
        assert max(counted) <= CALLS, counted

    asyncio.run(run())
