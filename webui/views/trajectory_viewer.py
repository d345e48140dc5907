"""One trajectory as a conversation: task, turns and remarks in order, scores, advantage, provenance."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from flexmarl.contracts.wire import EVALUATION_DRAWS
from flexmarl.controlplane.runs import program_sessions
from flexmarl.controlplane.telemetry import queries as telemetry
from webui import reading
from webui.figures import episodes
from webui.formats import DASH, number
from webui.views.session_files import files
from webui.views.team import graph_of

BREAK_WORDS = {
    "thoughts_rewritten": ("thoughts left out", "The template leaves earlier thoughts out of the next prompt."),
    "history_rewritten": ("history rewritten", "What stood before the last reply stands otherwise in the next prompt."),
    "reply_rewritten": ("reply rewritten", "The template writes the last reply otherwise than it was sampled."),
    "turn_not_closed": ("turn not closed", "The template ends the last reply with no token that ends a turn."),
    "other_end": ("another end", "The last reply ended with another token than the one that the template writes."),
    "shortened": ("oldest messages left out", "The conversation became longer than the seat may read."),
    "other_history": (
        "another conversation",
        "Such as a sub-agent's, or a summary: the history is one that the seat did not have.",
    ),
    "each_call": ("a row of each call", "The run trains each call by itself (environment.rows)."),
}
"""Cause by which a chain broke -> words, and what they mean."""
VIEWS = (("transcript", "Transcript"), ("scores", "Scores"), ("raw", "Raw"))


def _credit(spec: dict[str, Any], group: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Say what of a specification decides what a row of a group is compared with."""
    algorithm = spec["algorithm"]
    return {
        **algorithm["advantage"],
        "group_key": algorithm["group_key"],
        "shaping": algorithm.get("shaping", {}).get("type", "none"),
        "branches": "none" if _continues(spec) is not None else spec["sampling"]["branch_controller"]["type"],
        # Members that go on within a reply have rows of their own, and are compared as any.
        "continues": bool(_continues(spec)) and spec["sampling"]["branch_controller"]["type"] != "echo",
        "keep_members": spec["sampling"].get("keep_members"),
        "keep_rule": spec["sampling"].get("keep_rule", "variance"),
        "rescues": _rescues(spec) and not any(member["solved"] for member in group),
    }


def _continues(spec: dict[str, Any]) -> float | None:
    """Return the share of a group's members that continue others; None where the run's controller continues nobody."""
    share = spec["sampling"]["branch_controller"].get("share")
    return None if share is None else float(share)


def _rescues(spec: dict[str, Any]) -> bool:
    replay = spec["sampling"].get("replay", {})
    return isinstance(replay, dict) and replay.get("type") == "rescue"


def opened(run: Any, row: dict[str, Any], tid: str, view: str = "transcript") -> dict[str, Any]:
    """Read a trajectory for its page."""
    found = telemetry.trajectory(run, tid)
    agents = {agent["role"]: agent for agent in row["agents"]}
    judged = {(one["role"], one["turn"]): _parts_of(one) for one in found["judged"]}
    turns = {
        key: {**_turn(turn, agents), "judged": judged.get(key, [])}
        for turn in found["turns"]
        for key in ((turn["role"], turn["turn"]),)
    }
    advantages = [turn["advantage"] for turn in turns.values() if turn["advantage"] is not None]
    session = _session(run, found) if row["spec"]["environment"]["type"] == "program" else None
    group = [member for member in found["group"] if member["status"] == "finished"]
    view = view if view in dict(VIEWS) else "transcript"
    return {
        "t": {**found, "group_no": group_no(found)},
        "session": session,
        "files": files(session["changes"]) if session else None,
        "view": view,
        "views": VIEWS,
        "top": reading.best_score(run),
        "conversation": conversation(found["transcript"], turns),
        "graph": graph_of(row),
        "scores": [_score(role, agent, found, turns) for role, agent in agents.items() if role in found["scores"]],
        "pins": [(name, found["pins"][name]) for name in _policies(row) if name in found["pins"]],
        "why": episodes.why(group, found["member"], _credit(row["spec"], group), advantages),
        "facts": sorted((str(k), v) for k, v in dict(found["task"].get("facts") or {}).items()),
        "counted": sorted(found["facts"].items()),
        "group": group,
        "batches": _batches(turns.values()),
        "staleness": _staleness(turns.values()),
        "engines": sorted({turn["engine"] for turn in turns.values() if turn["engine"]}),
        "my_group": telemetry.episode_group(run, found["draw"]) if view == "scores" else None,
    }


def _session(run: Any, found: dict[str, Any]) -> dict[str, Any] | None:
    """Return the session that the trajectory was, where its program was started by a rollout worker."""
    return program_sessions.of_episode(run, (found["draw"], found["member"], found["attempt"]))


