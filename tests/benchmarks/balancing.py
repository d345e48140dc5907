"""What moving engines between agents gains over the best fixed partition, and over balancing inside each agent alone.

Three agents with policies of their own ask 80, 15 and 5 % of all turns, of log-normal length; every engine holds one
policy. `drifting`: which agent is hot changes four times. `steady`: it stays. The engines are paced: real processes and
real HTTP in the engines' dialect, with a declared time per token, slots, and a time per load, so that two cores can
show what many devices would do. Client, router, demand reports and the deciding core are the platform's own; the table
of engines is kept in this process instead of the database.

- `mover`: the core moves places by demand, `mechanisms.mover: demand`.
- `intra_only`: the places that `static` gives by the number of roles; turns go to their policy's least loaded engine.
- `best_static`: the partition that answers this very list of turns soonest by arithmetic, known in advance.

The lower bound of a list is its work over all slots, as if every engine held everything and moving cost nothing. A run
is measured from the moment when a part of its turns is answered, to the moment when few are left: start-up (children,
connections, the first partition) and the last long replies, in which no slot can be filled, are left out on all sides.
`--quick` is the same under a virtual clock, without processes.
"""

import argparse
import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import aiohttp
import msgspec
from harness import ROOT, Report, interleave, paired_ratios, start

from flexmarl.algorithms.routing import ROUTERS
from flexmarl.contracts import commands as c
from flexmarl.contracts.events import DemandReported
from flexmarl.contracts.specification.routers import ROUTER
from flexmarl.contracts.wire import PolicyPin
from flexmarl.store.control.engines import EngineRoute
from tests.support.placed_core import DIGEST, PlacedCore, placed_spec
from tests.support.virtual.queues import Queues, Turn, drawn
from workers.rollout.demand import Reporter
from workers.rollout.engine_client import EngineClient, TurnRequest
from workers.rollout.engines.wire import LoadRequest, UnloadRequest

SHARES = (0.8, 0.15, 0.05)
PHASES = 4
"""Changes of the hot agent over a drifting list, plus one."""
FROM, TO = 0.15, 0.97
"""Parts of the turns between which a run is measured."""
TOKEN_S = 0.01
PIN = PolicyPin(version=0, digest=DIGEST)
KINDS = ("mover", "intra_only", "best_static")
LOADS = ("drifting", "steady")


@dataclass(frozen=True)
class Setting:
    engines: int
    slots: int
    turns: int
    mean_s: float
    load_s: float

    @property
    def users(self) -> int:
        """Turns that are asked at once: twice what the engines can make."""
        return 2 * self.engines * self.slots

    def policies(self) -> tuple[str, ...]:
        return tuple(placed_spec(self.engines).policies)

    def list_of(self, load: str, seed: int) -> list[Turn]:
        drift = self.turns // PHASES if load == "drifting" else 0
        return list(drawn(self.policies(), SHARES, self.turns, seed, drift, self.mean_s))

    def spec_of(self, kind: str):
        return placed_spec(self.engines, 1, "demand" if kind == "mover" else "static")


@dataclass
class Outcome:
    share: float
    """Of the lower bound."""
    moves: int


def measured(setting: Setting, answered: Sequence[tuple[float, Turn]], moves: int) -> Outcome:
    """Return how much of the slots' time the answered turns filled between the two marks."""
    inside = sorted(answered, key=lambda one: one[0])[int(FROM * len(answered)) : int(TO * len(answered))]
    span = inside[-1][0] - inside[0][0]
    return Outcome(sum(turn.seconds for _, turn in inside) / (setting.engines * setting.slots) / span, moves)


