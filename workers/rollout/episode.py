"""One attempt of one episode: ask, answer, act, until the environment has nobody left to ask.

Invariants. Every model call is recorded token-exactly, with the version and log-probability of each token, in the order
the environment saw them. The attempt ends as data in every case: an environment that raises gives a failed attempt with
the boundary and the reason, never an exception of the runner.
"""

import asyncio
import math
import random
import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial

import msgspec

from flexmarl.algorithms.seeds import derive, episode_seed, turn_seed
from flexmarl.contracts.reply_grammars import LIBRARY
from flexmarl.contracts.specification.environment_base import Latency
from flexmarl.contracts.wire import TOO_OLD, Branch, EpisodeStatus
from flexmarl.store.server_paths import without_paths
from workers.external_access import ExternalAccess, ExternalError
from workers.rollout.asking import Asking, Outgrown, TurnSource, asked
from workers.rollout.engines.wire import SamplingParameters
from workers.rollout.environments.base import Ask, Outcome, Reply, RewardMissing
from workers.rollout.external import ExternalClient
from workers.rollout.isolation import EnvironmentBroke
from workers.rollout.live_episode import LiveEpisode, RefusesCalls, RewardedLater
from workers.rollout.slots import HeldSlots, slots
from workers.rollout.speech import Seat, Speech, prompt_tokens
from workers.rollout.stages import Stage, begin
from workers.rollout.tracks import Track
from workers.rollout.turn_barrier import TurnBarrier
from workers.rollout.turn_limits import ended_itself, truncated
from workers.rollout.turns import (
    OVERFLOW,
    TooManyMovesError,
    Turn,
    TurnRefusedError,
    TurnReply,
    TurnRequest,
    TurnTimeoutError,
    WeightsTimeoutError,
    Where,
)
from workers.rollout.waiting import AttemptWaits

REWARD = "reward"
"""Boundary of attempts that ended without it being known what they earned."""

ASIDE = " aside"
"""Behind a role in the seed of what it says aside: the turn that follows has the same number."""


@dataclass(frozen=True, slots=True)
class EpisodeOrder:
    """Which attempt of which episode to play."""

    draw: int
    member: int
    attempt: int
    task_seed: int
    held_out: bool
    sampling_seed: int
    timeout_s: float
    weights_timeout_s: float
    """How long a turn waits for weights to come, beside `timeout_s`."""
    latency: Latency | None
    breakdowns: int = 0
    """Earlier tries that the environment itself broke off."""
    agents: int | None = None
    """Turns of the episode that are asked for at the same time; all that wait for nothing else when absent."""
    most_turns: int = 0
    """Turns after which the episode ends unsolved, of all roles together; 0: as many as its environment lets it."""

    def cuts_off(self, turns: int) -> bool:
        """Tell whether an episode that would go on ends after so many turns."""
        return 0 < self.most_turns <= turns

    @property
    def key(self) -> tuple[int, int, int]:
        """Draw, member and attempt."""
        return self.draw, self.member, self.attempt


@dataclass(slots=True)
class EpisodeAttempt:
    """A finished attempt; `turns` are in the order in which the environment saw them."""

    order: EpisodeOrder
    status: EpisodeStatus = EpisodeStatus.FAILED
    reason: str = ""
    replaced: bool = False
    """A second environment finished before the first one."""
    broke: bool = False
    """The environment itself broke off, or no engine can answer a turn: playing again as before would repeat it."""
    outcome: Outcome | None = None
    turns: list[Turn] = field(default_factory=list)
    task: dict[str, object] = field(default_factory=dict)
    breaks: dict[str, list[tuple[str, int]]] = field(default_factory=dict)
    """Cause -> role and turn of each chain that began anew because of it."""
    wasted: int = 0
    """Tokens that were sampled in earlier tries."""
    started_at: float = 0.0
    finished_at: float = 0.0
    """When nothing of it was left to play; a reward may have come later."""
    branch: Branch | None = None
    """Its place in the tree of its group, where members continue others."""

    @property
    def unscored(self) -> bool:
        """Tell whether it was played and nobody knows what it earned: playing again is no remedy."""
        return self.status is EpisodeStatus.FAILED and self.reason.startswith(f"{REWARD}:")


class OutgrownError(Exception):
    """No step may train what an episode said any more: it is given up before its next turn."""


def tokens_of(attempt: EpisodeAttempt) -> int:
    """Count the tokens that were sampled in an attempt."""
    return sum(len(turn.reply.choice.token_ids) for turn in attempt.turns)


