"""The daemon's MPS control daemon: started and stopped on demand, found again after a restart, never by itself.

It lives in ``mps/`` of the daemon's runtime directory, so it is in nobody's way. The intended state is written down
there, so that the next daemon can tell a control daemon that ended by itself from one that was stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gemlet import paths, whole_file
from gemlet.daemon.mps_state import (
    Intent,
    MpsClient,
    MpsControl,
    MpsServer,
    MpsStatus,
    decide,
    named,
    obstacles,
)
from gemlet.daemon.pipe_directories import PipeDirectories
from gemlet.decoding import from_json
from gemlet.devices import mps
from gemlet.errors import Refused
from gemlet.typed_command import command

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gemlet.devices.device import DeviceInfo

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.05
END_SECONDS = 10.0  # for a control daemon without clients to end
FAREWELL_SECONDS = 2.0  # the same, when the daemon itself is ending
TERM_SECONDS = 3.0
UNDO_SECONDS = 2.0  # for one whose start has failed to end when asked


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


class Remembered(msgspec.Struct, kw_only=True):
    """What is written down. ``boot``, and ``started`` in clock ticks since then, make ``pid`` name one process only."""

    intent: Intent
    pid: int
    started: int
    program: str
    boot: str = msgspec.field(default_factory=_boot_id)


class Mps:
    """One daemon's MPS. ``directory`` is its own; with ``shared`` programs of all users reach it."""

    def __init__(self, directory: Path, *, simulated: bool, shared: bool) -> None:
        self.pipe = directory / "pipe"
        self.log = directory / "log"
        self._file = directory / "state.json"
        self._simulated = simulated
        self._shared = shared
        self._mode = 0o755 if shared else 0o700
        self._changing = asyncio.Lock()
        self._remembered: Remembered | None = None
        self._servers: tuple[MpsServer, ...] = ()
        self._problem: str | None = None
        self._directories = PipeDirectories()
        self._in_default: tuple[MpsControl, ...] = ()
        self._asked = self._learned = 0  # questions for servers and clients so far; the last one answered

    def restore(self) -> MpsStatus:
        """Finds what an earlier daemon of this directory left."""
        try:
            self._remembered = from_json(self._file.read_bytes(), Remembered)
        except FileNotFoundError:
            pass
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            logger.warning("mps state file=%s cannot be used: %s", self._file, error)
        if self._remembered is not None and self._remembered.boot != _boot_id():
            self._forget()  # nothing outlives a reboot, which does not count as a failure
        self._find_own()
        return self.look()

    def _find_own(self) -> None:
        """Takes what lives in this daemon's own pipe directory for its own where it knows of none that lives.

        That is one that was started just before a daemon was killed, or that came after its start was given up: asked
        for nothing any more, and ended by nobody else.
        """
        if self.look().pid is None and (alive := mps.control_of(self.pipe)):
            program = self._remembered.program if self._remembered else ""
            self._remember(Remembered(intent="on", pid=alive.pid, started=alive.started, program=program))
            logger.info("mps found pid=%d pipe=%s", alive.pid, self.pipe)

    def look(self, foreign: Sequence[MpsControl] = ()) -> MpsStatus:
        """As it is now, as far as that costs nothing: servers and clients are those of the last `learn`.

        ``foreign``: control daemons of others, besides that in CUDA's default pipe directory.
        """
        known = self._remembered
        alive = mps.same_process(known.pid, known.started) if known else None
        state = decide(known.intent if known else None, alive=alive is not None)
        if state in ("off", "failed"):
            self._servers, self._problem = (), None
        if state == "off" and known:
            self._forget()
        return MpsStatus(
            state=state,
            pid=alive.pid if alive else None,
            uid=alive.uid if alive else None,
            pipe_directory=str(self.pipe),
            log_directory=str(self.log),
            program=known.program if known else "",
            problem=self._problem,
            servers=self._servers,
            foreign=tuple({control.pid: control for control in (*foreign, *self._in_default)}.values()),
        )

    async def find_foreign(self, places: Sequence[str] = (), *, asked_by: int | None = None) -> tuple[MpsControl, ...]:
        """The control daemons of others in ``places``, pipe directories that the user ``asked_by`` names; looks into
        CUDA's default, too.
        """
        if not self._simulated:
            self._in_default = await self._living((mps.DEFAULT_PIPE_DIRECTORY,), None)
        return await self._living(places, asked_by) if places else ()

    async def _living(self, places: Sequence[str], asked_by: int | None) -> tuple[MpsControl, ...]:
        others = [place for place in places if Path(place) != self.pipe]
        found = await self._directories.find(others, asked_by=asked_by)
        return tuple(
            MpsControl(pid=control.pid, uid=control.uid, pipe_directory=place) for place, control in found.items()
        )

    async def learn(self, places: Sequence[str] = (), *, asked_by: int | None = None) -> MpsStatus:
        """As `look`, after asking the control daemon for its servers and clients, and looking into ``places``."""
        foreign = await self.find_foreign(places, asked_by=asked_by)
        status = self.look(foreign)
        if status.pid is None:
            return status
        self._asked += 1
        number = self._asked
        servers: tuple[MpsServer, ...] = ()
        problem = None
        try:
            servers = tuple(map(_server, await asyncio.to_thread(self._control().servers)))
        except mps.MpsError as error:
            problem = f"{error.message} ({error.hint})" if error.hint else error.message
        if number > self._learned:  # an older question that is answered later knows less
            self._learned, self._servers, self._problem = number, servers, problem
        return self.look(foreign)

    def _stop(self, *options: str) -> str:
        return command("mps", "stop", *options, simulated=self._simulated)

    async def start(
        self,
        devices: Sequence[DeviceInfo],
        *,
        places: Sequence[str] = (),
        asked_by: int | None = None,
        program: str | None,
        force: bool,
    ) -> tuple[MpsStatus, bool, list[str]]:
        """Starts the control daemon: (status, whether it was off before, what to say).

        ``program``: the control program, if the caller names one. With ``force`` other control daemons do not prevent
        it. Raises `Refused`, `MpsError`.
        """
        async with self._changing:
            others = await self.find_foreign(places, asked_by=asked_by)
            self._find_own()
            status = self.look(others)
            if status.state == "on":
                return status, False, []
            if status.state == "stopping":
                hint = f"wait, or end the programs that use it with `{self._stop('--force')}`"
                raise Refused("MPS is being stopped", hint=hint)
            foreign = () if force else status.foreign
            found = obstacles(foreign, devices, shared=self._shared, uid=os.getuid())
            fatal = next((obstacle for obstacle in found if obstacle.fatal), None)
            if fatal:
                raise Refused(fatal.message, hint=fatal.hint)
            control = self._control(program)
            self.pipe.parent.mkdir(mode=self._mode, parents=True, exist_ok=True)
            self.pipe.parent.chmod(self._mode)  # whatever the umask is
            try:
                started = await asyncio.to_thread(control.start, mode=self._mode)
            except mps.MpsError:
                await self._undo(control)
                raise
            intent = Remembered(intent="on", pid=started.pid, started=started.started, program=control.program)
            self._remember(intent)
            logger.info("mps started pid=%d pipe=%s", started.pid, self.pipe)
            return self.look(others), True, [f"{obstacle.message}; {obstacle.hint}" for obstacle in found]

    async def stop(self, *, force: bool, seconds: int | None, groups: dict[int, str]) -> tuple[MpsStatus, bool]:
        """Stops it: (status, whether it ran). Raises `Refused` while programs use it, `MpsError`.

        ``seconds``: wait this long for them, then end them; ``force``: end them now. ``groups``: of clients, by pid.
        """
        async with self._changing:
            self._find_own()
            status = await self.learn()
            known = self._remembered
            if known is None or status.pid is None:
                self._forget()
                return self.look(), status.state == "failed"
            clients = [msgspec.structs.replace(c, group=groups.get(c.pid, "")) for c in status.clients()]
            waits = seconds is not None
            if status.problem and not (force or waits):
                hint = f"stop it in any case with `{self._stop('--force')}`"
                raise Refused(f"gemlet cannot find out whether programs use MPS: {status.problem}", hint=hint)
            if clients and not (force or waits):
                raise Refused(
                    f"{_count(len(clients))} MPS: {named(clients)}",
                    hint=f"end them; or `{self._stop('-t', '30')}` gives them 30 s, and --force ends them now",
                )
            grace, control = 1 if force else seconds, self._control()
            self._remember(msgspec.structs.replace(known, intent="stopping"))
            logger.info("mps stopping pid=%d clients=%d grace=%s", known.pid, len(clients), grace)
            asking = control.quit(seconds=grace)
            if not await self._ended((grace or 0) + END_SECONDS) and force:
                logger.warning("mps pid=%d does not end: SIGTERM", known.pid)
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(known.pid, signal.SIGTERM)
                await self._ended(TERM_SECONDS)
            status = self.look()
            if status.pid is not None:
                hint = f"read its log, {self.log}, or end it with `kill {status.pid}`"
                raise Refused(f"MPS's control daemon (pid {status.pid}) has not ended yet", hint=hint)
            if force:
                mps.give_up(asking)  # nobody will answer it
            return status, True

    async def let_go(self) -> None:
        """The daemon ends: so does MPS, with its last program. Nobody is ended, and nobody waits long."""
        self._find_own()
        status = self.look()
        if status.state != "on" or self._remembered is None:
            return
        self._remember(msgspec.structs.replace(self._remembered, intent="stopping"))
        try:
            self._control().quit()
        except mps.MpsError as error:
            logger.warning("mps pid=%s cannot be stopped: %s", status.pid, error)
            return
        if not await self._ended(FAREWELL_SECONDS):
            logger.warning("mps pid=%s goes with the last program that uses it", status.pid)

    async def _undo(self, control: mps.Control) -> None:
        """After a start that failed half-way: what it has started is asked to end, and ended if it does not."""
        half = mps.control_of(self.pipe)
        if half is None:
            return
        with contextlib.suppress(mps.MpsError):
            asking = control.quit(seconds=1)
            if await self._ended(UNDO_SECONDS, half):
                return
            mps.give_up(asking)  # nobody will answer it
        for number in (signal.SIGTERM, signal.SIGKILL):
            logger.warning("mps pid=%d does not end: %s", half.pid, number.name)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(half.pid, number)
            if await self._ended(TERM_SECONDS, half):
                return

    async def _ended(self, seconds: float, who: mps.Process | None = None) -> bool:
        """``who``: not the one that is remembered."""
        give_up = time.monotonic() + seconds
        while self.look().pid is not None if who is None else mps.same_process(who.pid, who.started):
            if time.monotonic() > give_up:
                return False
            await asyncio.sleep(LOOK_SECONDS)
        return True

    def _control(self, program: str | None = None) -> mps.Control:
        remembered = self._remembered.program if self._remembered else ""
        named_ = program or remembered or os.environ.get("GEMLET_MPS_CONTROL")
        simulated = paths.sim_dir() if self._simulated and not named_ else None
        return mps.Control(mps.find_program(named_, simulated), pipe=self.pipe, log=self.log)

    def _remember(self, what: Remembered) -> None:
        self._remembered = what
        try:
            self._file.parent.mkdir(mode=self._mode, parents=True, exist_ok=True)
            whole_file.write(self._file, msgspec.json.encode(what))
        except OSError as error:
            logger.warning("mps state file=%s cannot be written: %s", self._file, error)

    def _forget(self) -> None:
        self._remembered = None
        with contextlib.suppress(OSError):
            self._file.unlink()


def _count(programs: int) -> str:
    return "a program uses" if programs == 1 else f"{programs} programs use"


def _server(server: mps.MpsServer) -> MpsServer:
    clients = tuple(MpsClient(pid=c.pid, uid=c.uid, command=c.command) for c in server.clients)
    return MpsServer(pid=server.pid, uid=server.uid, status=server.status, clients=clients)
