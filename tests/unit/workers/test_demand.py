"""Turns are counted, and told once a second at most."""

import asyncio
import contextlib

from flexmarl.contracts.events import DemandReported, RequestedTurns
from workers.rollout.demand import REPORT_AGAIN, AtEngines, Reporter, TurnDemand


def test_a_turn_waits_until_it_is_sent_and_is_gone_with_its_reply() -> None:
    demand = TurnDemand()
    with demand.asking("solver"), demand.asking("solver"):
        assert demand.now() == {"solver": RequestedTurns(waiting=2, in_flight=0)}
        demand.sent("solver", 1)
        assert demand.now() == {"solver": RequestedTurns(waiting=1, in_flight=1)}
        demand.sent("solver", 64)
        assert demand.now() == {"solver": RequestedTurns(waiting=0, in_flight=2)}, (
            "others of its request have their replies"
        )
        demand.sent("solver", -65)
    with contextlib.suppress(ValueError), demand.asking("critic"):
        raise ValueError
    assert demand.now() == {}


def test_a_report_goes_out_on_change_and_again_before_it_counts_no_more() -> None:
    told: list[DemandReported] = []
    numbers: list[int] = []
    away = [False]

    async def put(number: int, event: DemandReported) -> bool:
        if away[0]:
            return False
        told.append(event)
        numbers.append(number)
        return True

    async def story() -> None:
        demand = TurnDemand()
        reporter = Reporter("w1", demand, lambda: AtEngines({3: 7}, {3: 1}, {3: 90}), put)
        assert not await reporter.report(), "nobody was asked anything"
        with demand.asking("solver"):
            assert await reporter.report()
            again = [await reporter.report() for _ in range(REPORT_AGAIN)]
            assert again == [False] * (REPORT_AGAIN - 1) + [True]
            demand.sent("solver", 1)
            away[0] = True
            assert not await reporter.report(), "the last one still waits"
            away[0] = False
            assert await reporter.report(), "what could not be told is told later"
        assert await reporter.report()
        assert not any([await reporter.report() for _ in range(2 * REPORT_AGAIN)])
        await reporter.stop()

    asyncio.run(story())
    assert [event.policies for event in told] == [
        {"solver": RequestedTurns(waiting=1, in_flight=0)},
        {"solver": RequestedTurns(waiting=1, in_flight=0)},
        {"solver": RequestedTurns(waiting=0, in_flight=1)},
        {},
    ]
    assert numbers == [1, 2, 3, 4]
    assert (told[0].engines, told[0].queued, told[0].cache) == ({3: 7}, {3: 1}, {3: 90})


def test_what_engines_have_is_news_where_it_is_looked_at_closely() -> None:
    told: list[DemandReported] = []
    there = [AtEngines({3: 1}, {}, {3: 10})]

    async def put(number: int, event: DemandReported) -> bool:
        told.append(event)
        return True

    async def story() -> None:
        demand = TurnDemand()
        for closely in (False, True):
            reporter = Reporter("w1", demand, lambda: there[0], put, closely)
            with demand.asking("solver"):
                assert await reporter.report()
                assert not await reporter.report()
                there[0] = AtEngines({3: 1}, {}, {3: there[0].tokens[3] + 1})
                assert await reporter.report() is closely
            await reporter.stop()

    asyncio.run(story())
    assert [event.cache for event in told] == [{3: 10}, {3: 11}, {3: 12}]
