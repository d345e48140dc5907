"""Episode groups for people: statistics of their members, and members side by side.

Turns are aligned by their place in the episode and their role, so a row never compares two roles. Of each turn the
words are marked that the best of the compared members does not have, and of the best those that the worst does not.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from math import sqrt
from typing import Any

from flexmarl.controlplane.common.problems import FieldError, NotFound, ValidationProblem
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.runs.models import Run
from flexmarl.controlplane.telemetry.trajectories.decoding import decoder_of, text_of
from flexmarl.controlplane.telemetry.trajectories.trajectories import identity_of, member_of, parse_id, step_of
from flexmarl.store.reads import cohort_rows, trajectories
from flexmarl.store.reads.episodes import EpisodeSummary
from flexmarl.store.reads.trajectories import EpisodeDetail, TrainedTurn

FEWEST, MOST = 2, 8
MAX_WORDS = 1500
"""Words of a turn that are compared; of a longer one everything behind the first difference is marked."""


@dataclass(frozen=True, slots=True)
class TurnText:
    """One turn of one member."""

    role: str
    version: int
    text: str


def group(run: Run, draw: int) -> dict[str, Any]:
    """Return a group with statistics. Raises NotFound."""
    found = trajectories.group(store_connection(), run.no, draw) if draw < 2**31 else []
    if not found:
        raise NotFound(f"There is no episode group {draw} in {run.key}.")
    cuts = trajectories.advantages(store_connection(), run.no, [row.key for row in found])
    return {
        "draw": draw,
        "step": step_of(found[0].origin, found[0].cohort),
        "origin": found[0].origin,
        "title": str(found[0].task.get("title", "")),
        "statistics": statistics(found),
        "rulings": [
            {"kind": kind, "reason": reason}
            for kind, reason in cohort_rows.of_group(store_connection(), run.no, found[0].cohort, draw)
        ],
        "members": [{**member_of(row), "advantages": _shared(cuts.get(row.key, {}))} for row in found],
    }


def statistics(members: Sequence[EpisodeSummary]) -> dict[str, Any]:
    """Describe the scores of a group's finished members."""
    finished = [row for row in members if row.status == "finished"]
    scores = [row.team_score for row in finished]
    ranked = sorted(finished, key=lambda row: (-row.team_score, row.member))
    mean, deviation = _spread(scores)
    roles = sorted({role for row in finished for role in row.scores})
    spreads = {role: _spread([row.scores[role] for row in finished if role in row.scores]) for role in roles}
    return {
        "finished": len(finished),
        "solved": sum(row.solved for row in finished),
        "mean": mean,
        "deviation": deviation,
        "best": identity_of(ranked[0].key) if ranked else None,
        "worst": identity_of(ranked[-1].key) if ranked else None,
        "useful": len(set(scores)) > 1,
        "roles": {role: {"mean": mean, "deviation": deviation} for role, (mean, deviation) in spreads.items()},
    }


def _spread(values: Sequence[float]) -> tuple[float | None, float | None]:
    if not values:
        return None, None
    mean = sum(values) / len(values)
    return mean, sqrt(sum((value - mean) ** 2 for value in values) / len(values))


def _shared(cuts: Mapping[tuple[str, int], Sequence[TrainedTurn]]) -> dict[str, float]:
    """The advantage of each role whose turns all have the same."""
    found: dict[str, set[float]] = {}
    for (role, _), of_turns in cuts.items():
        found.setdefault(role, set()).update(cut.advantage for cut in of_turns)
    return {role: values.pop() for role, values in found.items() if len(values) == 1}


