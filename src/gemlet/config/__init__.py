"""Configuration files: three formats in, one out, and news when a file changes.

    load, parse, save   files.py: whole files; which format by content
      gemlet_toml.py    gemlet.toml; toml_places.py finds lines and columns, render.py writes it
      toml_text.py      TOML of any origin; printable.py makes text of others fit for a terminal
      keyfile.py        Gemini, second generation: resource.conf
      client_table.py   Gemini, first generation: resource-config.txt
      draft.py          a group while it is read; report.py collects errors, suggest.py knows what was meant
    rules.py            what must hold for a group, wherever it comes from
    group_fields.py     the table of a group's fields (gemlet.model) in files, on command lines and in sentences
    quantities.py       shares, sizes, durations, factors: 30%, 8GiB, 20ms, 2; toml_values.py reads and writes them
    loopback.py         addresses that only this machine reaches
    watch.py            changes(path); text_file.py reads and replaces a file

`gemlet run` needs shares and sizes only, so the names below are imported when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gemlet.config.files import load, parse, save
    from gemlet.config.watch import changes

__all__ = ["changes", "load", "parse", "save"]

_HOME = {"changes": "watch", "load": "files", "parse": "files", "save": "files"}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
