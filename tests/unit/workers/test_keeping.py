"""Commands of a worker are extended together; whoever lost one stops, and a store that is away stops nobody."""

import asyncio
from uuid import uuid4

import psycopg
import pytest

from flexmarl.contracts.commands import PlayGroups
from flexmarl.store.control.commands import ClaimStatus, Taken
from workers.rollout import keeping
from workers.rollout.keeping import Keeper
from workers.rollout.pausing import Hold


def taken(no: int, pauses: bool = False) -> Taken:
    order = PlayGroups(pool="p", epoch=1, origin="train", groups=(), pins={}, sampling_seed=1, pauses=pauses)
    return Taken(1, no, uuid4(), 1, 1, order)


class Store:
    def __init__(self) -> None:
        self.asked: list[list[int]] = []
        self.lost: set[int] = set()
        self.away = False
        self.held: set[int] = set()
        self.looked: list[list[int]] = []

    async def extend(self, held: list[Taken]) -> list[ClaimStatus]:
        self.asked.append(sorted(one.no for one in held))
        return self.standings(held)

    async def look(self, pausing: list[Taken]) -> list[ClaimStatus]:
        self.looked.append([one.no for one in pausing])
        return self.standings(pausing)

    def standings(self, commands: list[Taken]) -> list[ClaimStatus]:
        if self.away:
            raise psycopg.OperationalError("away")
        names = {**dict.fromkeys(self.held, ClaimStatus.HELD), **dict.fromkeys(self.lost, ClaimStatus.GONE)}
        return [names.get(one.no, ClaimStatus.GOES_ON) for one in commands]

    async def asked_again(self) -> None:
        seen = len(self.asked)
        while len(self.asked) < seen + 2:
            await asyncio.sleep(0)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setattr(keeping, "EXTEND_EVERY_S", 0.004)
    monkeypatch.setattr(keeping, "LOOK_EVERY_S", 0.001)
    return Store()


async def kept(keeper: Keeper, one: Taken, hold: Hold | None = None) -> None:
    work = asyncio.create_task(asyncio.sleep(3600))
    with keeper.keeping(one, work, hold or Hold()):
        await work


async def test_all_are_extended_at_once_and_the_lost_one_alone_is_stopped(store: Store) -> None:
    keeper = Keeper(store.extend, store.look)
    async with asyncio.timeout(60):
        first, second = (asyncio.create_task(kept(keeper, taken(no))) for no in (1, 2))
        await store.asked_again()
        assert store.asked[-1] == [1, 2]
        store.lost = {2}
        with pytest.raises(asyncio.CancelledError):
            await second
        await store.asked_again()
        assert store.asked[-1] == [1]
        assert not first.done()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
    seen = len(store.asked)
    await asyncio.sleep(0.05)
    assert len(store.asked) == seen, "nobody extends what nobody holds"


async def test_a_store_that_is_away_stops_nobody_and_a_second_try_of_a_command_is_kept_apart(store: Store) -> None:
    keeper, store.away = Keeper(store.extend, store.look), True
    async with asyncio.timeout(60):
        plays = [asyncio.create_task(kept(keeper, taken(7))) for _ in range(2)]
        await store.asked_again()
        assert store.asked[-1] == [7, 7]
        assert not any(play.done() for play in plays)
        for play in plays:
            play.cancel()
        await asyncio.gather(*plays, return_exceptions=True)


@pytest.mark.parametrize("pauses", [False, True])
async def test_what_the_store_holds_stands_still_until_it_says_otherwise(store: Store, pauses: bool) -> None:
    keeper, hold = Keeper(store.extend, store.look), Hold()
    async with asyncio.timeout(60):
        play = asyncio.create_task(kept(keeper, taken(3, pauses), hold))
        await store.asked_again()
        assert not hold.held
        store.held = {3}
        await store.asked_again()
        assert hold.held
        store.away = True
        await store.asked_again()
        assert hold.held, "a store that is away changes nothing"
        store.away, store.held = False, set()
        await hold.over()
        play.cancel()
        await asyncio.gather(play, return_exceptions=True)
    assert hold.stood_s > 0.0
    assert (len(store.looked) > len(store.asked)) is pauses


async def test_who_is_told_that_something_is_held_looks_at_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("EXTEND_EVERY_S", "LOOK_EVERY_S"):
        monkeypatch.setattr(keeping, name, 600.0)
    keeper, hold = Keeper(store.extend, store.look), Hold()
    keeper.look()  # nobody plays yet
    async with asyncio.timeout(60):
        play = asyncio.create_task(kept(keeper, taken(6, True), hold))
        await asyncio.sleep(0)
        for held in (True, False):
            store.held = {6} if held else set()
            await asyncio.to_thread(keeper.look)
            while hold.held is not held:
                await asyncio.sleep(0.001)
        play.cancel()
        await asyncio.gather(play, return_exceptions=True)
    assert store.asked == []


async def test_what_may_be_held_is_looked_at_between_two_extensions(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "EXTEND_EVERY_S", 600.0)
    keeper, hold, store.held = Keeper(store.extend, store.look), Hold(), {4}
    async with asyncio.timeout(60):
        plays = [
            asyncio.create_task(kept(keeper, one, own)) for one, own in ((taken(4, True), hold), (taken(5), Hold()))
        ]
        while not hold.held:
            await asyncio.sleep(0.001)
        assert (store.asked, store.looked[-1]) == ([], [4])
        for play in plays:
            play.cancel()
        await asyncio.gather(*plays, return_exceptions=True)


async def test_what_is_held_and_then_lost_stands_still_until_its_work_ends(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else has it, held: to go on for a moment would ask an engine for what nobody wants."""
    monkeypatch.setattr(keeping, "EXTEND_EVERY_S", 600.0)
    keeper, hold, store.held = Keeper(store.extend, store.look), Hold(), {4}
    async with asyncio.timeout(60):
        play = asyncio.create_task(kept(keeper, taken(4, True), hold))
        while not hold.held:
            await asyncio.sleep(0.001)
        store.held, store.lost, looks = set(), {4}, len(store.looked)
        while len(store.looked) < looks + 3:
            await asyncio.sleep(0.001)
        assert hold.held
        play.cancel()
        await asyncio.gather(play, return_exceptions=True)
