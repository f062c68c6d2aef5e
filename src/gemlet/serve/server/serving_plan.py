"""Which plan a server serves by: the first one, those for models that come and go, the controller's for the load."""

from __future__ import annotations

import asyncio
import logging
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from gemlet.errors import UsageError
from gemlet.serve.control.controller import Controller
from gemlet.serve.control.planning import PlanningProcess
from gemlet.serve.control.settings import ControlSettings
from gemlet.serve.plan import plan_files
from gemlet.serve.plan.demand_file import HOP_MS
from gemlet.serve.plan.model import Demand, PlanOptions
from gemlet.serve.profiles import kinds, profile_files
from gemlet.serve.profiles.learned import Learned
from gemlet.serve.profiles.profile import limited
from gemlet.serve.server import backend_choice, initial_plan
from gemlet.serve.server.fleet import Fleet
from gemlet.serve.server.scaling import DeviceScaler

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet
    from contextlib import AsyncExitStack

    from gemlet.serve.dispatch.engine import Engine
    from gemlet.serve.dispatch.gpu_lets import Assignment
    from gemlet.serve.execution.ray_placement import Cluster
    from gemlet.serve.models.specification import ModelSpec
    from gemlet.serve.plan.demand_file import DemandedService
    from gemlet.serve.plan.model import Plan
    from gemlet.serve.profiles.kinds import Known
    from gemlet.serve.profiles.profile import ModelProfile, Profiles
    from gemlet.serve.server.options import ServerOptions

logger = logging.getLogger(__name__)
MIB = 1 << 20
POLICY = "nway+type"  # where nothing else is asked for


def choose(options: ServerOptions, cluster: Cluster | None) -> tuple[backend_choice.Choice, Known | None]:
    """What to run on, and the profiles, where kinds of devices were named with them. Raises UsageError."""
    counts, folder = options.gpus, None
    if counts is None and options.demand is not None and options.profiles is None:
        counts, folder = plan_files.load_service(options.demand).kinds, options.demand.parent
        if counts and options.devices is not None:
            hint = "leave out --devices, or name one kind's profiles with --profiles"
            raise UsageError(f"--devices and gpus of {options.demand} both say which devices to serve on", hint=hint)
    if counts:
        if cluster is not None:
            raise UsageError("Ray does not say of which kind a device is", hint="leave out --ray, or the kinds of GPUs")
        return backend_choice.of_kinds(options.executor, plan_files.load_kinds(counts, folder))
    if cluster is None:
        return backend_choice.choose(options.executor, options.devices), None
    return backend_choice.placed(options.executor, options.devices, cluster), None


