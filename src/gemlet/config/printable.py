"""Text of others for a terminal or a log: what a terminal would act on is shown instead.

Names and messages of clients come from anyone who can reach the daemon. Control characters of either set (ESC, and C1,
which is an ESC in one character) move the cursor and answer questions; bidirectional ones turn a line around; a line
feed makes a row of a table that nobody wrote. Standard library only: `gemlet run` imports this.
"""

from __future__ import annotations

from typing import Any


def printable(text: str, *, lines: bool = False) -> str:
    """``text`` with an escape such as \\x1b in place of every unprintable character. ``lines``: line feeds stay."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or (lines and c == "\n") else _escaped(c) for c in text)


def printable_document(document: Any) -> Any:
    """A document as JSON gives it, with every text in it printable. One that is nothing but a text keeps its lines."""
    return printable(document, lines=True) if isinstance(document, str) else _printable(document)


def _printable(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable(key): _printable(item) for key, item in value.items()}
    return [_printable(item) for item in value] if isinstance(value, list) else value


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
