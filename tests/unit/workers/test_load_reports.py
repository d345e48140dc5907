"""What people are told of a rollout worker's and an engine's load: the longest turns first, nothing made up."""

import asyncio
import contextlib

import pytest

from flexmarl.contracts.events import DeviceUse, RequestedTurns
from flexmarl.contracts.wire import PolicyPin
from flexmarl.store.control.leases import ChildEndpoint
from flexmarl.store.telemetry.load_reports import TurnReport, until_next
from workers.errors import ChildUnreachable
from workers.nodes.engine_loads import loads_of
from workers.rollout.counters import ClientCounters
from workers.rollout.engines.torch_engine import TorchEngine
from workers.rollout.engines.wire import Stats
from workers.rollout.load_reports import LoadReporter, report_of
from workers.rollout.open_turns import LONGEST, OpenTurnTracker
from workers.rollout.turns import SoFar, TurnRequest, WaitingTurn, Where

PIN = PolicyPin(version=0, digest="0" * 64)


def waiting(at: float = 0.0, **more: object) -> WaitingTurn:
    request = TurnRequest("solver", PIN, (1, 2), 7, 12, 1.0, (), (), role="solver", where=Where(9, 1, 2, 3, 50.0))
    return WaitingTurn(request, None, at, SoFar(), **more)  # type: ignore[arg-type]


def test_a_turn_is_open_from_its_first_try_to_its_end_however_often_it_moves() -> None:
    turns = OpenTurnTracker()
    with turns.following(waiting(5.0)) as followed:
        followed.latest = waiting(5.0, moves=2, engine="e2", taken=True)
        followed.latest.so_far.token_ids += [1, 2, 3]
        [one] = turns.longest()
    assert (one.draw, one.member, one.attempt, one.turn, one.episode_since) == (9, 1, 2, 3, 50.0)
    assert (one.tokens, one.engine, one.moves) == (3, "e2", 2)
    with contextlib.suppress(ValueError), turns.following(waiting()):
        raise ValueError
    assert len(turns) == 0


def test_those_that_wait_longest_are_named_and_no_more_than_that() -> None:
    turns = OpenTurnTracker()
    with contextlib.ExitStack() as stack:
        for at in range(LONGEST + 5):
            stack.enter_context(turns.following(waiting(float(at))))
        named = turns.longest()
    assert len(named) == LONGEST
    assert [round(one.since - named[0].since) for one in named] == list(range(LONGEST))
    assert named[0].engine == "", "no engine has taken it"


def test_a_report_goes_out_while_anything_is_asked_and_once_when_nothing_is() -> None:
    told: list[TurnReport] = []

    async def put(report: TurnReport) -> None:
        told.append(report)

    async def story() -> list[bool]:
        counters = ClientCounters()
        reporter = LoadReporter(1, counters, put)
        found = [await reporter.report()]
        with counters.demand.asking("solver"), counters.open.following(waiting()):
            counters.left["silent", "e1"] += 1
            found += [await reporter.report(), await reporter.report()]
        found += [await reporter.report(), await reporter.report()]
        await reporter.stop()
        return found

    assert asyncio.run(story()) == [False, True, True, True, False]
    assert [report.open for report in told] == [1, 1, 0]
    assert told[0].asked == {"solver": RequestedTurns(waiting=1, in_flight=0)}
    assert told[0].moved == {("silent", "e1"): 1}
    assert [dict(report.seats) for report in told] == [{"solver": (1, 0)}] * 2 + [{}]


def test_moves_are_counted_by_cause_over_engines() -> None:
    counters = ClientCounters()
    counters.left["silent", "e1"] += 2
    counters.left["silent", "e2"] += 1
    counters.left["aborted", "e1"] += 1
    assert counters.moved == {"silent": 3, "aborted": 1}
    assert report_of(counters).moved == dict(counters.left)


@pytest.mark.parametrize("now", [0.0, 0.4, 1.0, 1.7, 2.0, 1234567.9])
def test_reports_wait_for_the_middle_of_a_slot(now: float) -> None:
    assert 0 < until_next(now) <= 2.0
    assert (now + until_next(now)) % 2 == pytest.approx(1.0)


class Client:
    def __init__(self, lease_id: int, use: DeviceUse, stats: Stats | None) -> None:
        self.child = ChildEndpoint(lease_id, 4, "box.cpu0", use, f"e{lease_id}.1.1", "http://127.0.0.1:9", "s")
        self._stats = stats

    async def stats(self) -> Stats:
        if self._stats is None:
            raise ChildUnreachable("just died")
        return self._stats


def test_engines_that_answer_are_told_and_nobody_else() -> None:
    stats = Stats("e1.1.1", running=3, waiting=2, slots=8, generated_tokens=90, prompt_tokens=40, holds={})
    clients = [
        Client(1, DeviceUse.ENGINE, stats),
        Client(2, DeviceUse.ENGINE, None),
        Client(3, DeviceUse.TRAINER, None),
    ]
    [load] = asyncio.run(loads_of(clients))  # type: ignore[arg-type]
    assert (load.run_id, load.lease_id, load.incarnation) == (4, 1, "e1.1.1")
    assert (load.running, load.waiting, load.slots, load.generated, load.prompts) == (3, 2, 8, 90, 40)
    assert (load.cached, load.cache_use) == (None, None), "what an engine does not know is not told"


def test_a_torch_engine_knows_no_share_of_its_cache() -> None:
    engine = TorchEngine()
    assert (engine.cache_use, engine.cached_tokens) == (None, None)
