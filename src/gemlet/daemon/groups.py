"""Which groups exist, who made them, who may change them, and when a group made on the fly goes away.

The native server knows what a group is allowed; this book knows why it is there. Both are changed together here and
nowhere else. No clock and no I/O: `now` comes in, processes are seen through `Launcher`.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from gemlet.daemon import minima
from gemlet.daemon.group_entry import LINGER_SECONDS, Entry, check, no_group
from gemlet.daemon.quotas import Quotas, nothing_of, weights_in_force, within
from gemlet.devices.device import uuid_bytes
from gemlet.errors import DeviceError, Refused
from gemlet.model import GROUP_FIELDS, GroupSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from gemlet.daemon.group_entry import Launcher, Origin
    from gemlet.daemon.native import Server
    from gemlet.daemon.requests import Limits
    from gemlet.model import UserSpec

RESTORED_LINGER_SECONDS = 30.0  # in place of the usual, after a restart of the daemon: its clients may come back
MAX_GROUPS = 256  # per user, against a loop of `gemlet run` that fills a shared daemon
LEAST_CHANGE = 1e-3  # of a weight in force that is told to the server
MAX_NAMED = 1024  # users that one user's groups name together
RESERVED = "@"  # begins the names that only administrators give: what they start for others finds its name free


class GroupBook:
    """All groups of one daemon.

    ``owner``: uid the daemon runs as. ``user_ids``: uids of user names (raises Refused for an unknown one).
    ``shared``: a system daemon, where groups of different users meet. ``account``: the uid as which a uid is counted.
    """

    def __init__(
        self,
        server: Server,
        *,
        owner: int,
        shared: bool,
        uid_of: UidOf,
        name_of: NameOf,
        account: Callable[[int], int] = lambda uid: uid,
    ) -> None:
        self._server = server
        self._owner = owner
        self._shared = shared
        self._uid_of = uid_of
        self._name_of = name_of
        self._account = account
        self._quotas = Quotas(shared=shared, account=account)
        self._weights: dict[str, float] = {}  # in force, of groups whose users have a quota of weights
        self._numbers = itertools.count(1)
        self.entries: dict[str, Entry] = {}

    # --- from the configuration ----------------------------------------------------------------------------------

    def configure(self, specs: Iterable[GroupSpec], users: Iterable[UserSpec] = ()) -> list[str]:
        """Makes the configured groups be exactly ``specs``. Returns what could not be done, as warnings.

        A group that is no longer configured goes when its last client has left. ``users``: the quotas from now on; what
        a group has already it keeps.
        """
        wanted = {spec.name: spec for spec in specs}
        warnings = self._quotas.configure(users, self._uid_of)
        for name, entry in self.entries.items():
            if entry.origin == "configuration" and name not in wanted:
                entry.leaving = True
        for name, spec in wanted.items():
            known = self.entries.get(name)
            if known is not None and known.origin == "configuration" and known.spec == spec and not known.leaving:
                continue
            try:
                self._weights.pop(name, None)
                warnings += self._tell(spec, strict=False)
            except Refused as error:
                warnings.append(error.message)
                continue
            entry = self.entries.setdefault(name, known or Entry(spec=spec, origin="configuration"))
            entry.spec, entry.origin, entry.owner, entry.leaving = spec, "configuration", None, False
        return warnings

    def retell(self) -> None:
        """Tells the server of groups that name users again: of one or the other is known only now who that is."""
        for entry in self.entries.values():
            if entry.spec.users:
                with contextlib.suppress(Refused):
                    self._tell(entry.spec, origin=entry.origin, device=entry.device, strict=False)

    # --- from the API --------------------------------------------------------------------------------------------

    def join(
        self,
        name: str | None,
        limits: Limits,
        *,
        command: str,
        uid: int,
        launcher: Launcher | None,
        device: int | None = None,
        busy: Mapping[str, int],
    ) -> Entry:
        """Finds or makes the group for a process of ``uid``. ``busy``: clients by group, now.

        Raises `Refused` if the group is another's, or its minimum cannot be guaranteed. Limits for a group of another
        ordinary user are refused even where they are those it has: its owner may change them at any time.
        """
        entry = self.entries.get(name) if name else None
        if entry is None:
            made = name or self._free_name(command)
            self._check_reserved(made, uid)
            owner = self._adopted_from(made, uid)
            self._check_number(uid)
            spec = self._within(_change(self._new(made, owner), limits), owner, device, given=limits.given())
            entry = Entry(spec=spec, origin="run", owner=owner, device=device, named=name is not None)
            self._admit(entry, busy)
            self._begin(spec, owner)
            self._tell(spec, device=device)
            self.entries[spec.name] = entry
        else:
            self._check_member(entry, uid)
            if limits.given() and self.ruled_by_another(entry, uid):
                raise Refused(
                    f"group {entry.spec.name} is {self._name_of(entry.owner or 0)}'s, who chooses its limits",
                    hint="join it without limits, or choose another --group",
                )
            vacant = self._vacant(entry, uid, busy)
            changed = _change(self._new(entry.spec.name, uid) if vacant else entry.spec, limits)
            place = self._place(entry, uid, device, vacant=vacant)
            if entry.owner == uid and (vacant or limits.given() or place != entry.device):
                changed = self._within(changed, uid, place, given=limits.given() if vacant else None)
            if changed != entry.spec:
                if entry.origin == "configuration":
                    raise Refused(
                        f"group {entry.spec.name} has other limits than those asked for",
                        hint="join it without limits, change it with `gemlet set`, or choose another --group",
                    )
                self._check_owner(entry, uid)
            if changed != entry.spec or place != entry.device:
                self._replace(entry, changed, place, busy)
            if entry.transient:  # one that is no longer configured goes all the same, with its last client
                entry.leaving = False
        entry.vacant_since = None
        if launcher is not None and launcher not in entry.launchers:
            entry.launchers.append(launcher)
        return entry

    def closed_to(self, name: str, uid: int) -> Refused | None:
        """Why programs of ``uid`` may not join the group by themselves; None if they may, or if it is not there."""
        entry = self.entries.get(name)
        try:
            if entry is None:
                self._adopted_from(name, uid)
            else:
                self._check_member(entry, uid)
        except Refused as refused:
            return refused
        return None

    def adopt(self, name: str) -> list[str]:
        """Takes a group into the book that a client has made by itself, if its user has a quota. Returns warnings.

        A program that names a group of its own (`GEMLET_GROUP`) would otherwise have what `gemlet run` refuses: limits
        beyond the quota, and names that are reserved or cannot be printed.
        """
        if name in self.entries:  # first: to ask the server is to wait for it
            return []
        owner = self._server.maker(name)
        if owner is None or self._administers(owner):
            return []
        try:
            check(GroupSpec(name=name))
            self._check_reserved(name, owner)
        except Refused as error:  # closed to its maker, which makes the server end that client's membership
            spec = GroupSpec(name=name, users=(self._user(self._owner),))
            self.entries[name] = Entry(spec=spec, origin="run", owner=self._owner, leaving=True)
            self._set(spec, [self._owner])
            return [error.message]
        if not self._quotas.binds(owner):
            return []
        new, warnings = self._new(name, owner), []
        try:
            self._check_number(owner)
            spec = self._within(new, owner, None, given=())
        except Refused as error:
            spec = nothing_of(new, self._quotas.of(owner))
            warnings.append(f"group {name} made by a program of {self._name_of(owner)}: {error.message}")
        self._begin(spec, owner)
        self.entries[name] = Entry(spec=spec, origin="run", owner=owner)
        return warnings + self._tell(spec, strict=False)

    def share(
        self,
        name: str,
        limits: Limits,
        *,
        socket: str,
        device: int | None = None,
        devices: tuple[str, ...] = (),
    ) -> Entry:
        """Makes the share ``name`` be exactly this, from nothing or from what it was. Raises `Refused`.

        Its minimum is not checked against others, because the opener of shares has placed them.
        """
        known = self.entries.get(name)
        if known is not None and (known.origin != "share" or known.socket != socket):
            where = f"at {known.socket}" if known.socket else f"from the {known.origin}"
            raise Refused(
                f"there is a group {name} {where} already: expected a name that is free",
                hint="remove it, or choose another name",
            )
        spec = _change(GroupSpec(name=name), limits)
        entry = known or Entry(spec=spec, origin="share", owner=self._owner, socket=socket)
        self.set_share(entry, spec, device, devices)
        self.entries[name] = entry
        return entry

    def set_share(self, entry: Entry, spec: GroupSpec, device: int | None, devices: tuple[str, ...]) -> None:
        """Gives a share these limits on these devices. Raises `Refused`, and then it has those of before."""
        uuids = _uuids(devices)
        self._tell(spec, origin="share", device=device)
        self._server.bind_group(spec.name, uuids)
        entry.spec, entry.device, entry.devices = spec, device, devices

    def change(self, name: str, limits: Limits, *, uid: int, busy: Mapping[str, int]) -> Entry:
        """Changes a live group. Raises `Refused`."""
        entry = self._entry(name)
        self._check_owner(entry, uid)
        if not limits.given():
            hint = f"give one of {', '.join(GROUP_FIELDS)}"
            raise Refused(f"nothing to change in group {name}: expected a limit", hint=hint)
        changed = _change(entry.spec, limits)
        if entry.owner == uid:
            changed = self._within(changed, uid, entry.device)
        self._replace(entry, changed, entry.device, busy)
        return entry

    @staticmethod
    def is_saved(entry: Entry) -> None:
        """It is the configuration's from now on, and no user's own: as the next daemon will have it."""
        entry.origin, entry.owner, entry.leaving = "configuration", None, False

    def remove(self, name: str, *, uid: int) -> None:
        """Removes a group. Raises `Refused` while it has clients."""
        entry = self._entry(name)
        self._check_owner(entry, uid)
        if not self._server.remove_group(name):
            raise Refused(f"group {name} has clients", hint="end them first; `gemlet status` lists them")
        del self.entries[name]

    def restore(self, entry: Entry) -> None:
        """Takes back a group that an earlier daemon of this directory had. Configured groups win."""
        if entry.spec.name in self.entries:
            return
        entry.linger = RESTORED_LINGER_SECONDS
        if entry.owner is not None:
            self._begin(entry.spec, entry.owner)
        self._tell(entry.spec, origin=entry.origin, device=entry.device, strict=False)
        if entry.devices:
            self._server.bind_group(entry.spec.name, _uuids(entry.devices))
        self.entries[entry.spec.name] = entry

    def balance(self, active: Sequence[Collection[str]]) -> None:
        """Keeps the weights of each user's groups together within the user's quota.

        ``active``: for each device the groups that had work there lately.
        """
        for _ in self.balanced(active):
            pass

    def balanced(self, active: Sequence[Collection[str]]) -> Iterator[str]:
        """As `balance`, one group after the other: each waits for the server, and others may be waiting for this."""
        theirs: dict[int, dict[str, float]] = {}  # weights by account, each entry looked at once
        owners: dict[int, int] = {}
        for name, e in self.entries.items():
            if e.owner is not None and e.origin == "run":
                account = self._account(e.owner)
                owners.setdefault(account, e.owner)
                theirs.setdefault(account, {})[name] = e.spec.weight
        found = {name: w for a, mine in theirs.items() for name, w in self._bounded(owners[a], mine, active).items()}
        before = self.entries.keys() | self._weights.keys()
        for name, entry in list(self.entries.items()):
            if self.entries.get(name) is not entry:  # it has gone meanwhile
                continue
            weight, told = found.get(name, entry.spec.weight), self._weights.get(name, entry.spec.weight)
            if not math.isclose(weight, told, rel_tol=LEAST_CHANGE):
                self._weights[name] = weight
                with contextlib.suppress(Refused):  # a group that the server no longer takes stays as it is
                    self._tell(entry.spec, origin=entry.origin, device=entry.device, strict=False)
                yield name
        self._weights = {n: weight for n, weight in self._weights.items() if n in found or n not in before}

    def _bounded(
        self, owner: int, mine: Mapping[str, float], active: Sequence[Collection[str]] = ()
    ) -> dict[str, float]:
        """The weights in force of ``mine``, the groups of the user of ``owner``; none without a quota."""
        most = self._quotas.of(owner).weight
        return {} if most is None or not mine or self._administers(owner) else weights_in_force(mine, active, most)

    def _begin(self, spec: GroupSpec, owner: int) -> None:
        mine = {n: e.spec.weight for n, e in self._of(owner).items() if e.origin == "run"} | {spec.name: spec.weight}
        self._weights[spec.name] = self._bounded(owner, mine).get(spec.name, spec.weight)

    def keep_changed(self, spec: GroupSpec, *, configured: GroupSpec) -> None:
        """A configured group has the limits that an earlier daemon was told, if the configuration is still the same."""
        entry = self.entries.get(spec.name)
        if entry is not None and entry.origin == "configuration" and entry.spec == configured:
            self._tell(spec, strict=False)
            entry.spec = spec

    # --- time ----------------------------------------------------------------------------------------------------

    def expire(self, now: float, busy: Mapping[str, int]) -> list[str]:
        """Removes groups that nobody uses any more; returns their names. ``now`` in seconds, any origin."""
        gone = []
        for name, entry in list(self.entries.items()):
            if not (entry.transient or entry.leaving):
                continue
            if busy.get(name) or entry.has_launcher():
                entry.vacant_since = None
                continue
            if entry.vacant_since is None:
                entry.vacant_since = now
            if entry.leaving or now - entry.vacant_since >= entry.linger:
                gone += self._drop(name)
        return gone

    def in_use(self, busy: Mapping[str, int]) -> bool:
        """Whether any process uses any group or is about to."""
        return any(busy.values()) or any(entry.has_launcher() for entry in self.entries.values())

    # --- inside --------------------------------------------------------------------------------------------------

    def _of(self, uid: int) -> dict[str, Entry]:
        """The groups that count for the user of ``uid``, whichever of the user's uids made them."""
        account = self._account(uid)
        return {n: e for n, e in self.entries.items() if e.owner is not None and self._account(e.owner) == account}

    def _entry(self, name: str) -> Entry:
        entry = self.entries.get(name)
        if entry is None:
            raise no_group(name, self.entries)
        return entry

    def _free_name(self, command: str) -> str:
        stem = "".join(c for c in os.path.basename(command) if c.isalnum() or c in "._-")[:64] or "run"  # noqa: PTH119
        names = (f"{stem}-{n}" for n in self._numbers)
        return next(name for name in names if name not in self.entries and self._server.maker(name) is None)

    def _adopted_from(self, name: str, uid: int) -> int:
        # A program that was started with `gemlet env` has made its group by itself, and the book learns of it only now.
        maker = self._server.maker(name)
        if maker is None or (_reserved(name) and not self._administers(maker)):  # who may not make it has not made it
            return uid
        if uid != maker and not self._administers(uid):
            raise Refused(f"programs of {self._name_of(maker)} use group {name}", hint="choose another --group")
        return maker

    def _new(self, name: str, owner: int) -> GroupSpec:
        """A group that ``owner`` makes, before anything is said of it: on a shared daemon it is the owner's alone."""
        closed = self._shared and owner != 0
        return GroupSpec(name=name, users=(self._user(owner),) if closed else ())

    def _user(self, uid: int) -> str:
        """``uid`` as one of `users`: the number unless its name is known to stand for it, and for nobody else."""
        name = self._name_of(uid)
        with contextlib.suppress(Refused):
            if self._uid_of(name) == uid:
                return name
        return str(uid)

    def _vacant(self, entry: Entry, uid: int, busy: Mapping[str, int]) -> bool:
        # A program that returns to a name that is no longer in use makes the group anew: limits of an hour ago would
        # surprise.
        return entry.transient and entry.owner == uid and self._is_left(entry, busy)

    @staticmethod
    def _is_left(entry: Entry, busy: Mapping[str, int]) -> bool:
        """Whether nobody uses the group any more, nor is on the way back to it after a restart of the daemon."""
        return entry.linger == LINGER_SECONDS and not busy.get(entry.spec.name) and not entry.has_launcher()

    def _administers(self, uid: int) -> bool:
        return uid in (0, self._owner)

    def _check_owner(self, entry: Entry, uid: int) -> None:
        if self._administers(uid) or (entry.owner is not None and uid == entry.owner):
            return
        who = f"{self._name_of(entry.owner)} or root" if entry.owner else "root"
        raise Refused(f"group {entry.spec.name} can be changed only by {who}", hint="use a group of your own")

    def ruled_by_another(self, entry: Entry, uid: int) -> bool:
        """Whether a user other than ``uid``, who is no administrator, may change the group at will."""
        other = entry.owner is not None and entry.owner != uid and not self._administers(entry.owner)
        return self._shared and other and not self._administers(uid)

    def _check_reserved(self, name: str, uid: int) -> None:
        if _reserved(name) and not self._administers(uid):
            raise Refused(
                f"{self._name_of(uid)} cannot make group {name}: only root gives names that begin with {RESERVED}",
                hint="choose another --group, or ask an administrator to make it for you",
            )

    def _check_number(self, uid: int) -> None:
        quota = self._quotas.of(uid).groups
        most = MAX_GROUPS if quota is None or uid == self._owner else min(quota, MAX_GROUPS)
        if uid != 0 and len(self._of(uid)) >= most:
            hint = "let programs share one with --group NAME, or wait: a group goes five seconds after its last process"
            raise Refused(
                f"{self._name_of(self._account(uid))} has {most} groups already, which is the most this user may have",
                hint=hint,
            )

    def _check_member(self, entry: Entry, uid: int) -> None:
        if entry.origin == "share" and not self._administers(uid):
            raise Refused(
                f"group {entry.spec.name} is open only to those who reach its socket", hint="choose another --group"
            )
        if not entry.spec.users or self._administers(uid) or uid in self._uids(entry.spec)[0]:
            return
        raise Refused(
            f"group {entry.spec.name} is not open to {self._name_of(uid)}",
            hint=f"choose another --group: this one is open to {', '.join(entry.spec.users)}",
        )

    def _within(
        self, spec: GroupSpec, uid: int, device: int | None, *, given: Collection[str] | None = None
    ) -> GroupSpec:
        """``spec`` within the quota of its owner ``uid``. Raises `Refused`."""
        if self._administers(uid):
            return spec
        others = [other for name, other in self._of(uid).items() if name != spec.name]
        named = sum(len(other.spec.users) for other in others)
        if len(spec.users) > 1 and named + len(spec.users) > MAX_NAMED:
            raise Refused(
                f"the groups of {self._name_of(uid)} name {named} users already: expected at most {MAX_NAMED} in all",
                hint="leave `users` of some groups out, or ask an administrator to configure a group",
            )
        asked = minima.Minimum(spec.name, spec.min, device)
        beside = [self.entries[rival.group].spec for rival in minima.rivals(asked, (other.minimum for other in others))]
        everywhere = [other.spec for other in others]
        return within(
            spec, self._quotas.of(uid), beside, everywhere, given=given, who=self._name_of(self._account(uid))
        )

    def _place(self, entry: Entry, uid: int, device: int | None, *, vacant: bool) -> int | None:
        """Where the minimum holds once a program of ``uid`` joins the group for ``device``: what was promised on one
        device must be true on the next one, too."""
        if entry.origin != "run" or (entry.owner != uid and not self._administers(uid)):
            return entry.device
        if vacant:
            return device
        return entry.device if device in (None, entry.device) else None

    def _replace(self, entry: Entry, spec: GroupSpec, device: int | None, busy: Mapping[str, int]) -> None:
        if spec.min > entry.spec.min or device != entry.device:
            self._admit(replace(entry, spec=spec, device=device), busy)
        self._tell(spec, origin=entry.origin, device=device)
        entry.spec, entry.device = spec, device

    def _admit(self, entry: Entry, busy: Mapping[str, int]) -> None:
        """Makes room for the group's minimum. Raises `Refused` if it cannot be guaranteed."""
        asked = entry.minimum
        while not minima.fits(asked, self._minima()):
            rivals = [self.entries[other.group] for other in minima.rivals(asked, self._minima())]
            lingering = [r.spec.name for r in rivals if r.transient and self._is_left(r, busy)]
            if not [name for name in lingering if self._drop(name)]:
                raise minima.refusal(asked, self._minima())

    def _minima(self) -> list[minima.Minimum]:
        return [entry.minimum for entry in self.entries.values()]

    def _drop(self, name: str) -> list[str]:
        if not self._server.remove_group(name):
            return []
        del self.entries[name]
        return [name]

    def _tell(
        self, spec: GroupSpec, *, origin: Origin | None = None, device: int | None = None, strict: bool = True
    ) -> list[str]:
        """Tells the server. ``device``: the only one on which the group has its minimum. ``strict``: a user whom this
        machine does not know is refused; otherwise a warning is returned, and the group is open to the others: a
        deleted account must not take the limits of a group away.
        """
        check(spec)
        uids, unknown = self._uids(spec, strict=strict)
        if origin == "share":  # who comes through its own socket is in it; nobody else
            uids = [self._owner]
        self._set(spec, uids if spec.users or origin == "share" else None, device=device)
        return [f"group {spec.name}: {error.message}" for error in unknown]

    def _set(self, spec: GroupSpec, uids: list[int] | None, *, device: int | None = None) -> None:
        """``uids``: who may join; None for everybody."""
        fields = {name: getattr(spec, name) for name in GROUP_FIELDS}
        fields["weight"] = min(spec.weight, self._weights.get(spec.name, spec.weight))
        fields["users"] = uids
        try:
            self._server.set_group(spec.name, device=device, **fields)
        except (ValueError, TypeError, OverflowError, RuntimeError) as error:  # nanobind's, where a value does not fit
            raise Refused(f"group {spec.name}: {error}") from None

    def _uids(self, spec: GroupSpec, *, strict: bool = False) -> tuple[list[int], list[Refused]]:
        """The uids of the group's users, and the errors of those that are unknown. ``strict``: raises the first one, as
        a directory service may take long for each.
        """
        uids, unknown = [], []
        for user in spec.users:
            try:
                uids.append(self._uid_of(user))
            except Refused as error:
                if strict:
                    raise
                unknown.append(error)
        # An empty list means everybody: where no user is known, nobody may join but the daemon's own.
        return uids or [self._owner], unknown


class UidOf(Protocol):
    def __call__(self, user: str, /) -> int:
        """The uid of a user name; raises `Refused` for an unknown one."""


class NameOf(Protocol):
    def __call__(self, uid: int, /) -> str:
        """The user name of a uid, or its number as text."""


def _uuids(devices: Iterable[str]) -> list[bytes]:
    try:
        return [uuid_bytes(device) for device in devices]
    except DeviceError as error:
        raise Refused(error.message, hint=error.hint) from None


def _reserved(name: str) -> bool:
    return name.startswith(RESERVED)


def _change(spec: GroupSpec, limits: Limits) -> GroupSpec:
    return replace(spec, **limits.given())
