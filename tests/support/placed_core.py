"""A core with engines that hold some policies only, brought to where it plays and left to nothing but their places.

Whoever drives it tells it of demand and answers loads and unloads; its groups are never settled, so nothing is trained.
Used by tests under a virtual clock and by the benchmark over real engines.
"""

from collections.abc import Callable

from flexmarl.contracts import commands as c
from flexmarl.contracts import events as e
from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.contracts.status import RunStatus
from flexmarl.orchestrator import Decision, Orchestrator
from flexmarl.orchestrator.run.invariants import check_invariants

DIGEST = "d" * 64
TRAINER = 1000


def placed_spec(engines: int, places: int = 1, mover: object = "demand", roles: int = 3) -> ExperimentSpec:
    """Make the specification of a team with three policies on so many engines."""
    team: dict[str, object] = {"agents": {"planner": {}, "solver": {}, "verifier": {}}, "environment": "arithmetic"}
    if roles == 2:
        team = {"agents": {"speaker": {}, "listener": {}}, "environment": "reference_game"}
    return ExperimentSpec.model_validate(
        {
            "agents": team["agents"],
            "environment": {"type": team["environment"]},
            "resources": {"rollout_devices": engines, "engine_policies": places},
            "mechanisms": {"mover": mover},
        }
    )


class PlacedCore:
    """`told` gets every load and unload with its number, in the order of an engine's lane."""

    def __init__(self, spec: ExperimentSpec, told: Callable[[int, c.LoadWeights | c.UnloadPolicy], None]) -> None:
        self.spec, self._told = spec, told
        self.core = Orchestrator(spec)
        self.log: list[tuple[e.Event, float]] = []
        self.decisions: list[Decision] = []
        self.lives: dict[int, int] = {}

    def start(self, now: float) -> None:
        """Take the run to where its groups play."""
        engines = range(1, self.spec.resources.rollout_devices + 1)
        self.tell(e.RunVerb(verb=e.Verb.START), now)
        uses = [*((lease, e.DeviceUse.ENGINE) for lease in engines), (TRAINER, e.DeviceUse.TRAINER)]
        granted = [e.GrantedDevice(lease_id=lease, device_id=f"box.{use}{lease}", use=use) for lease, use in uses]
        self.tell(e.DevicesGranted(leases=tuple(granted), command_no=1), now)
        self.tell(e.ChildReady(lease_id=TRAINER, use=e.DeviceUse.TRAINER, incarnation="trainer"), now)
        for lease in engines:
            self.ready(lease, now)
        for policy in self.spec.policies:
            bound = {"lease_id": TRAINER, "incarnation": "trainer", "policy": policy, "version": 0, "digest": DIGEST}
            self.tell(e.PolicyBound(**bound, created=True), now)

    @property
    def playing(self) -> bool:
        return self.core.state.lifecycle.status is RunStatus.RUNNING

    def life(self, lease: int) -> str:
        return f"engine{lease}-{self.lives[lease]}"

    def ready(self, lease: int, now: float) -> None:
        """An engine starts, or starts again."""
        self.lives[lease] = self.lives.get(lease, 0) + 1
        self.tell(e.ChildReady(lease_id=lease, use=e.DeviceUse.ENGINE, incarnation=self.life(lease)), now)

    def lost(self, lease: int, now: float) -> None:
        """An engine dies."""
        self.tell(e.ChildLost(lease_id=lease, incarnation=self.life(lease), reason="killed"), now)

    def loaded(self, no: int, order: c.LoadWeights, seconds: float, now: float) -> None:
        """An engine holds what it was told to."""
        self.tell(
            e.WeightsServed(
                lease_id=order.lease_id, incarnation=self.life(order.lease_id), policy=order.policy,
                version=order.version, digest=order.digest, keeps=order.keeps, command_no=no, seconds=seconds,
            ),
            now,
        )  # fmt: skip

    def unloaded(self, no: int, order: c.UnloadPolicy, seconds: float, now: float) -> None:
        """An engine has forgotten what it was told to."""
        self.tell(
            e.PolicyUnloaded(
                lease_id=order.lease_id, incarnation=self.life(order.lease_id), policy=order.policy, command_no=no,
                seconds=seconds,
            ),
            now,
        )  # fmt: skip

    def asked(
        self, turns: dict[str, tuple[int, int]], now: float, depths: dict[int, int] | None = None, worker: str = "w"
    ) -> Decision:
        """A rollout worker reports (waiting, in flight) turns by policy."""
        policies = {name: e.RequestedTurns(waiting=a, in_flight=b) for name, (a, b) in turns.items() if a or b}
        return self.tell(e.DemandReported(worker=worker, policies=policies, engines=depths or {}), now)

    def tell(self, event: e.Event, now: float) -> Decision:
        """Let the core decide on a fact, and pass on what engines are told by it."""
        self.log.append((event, now))
        decision = self.core.handle(event, now)
        self.decisions.append(decision)
        check_invariants(self.core.plan, self.core.state)
        for numbered in decision.commands:
            if isinstance(numbered.command, c.LoadWeights | c.UnloadPolicy):
                self._told(numbered.no, numbered.command)
        return decision

    def serves(self) -> dict[int, list[str]]:
        return {lease.lease_id: lease.weights.assigned for lease in self.core.state.fleet.of_use(e.DeviceUse.ENGINE)}

    def moves(self) -> list[str]:
        """Return the causes of all moves, in order."""
        return [r.cause for decision in self.decisions for r in decision.rulings if r.kind == "engine_moved"]

    def replay(self) -> None:
        """The same log gives the same decisions, from nothing and from a snapshot half-way."""
        again = Orchestrator(self.spec)
        for number, ((event, now), decision) in enumerate(zip(self.log, self.decisions, strict=True)):
            if number == len(self.log) // 2:
                again = Orchestrator.restore(self.spec, again.snapshot())
            assert again.handle(event, now) == decision, f"fact {number} led to another decision"
        assert again.snapshot() == self.core.snapshot()
