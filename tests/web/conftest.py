"""A browser (Debian's Chromium) on the page of a simulated machine with three programs. Run by `make web-test`."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.conftest import Gemlet
from tests.e2e.programs import SPIN
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
SPAN = "600"  # seconds that the programs run


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = None
    if CHROMIUM is None:
        reason = "Chromium is missing: apt-get install chromium"
    try:
        import playwright  # noqa: F401
    except ImportError:
        reason = "Playwright is missing: make web-test installs it"
    for item in items:
        if reason and Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="module")
def gemlet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gemlet]:
    made = Gemlet(tmp_path_factory.mktemp("g"))
    yield made
    for process in made.started:
        process.kill()
        process.communicate()
    made("stop", "--simulate")


def daemon(gemlet: Gemlet, *arguments: str) -> Any:
    started = gemlet.start("daemon", "--simulate", *arguments)
    eventually(lambda: gemlet("status", "--simulate").returncode == 0)
    return started


def program(gemlet: Gemlet, group: str, *limits: str) -> None:
    gemlet.start("run", "--simulate", "-q", "--group", group, *limits, "--", sys.executable, "-c", SPIN, SPAN)


def serve(gemlet: Gemlet, *arguments: str) -> str:
    """The link of a page of its own."""
    started = gemlet.start("web", "--simulate", "--listen", "127.0.0.1:0", *arguments)
    assert started.stdout is not None
    return started.stdout.readline().strip()


@pytest.fixture(scope="module")
def machine(gemlet: Gemlet) -> Gemlet:
    daemon(gemlet)
    program(gemlet, "train", "--min", "50%")
    program(gemlet, "notebook", "--min", "20%", "--max", "30%")
    program(gemlet, "<b>sweep</b>")
    eventually(lambda: _three(gemlet))
    return gemlet


def _three(gemlet: Gemlet) -> bool:
    document = json.loads(gemlet("status", "--simulate", "-o", "json").stdout)
    groups = [group for device in document["devices"] for group in device["groups"]]
    return sum(bool(group["clients"]) for group in groups) == 3


@pytest.fixture(scope="module")
def link(machine: Gemlet) -> str:
    return serve(machine, "--write")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        made = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"] if os.getuid() == 0 else [], headless=True
        )
        yield made
        made.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page that fails its test if it says anything on the console, or asks anything of another host."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    made = context.new_page()
    made.set_default_timeout(60_000)
    said: list[str] = []
    made.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
    made.on("pageerror", lambda error: said.append(str(error)))
    hosts: set[str] = set()
    made.on("request", lambda request: hosts.add(request.url.split("/")[2].rpartition(":")[0]))
    made.said = said
    yield made
    assert made.said == []
    assert hosts <= {"127.0.0.1"}
    context.close()
