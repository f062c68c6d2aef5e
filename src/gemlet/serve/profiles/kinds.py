"""Profiles of one kind of device or of several, and which device is of which kind. Pure.

Most servers have devices of one kind: `Profiles`. Where there are more, each kind has profiles of its own, a model's
time is looked up where it runs, and a model without a profile for a kind is not planned there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gemlet.errors import InvalidValue
from gemlet.serve.profiles.profile import Profiles

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from gemlet.serve.profiles.profile import ModelProfile


class ProfilesByKind(msgspec.Struct, frozen=True, kw_only=True):
    """Several kinds of device, by the name that their profiles give them. devices: the kind of each, by its index."""

    kinds: dict[str, Profiles]
    devices: dict[int, str]


Known = Profiles | ProfilesByKind
ONE_KIND = ""  # the name of a kind where there is only one


def of_counts(counts: Sequence[tuple[Profiles, int]]) -> Known:
    """So many devices of each kind, numbered from 0 in this order. Raises InvalidValue where two are of one kind."""
    names = [profiles.device.name for profiles, count in counts for _ in range(count)]
    return of_devices([profiles for profiles, _ in counts], dict(enumerate(names)))


def of_devices(profiles: Sequence[Profiles], devices: Mapping[int, str]) -> Known:
    """Devices by index, each of one of these kinds; one kind is no more than its profiles. Raises InvalidValue."""
    kinds = {each.device.name: each for each in profiles}
    if len(kinds) < len(profiles):
        names = " and ".join(each.device.name for each in profiles)
        raise InvalidValue(
            f"profiles of different kinds of device are expected, not of {names}",
            hint="name each kind once, with the number of its devices",
        )
    return profiles[0] if len(profiles) == 1 else ProfilesByKind(kinds=kinds, devices=dict(devices))


def of_names(profiles: Profiles, names: Mapping[int, str]) -> Known:
    """What profiles of one kind say of devices with these names: nothing of the others, if some have the profiles' own.

    If none has, they are taken to hold for all.
    """
    own = profiles.device.name
    if own not in names.values() or set(names.values()) == {own}:
        return profiles
    kinds = {own: profiles}
    for name in sorted(set(names.values()) - {own}):
        device = msgspec.structs.replace(profiles.device, name=name)
        kinds[name] = msgspec.structs.replace(profiles, device=device, models={})
    return ProfilesByKind(kinds=kinds, devices=dict(names))


def kind_of(known: Known | None, device: int) -> str:
    """ONE_KIND where all devices are of one."""
    return known.devices.get(device, ONE_KIND) if isinstance(known, ProfilesByKind) else ONE_KIND


def on(known: Known, device: int) -> Profiles:
    """The profiles that hold on this device; none of any model where nothing is known of its kind."""
    if isinstance(known, Profiles):
        return known
    found = known.kinds.get(known.devices.get(device, ONE_KIND))
    return found if found is not None else msgspec.structs.replace(next(iter(known.kinds.values())), models={})


def by_kind(known: Known | None) -> Mapping[str, Profiles]:
    """The profiles by kind; under ONE_KIND where there is only one."""
    if known is None:
        return {}
    return {ONE_KIND: known} if isinstance(known, Profiles) else known.kinds


def models(known: Known | None) -> Collection[str]:
    """Those that have a profile for some kind."""
    return dict.fromkeys(name for profiles in by_kind(known).values() for name in profiles.models)


def of_model(known: Known, model: str) -> Mapping[str, ModelProfile]:
    """Its profiles by kind."""
    return {kind: found.models[model] for kind, found in by_kind(known).items() if model in found.models}


def changed(known: Known, change: Callable[[str, Profiles], Profiles | None]) -> Known | None:
    """Each kind's profiles changed; None where that leaves no kind with any."""
    if isinstance(known, Profiles):
        return change(ONE_KIND, known)
    after = {kind: change(kind, profiles) for kind, profiles in known.kinds.items()}
    if not any(after.values()):
        return None
    kept = {kind: now or msgspec.structs.replace(known.kinds[kind], models={}) for kind, now in after.items()}
    return msgspec.structs.replace(known, kinds=kept)


def title(known: Known) -> str:
    """The kinds, in words."""
    return " and ".join(profiles.device.name for profiles in by_kind(known).values())


def origin(known: Known) -> str:
    """Where the profiles come from, in words: each origin once."""
    return " and ".join(dict.fromkeys(profiles.origin for profiles in by_kind(known).values()))
