"""From finished attempts to rows: the token-exact record of an episode group.

Invariants. A group is recorded once, whole: the last attempt of every member, its samples, and the event that settles
it. Failed members are rows as well, without samples, so that proposed = finished + failed + cancelled holds in the
store. A sample is a chain: the turns of a role in which each prompt began with all that came before. The event tells of
exactly the turns that the samples hold.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from itertools import chain

from flexmarl.contracts.commands import PlayGroups
from flexmarl.contracts.events import GroupSettled
from flexmarl.contracts.reply_grammars import LIBRARY, ReplyGrammar, digest_of
from flexmarl.contracts.wire import EpisodeOutcome, EpisodeStatus, SampleRef
from flexmarl.language.answers import comparable
from flexmarl.store.data.groups import EpisodeRow, SampleRow, SettledGroup
from flexmarl.store.data.spans import Span, step_digits
from workers.rollout.engines import version_segments
from workers.rollout.episode import EpisodeAttempt, tokens_of
from workers.rollout.speech import Seat
from workers.rollout.tracks import mean_logprob
from workers.rollout.turns import Turn

SHARED = "shared:"
"""With what the engine of a turn is named that another installation said; its name follows."""


@dataclass(frozen=True, slots=True)
class EventDetails:
    """What the event of a group tells of its episodes where the run asks for it."""

    surprisals: bool = False
    """Of each turn how improbable was what was said in it."""
    answers: bool = False
    """What was answered."""


def settled_group(
    order: PlayGroups,
    command_no: int,
    attempts: list[EpisodeAttempt],
    seats: dict[str, Seat],
    told: EventDetails = EventDetails(),
) -> SettledGroup:
    """Record members of one draw; `attempts` holds each member's last attempt, in member order."""
    event = GroupSettled(
        draw=attempts[0].order.draw,
        origin=order.origin,
        epoch=order.epoch,
        command_no=command_no,
        episodes=tuple(outcome_of(attempt, seats, told) for attempt in attempts),
        started_at=min(attempt.started_at for attempt in attempts),
        finished_at=max(attempt.finished_at for attempt in attempts),
        versions={name: pin.version for name, pin in order.pins.items()},
        part=order.by_episode,
    )
    finished = [attempt for attempt in attempts if attempt.status is EpisodeStatus.FINISHED]
    return SettledGroup(
        event=event,
        episodes=[_episode_row(order, attempt, seats) for attempt in attempts],
        samples=[
            _sample_row(attempt, chain, seats[chain[0].role])
            for attempt in finished
            for chain in chains_of(attempt.turns)
        ],
        grammars=sorted(
            {body for attempt in finished for turn in attempt.turns if (body := _grammar(turn, seats[turn.role]))}
        ),
    )


def _grammar(turn: Turn, seat: Seat) -> str:
    """Return what the reply of a turn that may be trained was held to, as JSON; empty: nothing."""
    if not (turn.structured and seat.trained):
        return ""
    return ReplyGrammar(
        structured=turn.structured, stop=turn.stop, tokenizer=seat.codec.digest, library=LIBRARY
    ).model_dump_json()


def outcome_of(attempt: EpisodeAttempt, seats: dict[str, Seat], told: EventDetails = EventDetails()) -> EpisodeOutcome:
    """Return how an attempt ended, as its group's event tells it."""
    unscored = EpisodeOutcome(
        member=attempt.order.member,
        attempt=attempt.order.attempt,
        status=attempt.status,
        reason=attempt.reason,
        by_clock=attempt.status is EpisodeStatus.FAILED and not attempt.broke,
        replaced=attempt.replaced,
        duration_s=attempt.finished_at - attempt.started_at,
        wasted=attempt.wasted + (0 if attempt.outcome else tokens_of(attempt)),
        breaks={cause: len(at) for cause, at in attempt.breaks.items()},
        branch=attempt.branch,
    )
    outcome = attempt.outcome
    if outcome is None:
        return unscored
    samples = tuple(
        SampleRef(
            role=turn.role,
            turn=turn.turn,
            tokens=len(turn.reply.choice.token_ids),
            reward=outcome.turn_rewards.get((turn.role, turn.turn), 0.0),
            segments=_unlike_pin(turn.reply.choice.segments, seats[turn.role]),
            follows=turn.turn - turn.begins,
        )
        for turn in attempt.turns
    )
    account = {
        "scores": outcome.scores,
        "team_score": outcome.team_score,
        "solved": outcome.solved,
        "samples": samples,
        "answer": comparable(outcome.answer) if told.answers else "",
        "shared": any(turn.reply.incarnation.startswith(SHARED) for turn in attempt.turns),
        "facts": outcome.facts,
        "surprisals": tuple(-mean_logprob([turn.reply]) for turn in attempt.turns) if told.surprisals else (),
    }
    return unscored.model_copy(update=account)


