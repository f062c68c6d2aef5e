"""The page, as a person uses it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from gemlet import paths
from tests.e2e.conftest import Gemlet
from tests.e2e.programs import SPIN
from tests.played_hosts import played
from tests.unit.monitor.test_serving import server, text  # noqa: F401  a fixture
from tests.waiting import eventually
from tests.web.conftest import ROOT, daemon, program, serve

AXE = ROOT / "web/node_modules/axe-core/axe.min.js"


def cells(page, table):
    """Texts of the visible cells of each row, in one step: the page may replace a row meanwhile."""
    rows = f"[...document.querySelectorAll('{table} tbody tr')]"
    return page.evaluate(rows + ".map(row => row.innerText.split('\\t'))")


def shown(page):
    """Rows of the table of groups: texts of their cells."""
    return cells(page, "#groups")


def until(page, expression):
    """Waits for it; not by wait_for_function, which the page's policy keeps from making functions of strings."""
    eventually(lambda: page.evaluate(expression))


def open_(page, link, rows=3):
    page.goto(link)
    until(page, f"document.querySelectorAll('#groups tbody tr').length === {rows}")


def violations(page):
    page.evaluate(AXE.read_text())
    found = page.evaluate("axe.run(document)")["violations"]
    return [(each["id"], [node["html"][:200] for node in each["nodes"]][:3]) for each in found]


def keep(page, name):
    """A picture for the documents, where GEMLET_PICTURES names a folder."""
    if folder := os.environ.get("GEMLET_PICTURES"):
        page.screenshot(path=Path(folder) / name, full_page=False)


def test_who_uses_the_device_and_who_waits_and_why(page, link):
    open_(page, link)
    assert "SIMULATED MACHINE" in page.inner_text("#host")
    names = {row[0].strip() for row in shown(page)}
    assert names == {"train", "notebook", "<b>sweep</b>"}
    until(page, "[...document.querySelectorAll('#groups tbody td.why')].some(cell => cell.textContent)")
    page.wait_for_selector("article[data-device='0'] canvas")
    until(page, "/borrowed \\d/.test(document.querySelector('[data-device=\"0\"] .plot').ariaLabel)")
    assert page.inner_text("#state").startswith("live")
    keep(page, "three.png")


def now(page):
    """What the page says without a click: by question."""
    return dict(zip(page.locator("#now dt").all_inner_texts(), page.locator("#now dd").all_inner_texts(), strict=True))


def test_the_first_answers_need_no_click(page, link, machine):
    open_(page, link)
    until(page, "/Held back, last minute.* of the time: /.test(document.querySelector('#now').textContent)")
    judged = "all kept: minima and maxima of 2 groups|short of|over its"
    until(page, f"/{judged}/.test(document.querySelector('#now').textContent)")
    said = now(page)
    assert "train" in said["Use the device, last 10 s"]
    assert said["Memory on the host"] == "none"
    assert said["Outside gemlet"] == "none"
    environment = machine.environment(
        GEMLET_SIM_DIR=str(machine.directory / "sim" / "machine"), LD_LIBRARY_PATH=str(paths.sim_dir())
    )
    stranger = subprocess.Popen([sys.executable, "-c", SPIN, "600"], env=environment, stdout=subprocess.DEVNULL)
    try:
        until(page, f"document.querySelector('#now').textContent.includes('({stranger.pid}')")
    finally:
        stranger.kill()
        stranger.wait()
    until(page, f"!document.querySelector('#now').textContent.includes('({stranger.pid}')")
    page.locator("#now button", has_text="notebook").first.click()
    until(page, "document.activeElement.textContent === 'notebook on device 0'")


def test_a_promise_that_is_not_kept_is_named(page, link, machine):
    [device] = json.loads(machine("status", "--simulate", "-o", "json").stdout)["devices"]
    row = {"device": device["uuid"], "used": 0.3, "owed": 0.5, "short": 0.0, "over": 0.0, "throttled": 0.0}
    rows = [
        {**row, "group": "train", "short": 0.2, "waited": {"ahead": 0.7}},
        {**row, "group": "notebook", "over": 0.1, "throttled": 0.4, "waited": {}},
        {**row, "group": "<b>sweep</b>", "waited": {"memory": 0.9}},
    ]
    page.route("**/api/minute*", lambda route: route.fulfill(json={"groups": rows}))
    open_(page, link)
    until(page, "document.querySelector('#now dd.bad') !== null")
    said = now(page)
    assert (
        said["Promises, last minute"]
        == "train 20% short of its minimum, of which 50% was due; notebook 10% over its maximum"
    )
    assert said["Held back, last minute"] == (
        "<b>sweep</b> 90% of the time: its memory, which is on the host; "
        "train 70% of the time: others who were behind; notebook 40% of the time: its maximum"
    )