async def play_episode(
    order: EpisodeOrder,
    stage: Stage,
    seats: dict[str, Seat],
    client: TurnSource,
    external: ExternalClient | None = None,
    together: TurnBarrier | None = None,
    held: HeldSlots | None = None,
    track: Track | None = None,
    outgrown: Outgrown | None = None,
) -> EpisodeAttempt:
    """Play one attempt to its end, turn by turn with those it plays `together` with.

    It leaves the places that are `held` for it where nothing but its reward is waited for. `track`: where it begins and
    what is kept of it, in a group whose members continue others. It ends as cancelled where `outgrown` says between two
    turns that it is too old.
    """
    with nullcontext() if together is None else together.playing():
        asking = Asking(client, external or ExternalClient(ExternalAccess()), slots(order.agents), together, outgrown)
        return await _attempt(order, stage, seats, asking, held or HeldSlots(), track or Track())


async def _attempt(
    order: EpisodeOrder, stage: Stage, seats: dict[str, Seat], asking: Asking, held: HeldSlots, track: Track
) -> EpisodeAttempt:
    attempt = EpisodeAttempt(order, started_at=time.time(), branch=track.branch)
    live: LiveEpisode | None = None
    try:
        live, speech = await _begun(order, stage, seats, attempt, track)
        attempt.task = live.task
        # An environment that starts slowly has a deadline of its own.
        deadline = time.monotonic() + order.timeout_s
        await _play(live, attempt, speech, asking, deadline, track)
        if order.cuts_off(len(attempt.turns)) and live.asks():
            attempt.outcome = truncated(len(attempt.turns), (attempt.turns[-1].role, attempt.turns[-1].turn))
        else:
            attempt.outcome = checked(await _ended(live, attempt, held), seats)
        attempt.branch = track.told([turn.reply for turn in attempt.turns])
        attempt.status = EpisodeStatus.FINISHED
    except OutgrownError as old:
        attempt.status, attempt.reason = EpisodeStatus.CANCELLED, f"{TOO_OLD} {old}"
    except Exception as error:  # an environment is foreign code: whatever it raises is the attempt's failure
        attempt.reason, attempt.broke = blamed(error, order.timeout_s)
    finally:
        if live is not None:
            live.leave(attempt.reason)
    attempt.finished_at = attempt.finished_at or time.time()
    return attempt


async def _ended(live: LiveEpisode, attempt: EpisodeAttempt, held: HeldSlots) -> Outcome:
    """Return the account of an episode that its environment ended, once it is known what it earned."""
    if isinstance(live, RewardedLater) and live.awaits_reward:
        attempt.finished_at = time.time()
        await held.leave()
        await live.rewarded()
    outcome = live.outcome()
    return ended_itself(outcome) if attempt.order.most_turns else outcome


async def _begun(
    order: EpisodeOrder, stage: Stage, seats: dict[str, Seat], attempt: EpisodeAttempt, track: Track
) -> tuple[LiveEpisode, Speech]:
    """Begin an episode, or go on from where another was."""
    track.kept.clear()
    if track.start is not None:
        return track.start.live.copied(), track.start.speech.continued(attempt.breaks)
    # A generator of its own: what happens inside an episode depends neither on its neighbours nor on lost tries.
    seed = episode_seed(order.sampling_seed, order.draw, order.member, order.breakdowns)
    count = partial(prompt_tokens, seats)
    live = await begin(stage, order.task_seed, order.held_out, seed, order.key, count)
    return live, Speech(seats, breaks=attempt.breaks)


def blamed(error: Exception, timeout_s: float) -> tuple[str, bool]:
    """Return boundary and cause of a failed attempt, and whether playing again as before would repeat it.

    Whoever may read the run reads the cause, so it names no path of this host.
    """
    cause, repeats = _blamed(error, timeout_s)
    return without_paths(cause), repeats


def _blamed(error: Exception, timeout_s: float) -> tuple[str, bool]:
    match error:
        case TooManyMovesError():
            return f"engine: {error}", False
        case TurnTimeoutError():
            return f"engine: {error} (an attempt may take batch.episode_timeout_s: {timeout_s:g} s)", False
        case TurnRefusedError():
            return f"engine: {error}", True
        case WeightsTimeoutError():
            return f"weights: {error}", False
        case ExternalError():
            return f"external: {error}", False
        case RewardMissing():
            return f"{REWARD}: {error}", False
        case TimeoutError():
            return f"environment: no end within {timeout_s:.0f} s", False
        case EnvironmentBroke():
            return f"environment: {error}", True
    return f"environment: {type(error).__name__}: {error}", True


