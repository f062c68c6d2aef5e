"""What both protocols do alike with an inference request between their form of it and the engine, and with its answer.

What takes long by its size is done in threads and processes, by a coroutine; the rest at once, without a task.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from gemlet.serve.dispatch.call import Refusal
from gemlet.serve.server.frontend import answer_form, limits, request_checks, request_parameters, unpacking
from gemlet.serve.server.frontend.regions import check_unread, unread
from gemlet.serve.server.to_its_end import to_its_end

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping

    from gemlet.serve.dispatch.call import Answered, Call, Tensor
    from gemlet.serve.execution.loan import Kept
    from gemlet.serve.models.specification import ModelSpec
    from gemlet.serve.server.frontend.answer_form import Finished, Form, Parameters, Wanted
    from gemlet.serve.server.frontend.regions import SharedTensor, UserRegions
    from gemlet.serve.server.frontend.service import Service

    Rest = Callable[[], Awaitable[None]]
    _Asked = list[tuple[Tensor, Wanted]]

logger = logging.getLogger(__name__)


def check(
    service: Service, regions: UserRegions, form: Form, parameters: Parameters, call: Call, *, peer: str
) -> Rest | None:
    """Checks a request of a peer, takes its parameters, and reads its shared memory; then the engine may have it.

    What is given back is to be called and awaited before; None: it is done. Both raise Refusal.
    """
    if parameters:
        request_parameters.options(parameters, call)
    served = service.engine.models.find(call.model, call.version)
    if form.outputs is not None and served is not None:
        answer_form.check_outputs(form, served.spec)
    if served is not None and served.spec.by_request:
        call.about = request_parameters.about(form, parameters)
    if not call.request_bytes:  # it was read in another process: its inputs are no views, and it has more than these
        call.request_bytes = len(call.id) + len(call.about[-1]) + sum([len(tensor.data) for tensor in call.inputs])
    shared = unread(call.inputs)
    if shared and served is not None:
        check_unread(served, call.inputs)
        return partial(_read, service, regions, peer, call, shared)
    return _check_texts(service, peer, call)


async def _read(service: Service, regions: UserRegions, peer: str, call: Call, shared: list[SharedTensor]) -> None:
    def check() -> Awaitable[None] | None:
        checking = _check_texts(service, peer, call)
        return checking() if checking is not None else None

    await regions.read(shared, check)


def _check_texts(service: Service, peer: str, call: Call) -> Rest | None:
    """None: the engine does it."""
    texts = request_checks.texts(call.inputs)
    if texts and sum([len(tensor.data) for tensor in texts]) > limits.HERE_BYTES:
        return partial(unpacking.check, service.unpacking, peer, texts)
    return None


@dataclass(slots=True, eq=False)
class Reply:
    """How an answer is written. One of ``write``, with what was done elsewhere by output, and ``refuse`` is called.
    Outputs of more than COPY_BYTES together are nobody else's when they are written.

    text: whether outputs become text, where they are not asked for as bytes. later: keeps a task. holds: told how many
    bytes wait here, or wait no more. check: raises Refusal where there is no room for so many.
    """

    service: Service
    regions: UserRegions
    peer: str
    form: Form
    text: bool
    write: Callable[[ModelSpec, list[Tensor], Mapping[str, Finished]], None]
    refuse: Callable[[Refusal], None]
    later: Callable[[Coroutine[Any, Any, None]], None]
    holds: Callable[[int], None]
    check: Callable[[int], None]

    def __call__(self, result: Answered | Refusal) -> None:
        """To be called by the engine. Never raises."""
        if isinstance(result, Refusal):
            self.refuse(result)
            return
        try:
            outputs = answer_form.chosen(self.form, result.outputs, sure=not result.spec.by_request)
            nbytes = 0
            for tensor in outputs:
                nbytes += len(tensor.data)
            costly: _Asked = []
            shared: _Asked = []
            if not answer_form.as_they_are(self.form):
                costly = answer_form.costly(self.form, outputs, text=self.text)
                shared = answer_form.shared(self.form, outputs)
            if nbytes > limits.COPY_BYTES or shared or (costly and not _are_small(costly)):
                self.later(self._elsewhere(result.spec, outputs, costly, shared, result.loan.keep()))
            else:
                self.write(result.spec, outputs, {})
        except Exception as error:  # noqa: BLE001  also an output that is gone since a model was reloaded
            self.refuse(refusal_of(error))

    async def _elsewhere(
        self, spec: ModelSpec, outputs: list[Tensor], costly: _Asked, shared: _Asked, kept: Kept
    ) -> None:
        nbytes = sum([len(tensor.data) for tensor in outputs])
        try:
            if not (costly or shared):
                self.check(nbytes)  # what becomes of the others has other sizes
        except Refusal as refusal:
            kept.end()
            self.refuse(refusal)
            return
        self.holds(nbytes)
        try:
            if _are_small(costly):
                finished = unpacking.finish(costly, bool(spec.max_batch))
            else:
                finished = await unpacking.finished(self.service.unpacking, self.peer, spec, costly)
            if shared:
                placed = [(finished[each.name].tensor if each.name in finished else each, how) for each, how in shared]
                for tensor, how in placed:
                    answer_form.check_place(tensor, how)
                await self.regions.write([(how.region, how.offset, tensor.data) for tensor, how in placed])
                finished |= {tensor.name: answer_form.Finished(tensor, b"") for tensor, _ in placed}
            if len(finished) < len(outputs):
                own = partial(_own, outputs, set(finished))
                large = nbytes > limits.COPY_BYTES
                outputs = await to_its_end(asyncio.to_thread(own)) if large else own()
            held, nbytes = nbytes, 0
            self.holds(-held)  # the answer counts from here on, and both together may be more than there is room for
            self.write(spec, outputs, finished)
        except Exception as error:  # noqa: BLE001  it is the answer
            self.refuse(refusal_of(error))
        finally:
            kept.end()
            self.holds(-nbytes)


def _are_small(asked: _Asked) -> bool:
    return sum([len(tensor.data) for tensor, _ in asked]) <= limits.HERE_BYTES


def _own(outputs: list[Tensor], finished: Collection[str]) -> list[Tensor]:
    """Those that go as they are get bytes of their own, copied without the interpreter's lock."""
    return [each if each.name in finished else each.copied() for each in outputs]


def refusal_of(error: Exception) -> Refusal:
    """What a client is told of an error; one that is not meant for it goes to the log."""
    if isinstance(error, Refusal):
        return error
    logger.error("a request failed", exc_info=error)
    return Refusal("failed", f"{type(error).__name__}: {error}")