def test_a_moment_of_the_past(page, link):
    open_(page, link)
    until(page, "document.querySelector('article[data-device=\"0\"] canvas') !== null")
    box = page.query_selector("article[data-device='0'] .u-over").bounding_box()
    page.mouse.click(box["x"] + box["width"] * 0.99, box["y"] + 50)
    page.wait_for_selector("#moment-groups tbody tr")
    shown_at = page.inner_text("#moment-title")
    assert re.fullmatch(r"At \d\d:\d\d:\d\d", shown_at)
    assert violations(page) == []
    page.keyboard.press("Escape")
    assert not page.is_visible("#moment")
    page.fill("#at", shown_at.removeprefix("At "))  # by the keyboard
    page.dispatch_event("#at", "change")
    page.wait_for_selector("#moment-groups tbody tr")
    assert page.inner_text("#moment-title") == shown_at
    assert {name.strip() for name, *_ in cells(page, "#moment-groups")} <= {"train", "notebook", "<b>sweep</b>"}
    page.fill("#at", "")
    page.dispatch_event("#at", "change")
    assert not page.is_visible("#moment")


def test_filter_and_sort_by_keyboard(page, link):
    open_(page, link)
    page.keyboard.press("/")
    page.keyboard.type("note")
    until(page, "document.querySelectorAll('#groups tbody tr').length === 1")
    assert page.inner_text("#count").startswith("1 of 3 shown")
    page.fill("#filter", "")
    page.focus("#groups thead th:nth-child(1) button")
    page.keyboard.press("Enter")
    names = [row[0].strip() for row in shown(page)]
    assert names == ["<b>sweep</b>", "notebook", "train"]
    assert page.get_attribute("#groups thead th:nth-child(1)", "aria-sort") == "ascending"
    page.keyboard.press("Enter")
    assert [row[0].strip() for row in shown(page)] == names[::-1]


def test_a_group_with_its_history_and_a_change_of_limits(page, link, machine):
    open_(page, link)
    page.click("#groups tbody button:text('notebook')")
    until(page, "document.querySelector('#detail [role=status] li')?.textContent.includes('notebook')")
    assert page.evaluate("document.activeElement.textContent") == "notebook on device 0"
    until(page, "/minimum 20%/.test(document.querySelector('#detail .plot').ariaLabel)")
    page.fill("#detail input[name=max]", "90")
    page.fill("#detail input[name=min]", "40")
    page.wait_for_selector("#detail table.preview tbody tr")
    preview = {name: rest for name, *rest in cells(page, ".preview")}
    assert preview.keys() == {"train", "notebook", "<b>sweep</b>"}
    now, then = (float(text.rstrip("%")) for text in preview["notebook"])
    assert now < 35 < then
    keep(page, "group.png")
    page.fill("#detail input[name=memory]", "3.5")
    machine("set", "notebook", "--simulate", "--weight", "3")  # somebody else does: it stays
    page.click("#detail form button")
    page.wait_for_selector("#detail .good")
    groups = json.loads(machine("status", "--simulate", "-o", "json").stdout)["groups"]
    assert next(group for group in groups if group["name"] == "notebook")["min"] == pytest.approx(0.4)
    changed = next(group for group in groups if group["name"] == "notebook")
    assert (changed["memory"], changed["weight"]) == (3584 * 2**20, 3)
    until(page, "/\\d+/.test(document.querySelector('#programs tbody td')?.textContent ?? '')")
    assert "waits" in page.inner_text("#programs tbody") or "runs" in page.inner_text("#programs tbody")
    page.fill("#detail input[name=min]", "80")  # beyond what train leaves
    page.click("#detail form button")
    page.wait_for_selector("#detail .bad")
    page.said[:] = [text for text in page.said if "409" not in text]  # the browser's own line about the refusal
    page.keyboard.press("Escape")
    until(page, "!document.querySelector('#detail').children.length")
    machine("set", "notebook", "--simulate", "--min", "20%", "--max", "30%", "--weight", "1", "--memory", "none")


