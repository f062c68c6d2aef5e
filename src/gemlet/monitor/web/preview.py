"""What the groups of a device would get with other limits, if all of them kept it busy: the arbiter in virtual time."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gemlet.config import rules
from gemlet.config.quantities import MILLISECOND
from gemlet.errors import InvalidValue, Refused
from gemlet.model import GroupSpec, TimeTerms, terms
from gemlet.simulate.engine import Engine
from gemlet.simulate.workload import ProgramSpec, Workload

if TYPE_CHECKING:
    from gemlet.daemon.status import DeviceStatus, Status

DURATION = 1000 * MILLISECOND
MOST_GROUPS = 64  # of a device; a second of virtual time of so many takes half a second
PREVIEWED = ("min", "max", "weight", "priority")  # what decides about time; memory does not
PROGRAM = ProgramSpec(kernel=1 * MILLISECOND)


def preview(status: Status, group: str, changes: dict[str, Any]) -> dict[str, Any]:
    """Shares by device and group as ``now`` and ``then``. ``changes``: fields of a GroupSpec of ``group``.

    Raises `Refused` for limits that the daemon would not take, and for a group that no device has.
    """
    here = [device for device in status.devices if any(each.name == group for each in device.groups)]
    if not here:
        raise Refused(
            f"group {group} is on no device now", hint="start a program in it, or change it without a preview"
        )
    return {"devices": [_of_device(device, group, changes) for device in here]}


def _of_device(device: DeviceStatus, group: str, changes: dict[str, Any]) -> dict[str, Any]:
    specs = [GroupSpec(**terms(each, TimeTerms)) for each in device.groups if each.clients or each.name == group]
    if len(specs) > MOST_GROUPS:
        raise Refused(f"device {device.index} has {len(specs)} groups: a preview takes at most {MOST_GROUPS}")
    changed = [_changed(spec, changes) if spec.name == group else spec for spec in specs]
    now, then = _shares(specs, device.policy), _shares(changed, device.policy)
    return {
        "index": device.index,
        "uuid": device.uuid,
        "groups": [{"name": spec.name, "now": now[spec.name], "then": then[spec.name]} for spec in specs],
    }


def _changed(spec: GroupSpec, changes: dict[str, Any]) -> GroupSpec:
    try:
        changed = replace(spec, **{name: value for name, value in changes.items() if name in PREVIEWED})
        broken = next(rules.violations(changed), None)
    except (TypeError, InvalidValue) as error:
        raise Refused(f"group {spec.name}: {error}") from None
    if broken is not None:
        raise Refused(f"group {spec.name}: {broken.message}", hint=broken.hint)
    return changed


def _shares(specs: list[GroupSpec], policy: str) -> dict[str, float]:
    workload = Workload(groups=tuple((spec, (PROGRAM,)) for spec in specs), policy=policy, duration=DURATION)
    used = Engine(workload).run().usage
    return {name: round(time / DURATION, 4) for name, time in used.items()}
