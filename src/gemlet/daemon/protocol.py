"""The API between the daemon and its readers: one JSON object a line, over a Unix stream socket.

    request  {"v": 1, "op": "status", ...}
    reply    {"ok": true, "data": ...}  or  {"ok": false, "error": {"message": ..., "hint": ..., "exit_code": ...}}

A connection carries any number of requests, answered in order. This half is what both ends need and imports only
the standard library; `requests` is the daemon's typed reading of it.
"""

from __future__ import annotations

import json
from typing import Any

from gemlet.config.printable import printable_document
from gemlet.errors import DaemonError, Refused

VERSION = 1
STATUS_SCHEMA = 2  # of the status document (`gemlet status -o json`)
MPS_SCHEMA = 1  # of `gemlet mps status -o json`
AUDIT_SCHEMA = 1  # of `gemlet audit -o json`
EXPLAIN_SCHEMA = 1  # of `gemlet explain -o json`
HISTORY_SCHEMA = 1  # of `gemlet history -o json`
TRACE_SCHEMA = 1  # of what `gemlet trace` reads
REPLACED = "another daemon has taken this one's place"  # the message of an error: ask there
MAX_REQUEST_BYTES = 64 * 1024
MAX_REPLY_BYTES = 16 * 1024 * 1024


def encode_request(op: str, arguments: dict[str, Any]) -> bytes:
    """One request as a line. A word of a command line may be any bytes: a question mark is in place of each of those
    that are no UTF-8."""
    line = json.dumps({"v": VERSION, "op": op, **arguments}, separators=(",", ":"), ensure_ascii=False)
    return line.encode(errors="replace") + b"\n"


def decode_reply(line: bytes) -> Any:
    """The reply's data, every text in it printable.

    Raises `Refused` when the daemon said no, `DaemonError` when this is not a valid reply.
    """
    try:
        reply = json.loads(line)
        ok = reply["ok"]
        if ok:
            return printable_document(reply.get("data"))
        error = reply["error"]
        message, hint = printable_document(str(error["message"])), printable_document(error.get("hint"))
        exit_code = int(error.get("exit_code", Refused.exit_code))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise DaemonError(
            f"the daemon's answer makes no sense: {line[:80]!r}",
            hint="restart the daemon with `gemlet stop`: it may be of another version",
        ) from None
    refused = Refused(message, hint=hint)
    refused.exit_code = exit_code
    raise refused
