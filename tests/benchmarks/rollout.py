"""What rollout spends beside generating, in parts that are chosen by `--part`.

`router`: milliseconds of processor time to choose an engine for a turn, with 1 000 turns in flight on 32 engines, for
every router. `_choice` is the router alone; `_turn` is what a turn costs that is ready alone: loads gathered, choice
made, turn counted as sent. Among many that are ready together the gathering is shared (`_shared`).

`cpu`: milliseconds of processor time of the rollout worker per turn of 16, 128 and 512 tokens, with 64 episodes at
once on a torch engine; its database server is told apart (`store_`), the engine not at all.

`torch`, `vllm`: tokens per second of 64 episodes over those of 64 raw requests to the same engine, of which
`rollout_share` says more, and the engine's processor time per turn of episodes over that of raw requests.

`vllm_alone`: the same, with vLLM in a process of its own that has the prompts from its caller.

`vllm_server`: the same, with raw requests to vLLM's own OpenAI server.

`loads`: new weights on four engines while 64 episodes play, and what was refused, moved or failed meanwhile.
"""

import argparse
import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import numpy as np
import rollout_alone
import rollout_loads
import rollout_server
import rollout_share
import structlog
from harness import Report, start

from flexmarl.algorithms.routing import ROUTERS, ReplyLengths, RouteRequest
from flexmarl.contracts.hardware import Hardware
from flexmarl.contracts.specification.routers import ROUTER
from flexmarl.contracts.wire import PolicyPin
from flexmarl.store.control.engines import EngineRoute
from workers.rollout.counters import ClientCounters
from workers.rollout.exchange import Exchange, spread
from workers.rollout.fleet import RoutedEngine
from workers.rollout.turns import SoFar, TurnRequest, WaitingTurn

ENGINES, IN_FLIGHT, TOGETHER = 32, 1000, 64
PIN = PolicyPin(version=2, digest="d" * 64)
ROLES = ("solver", "critic", "judge")


def make_engines(rng: random.Random) -> list[RoutedEngine]:
    found = []
    for number in range(ENGINES):
        newer = PolicyPin(version=3, digest="e" * 64)
        holds, former = ({"p": newer}, {"p": PIN}) if number % 4 == 0 else ({"p": PIN}, {})
        kind = rng.choice(list(Hardware))
        route = EngineRoute(number, "http://x", "t", f"life-{number:02}", holds, former, kind)
        found.append(RoutedEngine(route, queue_depth=rng.randrange(20)))
    return found


def make_turn(number: int, rng: random.Random, future: "asyncio.Future") -> WaitingTurn:
    role = rng.choice(ROLES)
    prefixes = (f"{number // 12}.{number % 4}.{role}", f"{number // 12}.{role}")
    request = TurnRequest("p", PIN, (1,) * rng.randrange(4, 400), number, 512, 1.0, (), (), "", role, prefixes)
    return WaitingTurn(request, future, 0.0, SoFar())


class Load:
    """Turns come and go; as many as wanted are on their way."""

    def __init__(self, name: str) -> None:
        self.rng = random.Random(7)
        self.router = ROUTERS.make(ROUTER.options(name))
        self.engines = make_engines(self.rng)
        self.lengths = ReplyLengths()
        self.counters = ClientCounters()
        self.sent: deque[Exchange] = deque()
        self.number = 0
        self.future: asyncio.Future = asyncio.Future(loop=asyncio.new_event_loop())
        for role, tokens in zip(ROLES, (60, 200, 12), strict=True):
            self.lengths.note(role, tokens)
        while self.in_flight < IN_FLIGHT:
            self.send(1)

    @property
    def in_flight(self) -> int:
        return sum(len(exchange.turns) for exchange in self.sent)

    def turns(self, count: int) -> list[WaitingTurn]:
        self.number += count
        return [make_turn(self.number + i, self.rng, self.future) for i in range(count)]

    def send(self, count: int) -> float:
        """Send turns that are ready together; return processor seconds of that."""
        turns = self.turns(count)
        began = time.process_time()
        batches = spread(turns, self.engines, self.router, self.lengths, self.counters)
        begun = [Exchange.begin(engine, batch) for engine, batch in batches]
        spent = time.process_time() - began
        self.sent.extend(begun)
        return spent

    def settle(self, count: int) -> None:
        """Let the turns end that have been on their way for longest."""
        while count > 0:
            exchange = self.sent.popleft()
            exchange.end()
            count -= len(exchange.turns)

    def choose(self) -> float:
        """Return processor seconds of one choice."""
        one = self.turns(1)[0].request
        loads = [engine.load(one, self.lengths.usual) for engine in self.engines]
        view = RouteRequest(len(one.prompt), 40.0, self.lengths.usual, one.prefixes)
        began = time.process_time()
        self.router.choose(view, loads)
        return time.process_time() - began


def router(report: Report) -> None:
    """Measure every router in turns, so that a slow moment of the machine meets all."""
    rounds, each = (3, 50) if report.quick else (20, 200)
    loads = {name: Load(name) for name in ROUTERS.names()}
    spent: dict[str, list[float]] = {}
    for _ in range(rounds):
        for name, load in loads.items():
            spent.setdefault(f"{name}_choice", []).append(sum(load.choose() for _ in range(each)) / each)
            alone = shared = 0.0
            for _ in range(each):
                load.settle(1)
                alone += load.send(1)
            for _ in range(max(1, each // TOGETHER)):
                load.settle(TOGETHER)
                shared += load.send(TOGETHER)
            spent.setdefault(f"{name}_turn", []).append(alone / each)
            spent.setdefault(f"{name}_shared", []).append(shared / (TOGETHER * max(1, each // TOGETHER)))
    for key, seconds in spent.items():
        report.figures[f"router_ms_{key}"] = 1e3 * float(np.median(seconds))
    report.figures["router_ms_worst"] = 1e3 * max(float(np.quantile(s, 0.95)) for s in spent.values())
    report.settings |= {"engines": ENGINES, "in_flight": IN_FLIGHT, "together": TOGETHER}


PARTS: dict[str, Callable[[Report], None]] = {
    "router": router,
    "cpu": rollout_share.cpu,
    "torch": rollout_share.torch,
    "vllm": rollout_share.vllm,
    "vllm_alone": rollout_alone.vllm_alone,
    "vllm_server": rollout_server.vllm_server,
    "loads": rollout_loads.loads,
}


def main() -> None:
    def options(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--part", choices=list(PARTS), nargs="+", default=["router"], help="what to measure")
        parser.add_argument("--tokens", type=int, nargs="+", default=[16, 128, 512], help="tokens per turn")
        parser.add_argument("--repeats", type=int, default=5)
        parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="where the engine runs")
        parser.add_argument("--model", type=Path, default=None, help="folder of a chat model; without it, a word model")

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    report = start("rollout", "What rollout spends beside generating", options)
    for part in report.settings["part"]:  # type: ignore[attr-defined]
        PARTS[part](report)
    report.finish()


if __name__ == "__main__":
    main()
