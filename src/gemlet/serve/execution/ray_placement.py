"""Ray finds machines for executors and restarts what holds them; requests never pass through it.

For each device there is an actor that starts the executor's process beside itself and says where it listens. When its
node dies, Ray starts the actor on another one, and the server's next attempt finds the new process there.
"""

from __future__ import annotations

import asyncio
import importlib
import signal
from typing import TYPE_CHECKING, Any

from gemlet.errors import GemletError, UsageError
from gemlet.serve.execution.executor import ExecutorFailed
from gemlet.serve.execution.hosting import Endpoint, Host

if TYPE_CHECKING:
    from collections.abc import Mapping

NAMESPACE = "gemlet"
ON_GPU = frozenset({"green", "mps", "streams"})


class Cluster:
    """A connection to a Ray cluster. Raises GemletError where there is no Ray or no cluster."""

    def __init__(self, address: str) -> None:
        self._ray = _ray()
        handler = signal.getsignal(signal.SIGTERM)
        try:
            self._ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, configure_logging=False)
        except (ConnectionError, ValueError, RuntimeError) as error:
            message = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise GemletError(
                f"no Ray cluster at {address}: {message}", hint="start one with `ray start --head`; auto finds one here"
            ) from None
        finally:
            signal.signal(signal.SIGTERM, handler)  # Ray's would end this process at once

    def places(self, backend: str) -> int:
        """Devices that executors of this backend can have: GPUs, or one for each node. Raises UsageError for none."""
        if backend in ON_GPU:
            if not self.gpus():
                raise UsageError(
                    "the Ray cluster has no GPU", hint="choose --executor cpu or modelled, which need none"
                )
            return self.gpus()
        alive = sum(bool(node["Alive"]) for node in self._ray.nodes())
        if not alive:
            raise UsageError("the Ray cluster has no node that is alive", hint="add one with `ray start`")
        return alive

    def gpus(self) -> int:
        return int(self._ray.cluster_resources().get("GPU", 0))

    def placement(self, backend: str) -> RayPlacement:
        return RayPlacement(self._ray, gpu=backend in ON_GPU)

    def close(self) -> None:
        self._ray.shutdown()


class RayPlacement:
    """A place of one executor: an actor with a GPU of its own, or, without GPUs, spread over the nodes."""

    def __init__(self, ray: Any, *, gpu: bool) -> None:
        self._ray = ray
        self._gpu = gpu
        self._actor: Any = None

    async def start(self, backend: str, environment: Mapping[str, str]) -> Endpoint:
        """Raises ExecutorFailed; waits while Ray looks for a machine."""
        if self._actor is None:
            actor = self._ray.remote(Host).options(
                num_cpus=1,
                num_gpus=1 if self._gpu else 0,
                max_restarts=-1,
                max_task_retries=-1,  # a call to an actor that is being restarted waits for it
                scheduling_strategy="SPREAD",
            )
            self._actor = actor.remote()
        try:
            found = await self._actor.start.remote(backend, dict(environment))
        except self._ray.exceptions.RayError as error:
            why = (str(error).splitlines() or [type(error).__name__])[-1]
            raise ExecutorFailed(f"Ray could not start the executor: {why}") from None
        assert isinstance(found, Endpoint)
        return found

    async def stop(self) -> None:
        if self._actor is not None:
            actor, self._actor = self._actor, None
            await asyncio.to_thread(self._ray.kill, actor)


def _ray() -> Any:
    try:
        return importlib.import_module("ray")
    except ImportError:
        raise UsageError("Ray is not installed", hint="pip install 'gemlet[ray]'") from None
