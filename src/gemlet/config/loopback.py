"""Addresses of this machine alone, such as ``127.0.0.1:8080``."""

from __future__ import annotations

import ipaddress

from gemlet.errors import InvalidValue

EXPECTED = "expected a loopback address and a port, such as 127.0.0.1:8080"


def parse_loopback(text: str) -> tuple[str, int]:
    """Address and port; port 0 is any that is free. Raises InvalidValue, also for an address that others can reach."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise InvalidValue(f"{text!r} is not an address: {EXPECTED}", hint="write 127.0.0.1:8080")
    host = "127.0.0.1" if host == "localhost" else host.removeprefix("[").removesuffix("]")
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        raise InvalidValue(f"{text!r} is not an address: {EXPECTED}", hint="write 127.0.0.1:8080") from None
    if not loopback:
        raise InvalidValue(
            f"{text!r} can be reached from other machines: {EXPECTED}",
            hint="use `ssh -L 8080:127.0.0.1:8080 HOST`, or put a proxy with TLS in front",
        )
    return host, int(port)
