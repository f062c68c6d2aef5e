"""One modelled device under the arbiter in virtual time, and programs that need a part of it each."""

from __future__ import annotations


class Machine:
    """One device, and programs that each need a part of it when they run alone.

    Together they are given what they need, or, where that is more than there is, as ``divide`` says.
    """

    def __init__(self, scene, *, mps=False, **parameters):
        self.s = scene(**parameters)
        self.mps = mps
        self.need = {}  # part of the device, by client
        self.work = {}
        self.apart = {}  # ms it ran alone
        self.beside = {}  # ... and with others
        self.bursts = {}  # (work, pause) in ms of those that have nothing to do at times
        self.begun = {}
        self.returns = {}
        self.tail = {}
        self.selfish = {}  # takes so much of what there is, whoever else runs
        self.late = {}  # ms by which it drains later than it says
        self.drains = []
        self.deaf = set()  # do not stop
        self.crowded = {}  # speed with more than one other, of what it would be
        self.crowds = set()  # how many ran at a time
        self.says = {}  # part of its work beside others that it owns up to
        self.boasts = {}  # how many of its looks it says found nothing queued, of each
        self.told = {}

    def add(self, number, need, *, wants=True, bursts=None, **spec):
        name = f"g{number}"
        if name not in self.s.groups or spec:
            self.s.group(name, **spec)
        self.need[number] = need
        self.work[number] = 0.0
        self.apart.setdefault(number, 0.0)
        self.beside.setdefault(number, 0.0)
        if bursts:
            self.bursts[number] = bursts
            self.begun[number] = 0.0
        self.s.client(number, name, mps=self.mps)
        if wants:
            self.s.want(number)

    def leave(self, number):
        self.s.leave(number)
        for of in (self.need, self.bursts, self.returns, self.selfish):
            of.pop(number, None)

    def pauses(self, number, work, pause):
        self.bursts[number] = (work, pause)
        self.begun[number] = self.work[number]

    def most_beside(self, number, until):
        most = 0
        while self.s.ms < until:
            self.run(self.s.ms + 0.5)
            most = max(most, len(self.s.holders) * (number in self.s.holders))
        return most

    def speeds(self):
        running = [n for n, h in self.s.holders.items() if n in self.need and "done" not in h]
        greedy = {n: self.selfish[n] for n in running if n in self.selfish and len(running) > 1}
        others = {n: self.need[n] for n in running if n not in greedy}
        there = 1.0 - sum(greedy.values())
        level = min(1.0, there / max(sum(others.values()), 1e-9))
        speeds = greedy | {n: need * level for n, need in others.items()}
        return {n: speed * (self.crowded.get(n, 1.0) if len(speeds) > 2 else 1.0) for n, speed in speeds.items()}

    def run(self, until, step=0.5):
        s = self.s
        while s.ms < until - 1e-9:
            self.stops()
            ends = [s.deadline(n) for n in s.holders if s.deadline(n) is not None]
            end = min([until, s.ms + step, *(e for e in ends if e > s.ms), *self.returns.values()])
            speeds = self.speeds()
            self.crowds.add(len(speeds))
            for number, speed in speeds.items():
                work = (end - s.ms) * speed
                self.work[number] += work
                said = work * (self.says.get(number, 1.0) if len(speeds) > 1 else 1.0)
                self.told[number] = self.told.get(number, 0.0) + said
                (self.beside if len(speeds) > 1 else self.apart)[number] += end - s.ms
            self.tell()
            s.to(end)
            self.drained()
            for number in [n for n, at in self.returns.items() if at <= s.ms + 1e-9]:
                del self.returns[number]
                self.begun[number] = self.work[number]
                if number in s.parked:
                    s.took(number)
                else:
                    s.want(number)

    def drained(self):
        for number, at in [d for d in self.drains if d[1] <= self.s.ms + 1e-9]:
            self.drains.remove((number, at))
            self.s.drain(number, at)

    def stops(self):
        s = self.s
        for number in list(s.holders):
            holder = s.holders.get(number)
            if holder is None or number not in self.need or number in self.deaf:
                continue
            work, pause = self.bursts.get(number, (1e18, 0))
            if self.work[number] - self.begun.get(number, 0.0) >= work - 1e-9:
                patience = 2.0 if holder.get("patient") else 0.1
                if holder.setdefault("done", s.ms) + patience > s.ms:
                    continue
                self.tell()
                s.stop(number, "idle")
                self.returns[number] = s.ms + max(0.05, pause - patience)
            elif (deadline := s.deadline(number)) is not None and deadline <= s.ms + 1e-9:
                self.tell()
                tail = self.tail.get(number, 0.0)
                s.stop(number, tail=tail)
                if tail:
                    self.drains.append((number, s.ms + tail + self.late.get(number, 0.0)))
                s.want(number)

    def tell(self):
        for number in self.work:
            if number not in self.need:
                continue
            looks = round((self.apart[number] + self.beside[number]) * 10)
            dry = round(self.apart[number] * 10 * (1 - self.need[number]) * self.boasts.get(number, 1))
            self.s.arbiter.progress(number, round(self.told.get(number, 0.0) * 1e6), looks, dry)

    def used(self, number):
        return self.s.used(f"g{number}")

    def state(self, a, b):
        ids = {self.s.groups[f"g{a}"], self.s.groups[f"g{b}"]}
        return next((row[2] for row in self.s.arbiter.pairs() if set(row[:2]) == ids), None)