def _turn(turn: dict[str, Any], agents: dict[str, dict[str, Any]]) -> dict[str, Any]:
    calls = [{**call, "arguments": json.dumps(call["arguments"], ensure_ascii=False)} for call in turn["tool_calls"]]
    words, meaning = BREAK_WORDS.get(turn["broken"], (turn["broken"], ""))
    return {
        **turn,
        "agent": agents.get(turn["role"]),
        "tool_calls": calls,
        "parted": bool(turn["reasoning"] or calls),
        "break_words": words,
        "break_meaning": meaning,
    }


def group_no(row: dict[str, Any]) -> int:
    """Number of an episode group towards people; evaluations count apart."""
    return int(row["draw"]) - (EVALUATION_DRAWS if row["origin"] == "eval" else 0)


def _parts_of(judged: dict[str, Any]) -> list[dict[str, Any]]:
    """What each score says of an answer, in the order of the specification."""
    return [
        {"name": name, "value": value, "why": judged["why"].get(name, "")} for name, value in judged["parts"].items()
    ]


def _score(role: str, agent: dict[str, Any], found: dict[str, Any], turns: dict[Any, Any]) -> dict[str, Any]:
    """A role's score with the rewards of its turns, where the environment gave any."""
    mine = [turn for turn in turns.values() if turn["role"] == role]
    rewarded = any(turn["reward"] for turn in mine)
    parts = ", ".join(f"call {turn['turn'] + 1} {number(turn['reward'], 2)}" for turn in mine) if rewarded else ""
    return {"agent": agent, "role": role, "score": found["scores"][role], "parts": parts}


def _policies(row: dict[str, Any]) -> list[str]:
    """The policies of a run in the order of its agents."""
    return list(dict.fromkeys(agent["policy"] for agent in row["agents"]))


_STATES = {
    "cut": "cut, waiting for its trainer",
    "accumulated": "accumulated, waiting for the optimizer step",
    "applied": "applied",
    "void": "void, abandoned by a stop or a new attempt",
}


def _batches(turns: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The micro-batches that hold the turns: state, and the step that trained them."""
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for turn in turns:
        if turn["micro_batch"] is None:
            continue
        applied = turn["micro_batch_state"] == "applied"
        by = f"step {turn['trained_step']}" if applied else ""
        version = f", v{turn['trained_version']}" if applied and turn["trained_version"] is not None else ""
        key = (turn["policy"], turn["micro_batch"])
        text = f"{by}{version}" if applied else _STATES.get(turn["micro_batch_state"], "")
        found.setdefault(key, {"agent": turn["agent"], "role": turn["role"], "no": key[1], "text": text})
    return list(found.values())


def _staleness(turns: Iterable[dict[str, Any]]) -> str:
    """Largest lag of the trained turns behind the version that trained on them."""
    lags = [turn["staleness"] for turn in turns if turn["staleness"] is not None]
    return str(max(lags)) if lags else DASH


def conversation(transcript: list[Any], turns: dict[tuple[str, int], dict[str, Any]]) -> list[dict[str, Any]]:
    """Put turns and the environment's remarks into the order they happened; turns nobody named come last.

    A turn that goes on with another conversation of its seat than the seat's last turn says from where: `goes_on`.
    """
    left = dict(turns)
    entries: list[dict[str, Any]] = []
    for entry in transcript:
        if isinstance(entry, list) and len(entry) >= 2 and str(entry[1]).lstrip("-").isdigit():
            turn = left.pop((str(entry[0]), int(entry[1])), None)
            if turn is not None:
                entries.append({"turn": turn, "no": _next(entries)})
                remark = entry[2] if len(entry) > 2 else ""
                if remark:
                    entries.append({"remark": str(remark)})
        elif isinstance(entry, str):
            entries.append({"remark": entry})
        elif isinstance(entry, dict) and entry.get("text"):
            entries.append({"remark": str(entry["text"])})
    for turn in left.values():
        entries.append({"turn": turn, "no": _next(entries)})
    _connect(entries)
    return entries


def _connect(entries: list[dict[str, Any]]) -> None:
    """Note at each turn from which one it goes on, where turns of another chain of its seat stand between."""
    last_of_chain: dict[tuple[str, int], int] = {}
    last_of_role: dict[str, int] = {}
    for entry in entries:
        if "turn" in entry:
            turn = entry["turn"]
            before = last_of_chain.get((turn["role"], turn["chain"]))
            entry["goes_on"] = before if before != last_of_role.get(turn["role"]) else None
            last_of_chain[turn["role"], turn["chain"]] = last_of_role[turn["role"]] = entry["no"]


def _next(entries: list[dict[str, Any]]) -> int:
    return sum(1 for entry in entries if "turn" in entry) + 1
