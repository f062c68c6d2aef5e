"""Who may have how much waiting: bytes of requests in all, and places in each model's queue. Pure.

A model may have as many bytes as are still free, and a client as many bytes and places as are still free to the model
then. So what one sends without end leaves room to the others: a model half of all bytes, two a third; a client half of
the places and two thirds of all bytes. A client of which little waits always finds room.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class _Share:
    nbytes: int = 0
    requests: int = 0


@dataclass(slots=True)
class _OfModel(_Share):
    clients: dict[str, _Share] = field(default_factory=dict)


NOTHING = _Share()


class WaitingRoom:
    """``most``: bytes of all models together; ``places``: of each."""

    def __init__(self, most: int, places: int) -> None:
        self.most = most
        self.places = places
        self.total = 0  # bytes
        self._models: dict[str, _OfModel] = {}  # all that ever had one; of clients, those that have

    def of(self, model: str) -> int:
        """Its bytes."""
        return self._models[model].nbytes if model in self._models else 0

    def enter(self, model: str, client: str, nbytes: int, *, again: bool = False) -> str:
        """Lets a request wait; or why it may not. ``again``: it did before, and may."""
        of_model = self._models.get(model)
        if of_model is None:
            of_model = self._models[model] = _OfModel()
        its = of_model.clients.get(client, NOTHING)
        if not again:
            if its.nbytes + nbytes > self.most - self.total - of_model.nbytes:
                of_whom = f"those for {model} {of_model.nbytes}, this client's of these {its.nbytes}"
                return f"waiting requests take {self.total} bytes, {of_whom}"
            if its.requests >= self.places - of_model.requests:
                return f"{of_model.requests} requests for {model} already wait, {its.requests} of them this client's"
        if its is NOTHING:
            its = of_model.clients[client] = _Share()
        its.nbytes += nbytes
        its.requests += 1
        of_model.nbytes += nbytes
        of_model.requests += 1
        self.total += nbytes
        return ""

    def leave(self, model: str, client: str, nbytes: int) -> None:
        self.total -= nbytes
        of_model = self._models[model]
        of_model.nbytes -= nbytes
        of_model.requests -= 1
        its = of_model.clients[client]
        its.nbytes -= nbytes
        its.requests -= 1
        if not its.requests:
            del of_model.clients[client]