def _unlike_pin(segments: list[int], seat: Seat) -> tuple[int, ...]:
    """Return version segments where another version than the pinned one made tokens, else nothing."""
    return () if all(version == seat.pin.version for version in segments[::2]) else tuple(segments)


def _episode_row(order: PlayGroups, attempt: EpisodeAttempt, seats: dict[str, Seat]) -> EpisodeRow:
    outcome = attempt.outcome
    calls: Counter[str] = Counter(turn.role for turn in attempt.turns)
    return EpisodeRow(
        draw=attempt.order.draw,
        member=attempt.order.member,
        attempt=attempt.order.attempt,
        origin=order.origin,
        status=attempt.status,
        reason=attempt.reason,
        scores=outcome.scores if outcome else {},
        team_score=outcome.team_score if outcome else 0.0,
        solved=outcome.solved if outcome else False,
        turns=sum(calls.values()),
        tokens=tokens_of(attempt),
        pins={seats[role].policy: seats[role].pin.version for role in seats},
        task=attempt.task,
        transcript=[
            _entry(turn, outcome.remarks if outcome else {}, _continued(attempt) if turn is attempt.turns[0] else "")
            for turn in attempt.turns
        ],
        started_at=attempt.started_at,
        finished_at=attempt.finished_at,
        cohort=order.cohort,
        facts=outcome.facts if outcome else {},
        judged=[asdict(one) for one in outcome.judged] if outcome else [],
        said=[seats[turn.role].codec.decode(turn.reply.choice.token_ids) for turn in attempt.turns],
        breaks=attempt.breaks,
    )


def _continued(attempt: EpisodeAttempt) -> str:
    """Say what a member continues; nothing where it plays its own episode from the start."""
    branch = attempt.branch
    if branch is None or branch.root < 0:
        return ""
    if branch.tokens:
        return f"goes on from member {branch.root} after {branch.tokens} tokens of its turn {branch.turns + 1}"
    return f"goes on from member {branch.root} after {branch.turns} of its turns"


def _entry(turn: Turn, remarks: Mapping[tuple[str, int], str], continued: str) -> list[object]:
    """Name a turn in the transcript; what is out of the ordinary with it is said."""
    moves = turn.reply.moves
    times = "once" if moves == 1 else f"{moves} times"
    notes = [continued] if continued else []
    notes += [f"moved {times} between engines during generation"] if moves else []
    notes += ["the episode went on with this answer"] if turn.carried else []
    said_by = turn.reply.incarnation
    notes += [f"said by the installation {said_by.removeprefix(SHARED)}"] if said_by.startswith(SHARED) else []
    notes += [remark] if (remark := remarks.get((turn.role, turn.turn))) else []
    return [turn.role, turn.turn, *(["; ".join(notes)] if notes else [])]


def chains_of(turns: Sequence[Turn]) -> list[list[Turn]]:
    """Join turns to chains, in the order in which these began."""
    found: dict[tuple[str, int], list[Turn]] = {}
    for turn in turns:
        found.setdefault((turn.role, turn.begins), []).append(turn)
    return list(found.values())


def _sample_row(attempt: EpisodeAttempt, turns: Sequence[Turn], seat: Seat) -> SampleRow:
    """Write a chain down: of each prompt only what the turns before have not read or said."""
    outcome, first, choices = attempt.outcome, turns[0], [turn.reply.choice for turn in turns]
    rewards = outcome.turn_rewards if outcome else {}
    ends = [0, *(len(turn.prompt) + len(turn.reply.choice.token_ids) for turn in turns)]
    contexts = [turn.prompt[end:] for turn, end in zip(turns, ends, strict=False)]
    segments = reduce(version_segments.joined, (choice.segments for choice in choices))
    return SampleRow(
        draw=attempt.order.draw,
        member=attempt.order.member,
        attempt=attempt.order.attempt,
        role=first.role,
        turn=first.turn,
        policy=seat.policy,
        version=min(segments[::2], default=seat.pin.version),
        segments=segments,
        prompt=list(chain.from_iterable(contexts)),
        response=list(chain.from_iterable(choice.token_ids for choice in choices)),
        logprobs=list(chain.from_iterable(choice.logprobs for choice in choices)),
        allowed=first.allowed,
        spans=[
            Span(
                context=len(context),
                sampled=len(turn.reply.choice.token_ids),
                finish=turn.reply.choice.finish_reason,
                reward=rewards.get((turn.role, turn.turn), 0.0),
                engine=turn.reply.incarnation,
                latency_ms=turn.reply.latency_ms,
                offset=turn.turn - first.turn,
                grammar=digest_of(body) if (body := _grammar(turn, seat)) else "",
                steps=step_digits(turn.reply.choice.steps),
            )
            for turn, context in zip(turns, contexts, strict=True)
        ],
        temperature=first.temperature,
    )
