"""Episodes as conversations: what each role read and said, as rows that a dataset is made of.

Invariants: a conversation has only what a dataset takes: a system message first, then users and the assistant, whose
words end it. What cannot be said so is left out whole: tools, tokens that are gone, seats that are asked in words of a
closed game. Replies have all that the model sampled, thoughts included.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from flexmarl.controlplane.runs.models import Run
from flexmarl.controlplane.telemetry.trajectories import chat
from flexmarl.controlplane.telemetry.trajectories.decoding import decoder_of
from flexmarl.controlplane.telemetry.trajectories.trajectories import identity_of, new_ids
from flexmarl.language.renderer import Break
from flexmarl.language.replies import THINK, THOUGHT
from flexmarl.store.reads.trajectories import EpisodeDetail, TurnRecord

Said = list[dict[str, str]]
_SPEAKERS = ("user", "assistant")


def conversations_of(run: Run, found: EpisodeDetail, role: str = "") -> Iterator[dict[str, Any]]:
    """Return the conversations of an episode, of all roles or of one, in the order of the roles' first turns."""
    other = {tuple(at) for at in found.breaks.get(Break.OTHER_HISTORY, ())}
    pairs = [pair for pair in zip(found.turns, new_ids(found.turns), strict=True) if role in ("", pair[0].role)]
    for name in dict.fromkeys(turn.role for turn, _ in pairs):
        said: Said | None = []
        parts = []
        for turn, new in pairs:
            if turn.role != name:
                continue
            if (turn.role, turn.turn) in other:
                parts.append(said)
                said = []
            said = _gone_on(run, turn, new, said)
        parts.append(said)
        episode = found.episode
        about = {
            "role": name,
            "reward": episode.scores.get(name, episode.team_score),
            "trajectory": identity_of(episode.key),
        }
        yield from ({"messages": one, **about} for one in parts if one and _fits(one))


def _gone_on(run: Run, turn: TurnRecord, new: Sequence[int], said: Said | None) -> Said | None:
    """Return a conversation with a further turn; None from the first one on that cannot be said."""
    decoder = decoder_of(run.no, turn.policy)
    if said is None or turn.unreadable or decoder is None:
        return None
    read = chat.context(decoder, new)
    while read and read[-1]["speaker"] == "assistant":  # a thought that the prompt has opened
        read.pop()
    if said:  # where a chain began anew, what was said before stands in its prompt once more
        last = max((place for place, one in enumerate(read) if one["speaker"] == "assistant"), default=-1)
        read = read[last + 1 :]
    reply = chat.reply(decoder, turn.arrays.response_ids().tolist())
    if not read or reply.tool_calls:
        return None
    thought = f"{THINK}\n{reply.reasoning}\n{THOUGHT}\n\n" if reply.reasoning else ""
    messages = [{"role": one["speaker"], "content": one["text"]} for one in read]
    return [*said, *messages, {"role": "assistant", "content": thought + reply.content}]


def _fits(said: Said) -> bool:
    """Tell whether a dataset takes the conversation."""
    begun = said[1:] if said[0]["role"] == "system" else said
    speak = all(one["role"] in _SPEAKERS and one["content"].strip() for one in begun)
    return speak and len(begun) > 1 and begun[-2]["role"] == "user"
