"""Trajectories of a run for people: pages of episodes, and one episode with its turns as text and tokens."""

import re
from functools import lru_cache
from typing import Any

from tokenizers import Tokenizer

from flexmarl.controlplane.common.api.pagination import DEFAULT_LIMIT
from flexmarl.controlplane.common.problems import NotFound
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.common.times import from_epoch, rfc3339
from flexmarl.controlplane.runs.models import Run
from flexmarl.store import tokenizers, trajectories
from flexmarl.store.trajectories import EpisodeFilter, EpisodeSummary, TurnRecord

Position = tuple[int, int, int]
_IDENTITY = re.compile(r"(\d{1,10})-(\d{1,6})-(\d{1,4})")
ALL = EpisodeFilter()


def parse_id(text: str) -> Position:
    """Read `<draw>-<member>-<attempt>`. Raises NotFound when it is not one."""
    found = _IDENTITY.fullmatch(text)
    if not found:
        raise NotFound(f"There is no trajectory {text}.")
    draw, member, attempt = (int(part) for part in found.groups())
    return draw, member, attempt


def page(
    run: Run, wanted: EpisodeFilter = ALL, limit: int = DEFAULT_LIMIT, after: Position | None = None
) -> tuple[list[dict[str, Any]], Position | None]:
    """Return one page of episodes, newest draw first, and the position behind which the next begins."""
    rows = trajectories.episodes(store_connection(), run.no, wanted, limit + 1, after)
    shown = rows[:limit]
    last = shown[-1] if len(rows) > limit else None
    return [_row(run, row) for row in shown], (last.draw, last.member, last.attempt) if last else None


def detail(run: Run, identity: str) -> dict[str, Any]:
    """Return one episode with its task, turns, transcript and group. Raises NotFound."""
    found = trajectories.episode(store_connection(), run.no, *parse_id(identity))
    if found is None:
        raise NotFound(f"There is no trajectory {identity} in {run.key}.")
    decoders = {policy: _decoder(run.no, policy) for policy in {turn.policy for turn in found.turns}}
    return {
        **_row(run, found.episode),
        "task": found.episode.task,
        "transcript": found.transcript,
        "turns": [_turn(turn, decoders[turn.policy]) for turn in found.turns],
        "group": [
            {
                "id": f"{found.episode.draw}-{member.member}-{member.attempt}",
                "member": member.member,
                "attempt": member.attempt,
                "status": member.status,
                "team_score": member.team_score,
                "solved": member.solved,
            }
            for member in found.group
        ],
    }


def _row(run: Run, row: EpisodeSummary) -> dict[str, Any]:
    identity = f"{row.draw}-{row.member}-{row.attempt}"
    return {
        "id": identity,
        "draw": row.draw,
        "member": row.member,
        "attempt": row.attempt,
        "step": row.cohort,
        "origin": row.origin,
        "status": row.status,
        "reason": row.reason,
        "solved": row.solved,
        "team_score": row.team_score,
        "scores": row.scores,
        "turns": row.turns,
        "tokens": row.tokens,
        "duration_s": round(row.finished_at - row.started_at, 4),
        "pins": row.pins,
        "title": str(row.task.get("title", "")),
        "started_at": rfc3339(from_epoch(row.started_at)),
        "finished_at": rfc3339(from_epoch(row.finished_at)),
        "url": f"/api/v1/runs/{run.id}/trajectories/{identity}",
        "web_url": f"/runs/{run.key}/trajectories/{identity}",
    }


def _turn(turn: TurnRecord, decoder: Tokenizer | None) -> dict[str, Any]:
    prompt, response = turn.arrays.prompt_ids().tolist(), turn.arrays.response_ids().tolist()
    logprobs = turn.arrays.response_logprobs().tolist()
    texts = token_texts(decoder, response)
    return {
        "role": turn.role,
        "turn": turn.turn,
        "policy": turn.policy,
        "version": turn.version,
        "segments": list(turn.segments),
        "prompt_text": text_of(decoder, prompt),
        "prompt_tokens": len(prompt),
        "response_text": text_of(decoder, response),
        "tokens": [
            {"id": identity, "text": text, "logprob": logprob}
            for identity, text, logprob in zip(response, texts, logprobs, strict=True)
        ],
        "allowed_tokens": len(turn.arrays.allowed) // 4,
        "advantage": turn.advantage,
        "weight": turn.weight,
        "micro_batch": turn.micro_batch,
        "in_loss": turn.micro_batch is not None and turn.micro_batch_status != "void",
        "reward": turn.reward,
        "temperature": turn.temperature,
        "latency_ms": turn.latency_ms,
        "finish": turn.finish,
    }


def text_of(decoder: Tokenizer | None, ids: list[int]) -> str:
    """Decode ids; without a tokenizer they are shown as numbers."""
    return " ".join(map(str, ids)) if decoder is None else decoder.decode(ids, skip_special_tokens=False)


def token_texts(decoder: Tokenizer | None, ids: list[int]) -> list[str]:
    """Return what each id adds to the text."""
    if decoder is None:
        return [str(identity) for identity in ids]
    return [decoder.decode([identity], skip_special_tokens=False) for identity in ids]


def _decoder(run_no: int, policy: str) -> Tokenizer | None:
    """Return a policy's tokenizer, None until its version 0 is bound."""
    if policy not in _bodies(run_no):
        _bodies.cache_clear()
    body = _bodies(run_no).get(policy)
    return None if body is None else _parse(body)


@lru_cache(maxsize=64)
def _bodies(run_no: int) -> dict[str, bytes]:
    return tokenizers.load(store_connection(), run_no)


@lru_cache(maxsize=64)
def _parse(body: bytes) -> Tokenizer:
    return Tokenizer.from_str(body.decode())
