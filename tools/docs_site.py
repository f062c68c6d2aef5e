"""Builds the site of the documents by mkdocs.yml, and fails at a link that leads nowhere: `make docs`.

    .venv/bin/python tools/docs_site.py

The documents are laid out in build/docs/source as they lie in the repository, so that their links mean the same on the
site. What is in the repository and not on the site (sources, examples, results) is linked by its path alone.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "build/docs/source"
LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
FENCE = re.compile(r"(^```.*?^```|^    [^\n]*$)", re.MULTILINE | re.DOTALL)


def main() -> None:
    shutil.rmtree(SOURCE, ignore_errors=True)
    documents = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    for document in documents:
        target = SOURCE / document.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(laid_out(document, on_site=set(documents)))
    shutil.copytree(ROOT / "docs/images", SOURCE / "docs/images")
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1", "DISABLE_MKDOCS_2_WARNING": "true"}
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(ROOT / "mkdocs.yml")]
    sys.exit(subprocess.run(build, cwd=ROOT, env=environment, check=False).returncode)


def laid_out(document: Path, *, on_site: set[Path]) -> str:
    """The text of ``document``, in which links to files that are not on the site are their paths."""

    def link(found: re.Match[str]) -> str:
        text, target = found.groups()
        path = target.partition("#")[0]
        full = (document.parent / path).resolve()
        if not path or "://" in target or full in on_site or not full.exists() or ROOT / "docs/images" in full.parents:
            return found[0]  # what does not exist, mkdocs will find
        return f"{text} (`{full.relative_to(ROOT)}`)"

    pieces = FENCE.split(document.read_text())
    return "".join(piece if number % 2 else LINK.sub(link, piece) for number, piece in enumerate(pieces))


if __name__ == "__main__":
    main()