def test_the_keyboard_comes_back_to_where_it_was(page, link):
    open_(page, link)
    page.get_by_role("table", name="Groups on each device").get_by_role("button", name="train", exact=True).focus()
    page.keyboard.press("Enter")
    until(page, "document.activeElement.textContent === 'train on device 0'")
    page.keyboard.press("Escape")
    until(page, "document.activeElement.textContent === 'train'")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_accessible(page, link, theme):
    if not AXE.exists():
        pytest.skip("axe-core is missing: `npm ci` in web")
    open_(page, link)
    page.select_option("#theme", theme)
    page.click("#groups tbody button:text('train')")
    page.wait_for_selector("#detail form")
    until(page, "document.querySelectorAll('#detail .legend li').length >= 4")
    assert violations(page) == []
    keep(page, f"{theme}.png")


def test_readable_on_a_phone(page, link):
    page.set_viewport_size({"width": 390, "height": 800})
    open_(page, link)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390  # the table scrolls in its own frame
    assert not page.is_visible("#groups thead th:has-text('Weight')")
    assert page.is_visible("#groups thead th:has-text('Share')")
    why = page.query_selector("#groups thead th:has-text('Why')").bounding_box()
    assert why["x"] + why["width"] <= 390  # without scrolling
    keep(page, "phone.png")


def test_ranges_and_zoom(page, link):
    open_(page, link)
    page.select_option("#range", label="1 hour")
    page.wait_for_selector("article[data-device='0'] canvas")
    box = page.query_selector("article[data-device='0'] .u-over").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.9, box["y"] + 50, steps=4)
    page.mouse.up()
    until(page, "document.querySelector('#state').textContent.startsWith('showing ')")
    said = page.inner_text("#state")
    until(page, "document.querySelectorAll('article[data-device=\"0\"] canvas').length > 0")
    assert page.inner_text("#state") == said  # the end stays where it was chosen
    page.select_option("#range", label="15 minutes")
    until(page, "document.querySelector('#state').textContent.startsWith('live')")


def test_without_the_token_nothing_is_shown(page, link):
    page.goto(link.partition("#")[0])
    until(page, "document.querySelector('#state').textContent.includes('token')")
    assert shown(page) == []
    page.said[:] = [text for text in page.said if "401" not in text]


def test_a_page_that_only_shows_has_no_form(page, machine):
    open_(page, serve(machine))
    page.click("#groups tbody button:text('train')")
    until(page, "document.querySelector('#detail').textContent.includes('only shows')")
    assert page.query_selector("#detail form") is None


def test_200_groups_and_a_restarted_daemon(page, tmp_path_factory):
    gemlet = Gemlet(tmp_path_factory.mktemp("g"))
    config = gemlet.directory / "gemlet.toml"
    hostile = "a\u0301 <script>alert(1)</script> '\"&amp;"
    odd = ["x" * 255, "שלום/عالم", "🦊 fox", hostile, "team-a/sub/very-long-name/" * 8, "-", "%s"]
    names = [*odd, *(f"g{number}" for number in range(199 - len(odd)))]
    config.write_text("".join(f"[groups.{json.dumps(name, ensure_ascii=False)}]\nmax = 0.5\n" for name in names))
    try:
        first = daemon(gemlet, "--config", str(config))
        program(gemlet, "alone")
        eventually(lambda: "alone" in gemlet("status", "--simulate").stdout)
        open_(page, serve(gemlet), rows=200)
        assert {row[0].strip() for row in shown(page)} >= {name.strip() for name in odd}
        assert page.evaluate("document.documentElement.scrollWidth") <= 1280
        page.get_by_role("button", name="x" * 255, exact=True).click()
        page.wait_for_selector("#detail [role=status] code")  # the hint names it, too
        assert page.evaluate("document.documentElement.scrollWidth") <= 1280
        page.keyboard.press("Escape")
        page.fill("#filter", "g17")
        until(page, "document.querySelectorAll('#groups tbody tr').length === 11")
        first.kill()
        first.wait()
        until(page, "document.querySelector('#state').classList.contains('bad')")
        assert "nothing has answered since" in page.inner_text("#stale")
        daemon(gemlet, "--config", str(config))
        until(page, "document.querySelector('#state').textContent.startsWith('live')")
        assert not page.is_visible("#stale")
        page.reload()  # the token stays with the tab
        until(page, "document.querySelectorAll('#groups tbody tr').length >= 199")
        page.said[:] = [text for text in page.said if not re.search("503|Failed to load", text)]
    finally:
        for process in gemlet.started:
            process.kill()
            process.communicate()
        gemlet("stop", "--simulate")


