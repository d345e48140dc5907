"""Trajectories of a run for people: pages of episodes, what a filter matches, one episode with its turns.

A list row is light; token arrays are read apart (`tokens`). Steps are counted from 1, as series count them: a training
episode belongs to the step it was played for, an evaluation to the step after which it was played.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from flexmarl.contracts.wire import Origin
from flexmarl.controlplane.common.problems import NotFound
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.common.times import from_epoch, rfc3339
from flexmarl.controlplane.runs import labels
from flexmarl.controlplane.runs.models import Run
from flexmarl.controlplane.telemetry.trajectories import chat
from flexmarl.controlplane.telemetry.trajectories.decoding import decoder_of, text_of, token_texts
from flexmarl.store.reads import episodes, trajectories
from flexmarl.store.reads.episodes import NEWEST, EpisodeFilter, EpisodeSummary, Key, Ordering, Position
from flexmarl.store.reads.trajectories import EpisodeDetail, TurnRecord

BINS = 11
_IDENTITY = re.compile(r"(\d{1,10})-(\d{1,6})-(\d{1,4})")
_LARGEST = 2**31 - 1
ALL = EpisodeFilter()


def parse_id(text: str) -> Key:
    """Read `<draw>-<member>-<attempt>`. Raises NotFound when it is not one."""
    found = _IDENTITY.fullmatch(text)
    if not found or int(found[1]) > _LARGEST:
        raise NotFound(f"There is no trajectory {text}.")
    draw, member, attempt = (int(part) for part in found.groups())
    return draw, member, attempt


def identity_of(key: Key) -> str:
    """Write a key as people and the API name it."""
    return "-".join(map(str, key))


def step_of(origin: str, cohort: int) -> int:
    """Return the step, counted from 1, that an episode was played for or, held out, after."""
    return cohort + (origin == Origin.TRAIN)


def cohort_of(origin: Origin, step: int) -> int:
    """Return the number by which the store keeps a step."""
    return step - (origin is Origin.TRAIN)


def labelled(run: Run, wanted: EpisodeFilter, label: str) -> EpisodeFilter:
    """Keep of a filter only what people labelled so; `any` keeps every label."""
    return replace(wanted, keys=labels.keys(run, label))


def page(
    run: Run,
    wanted: EpisodeFilter = ALL,
    ordering: Ordering = NEWEST,
    *,
    limit: int,
    position: Position | None = None,
    back: bool = False,
) -> tuple[list[dict[str, Any]], Position | None, Position | None]:
    """Return a page's rows, and where the page before it and the one behind it start."""
    cut = episodes.page(store_connection(), run.no, wanted, ordering, limit=limit, position=position, back=back)
    marked = labels.of(run, [row.key for row in cut.rows])
    return [{**row_of(run, row), "labels": marked.get(row.key, [])} for row in cut.rows], cut.before, cut.behind


def facets(run: Run, wanted: EpisodeFilter = ALL, bound: int = episodes.BOUND) -> dict[str, Any]:
    """Count what a filter matches, among the newest `bound`: outcomes, and scores in bins of equal width."""
    conn = store_connection()
    found = episodes.tallies(conn, run.no, wanted, bound)
    counted = sum(tally.count for tally in found)
    exact = counted < bound and episodes.looks_at_all(conn, run.no, wanted)
    outcomes = {"solved": 0, "not_solved": 0, "failed": 0, "cancelled": 0}
    for tally in found:
        finished = tally.status == "finished"
        outcomes[("solved" if tally.solved else "not_solved") if finished else tally.status] += tally.count
    scores = [(tally.score, tally.count) for tally in found if tally.status == "finished"]
    return {"counted": counted, "exact": exact, "outcomes": outcomes, "histogram": _bins(scores)}


def _bins(scores: list[tuple[float, int]]) -> list[dict[str, float]]:
    if not scores:
        return []
    low, high = min(0.0, scores[0][0]), max(1.0, scores[-1][0])
    size = (high - low) / BINS
    counts = [0] * BINS
    for score, count in scores:
        counts[min(BINS - 1, int((score - low) / size))] += count
    return [
        {"low": round(low + i * size, 4), "high": round(low + (i + 1) * size, 4), "count": count}
        for i, count in enumerate(counts)
    ]


