"""What the daemon answers to questions and requests about MPS."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from gemlet.daemon import protocol
from gemlet.daemon.mps_environment import Program
from gemlet.daemon.mps_state import MpsStatus, with_groups
from gemlet.daemon.processes import Peer, administers, check_administrator
from gemlet.daemon.requests import Environment, Join, MpsLook, MpsStart, MpsStop

if TYPE_CHECKING:
    from gemlet.daemon.service import Service


def program(service: Service, request: Join | Environment, peer: Peer) -> Program:
    """The program a request speaks of, as far as MPS goes."""
    named = request.pipe_directory
    own = named if named != str(service.mps.pipe) else None
    return Program(
        uid=peer.uid,
        sm=request.limits.given().get("sm") if isinstance(request, Join) else None,
        outside=not request.mps,
        pipe_directory=own,
        pipe_alive=own is not None and request.pipe_alive,
        one_device=(isinstance(request, Join) and request.device is not None) or len(service.devices.listed()) == 1,
    )


async def answer(service: Service, request: MpsLook | MpsStart | MpsStop, peer: Peer) -> dict[str, Any]:
    """Looks, starts or stops. Raises `Refused`, `MpsError`."""
    match request:
        case MpsLook(places=places):
            # The daemon opens no directory that an ordinary user names: the user may make it wait.
            trusted = administers(peer.uid) and not peer.contained
            return _document(service, await service.mps.learn(places if trusted else (), asked_by=peer.uid))
        case MpsStart():
            check_administrator(peer, "start MPS")
            status, changed, said = await service.mps.start(
                service.devices.listed(),
                places=request.places,
                asked_by=peer.uid,
                program=request.program,
                force=request.force,
            )
        case MpsStop():
            check_administrator(peer, "stop MPS")
            said = []
            status, changed = await service.mps.stop(
                force=request.force, seconds=request.seconds, groups=service.observer.groups_by_pid()
            )
    if changed:
        service.mps_changed("started" if status.state == "on" else "stopped", pid=peer.pid, uid=peer.uid)
    return {"mps": _document(service, status), "changed": changed, "warnings": said}


def _document(service: Service, status: MpsStatus) -> dict[str, Any]:
    known = msgspec.structs.replace(status, servers=with_groups(status.servers, service.observer.groups_by_pid()))
    document: dict[str, Any] = msgspec.to_builtins(known)
    return {"schema": protocol.MPS_SCHEMA, "simulated": service.options.simulated, **document}
