"""A batch on its way through an executor."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gemlet.serve.execution import protocol

if TYPE_CHECKING:
    from gemlet.serve.dispatch.gpu_lets import Batch
    from gemlet.serve.dispatch.request import Request
    from gemlet.serve.dispatch.served import ServedModel
    from gemlet.serve.execution.executor import Executor
    from gemlet.serve.models.specification import ModelSpec


@dataclass(slots=True)
class Work:
    """A batch at an executor; it may be there in several parts: where its requests differ in shape.

    later: parts that wait for those before them, since all are too large to be copied at once.
    """

    batch: Batch
    served: ServedModel
    executor: Executor
    gpu_let: str
    parts: int = 0
    later: list[list[Request]] = field(default_factory=list)

    def nesting(self, spec: ModelSpec) -> protocol.Nesting:
        """Of models that ask others: which chain of them this continues, the longest of the batch."""
        beside = self.batch in self.batch.gpu_let.beside
        if not spec.by_request:
            return protocol.BESIDE if beside else protocol.OUTERMOST
        chain = max([request.payload.chain for request in self.batch.requests], key=len, default=())
        return protocol.Nesting(self.batch.number, (*chain, spec.name), beside)