def detail(run: Run, identity: str) -> dict[str, Any]:
    """Return one episode with its task, turns, transcript and group. Raises NotFound."""
    found = _found(run, identity)
    group = trajectories.group(store_connection(), run.no, found.episode.draw)
    return {
        **described(run, found),
        "group": [member_of(row) for row in group],
        "labels": labels.of(run, [found.episode.key]).get(found.episode.key, []),
    }


def described(run: Run, found: EpisodeDetail) -> dict[str, Any]:
    """Return an episode with its task and turns as text."""
    broken = {at: cause for cause, found_at in found.breaks.items() for at in found_at}
    return {
        **row_of(run, found.episode),
        "task": found.episode.task,
        "transcript": found.transcript,
        "facts": found.facts,
        "judged": found.judged,
        "turns": [
            {
                **_turn(run, turn, _new(turn, before)),
                **_kept(turn, found.said),
                "broken": broken.get((turn.role, turn.turn), ""),
            }
            for turn, before in zip(found.turns, _before(found.turns), strict=True)
        ],
    }


def _kept(turn: TurnRecord, said: Mapping[tuple[str, int], str]) -> dict[str, str]:
    """Return what a turn said, where its tokens are gone."""
    text = said.get((turn.role, turn.turn), "") if turn.unreadable else ""
    return {"response_text": text, "response_rendered": text, "content": text} if text else {}


def tokens(run: Run, identity: str, role: str = "", turn: int | None = None) -> dict[str, Any]:
    """Return the token arrays of an episode's turns, of all or of one role or number. Raises NotFound."""
    return {"id": identity, "turns": turns_tokens(run, _found(run, identity).turns, role, turn)}


def turns_tokens(
    run: Run, turns: Sequence[TurnRecord], role: str = "", turn: int | None = None
) -> list[dict[str, Any]]:
    """Return the arrays of an episode's turns, of all or of one role or number."""
    return [
        _tokens(run, one, before)
        for one, before in zip(turns, _before(turns), strict=True)
        if role in ("", one.role) and turn in (None, one.turn)
    ]


def _before(turns: Sequence[TurnRecord]) -> list[int]:
    """Return how many ids of each turn's prompt its chain held already."""
    ends: dict[tuple[str, int], int] = {}
    found = []
    for turn in turns:
        found.append(ends.get((turn.role, turn.chain), 0))
        ends[turn.role, turn.chain] = turn.arrays.n_prompt + turn.arrays.n_response
    return found


def new_ids(turns: Sequence[TurnRecord]) -> list[list[int]]:
    """Return of each turn's prompt what its chain did not hold before."""
    return [_new(turn, before) for turn, before in zip(turns, _before(turns), strict=True)]


def _new(turn: TurnRecord, before: int) -> list[int]:
    """Return the ids of a prompt that its chain did not hold before."""
    return list(turn.arrays.prompt_ids()[before:].tolist())


def _tokens(run: Run, turn: TurnRecord, before: int) -> dict[str, Any]:
    """Return a turn's arrays: one entry per token of the response, and what was new in its prompt."""
    ids, new = turn.arrays.response_ids().tolist(), _new(turn, before)
    return {
        "role": turn.role,
        "turn": turn.turn,
        "prompt_ids": turn.arrays.prompt_ids().tolist(),
        "context_texts": token_texts(decoder_of(run.no, turn.policy), new),
        "ids": ids,
        "texts": token_texts(decoder_of(run.no, turn.policy), ids),
        "logprobs": turn.arrays.response_logprobs().tolist(),
        "versions": _versions(turn, len(ids)),
        "allowed_ids": turn.arrays.allowed_ids().tolist(),
        "advantage": turn.cut.advantage if turn.cut else None,
        "in_loss": _in_loss(turn),
    }


