"""The parameters of a request, in either protocol: what they ask of the server, and what a model is told of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gemlet.serve.dispatch.call import Refusal

if TYPE_CHECKING:
    from gemlet.serve.dispatch.call import About, Call
    from gemlet.serve.server.frontend.answer_form import Form, Parameters

MAX_TIMEOUT_US = 1 << 62  # JSON's numbers have no end
OURS = frozenset({"timeout", "priority", "binary_data_output", "sequence_id", "sequence_start", "sequence_end"})


def options(parameters: Parameters, call: Call) -> None:
    """Takes ``timeout`` (microseconds, as Triton's clients send it) and ``priority`` into the call. Raises Refusal."""
    timeout, priority = parameters.get("timeout", 0), parameters.get("priority", 0)
    for name, value in (("timeout", timeout), ("priority", priority)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise Refusal("invalid", f"parameter {name} is {value!r}, not a whole number from 0 on")
    if parameters.get("sequence_id") not in (None, 0, ""):  # it may be a list
        raise Refusal("unsupported", "sequences are not served: requests of a model are independent")
    call.timeout_ms, call.priority = min(timeout, MAX_TIMEOUT_US) / 1000, priority


def about(form: Form, parameters: Parameters) -> About:
    """What a model that gets requests is told beside the inputs. Raises Refusal."""
    own = {name: value for name, value in parameters.items() if name not in OURS}
    timeout = min(parameters.get("timeout", 0), MAX_TIMEOUT_US)
    try:
        return form.id, tuple(form.outputs or ()), timeout, msgspec.json.encode(own).decode() if own else ""
    except (OverflowError, RecursionError, ValueError) as error:
        raise Refusal("invalid", f"the parameters cannot be told to {form.model}: {error}") from None