async def _play(
    live: LiveEpisode, attempt: EpisodeAttempt, speech: Speech, asking: Asking, deadline: float, track: Track
) -> None:
    order, seats = attempt.order, dict(speech.seats)
    waits = waits_of(order)
    while (asks := live.asks()) and not order.cuts_off(len(attempt.turns)):
        track.keep(live, speech, len(attempt.turns))
        if asking.together is not None:
            deadline += await asking.together.turn()  # the others' time is not the episode's own
        if asking.outgrown is not None and (why := await asking.outgrown(attempt.turns)):
            raise OutgrownError(why)
        before = speech.copied() if isinstance(live, RefusesCalls) else None
        prompts = [await speech.prompted(ask) for ask in asks]
        requests = [
            request_of(order, ask, speech, prompt, attempt.started_at)
            for ask, prompt in zip(asks, prompts, strict=True)
        ]
        requests = track.opened(asks, requests, len(attempt.turns))
        answers, waited_s = await asked(asking, asks, requests, seats, deadline, order.weights_timeout_s)
        deadline += waited_s
        _refuse(live, speech, before, list(zip(asks, answers, strict=True)))
        replies = []
        for ask, request, answer in zip(asks, requests, answers, strict=True):
            if isinstance(answer, TurnRefusedError):
                continue
            no, begins = speech.turn_of(ask), speech.begins(ask)
            if not ask.aside:
                attempt.turns.append(Turn.of(request, answer, no, begins))
            replies.append(speech.hear(ask, answer.choice))
        deadline += await scored(live, replies)
        async with asyncio.timeout_at(deadline):
            if waits is not None:
                await asyncio.sleep(waits.next_s())
            await live.act(replies)


def _refuse(
    live: LiveEpisode, speech: Speech, before: Speech | None, answers: list[tuple[Ask, TurnReply | TurnRefusedError]]
) -> None:
    """Refuse calls that are too long for their model, as though they had not been made. Raises any other refusal."""
    for ask, refused in reversed(answers):  # so that numbers of turns are given back as they were taken
        if isinstance(refused, TurnRefusedError):
            if before is None or not isinstance(live, RefusesCalls) or refused.code != OVERFLOW:
                raise refused
            speech.take_back(ask, before)
            live.refuse(ask, str(refused))


async def scored(live: LiveEpisode, replies: list[Reply]) -> float:
    """Have replies scored where that takes long; returns the seconds, which are none of the episode's own."""
    began = time.monotonic()
    await live.score(replies)
    return time.monotonic() - began


def waits_of(order: EpisodeOrder) -> AttemptWaits | None:
    """Return the declared waits of an attempt, None where its environment answers when it can."""
    chances = random.Random(derive(order.sampling_seed, "wait", order.draw, order.member, order.attempt))
    return None if order.latency is None else AttemptWaits(order.latency, chances)


def request_of(
    order: EpisodeOrder, ask: Ask, speech: Speech, prompt: tuple[int, ...], since: float = 0.0
) -> TurnRequest:
    """Put a turn in words of its engine. `prompt` is what `speech` made of the ask."""
    seat, turn = speech.seats[ask.role], speech.turn_of(ask)
    return TurnRequest(
        policy=seat.policy,
        pin=seat.pin,
        prompt=prompt,
        seed=turn_seed(order.sampling_seed, order.draw, order.member, f"{ask.role}{ASIDE * ask.aside}", turn),
        max_tokens=min(ask.max_tokens, seat.max_tokens or ask.max_tokens),
        temperature=seat.temperature,
        allowed=seat.codec.ids_of(ask.allowed),
        stop=speech.stop_ids(ask),
        sampling=_sampling(seat, ask),
        follow=seat.follow,
        role=ask.role,
        prefixes=(f"{order.draw}.{order.member}.{ask.role}", f"{order.draw}.{ask.role}"),
        where=Where(order.draw, order.member, order.attempt, turn, since),
        engine=seat.engine,
        conversation=speech.conversation(ask),
        hold=seat.hold,
    )


def _sampling(seat: Seat, ask: Ask) -> SamplingParameters:
    """Return how a seat samples, held to what the ask says its reply must be."""
    structured = ask.structured or seat.sampling.structured
    if not structured:
        return seat.sampling
    return msgspec.structs.replace(seat.sampling, structured=structured, library=LIBRARY if seat.trained else "")


def checked(outcome: Outcome, seats: dict[str, Seat]) -> Outcome:
    """Refuse scores nobody can train on. Raises ValueError."""
    unknown = set(outcome.scores) - set(seats)
    if unknown:
        raise ValueError(f"scores for unknown roles {sorted(unknown)}")
    numbers = [*outcome.scores.values(), outcome.team_score, *outcome.turn_rewards.values()]
    if not all(math.isfinite(x) for x in numbers):
        raise ValueError("a score is not a finite number")
    return outcome
