"""What an agent was asked while it was trained: observations to begin a talk with, and the words it answered in.

An agent of a small vocabulary learns to choose among the words that its environment allows at a turn, and nothing about
the others. So a reply is drawn from the words of its newest recorded turns, unless the caller names others.
"""

from collections.abc import Iterator
from typing import Any

from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.runs.models import Run
from flexmarl.controlplane.telemetry.trajectories.decoding import decoder_of, renderer_of, text_of
from flexmarl.controlplane.telemetry.trajectories.trajectories import ALL, identity_of
from flexmarl.store.reads import episodes, trajectories
from flexmarl.store.reads.episodes import NEWEST
from flexmarl.store.reads.trajectories import TurnRecord

LOOKED_AT = 8
"""Newest training episodes whose turns are read."""


def allowed_words(run: Run, role: str) -> frozenset[int]:
    """Return the token ids of the words that an agent was last allowed; empty: all, or nothing was recorded."""
    found: set[int] = set()
    for _, turn in _turns(run, role):
        ids = turn.arrays.allowed_ids().tolist()
        if not ids and not turn.unreadable:
            return frozenset()
        found.update(ids)
    return frozenset(found)


def examples(run: Run, role: str, most: int = 6) -> list[dict[str, Any]]:
    """Return different observations of an agent's newest recorded turns, each with what it replied."""
    found: dict[str, dict[str, Any]] = {}
    for trajectory, turn in _turns(run, role):
        decoder = decoder_of(run.no, turn.policy)
        # The prompt of a model with a chat template is nothing without the tokens that mark who speaks.
        marked = renderer_of(run.no, turn.policy) is not None
        text = text_of(decoder, turn.arrays.prompt_ids().tolist(), special=marked)
        if not text or text in found:
            continue
        allowed = turn.arrays.allowed_ids().tolist()
        found[text] = {
            "observation": text,
            "reply": text_of(decoder, turn.arrays.response_ids().tolist(), special=False),
            "allowed_words": [] if decoder is None else [decoder.id_to_token(number) or "" for number in allowed],
            "tokens": turn.arrays.n_response,
            "version": turn.version,
            "trajectory": trajectory,
        }
        if len(found) >= most:
            break
    return list(found.values())


def _turns(run: Run, role: str) -> Iterator[tuple[str, TurnRecord]]:
    """Walk through an agent's turns in the newest training episodes, with the episode of each."""
    conn = store_connection()
    keys = [row.key for row in episodes.page(conn, run.no, ALL, NEWEST, limit=LOOKED_AT).rows]
    for found in trajectories.details(conn, run.no, keys):
        for turn in found.turns:
            if turn.role == role:
                yield identity_of(found.episode.key), turn
