"""Twenty busy programs, hooks of two versions, and daemons that take over: nobody fails, or passes a limit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gemlet import paths
from gemlet.errors import GemletError
from tests.other_hooks import other_hook
from tests.sim.upgrade.scene import Scene

if TYPE_CHECKING:
    from collections.abc import Iterator

GROUPS = 2


@pytest.fixture
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    try:
        hooks = (paths.hook_path(), str(other_hook("older")))
        paths.sim_dir()
    except GemletError as error:
        pytest.skip(f"the native parts are not built: {error}")
    with Scene(tmp_path_factory.mktemp("u"), devices=2, hooks=hooks) as made:
        yield made


# That it got no processor for 400 ms happens on a busy machine, and is no word about another daemon.
SILENT = "the daemon does not answer: running on by the last shares until it does"


@pytest.mark.timeout(600)
def test_programs_run_on_while_daemons_follow_one_another(scene: Scene) -> None:
    scene.begin(GROUPS)
    scene.populate(GROUPS, period_us=20_000)
    for _ in range(2):
        scene.take_over()
        scene.get_on(2)
        scene.until("everybody is across", scene.everybody_is_there)
        scene.get_on(20)
        assert not scene.broken()
        known = {g["name"]: g for d in scene.status()["devices"] for g in d["groups"]}
        scene.gemlet("set", "--simulate", "open", "--max", "90%")  # the next one knows it, though no file does
        assert known["capped"]["max"] == 0.25
    assert {g["name"]: g["max"] for g in scene.status()["groups"]}["open"] == 0.9
    for program in scene.programs:
        said = program.said.read_text()
        # Of the hook of this version nobody hears of it; the one before says that a daemon was gone.
        assert "without limits" not in said
        assert "would pass the" in said or "g" not in program.group[:1]
        if program.hook == scene.hooks[0]:
            assert "the daemon" not in said.replace(SILENT, "")
