"""The documents against the tree: paths, verbs, options and links they name exist, and lists of files are complete."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import click
import pytest

from gemlet.cli.main import VERBS, Verbs, command

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
# Rooms of native/ whose README lists their files, by paths below the room.
ROOMS = sorted((ROOT / "native").glob("*/README.md"))
# Packages whose docstring lists their modules; that of policies and backends is a table in code.
PACKAGES = sorted(
    path
    for path in (ROOT / "src/gemlet").rglob("__init__.py")
    if len(list(path.parent.glob("*.py"))) > 1
    and path.parent.name not in {"gemlet", "protocol", "policies", "backends"}
)
# What looks like a path of this repository: below one of its folders, or a document beside it.
FOLDERS = ("native", "src", "tests", "bench", "docs", "tools", "packaging", ".ci")
PATH = re.compile(rf"^(?:(?:{'|'.join(map(re.escape, FOLDERS))})/[\w./*-]*|[A-Z]+\.md|pyproject\.toml|Makefile)$")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
LINK = re.compile(r"\]\(([^)\s]+)\)")
COMMAND = re.compile(r"\bgemlet ([a-z]+)\b((?: +-{1,2}[a-z][a-z-]*)*)")
# `may_interrupt()` in `native/...`: a name that the file holds.
NAME_IN_FILE = re.compile(r"`(\w+)(?:\(\))?` in `([\w./-]+)`")
BUILT = {"build/native"}  # made by make, so not in a fresh clone


def of_root(path: Path) -> str:
    return str(path.relative_to(ROOT))


everywhere = pytest.mark.parametrize("document", [*DOCUMENTS, *ROOMS], ids=of_root)


def prose(text: str) -> str:
    return FENCE.sub("", text)


def anchor(heading: str) -> str:
    """The anchor GitHub gives a heading."""
    plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", "-")


def anchors(text: str) -> set[str]:
    return {anchor(line.lstrip("#")) for line in prose(text).splitlines() if line.startswith("#")}


@pytest.fixture(scope="module")
def verbs() -> dict[str, click.Command]:
    context = click.Context(command)
    assert isinstance(command, Verbs)
    found = {name: command.get_command(context, name) for name in VERBS}
    return {name: verb for name, verb in found.items() if verb is not None}


@everywhere
def test_paths_exist(document: Path) -> None:
    spans = CODE.findall(prose(document.read_text()))
    named = {word for span in spans for word in span.split() if PATH.match(word)}
    missing = [path for path in sorted(named - BUILT) if not any(ROOT.glob(path.rstrip("/")))]
    assert not missing


@everywhere
def test_names_are_in_the_files_that_are_said_to_hold_them(document: Path) -> None:
    named = NAME_IN_FILE.findall(prose(document.read_text()))
    wrong = [(name, path) for name, path in named if (ROOT / path).is_file() and name not in (ROOT / path).read_text()]
    assert not wrong


@pytest.mark.parametrize("readme", ROOMS, ids=of_root)
def test_the_list_of_a_native_room_is_complete(readme: Path) -> None:
    room = readme.parent
    listed = [
        span for span in CODE.findall(readme.read_text()) if re.fullmatch(r"[\w/*]+\.(cpp|hpp|h|def|inc|map)", span)
    ]
    assert [path for path in listed if not any(room.glob(path))] == []
    known = {file for path in listed for file in room.glob(path)}
    assert sorted(str(file.relative_to(room)) for file in set(room.rglob("*.cpp")) - known) == []


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: of_root(path.parent))
def test_the_list_of_a_package_is_complete(package: Path) -> None:
    folder = package.parent
    listed = ast.get_docstring(ast.parse(package.read_text())) or ""
    named = set(re.findall(r"(?<![\w.])(?:\w+/)*\w+\.py\b", listed))
    assert [name for name in sorted(named) if not any(folder.glob(f"**/{name}"))] == []
    modules = {file.name for file in folder.glob("*.py")} - {"__init__.py"}
    assert [name for name in sorted(modules) if not name.endswith("_pb2.py") and name not in named] == []


@everywhere
def test_links_lead_somewhere(document: Path) -> None:
    broken = []
    for link in LINK.findall(prose(document.read_text())):
        if "://" in link:
            continue
        path, _, fragment = link.partition("#")
        target = (document.parent / path).resolve() if path else document
        if not target.exists() or (fragment and fragment not in anchors(target.read_text())):
            broken.append(link)
    assert not broken


def commands_in(text: str) -> list[tuple[str, list[str]]]:
    """Verbs with the options right behind them, where the text shows a command: in code, never in prose."""
    lines = [line for line in text.splitlines() if line.startswith("    ")]
    shown = [*lines, *FENCE.findall(text), *CODE.findall(prose(text))]
    return [(verb, options.split()) for piece in shown for verb, options in COMMAND.findall(piece)]


@everywhere
def test_commands_exist(document: Path, verbs: dict[str, click.Command]) -> None:
    wrong = []
    for verb, options in commands_in(document.read_text()):
        if verb not in verbs:
            wrong.append(f"gemlet {verb}")
            continue
        known = {name for parameter in verbs[verb].params for name in (*parameter.opts, *parameter.secondary_opts)}
        wrong += [f"gemlet {verb} {option}" for option in options if option not in known | {"-h", "--help"}]
    assert not wrong


def test_every_verb_is_documented() -> None:
    headings = anchors((ROOT / "docs/commands.md").read_text())
    assert [verb for verb in VERBS if verb not in headings] == []


def test_the_table_of_verbs_is_complete() -> None:
    table = (ROOT / "docs/commands.md").read_text().split("## run")[0]
    assert [verb for verb in VERBS if f"[{verb}](#{verb})" not in table] == []


def test_a_table_of_options_is_complete() -> None:
    """Also what is said of `gemlet set`, which has no table. `--simulate` is said of all verbs at once."""
    text = (ROOT / "docs/commands.md").read_text()
    sections = {part.split("\n", 1)[0]: part for part in re.split(r"^## ", text, flags=re.MULTILINE)}
    tables = {verb for verb in VERBS if "| option | meaning |" in sections[verb]}
    assert tables >= {"run", "plan", "serve", "load"}
    missing = []
    for verb in sorted({*tables, "set"}):
        found = Verbs().get_command(click.Context(command), verb)
        assert found is not None
        for parameter in found.params:
            names = {*parameter.opts, *parameter.secondary_opts} - {"--simulate"}
            hidden = isinstance(parameter, click.Argument) or getattr(parameter, "hidden", False)
            if names and not hidden and not any(name in sections[verb] for name in names):
                missing.append(f"gemlet {verb} {max(names, key=len)}")
    assert missing == []


def test_the_index_names_every_document() -> None:
    indexes = (ROOT / "docs").rglob("README.md")
    listed = {(index.parent / link).resolve() for index in indexes for link in LINK.findall(index.read_text())}
    assert [
        of_root(path) for path in (ROOT / "docs").rglob("*.md") if path not in listed | {ROOT / "docs/README.md"}
    ] == []


def test_every_source_folder_is_in_the_architecture() -> None:
    listed = subprocess.run(["git", "ls-files", "native", "src"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git clone")
    text = (ROOT / "ARCHITECTURE.md").read_text()
    folders = {str(Path(name).parent) for name in listed.stdout.splitlines() if name.endswith((".cpp", ".py"))}
    assert [folder for folder in sorted(folders) if f"{folder}/" not in text] == []


def test_the_site_has_every_document() -> None:
    listed = set(re.findall(r"[\w./-]+\.md$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    assert listed == {of_root(path) for path in DOCUMENTS} | {"SECURITY.md"}
