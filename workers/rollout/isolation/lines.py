"""Messages between a rollout worker and the process of an episode: one JSON object per line.

The worker sends `Begin`, one `ReplyBatch` after the other, `ScoreOrder` once nobody is asked any more, and `Close`. The
answer to `Close` is `Closed`, to each other one `EpisodeProgress`; to any, `Broke`.

Of an agent program it sends `StartProgram`, `ScoreOrder` once it has ended, and `Close`. The answers are `Began` and,
when it has ended, `ProgramRan`; `ProgramEarned`; and `Closed`.

Of a command it sends `StartCommand` instead, and where another sandbox evaluates what it left, `PackOrder`: the answers
are any number of `Piece` and `Packed`. The other sandbox is sent `StartCommand`, then these; it answers like a program,
and `ScoreOrder` with `Evaluated`. `ReadOrder` asks for a file, which `FileText` brings.

A session with a server of tools is sent `OpenTools`, one `CallTools` after the other, and `Close`; the answer to the
first two is `ToolResults`.
"""

from typing import Any, Literal

import msgspec

from flexmarl.language.messages import ToolCall
from workers.packages.inside.hosting import FRAME
from workers.rollout.environments.base import Ask, Outcome, Reply


class Begin(msgspec.Struct, frozen=True, tag="begin"):
    """Make an episode; whatever was played before is forgotten."""

    task_seed: int
    held_out: bool
    seed: int
    """Of the episode's own generator, and of every generator that the process has."""


class ReplyBatch(msgspec.Struct, frozen=True, tag="replies"):
    """The replies to the last asks."""

    replies: list[Reply]


class ScoreOrder(msgspec.Struct, frozen=True, tag="tally"):
    """Say what the episode came to."""


class Close(msgspec.Struct, frozen=True, tag="close"):
    """Let go of the episode."""


class FileChange(msgspec.Struct, frozen=True):
    """A file of a workspace that is not as it was laid out."""

    path: str
    change: Literal["added", "changed", "removed"]
    size: int | None
    """Bytes; None of one that is gone."""
    before: int | None
    shown: bool
    """Whether the difference shows it: it is text, and there was room."""


class FileChanges(msgspec.Struct, frozen=True):
    """What a command made of its workspace."""

    files: list[FileChange]
    count: int
    """How many changed; not all of many are named."""
    diff: str
    """Unified."""
    cut: bool
    """The difference is not whole."""


class Closed(msgspec.Struct, frozen=True, tag="closed"):
    """The episode was let go of; the process can play another one, unless it played a program."""

    output: str = ""
    """End of what a program wrote."""
    changes: FileChanges | None = None
    """Of the workspace of a command."""


class OpenTools(msgspec.Struct, frozen=True, tag="open"):
    """Begin a session with a server of tools."""


class CallTools(msgspec.Struct, frozen=True, tag="calls"):
    """Make calls, one after the other."""

    calls: list[ToolCall]


class ToolResult(msgspec.Struct, frozen=True):
    """What a call came to."""

    text: str
    """As much of it as an agent reads."""
    characters: int
    """How many there were."""
    failed: bool
    """The tool, or its server, says that it did not do what was asked."""


class ToolResults(msgspec.Struct, frozen=True, tag="results"):
    """The results of calls, in their order; none where a session was begun."""

    results: list[ToolResult]


class Score(msgspec.Struct, frozen=True):
    """An outcome; turns are written out, since JSON knows no pairs as keys."""

    scores: dict[str, float]
    team_score: float
    solved: bool
    turn_rewards: list[tuple[str, int, float]]
    facts: dict[str, float]
    answer: str = ""


class EpisodeProgress(msgspec.Struct, frozen=True, tag="progress"):
    """State of an episode: the turns that it waits for; none: it is over."""

    asks: list[Ask]
    score: Score | None = None
    """Only in the answer to `ScoreOrder`."""
    task: dict[str, object] = {}


class StartProgram(msgspec.Struct, frozen=True, tag="start"):
    """Start an agent program."""

    session: dict[str, Any]
    """What it is told: id, task, number, held_out, purpose, seats, base_url and key."""
    seed: int


class StartCommand(msgspec.Struct, frozen=True, tag="command"):
    """Start a command: the agent's, or in its own sandbox the one that evaluates."""

    session: dict[str, Any]
    """What it is told, as a program is; without base_url and key for the one that evaluates, and with the prompt."""
    runner: dict[str, Any]
    """Settings of the runner."""
    question: str
    """Of the dataset's row; empty where there is none."""
    files: dict[str, str]
    """Columns of the row that are laid into the workspace, by path."""


class ReadOrder(msgspec.Struct, frozen=True, tag="read"):
    """Say what stands in a file of the workspace of a command that has ended."""

    path: str


class FileText(msgspec.Struct, frozen=True, tag="text"):
    """What stands in a file."""

    text: str


class PackOrder(msgspec.Struct, frozen=True, tag="pack"):
    """Send the workspace of a command that has ended."""


class Piece(msgspec.Struct, frozen=True, tag="piece"):
    """Bytes of a workspace that is sent."""

    data: bytes


class Packed(msgspec.Struct, frozen=True, tag="packed"):
    """The workspace was sent whole."""


class Evaluated(msgspec.Struct, frozen=True, tag="evaluated"):
    """What a command that evaluates wrote of the reward; None: nothing."""

    report: dict[str, Any] | None


class Began(msgspec.Struct, frozen=True, tag="began"):
    """The program is called now: it was imported."""


class ProgramRan(msgspec.Struct, frozen=True, tag="ran"):
    """The program has ended."""

    reason: str
    """Why it earned nothing; empty: it may have."""
    output: str = ""
    """End of what it wrote."""
    status: int | None = None
    """How its process ended; None where it never began, or said itself what it raised."""


class ProgramEarned(msgspec.Struct, frozen=True, tag="earned"):
    """What a program that has ended says it earned."""

    report: dict[str, Any]


class Broke(msgspec.Struct, frozen=True, tag="broke"):
    """The environment raised."""

    reason: str


class Born(msgspec.Struct, frozen=True, tag="born"):
    """First line of an episode's process."""

    pid: int


class HostReady(msgspec.Struct, frozen=True, tag="hosting"):
    """First line of the host: the game is imported; a process can be had."""


Order = Begin | ReplyBatch | ScoreOrder | Close
ToolOrder = OpenTools | CallTools | Close
ProgramOrder = StartProgram | StartCommand | ReadOrder | PackOrder
Answer = (
    Born | EpisodeProgress | ToolResults | Closed | Began | ProgramRan | ProgramEarned | Broke
    | FileText | Piece | Packed | Evaluated
)  # fmt: skip


def line(message: msgspec.Struct) -> bytes:
    return msgspec.json.encode(message) + b"\n"


def frame(what: bytes, pid: int = 0) -> bytes:
    return what + pid.to_bytes(FRAME - 1, "big")


def score_of(outcome: Outcome) -> Score:
    rewards = [(role, turn, reward) for (role, turn), reward in outcome.turn_rewards.items()]
    return Score(outcome.scores, outcome.team_score, outcome.solved, rewards, outcome.facts, outcome.answer)


def outcome_of(score: Score) -> Outcome:
    rewards = {(role, turn): reward for role, turn, reward in score.turn_rewards}
    return Outcome(score.scores, score.team_score, score.solved, rewards, score.facts, answer=score.answer)
