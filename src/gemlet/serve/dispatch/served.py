"""The models that requests may name, in all their versions."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Literal

from gemlet.serve.dispatch.call import Refusal
from gemlet.serve.dispatch.statistics import Statistics

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gemlet.serve.models.specification import ModelSpec

UNKNOWN = "Request for unknown model: "  # as Triton begins; programs that are written for it look for that
NAMED = 20  # models that an error names


@dataclass(slots=True)
class ServedModel:
    """A version of a model that requests may name.

    leaving: what of it new requests cannot name any more, because it is to go: the version only, where another follows.
    """

    spec: ModelSpec
    statistics: Statistics = field(default_factory=Statistics)
    memory: int = 0
    leaving: Literal["", "version", "model"] = ""


class Models(dict[str, ServedModel]):
    """By label: the name for the version that requests without one get, name/version for the others."""

    def of(self, name: str, version: str = "") -> ServedModel | None:
        """The version of a model, also one that is to go."""
        served = self.get(name)
        if served is not None and version and version != str(served.spec.version):
            served = self.get(f"{name}/{version}")
        return served

    def find(self, name: str, version: str = "") -> ServedModel | None:
        """What a request for this model and version gets; None: neither is served to new requests."""
        first = self.get(name)
        if first is None or first.spec.name != name:
            return None
        served = self.of(name, version)
        if served is None or served.leaving == "model" or (version and served.leaving):
            return None
        return served

    def versions(self, name: str) -> list[ServedModel]:
        """Those of a model that are served, ascending."""
        found = [served for served in self.values() if served.spec.name == name and served.leaving != "model"]
        return sorted(found, key=lambda served: served.spec.version)

    def replace(self, specs: Mapping[str, ModelSpec]) -> list[str]:
        """These are the models from now on; a version that stays keeps its counters. The labels of those that are new.

        A version whose files have changed is new, too.
        """
        before = {(served.spec.name, served.spec.version): served for served in self.values()}
        self.clear()
        new = []
        for label, spec in specs.items():
            served = before.get((spec.name, spec.version))
            if served is None or served.spec.revision != spec.revision:
                new.append(label)
            if served is None:
                self[label] = ServedModel(spec)
            else:
                served.spec, served.leaving = spec, ""
                self[label] = served
        return new

    def unknown(self, model: str, version: str = "") -> Refusal:
        """What a request for a model or version that is not served is told. Looks at few models, of which there may be
        thousands: such requests come without end."""
        latest = self.get(model)
        if version and latest is not None and latest.spec.name == model and latest.leaving != "model":
            told = f"{UNKNOWN}{model} has no version {version} here: the latest is {latest.spec.version}"
            return Refusal("unknown", told)
        some = list(islice((each for each in self.values() if each.leaving != "model"), NAMED + 1))
        names = list(dict.fromkeys(each.spec.name for each in some[:NAMED])) + ["..."] * (len(some) > NAMED)
        return Refusal("unknown", f"{UNKNOWN}there is no model {model!r} here; served: {', '.join(names) or 'none'}")
