"""How spans travel: by a session of requests that keeps little of what a collector answers.

The library reads an answer whole, and unpacks it. Its status and reason say all that is to be known; a collector, or
who is in its place, could fill the server's memory by the rest.
"""

from __future__ import annotations

import io
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from urllib3.exceptions import HTTPError

ANSWER_BYTES = 64 * 1024


class _Adapter(HTTPAdapter):
    def send(self, request: requests.PreparedRequest, *given: Any, **named: Any) -> requests.Response:
        answer = super().send(request, *given, **named | {"stream": True})
        raw = answer.raw
        try:
            data = raw.read(ANSWER_BYTES + 1, decode_content=False)
        except (HTTPError, OSError):  # what was said before counts
            data = b""
        raw.close()  # its connection stays for the next spans, unless there is more
        answer.raw = io.BytesIO(data[:ANSWER_BYTES])
        return answer


def session() -> requests.Session:
    made = requests.Session()
    for scheme in ("http://", "https://"):
        made.mount(scheme, _Adapter())
    return made
