"""What became of each request, as columns of numbers: cheap to write, small to send to the parent process."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from math import nan

ANSWERED = 0
MOST_REASONS = 30  # different ones; what comes then is "other"


@dataclass(slots=True)
class Recording:
    """One stream. Seconds: due from the start of the run, sent and done likewise; done is nan without a reply.

    ends: 0 for an answer, else the place in ``reasons``, from 1, of why there is none.
    """

    due: array[float] = field(default_factory=lambda: array("d"))
    sent: array[float] = field(default_factory=lambda: array("d"))
    done: array[float] = field(default_factory=lambda: array("d"))
    ends: array[int] = field(default_factory=lambda: array("B"))
    reasons: list[str] = field(default_factory=list)

    def open(self, due: float) -> int:
        """Notes a request; its number."""
        self.due.append(due)
        self.sent.append(nan)
        self.done.append(nan)
        self.ends.append(self.reason("no reply"))
        return len(self.due) - 1

    def close(self, number: int, sent: float, done: float, failure: str | None) -> None:
        self.sent[number] = sent
        self.done[number] = done
        self.ends[number] = ANSWERED if failure is None else self.reason(failure)

    def reason(self, message: str) -> int:
        if message in self.reasons:
            return self.reasons.index(message) + 1
        if len(self.reasons) >= MOST_REASONS:
            message = "other"
            if message in self.reasons:
                return self.reasons.index(message) + 1
        self.reasons.append(message)
        return len(self.reasons)

    def add(self, other: Recording) -> None:
        """Takes over the requests of another process."""
        places = [ANSWERED, *(self.reason(message) for message in other.reasons)]
        self.due.extend(other.due)
        self.sent.extend(other.sent)
        self.done.extend(other.done)
        self.ends.extend(places[end] for end in other.ends)


@dataclass(slots=True)
class Part:
    """What one process reports: its streams, and how busy it was itself (processor seconds over seconds).

    seconds: of the job, until it was told to stop; None: it was not.
    """

    recordings: list[Recording]
    busy: float
    waited: int  # requests that waited for a connection
    seconds: float | None = None
