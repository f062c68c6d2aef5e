"""Models come and go while one that was served can no longer be loaded."""

from __future__ import annotations

import asyncio
import shutil

import pytest

from gemlet.serve.dispatch.call import Refusal
from gemlet.serve.models.specification import DiedLoading, ModelError
from gemlet.serve.server.catalog import Catalog
from gemlet.serve.server.repository import tree
from tests.unit.serve.searching import comparisons
from tests.unit.serve.stand_in import Service

CONFIG = """\
platform: noop
inputs: [{name: X, datatype: FP32, shape: [1]}]
outputs: [{name: Y, datatype: FP32, shape: [1]}]
"""


class World:
    """A repository of these models, by name: the numbers of their versions. ``broken``: keys that no executor loads."""

    def __init__(self, folder, **models):
        self.engine = Service().engine
        self.engine.models.clear()
        self.broken = set()
        self.served = []
        self.folder = folder
        for name, versions in models.items():
            self.write(name, *versions)
        self.catalog = Catalog(folder, self.engine, self.replan)
        self.catalog.read()
        self.catalog.all_ready()

    def write(self, name, *versions):
        for version in versions:
            (self.folder / name / str(version)).mkdir(parents=True)
        (self.folder / name / "config.yaml").write_text(CONFIG + "versions: all\n" * (len(versions) > 1))

    def breaks(self, label):
        self.broken.add(self.engine.models[label].spec.key)

    async def replan(self, changed, specs):
        for spec in specs.values():
            if spec.key in self.broken:
                error = ModelError(f"{spec.name} cannot be loaded")
                error.key = spec.key
                raise error
        self.engine.models.replace(specs)
        self.served = sorted(specs)

    def states(self):
        every = [known for directory in self.catalog.models.values() for known in directory.versions.values()]
        return {(known.name, known.version): (known.state, known.reason) for known in every}


LOST = ("UNAVAILABLE", "lost cannot be loaded")


def test_one_that_is_lost_stands_in_nobodys_way(tmp_path):
    world = World(tmp_path, good=[1], lost=[1])
    world.breaks("lost")
    world.write("new", 1)
    asyncio.run(world.catalog.load("new"))
    assert world.served == ["good", "new"]
    assert world.states()["lost", "1"] == LOST
    world.breaks("new")
    asyncio.run(world.catalog.unload("good"))
    assert world.served == []
    assert world.states()["new", "1"] == ("UNAVAILABLE", "new cannot be loaded")


def test_of_a_model_that_loses_its_latest_version_the_one_before_is_served(tmp_path):
    world = World(tmp_path, lost=[1, 2])
    assert sorted(world.engine.models) == ["lost", "lost/1"]
    world.breaks("lost")
    world.write("new", 1)
    asyncio.run(world.catalog.load("new"))
    assert world.served == ["lost", "new"]
    assert world.engine.models["lost"].spec.version == 1
    assert world.states()["lost", "2"] == LOST


def test_one_that_is_loaded_is_blamed_for_itself_alone(tmp_path):
    world = World(tmp_path, good=[1], lost=[1])
    world.breaks("lost")
    world.write("new", 1)
    world.broken.add(tree.look(tmp_path / "new").specs[0].key)
    with pytest.raises(Refusal, match="new: new cannot be loaded"):
        asyncio.run(world.catalog.load("new"))
    assert world.states()["good", "1"] == ("READY", "")


class Waiting(World):
    """Plans when it is told to."""

    def __init__(self, folder, **models):
        super().__init__(folder, **models)
        self.asked = 0
        self.go = asyncio.Event()

    async def replan(self, changed, specs):
        self.asked += 1
        await self.go.wait()
        await super().replan(changed, specs)


@pytest.mark.parametrize("what", ["load", "unload"])
def test_what_has_begun_goes_on_when_its_client_has_gone(tmp_path, what):
    async def run():
        world = Waiting(tmp_path, first=[1], second=[1])
        client = asyncio.create_task(getattr(world.catalog, what)("first"))
        waits = asyncio.create_task(world.catalog.unload("second"))
        gone = asyncio.create_task(world.catalog.load("second"))
        while not world.asked:  # noqa: ASYNC110  nothing tells
            await asyncio.sleep(0.001)
        for each in (client, gone):
            each.cancel()
        for _ in range(10):
            await asyncio.sleep(0)
        assert world.asked == 1  # an executor is still at it: nothing else begins
        world.go.set()
        await waits
        await asyncio.wait([client, gone])
        assert world.asked == 2  # what had not begun is not done
        return world

    world = asyncio.run(run())
    assert world.served == (["first"] if what == "load" else [])
    assert world.states()["first", "1"] == (("READY", "") if what == "load" else ("UNAVAILABLE", "unloaded"))


