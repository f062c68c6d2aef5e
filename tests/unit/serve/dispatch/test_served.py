"""What a server with thousands of models does at each request takes no longer than with a few."""

from __future__ import annotations

from gemlet.serve.dispatch.served import NAMED, Models, ServedModel
from tests.unit.serve.stand_in import model


class Counted(Models):
    """Counts the models that are looked at one after the other."""

    looked_at = 0

    def values(self):
        for each in super().values():
            self.looked_at += 1
            yield each


def of(*names):
    found = Counted()
    for name in names:
        found[name] = ServedModel(model(name))
    return found


def test_who_asks_for_what_is_not_there_is_told_some_of_what_is():
    assert of("a", "b").unknown("c").message.endswith("there is no model 'c' here; served: a, b")
    assert of().unknown("c").message.endswith("there is no model 'c' here; served: none")
    assert of("a").unknown("a", "7").message.endswith("a has no version 7 here: the latest is 1")
    leaving = of("a", "b")
    leaving["a"].leaving = "model"
    assert leaving.unknown("a", "1").message.endswith("there is no model 'a' here; served: b")


def test_what_is_not_there_costs_the_same_however_many_models_there_are():
    many = of(*(f"model {number}" for number in range(1000)))
    message = many.unknown("none").message
    assert message.endswith(f"model {NAMED - 1}, ...")
    many.unknown("model 7", "9")
    assert many.looked_at <= 2 * (NAMED + 1)
