"""One episode that all members of a group play: each answers every turn from the same state, one answer carries it on.

Invariants. The answers to a turn have byte-identical prompts, so what they are compared by was said in the same state.
Every answer is tried on a copy of the episode, so no answer feels another; ties go to the lowest member. All members
finish or none does. What is played out to score an answer is nobody's row: it has draws of its own, and is never
trained.
"""

import asyncio
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flexmarl.algorithms.branching import BranchController, Joint, checked_joints
from flexmarl.algorithms.rewards import mixed
from flexmarl.algorithms.seeds import derive, episode_seed
from flexmarl.contracts.specification.advantages import AdvantageOptions
from flexmarl.contracts.wire import EpisodeStatus
from workers.rollout.asking import Asking, answered
from workers.rollout.engine_client import EngineClient
from workers.rollout.environments.base import Ask, Outcome
from workers.rollout.episode import (
    EpisodeAttempt,
    EpisodeOrder,
    blamed,
    checked,
    request_of,
    scored,
    waits_of,
)
from workers.rollout.external import ExternalClient
from workers.rollout.slots import slots
from workers.rollout.speech import Seat, Speech
from workers.rollout.stages import Here, Stage, begin_here
from workers.rollout.turns import Turn


@dataclass(frozen=True, slots=True)
class Branching:
    """Who answers, and how answers are scored."""

    orders: Sequence[EpisodeOrder]
    """Of the members, alike but for their numbers."""
    seats: dict[str, Seat]
    controller: BranchController[Any]
    plays_out: bool
    """Answers are scored by playing the episode on from them, and not by what their turn brought."""
    advantage: AdvantageOptions


@dataclass(frozen=True, slots=True)
class _Tried:
    """What a joint answer led to."""

    joint: Joint
    after: Here
    earned: list[float]
    """By each role that was asked."""


@dataclass(slots=True)
class _State:
    """How far the episode is."""

    live: Here
    deadline: float
    speech: Speech
    rounds: int = 0
    played_out: int = 0
    """Turns that were asked for to score answers, and are nobody's row."""


async def play_branches(
    branching: Branching, stage: Stage, client: EngineClient, external: ExternalClient
) -> list[EpisodeAttempt]:
    """Play one attempt of a group to its end: what each member answered, scored answer by answer."""
    order = branching.orders[0]
    attempts = [EpisodeAttempt(one, started_at=time.time()) for one in branching.orders]
    rewards: list[dict[tuple[str, int], float]] = [{} for _ in attempts]
    try:
        seed = episode_seed(order.sampling_seed, order.draw, 0, order.breakdowns)
        live = begin_here(stage, order.task_seed, order.held_out, seed)
        state = _State(live, time.monotonic() + order.timeout_s, Speech(branching.seats))
        asking = Asking(client, external, slots(None if order.agents is None else order.agents * len(attempts)))
        await _play(branching, state, asking, attempts, rewards)
        outcome = checked(state.live.outcome(), branching.seats)
        facts = {**outcome.facts, "played_out": float(state.played_out)}
        for attempt, earned in zip(attempts, rewards, strict=True):
            attempt.task = live.task
            attempt.outcome = checked(replace(outcome, turn_rewards=earned, facts=facts), branching.seats)
            attempt.status = EpisodeStatus.FINISHED
    except Exception as error:  # an environment is foreign code: whatever it raises is the attempt's failure
        reason, broke = blamed(error, order.timeout_s)
        for attempt in attempts:
            attempt.status, attempt.reason, attempt.broke = EpisodeStatus.FAILED, reason, broke
    ended = time.time()
    for attempt in attempts:
        attempt.finished_at = ended
    return attempts


async def _play(
    branching: Branching,
    state: _State,
    asking: Asking,
    attempts: list[EpisodeAttempt],
    rewards: list[dict[tuple[str, int], float]],
) -> None:
    waits = waits_of(branching.orders[0])
    while asks := state.live.asks():
        turns = await _answers(branching, state, asking, asks)
        if waits is not None:
            async with asyncio.timeout_at(state.deadline):
                await asyncio.sleep(waits.next_s())
        tried = await _tried(branching, state, asking, asks, turns)
        chosen = tried[branching.controller.carried([_mean(one.earned) for one in tried])]
        for member, own in enumerate(turns):
            for place, turn in enumerate(own):
                carried = chosen.joint[place] == member
                attempts[member].turns.append(replace(turn, carried=carried))
                rewards[member][turn.role, turn.turn] = _mean(
                    [one.earned[place] for one in tried if one.joint[place] == member]
                )
        for place, ask in enumerate(asks):
            state.speech.hear(ask, turns[chosen.joint[place]][place].reply.choice)
        state.live = chosen.after
        state.rounds += 1


