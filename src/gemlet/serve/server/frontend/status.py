"""Which status a refusal has over HTTP and over gRPC, once for both.

A late request has 504 / DEADLINE_EXCEEDED: trying it again at once would not help. Overload and a server that is not
ready or about to end have 503 / UNAVAILABLE with Retry-After. 429 is not used: it would blame the client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gemlet.serve.dispatch.call import Reason

HTTP: dict[Reason, int] = {
    "invalid": 400,
    "unknown": 404,
    "deadline": 504,
    "overload": 503,
    "unavailable": 503,
    "failed": 500,
    "unsupported": 501,
}
GRPC: dict[Reason, str] = {  # names of grpc.StatusCode
    "invalid": "INVALID_ARGUMENT",
    "unknown": "NOT_FOUND",
    "deadline": "DEADLINE_EXCEEDED",
    "overload": "UNAVAILABLE",
    "unavailable": "UNAVAILABLE",
    "failed": "INTERNAL",
    "unsupported": "UNIMPLEMENTED",
}
PHRASES = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    411: "Length Required",
    413: "Content Too Large",
    414: "URI Too Long",
    415: "Unsupported Media Type",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    501: "Not Implemented",
    503: "Service Unavailable",
    504: "Gateway Timeout",
}