def compare(run: Run, ids: Sequence[str]) -> dict[str, Any]:
    """Put 2 to 8 members of one group side by side, best first. Raises ValidationProblem, NotFound."""
    wanted = list(dict.fromkeys(ids))
    if not FEWEST <= len(wanted) <= MOST:
        raise _refuse(f"{len(wanted)} trajectories cannot be compared.", f"Name {FEWEST} to {MOST} of one group.")
    keys = [parse_id(text) for text in wanted]
    if len({key[0] for key in keys}) > 1:
        raise _refuse("The trajectories are of different groups.", "Use members of one draw.")
    found = trajectories.details(store_connection(), run.no, keys)
    missing = set(keys) - {one.episode.key for one in found}
    if missing:
        raise NotFound(f"There is no trajectory {identity_of(min(missing))} in {run.key}.")
    ranked = sorted(found, key=lambda one: (-one.episode.team_score, one.episode.member))
    frame = group(run, keys[0][0])
    by_id = {member["id"]: member for member in frame["members"]}
    shown = [identity_of(one.episode.key) for one in ranked]
    rows = aligned({identity_of(one.episode.key): _said(run, one) for one in ranked})
    return {**frame, "members": [by_id[name] for name in shown], **rows}


def _said(run: Run, one: EpisodeDetail) -> list[TurnText]:
    return [
        TurnText(
            turn.role,
            turn.version,
            text_of(decoder_of(run.no, turn.policy), turn.arrays.response_ids().tolist(), special=False),
        )
        for turn in one.turns
    ]


def aligned(members: Mapping[str, Sequence[TurnText]]) -> dict[str, Any]:
    """Align what members said by turn and role, best first, and mark what differs."""
    rows: list[dict[str, Any]] = []
    first: dict[str, Any] | None = None
    for place in range(max((len(said) for said in members.values()), default=0)):
        at = {name: said[place] for name, said in members.items() if place < len(said)}
        for role in dict.fromkeys(one.role for one in at.values()):
            cells = [_cell(name, at.get(name), role) for name in members]
            texts = [cell["text"] if cell else None for cell in cells]
            if first is None and len(set(texts)) > 1:
                first = {"no": place + 1, "role": role}
            rows.append({"no": place + 1, "role": role, "cells": _marked(cells, texts)})
    return {"rows": rows, "first_difference": first}


def _cell(name: str, said: TurnText | None, role: str) -> dict[str, Any] | None:
    if said is None or said.role != role:
        return None
    return {"id": name, "version": said.version, "text": said.text}


def _marked(cells: Sequence[dict[str, Any] | None], texts: Sequence[str | None]) -> list[dict[str, Any] | None]:
    said = [text for text in texts if text is not None]
    best, worst = said[0], said[-1]
    marked: list[dict[str, Any] | None] = []
    for cell in cells:
        if cell is None:
            marked.append(None)
            continue
        other = worst if cell["text"] == best else best
        marked.append({"id": cell["id"], "version": cell["version"], "parts": difference(cell["text"], other)})
    return marked


def difference(text: str, other: str) -> list[list[Any]]:
    """Cut a text into parts that another has as well and parts that it has not, by words."""
    if text == other:
        return [[text, False]] if text else []
    words, others = _words(text), _words(other)
    if max(len(words), len(others)) > MAX_WORDS:
        same = next((i for i, (a, b) in enumerate(zip(words, others, strict=False)) if a != b), len(others))
        parts = [["".join(words[:same]), False], ["".join(words[same:]), True]]
        return [part for part in parts if part[0]]
    blocks = SequenceMatcher(None, words, others, autojunk=False).get_opcodes()
    parts = [["".join(words[start:end]), kind != "equal"] for kind, start, end, _, _ in blocks if end > start]
    return _joined(parts)


def _joined(parts: list[list[Any]]) -> list[list[Any]]:
    """Join neighbours of one kind."""
    joined: list[list[Any]] = []
    for text, differs in parts:
        if joined and joined[-1][1] == differs:
            joined[-1][0] += text
        else:
            joined.append([text, differs])
    return joined


def _words(text: str) -> list[str]:
    """Split into words, each with the space behind it."""
    words: list[str] = []
    for piece in text.split(" "):
        words.append(piece + " ")
    words[-1] = words[-1][:-1]
    return [word for word in words if word]


def _refuse(detail: str, hint: str) -> ValidationProblem:
    return ValidationProblem(detail, errors=[FieldError("ids", "out_of_range", detail, hint, "query")])
