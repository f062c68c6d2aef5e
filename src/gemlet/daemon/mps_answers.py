"""What the daemon answers to questions and wishes about MPS."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from gemlet.daemon.mps_environment import Program
from gemlet.daemon.mps_state import MpsStatus, with_groups
from gemlet.daemon.requests import Join
from gemlet.devices.mps import control_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gemlet.daemon.processes import Peer
    from gemlet.daemon.requests import Environment, MpsStart, MpsStop
    from gemlet.daemon.service import Service


def program(service: Service, request: Join | Environment, peer: Peer) -> Program:
    """The program a request speaks of, as far as MPS goes."""
    named = request.pipe_directory
    own = named if named != str(service.mps.pipe) else None
    return Program(
        uid=peer.uid,
        sm=request.limits.sm if isinstance(request, Join) else None,
        outside=not request.mps,
        pipe_directory=own,
        pipe_alive=own is not None and control_of(own) is not None,
    )


async def look(service: Service, places: Sequence[str]) -> dict[str, Any]:
    """MPS as it is now."""
    return _document(service, await service.mps.learn(places))


async def start(service: Service, request: MpsStart, peer: Peer) -> dict[str, Any]:
    """Starts it, or finds it running."""
    status, began, said = await service.mps.start(
        service.devices(), places=request.places, program=request.program, force=request.force
    )
    if began:
        service.mps_changed("started", pid=peer.pid, uid=peer.uid)
    return {"mps": _document(service, status), "changed": began, "warnings": said}


async def stop(service: Service, request: MpsStop, peer: Peer) -> dict[str, Any]:
    """Stops it, or finds it stopped."""
    groups = {pid: name for pid, name in _groups(service).items()}
    status, ended = await service.mps.stop(force=request.force, seconds=request.seconds, groups=groups)
    if ended:
        service.mps_changed("stopped", pid=peer.pid, uid=peer.uid)
    return {"mps": _document(service, status), "changed": ended}


def _document(service: Service, status: MpsStatus) -> dict[str, Any]:
    known = msgspec.structs.replace(status, servers=with_groups(status.servers, _groups(service)))
    document: dict[str, Any] = msgspec.to_builtins(known)
    return {"schema": 1, "simulated": service.options.simulated, **document}


def _groups(service: Service) -> dict[int, str]:
    return service.groups_by_pid()