def must_exist(run: Run, identity: str) -> None:
    """Raise NotFound unless the run has the episode."""
    draw, member, attempt = parse_id(identity)
    group = trajectories.group(store_connection(), run.no, draw)
    if (draw, member, attempt) not in {row.key for row in group}:
        raise NotFound(f"There is no trajectory {identity} in {run.key}.")


def _found(run: Run, identity: str) -> EpisodeDetail:
    found = trajectories.episode(store_connection(), run.no, parse_id(identity))
    if found is None:
        raise NotFound(f"There is no trajectory {identity} in {run.key}.")
    return found


def _versions(turn: TurnRecord, count: int) -> list[int]:
    """Spell the segments out: the version that produced each token."""
    pairs = zip(turn.segments[::2], turn.segments[1::2], strict=False)
    spelled = [version for version, length in pairs for _ in range(length)]
    return (spelled + [turn.version] * count)[:count]


def _in_loss(turn: TurnRecord) -> bool:
    return turn.cut is not None and turn.cut.status != "void"


def row_of(run: Run, row: EpisodeSummary) -> dict[str, Any]:
    """Return an episode as a row of a list."""
    identity = identity_of(row.key)
    return {
        "id": identity,
        "draw": row.draw,
        "member": row.member,
        "attempt": row.attempt,
        "step": step_of(row.origin, row.cohort),
        "origin": row.origin,
        "status": row.status,
        "reason": row.reason,
        "solved": row.solved,
        "team_score": row.team_score,
        "scores": row.scores,
        "turns": row.turns,
        "tokens": row.tokens,
        "duration_s": round(row.seconds, 4),
        "pins": row.pins,
        "title": str(row.task.get("title", "")),
        "started_at": rfc3339(from_epoch(row.started_at)),
        "finished_at": rfc3339(from_epoch(row.finished_at)),
        "url": f"/api/v1/runs/{run.id}/trajectories/{identity}",
        "web_url": f"/runs/{run.key}/trajectories/{identity}",
    }


def member_of(row: EpisodeSummary) -> Mapping[str, Any]:
    """Return an episode as a member of its group."""
    return {
        "id": identity_of(row.key),
        "member": row.member,
        "attempt": row.attempt,
        "status": row.status,
        "team_score": row.team_score,
        "scores": row.scores,
        "solved": row.solved,
        "turns": row.turns,
        "tokens": row.tokens,
    }


def _turn(run: Run, turn: TurnRecord, new: Sequence[int]) -> dict[str, Any]:
    decoder = decoder_of(run.no, turn.policy)
    prompt, response = turn.arrays.prompt_ids().tolist(), turn.arrays.response_ids().tolist()
    cut, said = turn.cut, chat.reply(decoder, response)
    return {
        "role": turn.role,
        "turn": turn.turn,
        "chain": turn.chain,
        "read": chat.context(decoder, new),
        "reasoning": said.reasoning,
        "content": said.content,
        "tool_calls": [{"name": call.name, "arguments": call.arguments} for call in said.tool_calls],
        "policy": turn.policy,
        "version": turn.version,
        "segments": list(turn.segments),
        "prompt_text": text_of(decoder, prompt),
        "prompt_rendered": text_of(decoder, prompt, special=False),
        "prompt_tokens": len(prompt),
        "response_text": text_of(decoder, response),
        "response_rendered": text_of(decoder, response, special=False),
        "response_tokens": len(response),
        "allowed_tokens": len(turn.arrays.allowed) // 4,
        "advantage": cut.advantage if cut else None,
        "weight": cut.weight if cut else None,
        "micro_batch": cut.no if cut else None,
        "micro_batch_state": cut.status if cut else None,
        "trained_step": cut.cohort + 1 if cut and cut.status != "void" else None,
        "trained_version": cut.version if cut else None,
        "staleness": cut.version - 1 - turn.version if cut and cut.version is not None else None,
        "in_loss": _in_loss(turn),
        "unreadable": turn.unreadable,
        "reward": turn.reward,
        "temperature": turn.temperature,
        "latency_ms": turn.latency_ms,
        "engine": turn.engine,
        "finish": turn.finish,
    }