def test_a_model_whose_directory_goes_while_it_is_loaded_goes_then(tmp_path):
    async def run():
        world = Waiting(tmp_path, old=[1])
        world.write("new", 1)
        client = asyncio.create_task(world.catalog.load("new"))
        while not world.asked:  # noqa: ASYNC110  nothing tells
            await asyncio.sleep(0.001)
        shutil.rmtree(tmp_path / "new")
        compared, going = asyncio.create_task(world.catalog.compare()), asyncio.create_task(asyncio.sleep(0.05))
        await asyncio.wait([compared, going], return_when=asyncio.FIRST_COMPLETED)
        world.go.set()
        await asyncio.gather(client, compared)
        await world.catalog.compare()
        assert world.served == ["old"]
        assert list(world.states()) == [("old", "1")]

    asyncio.run(run())


def test_a_defect_met_at_a_model_that_came_leaves_the_others(tmp_path, monkeypatch):
    async def run():
        world = World(tmp_path, old=[1])
        world.write("bad", 1)
        world.write("good", 1)
        look = tree.look

        def looked(folder):
            if folder.name == "bad" and "bad" not in world.catalog.models:
                world.catalog.models["bad"] = None
                raise OverflowError("too much")
            return look(folder)

        monkeypatch.setattr(tree, "look", looked)
        await world.catalog.compare()
        assert world.served == ["good", "old"]

    asyncio.run(run())


def test_a_model_that_cannot_be_read_is_read_again_only_when_it_has_changed(tmp_path, monkeypatch):
    """Reading may ask the model's own code, which takes its time to fail."""
    looked_at = []

    async def run():
        world = World(tmp_path, old=[1])
        world.write("bad", 1)
        (tmp_path / "bad" / "config.yaml").write_text("platform: nonsense\n")
        monkeypatch.setattr(tree, "look", lambda folder: looked_at.append(folder.name) or look(folder))
        for _ in range(3):
            await world.catalog.compare()
        assert looked_at.count("bad") == 1
        (tmp_path / "bad" / "config.yaml").write_text("platform: nothing\n")
        for _ in range(3):
            await world.catalog.compare()
        assert looked_at.count("bad") == 2

    look = tree.look
    asyncio.run(run())


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\0b", "a\nb", "\x1b[31m", "x" * 256])
def test_what_is_no_name_is_not_looked_for(tmp_path, name):
    async def run():
        with pytest.raises(Refusal, match="not a valid name"):
            await World(tmp_path, old=[1]).catalog.load(name)

    asyncio.run(run())


def test_thousands_who_wait_for_a_load_end_together_in_little_time(tmp_path):
    async def run():
        world = World(tmp_path, good=[1])
        begun, end = asyncio.Event(), asyncio.Event()

        async def replan(_changed, _specs):
            begun.set()
            await end.wait()

        world.catalog._replan = replan
        first = asyncio.create_task(world.catalog.load("good"))
        await begun.wait()
        count = await comparisons(lambda: world.catalog.load("good"), 200)
        end.set()
        await first
        return count

    assert asyncio.run(run()) < 10 * 200


def test_who_loads_without_end_keeps_nobody_else_waiting(tmp_path):
    async def run():
        world = Waiting(tmp_path, first=[1], second=[1])
        many = [asyncio.create_task(world.catalog.load("first", peer="many")) for _ in range(20)]
        one = asyncio.create_task(world.catalog.load("second", peer="one"))
        own = asyncio.create_task(world.catalog.unload("first"))
        world.go.set()
        await asyncio.gather(one, own)
        assert world.asked <= 4
        for each in many:
            each.cancel()
        await asyncio.wait(many)

    asyncio.run(run())


class Dying(World):
    """Executors die while they load ``deadly``, so many times."""

    def __init__(self, folder, deadly, times, **models):
        super().__init__(folder, **models)
        self.deadly, self.times = deadly, times

    async def replan(self, changed, specs):
        if self.times:
            self.times -= 1
            died = DiedLoading(f"the executor died while it loaded {self.deadly}")
            died.key = specs[self.deadly].key
            raise died
        await super().replan(changed, specs)


def test_one_that_was_loaded_when_an_executor_died_is_tried_again(tmp_path):
    world = Dying(tmp_path, "good", 1, good=[1], other=[1])
    asyncio.run(world.catalog.unload("other"))
    assert world.served == ["good"]
    assert world.states()["good", "1"] == ("READY", "")


@pytest.mark.parametrize("runs", [False, True])
def test_one_that_runs_is_not_given_up_for_executors_that_died(tmp_path, monkeypatch, runs):
    world = Dying(tmp_path, "good", 2, good=[1], other=[1])
    monkeypatch.setattr(world.engine, "serves", lambda label: runs and label == "good")
    world.write("new", 1)

    async def load():
        await world.catalog.load("new")

    if not runs:
        asyncio.run(load())
        assert world.served == ["new", "other"]
        return
    with pytest.raises(Refusal, match="new: the executor died while it loaded good"):
        asyncio.run(load())
    assert sorted(world.engine.models) == ["good", "other"]
    assert not world.served
