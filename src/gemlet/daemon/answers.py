"""What the daemon answers to each request of its API."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import msgspec

from gemlet.daemon import mps_answers, mps_environment, request_warnings, tracing
from gemlet.daemon.api import Api
from gemlet.daemon.explain import explain
from gemlet.daemon.history_recorder import Question
from gemlet.daemon.native import uuid_text
from gemlet.daemon.processes import Peer, administers, check_administrator
from gemlet.daemon.program_names import stem
from gemlet.daemon.requests import (
    AnyRequest,
    Audit,
    Environment,
    Events,
    Explain,
    History,
    Join,
    Limits,
    Metrics,
    MpsLook,
    MpsStart,
    MpsStop,
    Note,
    OpenShare,
    Ping,
    Recorded,
    Remove,
    Set,
    Shutdown,
    Status,
    TakeOver,
    Trace,
)
from gemlet.errors import ConfigError, Refused
from gemlet.membership import WIRE_OLDEST, WIRE_VERSION
from gemlet.model import GroupSpec

if TYPE_CHECKING:
    from gemlet.daemon.group_entry import Entry
    from gemlet.daemon.service import Service

MAX_HISTORY_ROWS = 20_000  # samples of groups in one answer: about 3 MB


def api(service: Service) -> Api:
    """The API of one daemon."""

    async def handle(request: AnyRequest, peer: Peer) -> Any:  # noqa: PLR0911, PLR0912  one return an operation
        if not isinstance(request, TakeOver):
            await service.elder.check_stays()
        match request:
            case Ping():
                return {"pid": os.getpid(), "simulated": service.options.simulated}
            case Status():
                return (await service.observer.status.get()).json
            case Explain(group=group):
                return explain((await service.observer.status.get()).status, group)
            case Events(since=since, limit=limit):
                return service.events.after(since, limit)
            case History(seconds=seconds):
                return _history(service, seconds)
            case Recorded():
                return await _recorded(service, request)
            case Trace():
                return await _trace(service, request, peer)
            case Join(group=group):
                await service.devices.find_first()
                await service.know_users_of(peer, group, request.limits)
                return _join(service, request, peer)
            case Environment(group=group):
                await service.know_users_of(peer, group, Limits())
                entry = service.book.entries.get(group)
                return {**_environment(service, request, entry, peer), "closed": _closed(service, group, peer)}
            case Set(group=group):
                await service.know_users_of(peer, group, request.limits)
                return _set(service, request, peer)
            case OpenShare(group=group):
                await service.know_users_of(peer, group, request.limits)
                return _share(service, request, peer)
            case Remove(group=group):
                service.remove_group(group, uid=peer.uid)
                _changed(service, "removed", group, peer)
                return {"group": group}
            case MpsLook() | MpsStart() | MpsStop():
                return await mps_answers.answer(service, request, peer)
            case Note():
                service.events.add(
                    "note", time=time.time(), pid=peer.pid, uid=peer.uid, text=f"{request.topic}: {request.text}"
                )
                return None
            case Audit():
                return await service.observer.audit()
            case Metrics():
                return await _metrics(service)
            case TakeOver(socket=socket):
                check_administrator(peer, "replace the daemon")
                await service.elder.hand_over(socket, pid=peer.pid)
                return {"pid": os.getpid()}
            case Shutdown(unused=unused):
                check_administrator(peer, "stop the daemon")
                if unused and service.in_use():
                    raise Refused("the daemon is in use")
                service.stop()
                return {"pid": os.getpid()}

    return Api(handle, service.subordinates.account, shared=service.options.shared)


def _join(service: Service, request: Join, peer: Peer) -> dict[str, Any]:
    _check_device(service, request.device)
    for name in request.devices:
        _check_name(service, name)
    program = mps_answers.program(service, request, peer)
    mps_environment.check(program, service.mps.look(), simulated=service.options.simulated)
    before = service.book.entries.get(request.group) if request.group else None
    there, busy = before.spec if before else None, service.observer.busy()
    entry = service.book.join(
        request.group,
        request.limits,
        command=stem(request.arguments, command=request.command),
        uid=peer.uid,
        launcher=service.launchers.of(peer),
        device=request.device,
        busy=busy,
    )
    changed = request_warnings.changed_for_others(there, entry.spec, programs=busy.get(entry.spec.name, 0))
    unkept = _changed(service, "granted", entry.spec.name, peer, command=request.command)
    misspelt = None
    if request.group and before is None and not request.limits.given():
        configured = [name for name, other in service.book.entries.items() if other.origin == "configuration"]
        misspelt = request_warnings.perhaps_misspelt(request.group, configured)
    return {
        "group": entry.spec.name,
        "socket": str(service.options.endpoint.clients),
        "simulated": service.options.simulated,
        "machine": str(service.options.endpoint.machine) if service.options.simulated else None,
        "warnings": [
            *_no_device(service),
            *_about_owner(service, entry, peer),
            *_said(changed, misspelt),
            *_about_memory(service, entry),
            *_said(request_warnings.slowdown_for_nothing(entry.spec), unkept),
        ],
        "movable": service.movable(entry.spec),
        **_environment(service, request, entry, peer),
    }


def _environment(service: Service, request: Join | Environment, entry: Entry | None, peer: Peer) -> dict[str, Any]:
    spec = entry.spec if entry else GroupSpec(name=request.group or "")
    program, status = mps_answers.program(service, request, peer), service.mps.look()
    place = mps_environment.place(
        program, spec, status, simulated=service.options.simulated, multiprocessors=service.observer.multiprocessors()
    )
    return {
        "environment": place.variables,
        "granted": _limits(entry) if entry else {},
        "mps": status.state,
        "sm_in_force": place.in_force,
        "under_mps": place.under,
        "wire": WIRE_VERSION,
        "wire_oldest": WIRE_OLDEST,
    }


def _closed(service: Service, group: str, peer: Peer) -> request_warnings.WarningMessage | None:
    """Why programs of ``peer`` could not join. Root in a container is nobody here, and may join any group as root."""
    refused = None if peer.contained else service.book.closed_to(group, peer.uid)
    return None if refused is None else {"message": refused.message, "hint": refused.hint or ""}


def _no_device(service: Service) -> list[request_warnings.WarningMessage]:
    problem = service.observer.why_no_devices()
    return [] if problem is None else [request_warnings.no_device(problem)]


def _about_owner(service: Service, entry: Entry, peer: Peer) -> list[request_warnings.WarningMessage]:
    if entry.owner is None or not service.book.ruled_by_another(entry, peer.uid):
        return []
    return [request_warnings.ruled_by(service.users.name_of(entry.owner), group=entry.spec.name)]


def _said(*found: request_warnings.WarningMessage | None) -> list[request_warnings.WarningMessage]:
    return [warning for warning in found if warning]


def _about_memory(service: Service, entry: Entry) -> list[request_warnings.WarningMessage]:
    spec, movable = entry.spec, service.movable(entry.spec)
    largest = max((device.memory_total for device in service.devices.listed()), default=None)
    return _said(
        request_warnings.memory_for_nothing(
            spec.memory, service.observer.context_size(), group=spec.name, simulated=service.options.simulated
        ),
        request_warnings.memory_beyond_device(spec.memory, largest, movable=movable),
        request_warnings.resident_for_nothing(spec.resident, spec.memory),
    )


def _check_device(service: Service, device: int | None) -> None:
    known = sorted(info.index for info in service.devices.listed())
    if device is not None and known and device not in known:
        listed = ", ".join(str(index) for index in known)
        raise Refused(f"there is no device {device}", hint=f"choose one of the devices here: {listed}")


def _check_name(service: Service, name: str) -> None:
    if name.isdecimal():
        _check_device(service, int(name))
        return
    known = [info.uuid for info in service.devices.listed()]
    if known and name.startswith("GPU-") and not any(uuid.startswith(name) for uuid in known):
        raise Refused(f"there is no device {name}", hint=f"choose one of the devices here: {', '.join(sorted(known))}")


def _set(service: Service, request: Set, peer: Peer) -> dict[str, Any]:
    if request.save:
        check_administrator(peer, "save the configuration")
        service.configuration.check_can_save()
    before = service.book.entries.get(request.group)
    memory = before.spec.memory if before else None
    entry = service.book.change(request.group, request.limits, uid=peer.uid, busy=service.observer.busy())
    under_mps = service.mps.look().state == "on" and service.observer.busy().get(request.group, 0) > 0
    held = request_warnings.held_by_mps(memory, entry.spec.memory, under_mps=under_mps)
    saved = None
    if request.save:
        try:
            saved = service.configuration.save_group(entry.spec)
        except ConfigError as error:  # a full disk
            raise Refused(f"group {request.group} is changed, but not saved: {error}", hint=error.hint) from None
        service.book.is_saved(entry)
    unkept = _changed(service, "changed", entry.spec.name, peer)
    given = request.limits.given()
    return {
        "group": entry.spec.name,
        "granted": _limits(entry),
        "saved": saved,
        "mps": service.mps.look().state,
        "warnings": [
            *_said(held, unkept if saved is None else None),
            *(_about_memory(service, entry) if "memory" in given else []),
            *_said(request_warnings.slowdown_for_nothing(entry.spec) if "slowdown" in given else None),
        ],
    }


def _share(service: Service, request: OpenShare, peer: Peer) -> dict[str, Any]:
    check_administrator(peer, "open a socket for a group")
    _check_device(service, request.device)
    entry = service.open_share(
        request.group,
        request.limits,
        socket=request.socket,
        device=request.device,
        devices=request.devices,
    )
    _tell(service, "granted", entry.spec.name, peer)
    return {
        "group": entry.spec.name,
        "socket": entry.socket,
        "simulated": service.options.simulated,
        "machine": str(service.options.endpoint.machine) if service.options.simulated else None,
        "granted": _limits(entry),
    }


def _limits(entry: Entry) -> dict[str, Any]:
    limits: dict[str, Any] = msgspec.to_builtins(entry.spec)
    return limits


def _changed(
    service: Service, kind: str, group: str, peer: Peer, *, command: str = ""
) -> request_warnings.WarningMessage | None:
    failure = service.remember_groups()
    _tell(service, kind, group, peer, command=command)
    return request_warnings.not_written_down(failure, group=group) if failure else None


def _tell(service: Service, kind: str, group: str, peer: Peer, *, command: str = "") -> None:
    service.events.add(kind, time=time.time(), group=group, pid=peer.pid, uid=peer.uid, command=command)


def _history(service: Service, seconds: float) -> list[dict[str, Any]]:
    samples: list[dict[str, Any]] = []
    room = MAX_HISTORY_ROWS
    for now_ns, rows in service.observer.recent_usage.since(seconds):
        room -= len(rows)
        if room < 0 and samples:
            break
        samples.append(
            {
                "now_ns": now_ns,
                "groups": [
                    {"device": uuid_text(row.device), "name": row.group, "used_ns": row.used_ns, "memory": row.memory}
                    for row in rows
                ],
            }
        )
    return samples[::-1]


async def _trace(service: Service, request: Trace, peer: Peer) -> tracing.Traced:
    status = (await service.observer.status.get()).status
    return await tracing.read(
        service.server,
        tracing.Asked(
            group=request.group,
            seconds=request.seconds,
            after=request.after,
            uid=None if administers(peer.uid) else peer.uid,
        ),
        names={c.pid: c.called for device in status.devices for group in device.groups for c in group.clients},
        devices={device.index: device.name for device in status.devices},
        simulated=service.options.simulated,
    )


async def _recorded(service: Service, request: Recorded) -> Any:
    now = time.time()
    question = Question(
        group=request.group,
        since=now - max(request.since, request.until),
        until=now - request.until,
        points=request.points,
        columns=frozenset(request.columns),
    )
    return await service.observer.recorder.ask(question, simulated=service.options.simulated)


async def _metrics(service: Service) -> str:
    metrics = (await service.observer.summary.get()).metrics
    if metrics is None:
        raise Refused(
            "this daemon has no metrics: prometheus-client is not installed",
            hint="pip install 'gemlet[metrics]', then restart the daemon",
        )
    return metrics
