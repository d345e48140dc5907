"""Logged conversations, replayed with the model's own turns: semi-online rollouts of UI-S1 (arXiv 2509.11543).

The model speaks in the place of the logged assistant. While its turns are the logged ones, it is told what was logged
behind them, and its conversation goes on in its own words. Where a turn differs, the logged turn may replace it: then
the conversation begins anew as it would stand with that turn, which so is read and never trained on, while the turn
that was replaced stays the last one of its row, with its own reward.
"""

import random
from dataclasses import dataclass, field, replace
from typing import Any

from flexmarl.algorithms.scores import RowScorer, ScorePart
from flexmarl.contracts.specification.logged import LEARNER, WRITER, LoggedEpisodes
from flexmarl.language.dataset_rows import DatasetRow, from_line
from flexmarl.language.logged import LoggedTurn, called, conversation_of, same_calls, spoken, tools_of, turns_of
from flexmarl.language.messages import Message
from flexmarl.language.replies import THINK, THOUGHT, written_call
from workers.rollout.environments.base import Ask, Environment, JudgedAnswer, Outcome, Reply, RewardMissing
from workers.rollout.environments.rows import EPOCH, RowFamily
from workers.scoring.apart import ApartScorer
from workers.scoring.errors import ScoringFailed

MOST_SHOWN = 400
"""Characters of a logged turn that a remark shows."""
ASIDE = 1
"""Number of the conversation in which thoughts of patches are written."""


@dataclass(frozen=True, slots=True)
class Judges:
    """What compares words; shared by all episodes."""

    here: RowScorer
    apart: ApartScorer


@dataclass(frozen=True, slots=True)
class LoggedTask:
    """What is replayed."""

    row: DatasetRow
    turns: tuple[LoggedTurn, ...]
    tools: tuple[dict[str, Any], ...]
    epoch: int | None

    @classmethod
    def of(cls, row: DatasetRow, options: LoggedEpisodes, epoch: int | None = None) -> "LoggedTask":
        """Read a row. Raises NotLogged where it has no conversation."""
        turns = turns_of(row, options.column, options.most_turns)
        return cls(row, turns, tools_of(row, options.tools_column), epoch)


@dataclass(frozen=True, slots=True)
class Position:
    """Where the conversation stands."""

    history: tuple[Message, ...]
    """All of it, with the model's turns and with those that replaced some."""
    told: tuple[Message, ...]
    """What the model reads next."""
    anew: bool = False
    """That is the whole conversation, since a turn was replaced."""


@dataclass(frozen=True, slots=True)
class PlayedTurn:
    """A turn of the model, held against the logged one."""

    format: bool
    """It is whole, and says something."""
    kind: bool
    """It calls the tools that were logged; where none was, it says the logged words."""
    accurate: bool
    """It says what was logged, arguments included."""
    parts: dict[str, ScorePart] = field(default_factory=dict)
    """What the scores say of its words."""

    @property
    def matches(self) -> bool:
        return self.format and self.kind and self.accurate

    def reward(self, options: LoggedEpisodes) -> float:
        """Return what the turn is worth, from 0 to 1: kind and accuracy count where what comes before them is right."""
        if self.matches:
            return 1.0
        earned = options.format_weight * self.format + options.type_weight * (self.format and self.kind)
        return earned / (options.format_weight + options.type_weight + options.accuracy_weight)


def compared(
    logged: Message, reply: Reply, options: LoggedEpisodes, parts: dict[str, ScorePart], worth: float
) -> PlayedTurn:
    """Hold a reply against a logged turn. `worth`: of its words, by the scores, whose `parts` are given."""
    said = spoken(reply.message or Message("assistant", reply.text))
    whole = reply.finish == "stop" and bool(said.content.strip() or said.tool_calls)
    if logged.tool_calls:
        return PlayedTurn(whole, called(said) == called(logged), same_calls(said, logged))
    right = not said.tool_calls and worth >= options.match_at
    return PlayedTurn(whole, right, right, parts)