def best_static(setting: Setting, turns: Sequence[Turn]) -> list[str]:
    """Return the partition under which the phases of a list take least time, by their work per engine."""
    policies, size = setting.policies(), -(-len(turns) // PHASES)
    phases: list[dict[str, float]] = []
    for first in range(0, len(turns), size):
        work = dict.fromkeys(policies, 0.0)
        for turn in turns[first : first + size]:
            work[turn.policy] += turn.seconds
        phases.append(work)

    def takes(counts: tuple[int, ...]) -> float:
        own = dict(zip(policies, counts, strict=True))
        return sum(max(work[name] / own[name] for name in policies) for work in phases)

    engines = setting.engines
    partitions = ((a, b, engines - a - b) for a in range(1, engines - 1) for b in range(1, engines - a))
    return [name for name, n in zip(policies, min(partitions, key=takes), strict=True) for _ in range(n)]


# -- under a virtual clock ---------------------------------------------------------------------------------------------
def virtual(setting: Setting, kind: str, load: str, seed: int) -> Outcome:
    turns = setting.list_of(load, seed)
    fixed = best_static(setting, turns) if kind == "best_static" else ()
    world = Queues(setting.spec_of(kind), iter(turns), setting.users, setting.slots, setting.load_s, fixed).run()
    return measured(setting, world.answered, len(world.core.moves()))


# -- over real engines -------------------------------------------------------------------------------------------------
class Fleet:
    """Paced engines as processes; what each holds is what its lane has told it."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        command = [sys.executable, str(ROOT / "tests" / "support" / "paced_engine.py")]
        command += [str(setting.slots), str(TOKEN_S), str(setting.load_s)]
        environment = {"PYTHONPATH": f"{ROOT}:{ROOT / 'platform'}", "PATH": "/usr/bin:/bin"}
        self._processes = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
            for _ in range(setting.engines)
        ]
        self.routes: dict[int, EngineRoute] = {}
        for lease, process in enumerate(self._processes, 1):
            assert process.stdout is not None
            endpoint = f"http://127.0.0.1:{int(process.stdout.readline())}"
            self.routes[lease] = EngineRoute(lease, endpoint, "token", f"engine{lease}", {})

    def stop(self) -> None:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in self._processes:
            process.wait(10)

    async def tell(self, session: aiohttp.ClientSession, lease: int, path: str, body: msgspec.Struct) -> None:
        url = self.routes[lease].endpoint + path
        async with session.post(url, data=msgspec.json.encode(body)) as answer:
            assert answer.status == 200, await answer.text()


class Run:
    """One list of turns through the fleet, asked by users that each wait for their reply."""

    def __init__(self, fleet: Fleet, kind: str, turns: list[Turn]) -> None:
        self.fleet, self.kind, self.turns = fleet, kind, turns
        self.answered: list[tuple[float, Turn]] = []
        self._orders: dict[int, asyncio.Queue[tuple[int, c.LoadWeights | c.UnloadPolicy]]] = {}
        self.core = PlacedCore(fleet.setting.spec_of(kind), self._told)

    def _told(self, no: int, order: c.LoadWeights | c.UnloadPolicy) -> None:
        self._orders[order.lease_id].put_nowait((no, order))

    async def play(self) -> Outcome:
        fleet = self.fleet
        for route in fleet.routes.values():
            route.holds.clear()
        self._orders = {lease: asyncio.Queue() for lease in fleet.routes}
        client = EngineClient(self._registry, ROUTERS.make(ROUTER.options("least_loaded")))
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session:
            lanes = [asyncio.create_task(self._lane(session, lease)) for lease in fleet.routes]
            reporter = Reporter("bench", client.counters.demand, client.at_engines, self._report)
            await self._place(session)
            left = iter(self.turns)
            await asyncio.gather(*(self._user(client, left) for _ in range(fleet.setting.users)))
            await reporter.stop()
            await self._idle()
            for lane in lanes:
                lane.cancel()
            await self._empty(session)
        await client.close()
        return measured(fleet.setting, self.answered, len(self.core.moves()))

    async def _place(self, session: aiohttp.ClientSession) -> None:
        """Let every engine hold what it begins with."""
        if self.kind == "best_static":
            fixed = best_static(self.fleet.setting, self.turns)
            for lease, policy in zip(self.fleet.routes, fixed, strict=True):
                await self.fleet.tell(session, lease, "/load", LoadRequest(policy, 0, DIGEST))
                self.fleet.routes[lease].holds[policy] = PIN
            return
        self.core.start(time.monotonic())
        while not all(route.holds for route in self.fleet.routes.values()):
            await asyncio.sleep(0.05)

    async def _empty(self, session: aiohttp.ClientSession) -> None:
        for lease, route in self.fleet.routes.items():
            for policy in list(route.holds):
                await self.fleet.tell(session, lease, "/unload", UnloadRequest(policy))

    async def _idle(self) -> None:
        for orders in self._orders.values():
            await orders.join()

    async def _registry(self) -> list[EngineRoute]:
        return list(self.fleet.routes.values())

    async def _report(self, number: int, event: DemandReported) -> bool:
        if self.kind != "best_static":
            self.core.tell(event, time.monotonic())
        return True

    async def _lane(self, session: aiohttp.ClientSession, lease: int) -> None:
        """Carry out what one engine is told, as its node does: the registry first when something leaves."""
        route = self.fleet.routes[lease]
        while True:
            no, order = await self._orders[lease].get()
            began = time.monotonic()
            if isinstance(order, c.UnloadPolicy):
                route.holds.pop(order.policy, None)
                await self.fleet.tell(session, lease, "/unload", UnloadRequest(order.policy, order.hand_over, no))
                self.core.unloaded(no, order, time.monotonic() - began, time.monotonic())
            else:
                await self.fleet.tell(session, lease, "/load", LoadRequest(order.policy, 0, DIGEST, [], no))
                route.holds[order.policy] = PIN
                self.core.loaded(no, order, time.monotonic() - began, time.monotonic())
            self._orders[lease].task_done()

    async def _user(self, client: EngineClient, left: Iterator[Turn]) -> None:
        for turn in left:
            tokens = max(1, round(turn.seconds / TOKEN_S))
            request = TurnRequest(turn.policy, PIN, (1, 5), 7, tokens, 1.0, (), ())
            await client.turn(request, time.monotonic() + 600.0)
            self.answered.append((time.monotonic(), turn))


def real(fleet: Fleet, kind: str, load: str, seed: int) -> Outcome:
    return asyncio.run(Run(fleet, kind, fleet.setting.list_of(load, seed)).play())


# -- the comparison ----------------------------------------------------------------------------------------------------
def compare(report: Report, play: Callable[[str, str, int], Outcome], repeats: int) -> None:
    """Play every kind on both loads, in turns, the same list for all kinds of a turn."""
    for load in LOADS:
        outcomes: dict[str, list[Outcome]] = {kind: [] for kind in KINDS}

        def once(kind: str, load: str = load, outcomes: dict[str, list[Outcome]] = outcomes) -> float:
            outcomes[kind].append(play(kind, load, len(outcomes[kind]) + 1))
            return outcomes[kind][-1].share

        shares = interleave({kind: (lambda kind=kind: once(kind)) for kind in KINDS}, repeats)
        report.ratio(f"{load}_share_of_lower_bound", shares["mover"])
        report.ratio(f"{load}_gain_over_best_static", paired_ratios(shares["mover"], shares["best_static"]))
        report.ratio(f"{load}_gain_over_intra_only", paired_ratios(shares["mover"], shares["intra_only"]))
        moves = sorted(outcome.moves for outcome in outcomes["mover"])
        report.figures[f"{load}_moves"] = moves[len(moves) // 2]
        for kind in ("best_static", "intra_only"):
            report.figures[f"{load}_{kind}_share"] = sorted(shares[kind])[len(shares[kind]) // 2]


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--engines", type=int, default=16, help="paced engines, 8 to 32")
    parser.add_argument("--slots", type=int, default=8, help="replies that an engine makes at once")
    parser.add_argument("--phase-s", type=float, default=45.0, help="about how long one agent is hot")
    parser.add_argument("--repeats", type=int, default=5)


def main() -> None:
    report = start("balancing", "engines that move between agents against fixed ones", options)
    chosen = report.settings
    engines, slots = int(chosen["engines"]), int(chosen["slots"])  # type: ignore[call-overload]
    phase_s, repeats = float(chosen["phase_s"]), int(chosen["repeats"])  # type: ignore[arg-type,call-overload]
    setting = Setting(engines, slots, int(PHASES * phase_s * engines * slots), mean_s=1.0, load_s=0.3)
    if report.quick:
        compare(report, lambda kind, load, seed: virtual(setting, kind, load, seed), 2)
    else:
        fleet = Fleet(setting)
        try:
            compare(report, lambda kind, load, seed: real(fleet, kind, load, seed), repeats)
        finally:
            fleet.stop()
    clock = "virtual" if report.quick else "real"
    report.settings |= {"turns": setting.turns, "users": setting.users, "load_s": setting.load_s, "clock": clock}
    report.finish()


if __name__ == "__main__":
    main()