async def _answers(branching: Branching, state: _State, asking: Asking, asks: Sequence[Ask]) -> list[list[Turn]]:
    """Let every member answer; returns each member's turns, one per role that is asked."""
    seats, speech = branching.seats, state.speech
    prompts = {ask.role: speech.prompt(ask) for ask in asks}
    pairs = [(order, ask) for order in branching.orders for ask in asks]
    requests = [request_of(order, ask, speech, prompts[ask.role]) for order, ask in pairs]
    weights_s = branching.orders[0].weights_timeout_s
    replies, waited_s = await answered(asking, [ask for _, ask in pairs], requests, seats, state.deadline, weights_s)
    state.deadline += waited_s
    turns = [
        # What a member answered is not what its next prompt goes on from, so each answer is a row of its own.
        Turn.of(request, reply, no, begins=no)
        for (_, ask), request, reply in zip(pairs, requests, replies, strict=True)
        for no in (speech.turn_of(ask),)
    ]
    return [turns[start : start + len(asks)] for start in range(0, len(turns), len(asks))]


async def _tried(
    branching: Branching, state: _State, asking: Asking, asks: Sequence[Ask], turns: list[list[Turn]]
) -> list[_Tried]:
    """Try the joint answers, each on a copy of the episode, and say what they earned."""
    before = state.live.turn_rewards()
    members = len(branching.orders)
    joints = checked_joints(branching.controller.joints(members, len(asks)), members, len(asks))
    copies, heard = [], []
    for joint in joints:
        after = state.live.copied()
        speech = state.speech.copied()
        said = [turns[member][place].reply.choice for place, member in enumerate(joint)]
        replies = [speech.hear(ask, choice) for ask, choice in zip(asks, said, strict=True)]
        state.deadline += await scored(after, replies)
        await after.act(replies)
        copies.append(after)
        heard.append(speech)
    roles = [ask.role for ask in asks]
    if not branching.plays_out:
        earned = [_gained(branching.advantage, roles, before, one.turn_rewards()) for one in copies]
    else:
        outcomes = await _played_out(branching, state, asking, copies, heard)
        earned = [_scored(branching.advantage, roles, outcome) for outcome in outcomes]
    if not all(math.isfinite(score) for own in earned for score in own):
        raise ValueError("a score is not a finite number")
    return [_Tried(*one) for one in zip(joints, copies, earned, strict=True)]


def _mean(values: Sequence[float]) -> float:
    """Return the mean; of equal values exactly theirs."""
    return values[0] if min(values) == max(values) else sum(values) / len(values)


def _gained(
    advantage: AdvantageOptions,
    roles: Sequence[str],
    before: Mapping[tuple[str, int], float],
    after: Mapping[tuple[str, int], float],
) -> list[float]:
    """Return what a turn brought: to the team, and to each role that was asked."""
    gains = [(role, value - before.get((role, turn), 0.0)) for (role, turn), value in sorted(after.items())]
    team = sum(gain for _, gain in gains)
    return [mixed(advantage, team, sum(gain for who, gain in gains if who == role)) for role in roles]


def _scored(advantage: AdvantageOptions, roles: Sequence[str], outcome: Outcome) -> list[float]:
    return [mixed(advantage, outcome.team_score, outcome.scores.get(role, outcome.team_score)) for role in roles]


async def _played_out(
    branching: Branching, state: _State, asking: Asking, copies: Sequence[Here], heard: Sequence[Speech]
) -> list[Outcome]:
    """Play copies of the episode on to their ends; what is said there is drawn apart from what is trained."""
    order = branching.orders[0]
    seed = derive(order.sampling_seed, "played out", state.rounds)
    orders = [replace(order, sampling_seed=seed, member=number) for number in range(len(copies))]
    ended = await asyncio.gather(
        *(
            _play_out(one, copy.copied(), speech.copied(), asking, state.deadline)
            for one, copy, speech in zip(orders, copies, heard, strict=True)
        )
    )
    state.deadline += max(waited_s for _, _, waited_s in ended)
    state.played_out += sum(turns for _, turns, _ in ended)
    return [outcome for outcome, _, _ in ended]


async def _play_out(
    order: EpisodeOrder, live: Here, speech: Speech, asking: Asking, deadline: float
) -> tuple[Outcome, int, float]:
    """Return what an episode comes to, the turns that took, and the seconds it waited for weights."""
    seats, waits, turns, waited_s = dict(speech.seats), waits_of(order), 0, 0.0
    while asks := live.asks():
        requests = [request_of(order, ask, speech, speech.prompt(ask)) for ask in asks]
        now = deadline + waited_s
        replies, held_s = await answered(asking, asks, requests, seats, now, order.weights_timeout_s)
        waited_s += held_s
        turns += len(asks)
        heard = [speech.hear(ask, reply.choice) for ask, reply in zip(asks, replies, strict=True)]
        waited_s += await scored(live, heard)
        async with asyncio.timeout_at(deadline + waited_s):
            if waits is not None:
                await asyncio.sleep(waits.next_s())
            await live.act(heard)
    return checked(live.outcome(), seats), turns, waited_s