class ServingPlan:
    """Makes plans and brings them into force. Raises UsageError, ConfigError for files that are wrong.

    known: the profiles that there are, of whatever models; None: those that options or the demand file name. fleet:
    what the plans are for; empty until the server has devices. controller: None until control(), and where nothing
    follows the load.
    """

    def __init__(
        self, options: ServerOptions, on: backend_choice.Choice, engine: Engine, known: Known | None = None
    ) -> None:
        self._options = options
        self._choice = on
        self._engine = engine
        self.known: Known | None = known if known is not None else self._read_profiles()
        self._demanded = plan_files.load_service(options.demand) if options.demand else None
        self.fleet = Fleet(engine, ())
        self.controller: Controller | None = None
        if isinstance(self.known, kinds.ProfilesByKind):
            engine.expectation.kinds = self.known.devices
        # Not of kinds that nothing is known of: a plan needs their SMs and memory, too.
        self._learned = {kind: Learned(HOP_MS) for kind, each in kinds.by_kind(self.known).items() if each.models}
        # Of what was learned, by kind of device and the model's key: what plans rest on.
        self._adopted: dict[tuple[str, str], ModelProfile] = {}
        self._unused = False  # what was learned since the last plan, which may have failed
        # From when the models are looked at until their plan is in force: one of fewer has no place for a new one.
        self._changing = asyncio.Lock()
        self._without: frozenset[int] = frozenset()  # devices that did not live when the plan in force was made
        self._start_control: Callable[[], None] | None = None  # where it waits for profiles
        if self.known is not None and on.backend in backend_choice.ON_GPU | {"modelled"}:
            engine.expectation.observer = self._observe
        self._planning: PlanningProcess | None = None

    def specs(self) -> list[ModelSpec]:
        return [served.spec for served in self._engine.models.values()]

    def _read_profiles(self) -> Known | None:
        """Those of the command line or the demand file; else the modelled ones, where time is modelled anyway."""
        named = self._options.profiles
        if named is None and self._options.demand is not None:
            service = plan_files.load_service(self._options.demand)
            named = self._options.demand.parent / service.profiles if service.profiles else None
        on_gpu = self._choice.backend in backend_choice.ON_GPU
        if named is None and on_gpu:
            return None
        known = profile_files.load_profiles(named)
        names = backend_choice.gpu_names() if on_gpu and self._options.ray is None else ()
        here = {index: names[index] for index in self._choice.devices if index < len(names)}
        if here and known.device.name not in here.values():
            others = " and ".join(dict.fromkeys(here.values()))
            logger.warning("the profiles are of %s, and are taken to hold for %s", known.device.name, others)
        return kinds.of_names(known, here)

    def _of_models(self, specs: Sequence[ModelSpec] | None = None) -> Known | None:
        """Of these models, by label; None: of those that are served."""
        specs = self.specs() if specs is None else specs
        found = backend_choice.profiles_of(specs, self.known, self._choice.backend)
        labels = self._by_learning(specs)
        learned = [spec for spec in specs if spec.label in labels]
        if not learned or self.known is None:
            return found
        given = kinds.by_kind(found)

        def with_learned(kind: str, profiles: Profiles) -> Profiles:
            more = {
                spec.label: limited(self._adopted[kind, spec.key], max(1, spec.max_batch))
                for spec in learned
                if (kind, spec.key) in self._adopted
            }
            return msgspec.structs.replace(profiles, models=(given[kind].models if kind in given else {}) | more)

        return kinds.changed(self.known, with_learned)

    def _by_learning(self, specs: Sequence[ModelSpec]) -> set[str]:
        """Labels of the models whose profile is from their own batches."""
        given = kinds.models(backend_choice.profiles_of(specs, self.known, self._choice.backend))
        keys = {key for _, key in self._adopted}
        return {spec.label for spec in specs if spec.key in keys and spec.label not in given}

    # What batches teach

    def _observe(self, place: Assignment, rows: int, ms: float) -> None:
        served = self._engine.models.get(place.model)
        if served is not None:
            now = asyncio.get_running_loop().time()
            learned = self._learned.get(kinds.kind_of(self.known, place.gpu_let.gpu))
            if learned is not None:
                learned.observe(served.spec.key, place.gpu_let.sm, rows, ms / place.slowdown, now)

    async def learn(self) -> None:
        """Plans models without a profile by what their batches took; to be called every few seconds."""
        async with self._changing:
            await self._learn()

    async def _learn(self) -> None:
        specs = [spec for spec in self.specs() if spec.platform != "noop"]
        for learned in self._learned.values():
            learned.keep_only({spec.key for spec in specs})
        self._unused |= self._adopt(specs)
        known = self._of_models(specs)
        if not self._unused or known is None or not initial_plan.planned_by_profiles(specs, known):
            return  # a plan needs the profiles of all
        if self._planning is not None:
            self._planning.know(known)
        unplanned = self._by_learning(specs) - {demand.model for demand in self.fleet.plan().demands}
        if unplanned:
            await self._plan_learned(specs, unplanned, known)
        if self.controller is None and self._start_control is not None:
            self._start_control()
        self._unused = False

    def _adopt(self, specs: Sequence[ModelSpec]) -> bool:
        """Whether there is a profile that was not there, or one of more sizes than before."""
        now, new = asyncio.get_running_loop().time(), False
        given = kinds.models(backend_choice.profiles_of(specs, self.known, self._choice.backend))
        for spec in specs:
            if spec.sm is not None or spec.label in given:
                continue
            memory = self._engine.models[spec.label].memory / MIB
            for kind, learned in self._learned.items():
                found, before = learned.profile(spec.key, now, weights_mib=memory), self._adopted.get((kind, spec.key))
                if found is not None and (before is None or _sizes(found) != _sizes(before)):
                    self._adopted[kind, spec.key], new = found, True
        return new

    async def _plan_learned(self, specs: Sequence[ModelSpec], labels: AbstractSet[str], known: Known) -> None:
        """A plan in which these models have a part for the first time, by the rates at which they were asked for."""
        now = asyncio.get_running_loop().time()
        seen = []
        for spec in specs:
            if spec.label in labels:
                logger.info("%s is planned by what its batches took here", spec.label)
                self._engine.expectation.know(spec.label, kinds.of_model(known, spec.label))
                rate = sum(learned.rate(spec.key, now) for learned in self._learned.values())
                seen.append(Demand(model=spec.label, rate=rate, slo_ms=spec.slo_ms))
        demands = [each for each in self._known_demands({spec.label for spec in specs}) if each.model not in labels]
        async with self.controller.applying if self.controller is not None else nullcontext():
            plan = await self._apply(list(specs), [*demands, *seen])
            if self.controller is not None:
                self._tell(self.controller, plan, labels)

    def basis(self) -> Mapping[str, str]:
        """What the plan in force rests on, for clients."""
        return initial_plan.basis(self.fleet.plan(), self.specs(), self._of_models(), self._by_learning(self.specs()))

    def tell_expectation(self) -> None:
        self._tell_expectation(spec.label for spec in self.specs())

    def _tell_expectation(self, labels: Iterable[str]) -> None:
        known = self._of_models()
        for label in labels:
            self._engine.expectation.know(label, kinds.of_model(known, label) if known is not None else None)

    def first_plan(self) -> Plan:
        if self._options.plan is None:
            return self._make_plan(self.specs())
        known = self._of_models() or profile_files.load_profiles(None)
        demands = self._demanded.demands if self._demanded is not None else ()
        plan = plan_files.load_plan(self._options.plan, known, demands)
        placed = {task.model for task in plan.tasks()}
        missing = [spec.label for spec in self.specs() if spec.platform != "noop" and spec.label not in placed]
        strange = sorted({gpu.index for gpu in plan.gpus} - set(self._choice.devices))
        if missing:
            hint = "plan again with them, or take them out of the repository"
            raise UsageError(f"{self._options.plan} has no place for {', '.join(missing)}", hint=hint)
        if strange:
            hint = f"serve on more devices: --devices {','.join(str(gpu.index) for gpu in plan.gpus)}"
            raise UsageError(f"{self._options.plan} is for GPU {strange[0]}, which does not serve here", hint=hint)
        return plan

    def _alive(self) -> list[int]:
        return [device.index for device in self.fleet.devices()] or list(self._choice.devices)

    async def _apply(
        self, specs: Sequence[ModelSpec], demands: Sequence[Demand], models: Mapping[str, ModelSpec] | None = None
    ) -> Plan:
        """Makes a plan for these and brings it into force. Raises GemletError."""
        alive = self._alive()
        # many milliseconds: requests go on meanwhile
        plan = await asyncio.to_thread(self._make_plan, specs, demands, alive)
        await self.fleet.apply(plan, models)
        self._without = frozenset(self._choice.devices) - frozenset(alive)
        return plan

    def _make_plan(
        self, specs: Sequence[ModelSpec], demands: Sequence[Demand] | None = None, alive: Sequence[int] | None = None
    ) -> Plan:
        """For these demands, and what is left for models without one; None: for those of the demand file alone."""
        demanded: DemandedService | None = self._demanded
        return initial_plan.make(
            specs,
            self._of_models(specs),
            self._alive() if alive is None else alive,
            demands=self._known_demands({spec.label for spec in specs}) if demands is None else demands,
            fill=demands is not None,
            options=self._planner_options(),
            policy=demanded.policy if demanded is not None else POLICY,
            apart=self._choice.backend not in backend_choice.ON_GPU,
        )

    def _known_demands(self, labels: AbstractSet[str]) -> list[Demand]:
        """As the controller sees them, or as the demand file has them."""
        if self.controller is not None:
            demands = self.controller.decider.demands
        else:
            demands = self._demanded.demands if self._demanded is not None else ()
        return [demand for demand in demands if demand.model in labels]

    async def replan(self, changed: str, specs: Mapping[str, ModelSpec]) -> None:
        """A plan for these models, of which ``changed`` is new, other than before, or gone; both come into force."""
        async with self._changing:
            slos = {label: spec.slo_ms for label, spec in specs.items() if spec.name == changed}
            await self._replan(specs, slos)

    async def use_again(self, device: int) -> None:
        """A device is back. Without a controller nobody else would see that the plan has no place on it.

        Raises GemletError.
        """
        async with self._changing:
            follows = self.controller is not None and not self.controller.paused
            if device in self._without and not follows:
                logger.info("device %d is back: a new plan, which uses it", device)
                await self._replan({spec.label: spec for spec in self.specs()}, {})

    async def _replan(self, specs: Mapping[str, ModelSpec], slos: Mapping[str, float]) -> None:
        """slos: of the models that are new or other than before, by label."""
        demands = [
            msgspec.structs.replace(demand, slo_ms=slos.get(demand.model, demand.slo_ms))
            for demand in self._known_demands(specs.keys())
        ]
        async with self.controller.applying if self.controller is not None else nullcontext():
            before = self._keys()
            plan = await self._apply(list(specs.values()), demands, specs)
            after = self._keys()
            others = {label for label in before.keys() | after.keys() if before.get(label) != after.get(label)}
            self._tell_expectation(others)
            if self.controller is not None:
                self._tell(self.controller, plan, others | slos.keys())

    def _keys(self) -> dict[str, str]:
        return {label: served.spec.key for label, served in self._engine.models.items()}

    def _tell(self, controller: Controller, plan: Plan, changed: AbstractSet[str]) -> None:
        """That this plan is in force. It plans for the models that there are, as long as all have profiles."""
        decider, known = controller.decider, self._of_models()
        planned = {demand.model for demand in decider.demands}
        for model in planned & (changed | (planned - self._engine.models.keys())):
            decider.forget(model)
        for demand in plan.demands:
            if demand.model in changed or demand.model not in planned:
                decider.demand(demand)
        controller.paused = known is None or not initial_plan.planned_by_profiles(self.specs(), known)
        if known is not None and self._planning is not None:
            self._planning.know(known)
        decider.started_with(plan, asyncio.get_running_loop().time())

    def control(
        self, keep: Callable[[Coroutine[Any, Any, None], str], None], ends: AsyncExitStack, tasks: asyncio.TaskGroup
    ) -> None:
        """Starts the controller, if it is wanted and has profiles to plan with; else once these were learned."""
        known = self._of_models()
        if not self._options.replan:
            return
        if known is None or not initial_plan.planned_by_profiles(self.specs(), known):
            self._start_control = partial(self.control, keep, ends, tasks)
            return
        plan = self.fleet.plan()
        devices = self._choice.devices if isinstance(known, kinds.ProfilesByKind) else self._choice.devices[:1]
        demands = plan.demands or initial_plan.demands_of(self.specs(), known, initial_plan.FACTORS[-1], devices)
        self._planning = ends.enter_context(PlanningProcess(known))
        self.controller = Controller(
            self.fleet,
            known,
            demands,
            self._settings(),
            ask=self._planning,
            waiting=self._waiting,
            scaler=DeviceScaler(self.fleet, tasks) if self._options.scale is not None else None,
            say=lambda change: logger.info("plan: %s", change),
        )
        keep(self.controller.run(), "controller")

    def _settings(self) -> ControlSettings:
        least, most = self._options.scale or (1, None)
        policy = self._demanded.policy if self._demanded is not None else POLICY
        return ControlSettings(least=least, most=most, policy=policy, planner=self._planner_options())

    def _planner_options(self) -> PlanOptions:
        """Those of the demand file, for the executors that there are."""
        return msgspec.structs.replace(
            self._demanded.options if self._demanded is not None else PlanOptions(hop_ms=HOP_MS),
            executor="mps" if self._choice.backend == "mps" else "green",
        )

    def _waiting(self) -> Mapping[str, int]:
        return {name: self._engine.waiting(name) for name in self._engine.models}


def _sizes(profile: ModelProfile) -> set[tuple[float, int]]:
    return {(share, batch.bit_length()) for share, batch, _ in profile.latency}