def test_the_page_is_what_its_sources_build():
    if not AXE.exists():
        pytest.skip("the sources' packages are missing: `npm ci` in web")
    subprocess.run(["node", "build.mjs", "--check"], cwd=ROOT / "web", check=True)


def test_a_hundred_hosts_and_a_click_to_one(page, gemlet):
    with tempfile.TemporaryDirectory(prefix="gemlet-hosts-") as name:
        folder = Path(name)
        names = [f"gpu{number}" for number in range(99)]
        with played(folder, names):
            listed = ",".join(f"{name}={folder / name}" for name in [*names, "gone"])
            page.goto(serve(gemlet, "--hosts", listed))
            until(page, "document.querySelectorAll('#hosts tbody tr').length === 100")
            until(page, "document.querySelector('#hosts-count').textContent === '100 hosts, 1 of them do not answer'")
            first = page.inner_text("#hosts tbody tr:first-child")
            assert first.startswith("gone")
            assert "does not answer" in first
            assert not page.is_visible("#devices-title")
            assert violations(page) == []
            keep(page, "hosts.png")
            page.get_by_role("button", name="gpu42", exact=True).click()
            until(page, "document.querySelector('#host').textContent.startsWith('gpu42')")
            page.wait_for_selector("article[data-device='0']")
            assert "busy 42%" in page.inner_text("article[data-device='0']")
            assert not page.is_visible("#hosts-title")
            page.get_by_role("link", name="All hosts").click()
            until(page, "!document.querySelector('#hosts-section').hidden")


def test_models_of_a_server(page, machine, server):  # noqa: F811
    page.goto(serve(machine, "--serve", "127.0.0.1:{1}".format(*server.server_address)))
    until(page, "document.querySelectorAll('#models tbody tr').length === 1")
    server.answers["/metrics"] = text(100, 0, 0, {"0.01": 100, "+Inf": 100})
    until(page, "/100%/.test(document.querySelector('#models tbody').textContent)")
    row = page.inner_text("#models tbody tr")
    assert "m 1" in row
    assert "GPU 1: 40%, batch 4" in row
    assert "20 ms" in row
    assert violations(page) == []


def test_models_are_shown_without_a_daemon(page, tmp_path_factory, server):  # noqa: F811
    gemlet = Gemlet(tmp_path_factory.mktemp("g"))
    try:
        page.goto(serve(gemlet, "--serve", "127.0.0.1:{1}".format(*server.server_address)))
        until(page, "document.querySelectorAll('#models tbody tr').length === 1")
        until(page, "document.querySelector('#state').classList.contains('bad')")
        page.said[:] = [text for text in page.said if "503" not in text]
    finally:
        for process in gemlet.started:
            process.kill()
            process.communicate()


def test_columns_are_there_only_where_they_tell_something(page, link, machine):
    open_(page, link)
    for name in ("P99", "Weight", "Swapped", "Device", "Class"):
        assert not page.is_visible(f"#groups th:has-text('{name}')"), name
    machine("set", "train", "--simulate", "--weight", "2")
    page.wait_for_selector("#groups th:has-text('Weight')")
    machine("set", "train", "--simulate", "--weight", "1")
    until(page, "[...document.querySelectorAll('#groups th')].find((head) => head.textContent === 'Weight').hidden")


def test_without_a_history_the_rest_is_live(page, tmp_path_factory):
    gemlet = Gemlet(tmp_path_factory.mktemp("g"))
    try:
        daemon(gemlet, "--no-history", "--no-config")
        page.goto(serve(gemlet))
        until(page, "document.querySelector('#state').textContent.startsWith('live; no history is recorded')")
    finally:
        for process in gemlet.started:
            process.kill()
            process.communicate()
        gemlet("stop", "--simulate")


def test_the_last_seconds_of_a_device(page, link):
    open_(page, link)
    page.click("#groups tbody button:text('train')")
    until(page, "/train: .* ran \\d+%, waited \\d+%/.test(document.querySelector('canvas.timeline')?.ariaLabel ?? '')")
    canvas = page.locator("canvas.timeline")
    canvas.hover(position={"x": 600, "y": 8})
    assert " s: " in page.inner_text("article[aria-label='Group train'] .facts[role='status']")
    keep(page, "timeline.png")
    page.mouse.down()
    canvas.hover(position={"x": 700, "y": 8})
    page.mouse.up()
    assert violations(page) == []