class LoggedEpisode:
    """An episode of one logged conversation."""

    def __init__(self, task: LoggedTask, options: LoggedEpisodes, judges: Judges, patches: int) -> None:
        """Begin. `patches`: turns that may be replaced."""
        self._task, self._options, self._judges, self._patches = task, options, judges, patches
        self._played: list[PlayedTurn] = []
        self._position = Position(task.turns[0].before, task.turns[0].before)
        self._replaced: dict[int, str] = {}
        """By turn: the thought before the logged turn that replaced it."""
        self._waits_for_thought = False
        self._aside_tokens = 0
        self._known: dict[tuple[int, str], dict[str, ScorePart]] = {}
        """By turn and words: what the scores say of them."""

    def asks(self) -> list[Ask]:
        if self._waits_for_thought:
            return [self._thought_ask()]
        if self._over():
            return []
        most, position = self._options.reply_tokens, self._position
        return [Ask(LEARNER, "", most, messages=position.told, tools=self._task.tools, fresh=position.anew)]

    def _over(self) -> bool:
        if len(self._played) == len(self._task.turns):
            return True
        return bool(self._played) and not self._played[-1].matches and len(self._played) - 1 not in self._replaced

    def _thought_ask(self) -> Ask:
        """Return what is asked of whoever writes the thought of a patch, who is told the logged turn."""
        said = _shown(self._logged.said)
        asked = Message(
            "user",
            f"{_talk_of(self._position.history)}\n\nThe right next turn of the assistant is:\n\n{said}\n\n"
            "Write in one or two sentences what the assistant thinks right before it says that. Do not repeat it.",
        )
        own = self._options.patch_writer == "on_policy"
        role, number = (LEARNER, ASIDE) if own else (WRITER, 0)
        return Ask(
            role, "", self._options.thought_tokens, messages=(asked,), conversation=number, fresh=True, aside=own
        )

    @property
    def _logged(self) -> LoggedTurn:
        return self._task.turns[len(self._played) - 1 if self._waits_for_thought else len(self._played)]

    async def score(self, replies: list[Reply]) -> None:
        """Have words scored by what is computed apart. Raises RewardMissing."""
        if self._waits_for_thought or self._logged.said.tool_calls or not self._judges.apart.names:
            return
        text = self._words(replies[0])
        try:
            self._parts(text).update(await self._judges.apart.parts(self._against(), text))
        except ScoringFailed as failed:
            raise RewardMissing(str(failed)) from failed

    def _words(self, reply: Reply) -> str:
        return spoken(reply.message or Message("assistant", reply.text)).content

    def _against(self) -> DatasetRow:
        """Return the row with the logged words as its answer."""
        return replace(self._task.row, answer=self._logged.said.content)

    def _parts(self, text: str) -> dict[str, ScorePart]:
        key = len(self._played), text
        if key not in self._known:
            self._known[key] = self._judges.here.parts(self._against(), text)
        return self._known[key]

    def act(self, replies: list[Reply]) -> None:
        (reply,) = replies
        if self._waits_for_thought:
            self._aside_tokens += reply.tokens
            self._patch(reply.text.replace(THINK, "").replace(THOUGHT, "").strip())
            return
        logged, parts = self._logged.said, {} if self._logged.said.tool_calls else self._parts(self._words(reply))
        turn = compared(logged, reply, self._options, parts, self._judges.here.worth(parts))
        self._played.append(turn)
        if len(self._played) == len(self._task.turns):
            return
        if turn.matches:
            self._go_on(reply.message or Message("assistant", reply.text), anew=False)
        elif len(self._replaced) < self._patches:
            self._waits_for_thought = self._options.patch_writer != "thought_free"
            if not self._waits_for_thought:
                self._patch("")

    def _patch(self, thought: str) -> None:
        """Put the logged turn in the place of the model's last one."""
        said = self._task.turns[len(self._played) - 1].said
        self._waits_for_thought = False
        self._replaced[len(self._played) - 1] = thought
        if thought:
            said = replace(said, content=f"{THINK}\n{thought}\n{THOUGHT}\n\n{said.content}")
        self._go_on(said, anew=True)

    def _go_on(self, said: Message, anew: bool) -> None:
        before = self._task.turns[len(self._played)].before
        history = (*self._position.history, said, *before)
        self._position = Position(history, history if anew else before, anew)

    def turn_rewards(self) -> dict[tuple[str, int], float]:
        """Return what each turn of the model so far is worth."""
        return {(LEARNER, number): turn.reward(self._options) for number, turn in enumerate(self._played)}

    def outcome(self) -> Outcome:
        turns, rewards = len(self._task.turns), self.turn_rewards()
        score = sum(rewards.values()) / turns
        matched = self._matched_first()
        scores = {LEARNER: score}
        if self._options.asks_writer:
            scores[WRITER] = score
        return Outcome(scores, score, matched == turns, rewards, self._facts(matched), self._judged(), self._remarks())

    def _matched_first(self) -> int:
        """Return how many turns matched before the first one that did not."""
        return next((number for number, turn in enumerate(self._played) if not turn.matches), len(self._played))

    def _facts(self, matched: int) -> dict[str, float]:
        progress, success = matched / len(self._task.turns), float(matched == len(self._task.turns))
        facts = {
            "sop": (progress + success) / 2.0,
            "sop_progress": progress,
            "sop_success": success,
            "patches": float(len(self._replaced)),
            "logged_turns": float(len(self._task.turns)),
        }
        if self._options.most_patches and self._options.patch_writer != "thought_free":
            facts["thought_tokens"] = float(self._aside_tokens)
        if self._task.epoch is not None:
            facts[EPOCH] = float(self._task.epoch)
        return facts

    def _judged(self) -> tuple[JudgedAnswer, ...]:
        found = []
        for number, turn in enumerate(self._played):
            parts = {"format": float(turn.format), "type": float(turn.kind), "accuracy": float(turn.accurate)}
            why = {} if turn.accurate else {"accuracy": f"Logged: {_shown(self._task.turns[number].said)[:MOST_SHOWN]}"}
            parts |= {f"words {name}": part.value for name, part in turn.parts.items()}
            why |= {f"words {name}": part.why for name, part in turn.parts.items() if part.why}
            found.append(JudgedAnswer(LEARNER, number, parts, why))
        return tuple(found)

    def _remarks(self) -> dict[tuple[str, int], str]:
        """Return what people read behind turns that were replaced, and behind one that ended the episode."""
        remarks = {}
        for number, thought in self._replaced.items():
            name = self._options.patch_writer.replace("_", "-")
            said = (
                f"{thought} {_shown(self._task.turns[number].said)}"
                if thought
                else _shown(self._task.turns[number].said)
            )
            remarks[LEARNER, number] = f"Patch point: the logged turn replaced this one, {name}: {said[:MOST_SHOWN]}"
        last = len(self._played) - 1
        if self._played and not self._played[-1].matches and last not in self._replaced:
            remarks[LEARNER, last] = "The turn is not the logged one, and the episode ended with it."
        return remarks

    def describe(self) -> dict[str, object]:
        asked = next((one.content for one in self._task.turns[0].before if one.role == "user"), "")
        lines = [line.strip() for line in asked.splitlines() if line.strip()]
        logged = [one for one in conversation_of(self._task.row, self._options.column) if one.role != "system"]
        facts = {
            "question": self._task.row.prompt,
            "turns": str(len(self._task.turns)),
            "logged": _talk_of(tuple(logged)),
        }
        return {"title": (lines or [""])[-1][:120], "facts": facts}


def _talk_of(messages: tuple[Message, ...]) -> str:
    """Return a conversation in words, as people and writers of thoughts read it."""
    return "\n".join(f"{message.role}: {_shown(message)}" for message in messages)


def _shown(message: Message) -> str:
    return "\n".join([*([message.content] if message.content else []), *map(written_call, message.tool_calls)])


class LoggedFamily(RowFamily[LoggedEpisodes]):
    Options = LoggedEpisodes

    def __init__(self, spec: LoggedEpisodes) -> None:
        super().__init__(spec, spec.scores)

    def make(self, task_seed: int, held_out: bool, rng: random.Random) -> Environment:
        line, epoch = self.line_of(task_seed, held_out)
        task = LoggedTask.of(from_line(line), self.options, epoch)
        patches = 0 if held_out else self.options.most_patches
        return LoggedEpisode(task, self.options, Judges(self.scorer, self.apart), patches)
