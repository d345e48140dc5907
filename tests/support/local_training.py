"""A whole run in one process: the real environment, engine, advantages and trainer, without database or services.

One strictly on-policy cohort per step, which is what the preset `flexmarl` computes: weights, tasks and the seeds of
every draw are those of the same run under `manage.py up`. Only the order in which gradients are added differs, and with
it the last bits. So what learning needs is told in steps and processor time, which the machine's load does not change.
"""

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from flexmarl.algorithms.seeds import episode_seed
from flexmarl.algorithms.task_belief import TaskBelief
from flexmarl.algorithms.task_sampler import PlayedTask, Wanted, all_alike
from flexmarl.contracts.commands import PlayGroups
from flexmarl.contracts.resolve import resolve
from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.contracts.wire import EVALUATION_DRAWS, EpisodeStatus, Origin, PolicyPin
from flexmarl.language.renderer import Renderer
from flexmarl.orchestrator.plan import make_plan
from flexmarl.store.data.groups import SampleRow, SettledGroup
from flexmarl.store.data.spans import steps_of
from workers.child import ChildConfig, IntervalLog
from workers.rollout.datasets import DatasetLines
from workers.rollout.engines.calls import NOTHING_DONE
from workers.rollout.engines.requests import Finished, Request
from workers.rollout.engines.serve import StatePlaneSource
from workers.rollout.engines.torch_engine import TorchEngine
from workers.rollout.engines.wire import CompletionChoice
from workers.rollout.environments.base import Ask, Environment
from workers.rollout.environments.registry import family_of
from workers.rollout.environments.rows import RowFamily
from workers.rollout.episode import EpisodeAttempt, EpisodeOrder, checked, request_of
from workers.rollout.recorder import settled_group
from workers.rollout.speech import Seat, Speech
from workers.rollout.turn_limits import truncated
from workers.rollout.turns import Turn, TurnReply, TurnRequest
from workers.training.trainer import CREATE, Trainer
from workers.training.wire import AccumulateRequest, BindRequest, StepRequest, TrainRow
from workers.vocabulary import Codec, renderer_of

LIFE = "local"
ROWS = 256


@dataclass(frozen=True, slots=True)
class Evaluated:
    """An evaluation on held-out tasks, greedily."""

    step: int
    solved: float
    team_score: float


@dataclass(frozen=True, slots=True)
class Learned:
    """A run that ended: by its target, or with its last step."""

    reached: bool
    step: int
    """Of the evaluation that reached the target; of the last one where none did."""
    best: float
    cpu_s: float


@dataclass(slots=True)
class _Episode:
    """An episode being played."""

    attempt: EpisodeAttempt
    environment: Environment
    speech: Speech
    asks: list[Ask]


class LocalTraining:
    """One run of a specification whose models the project makes itself; `step` and `evaluate` are its whole life."""

    def __init__(self, spec: ExperimentSpec, home: str, device: str = "cpu", lines: DatasetLines | None = None) -> None:
        """Begin. `lines`: the rows of an environment of a dataset; a warm-up learns from those to train on."""
        self.spec = spec
        self.plan = make_plan(spec)
        self.steps_done = 0
        self.rewards: list[float] = []
        """Mean team score of each step's episodes."""
        self.entropy: dict[str, list[float]] = {policy: [] for policy in self.plan.trainable}
        self.gaps: dict[str, float] = {}
        """By policy: the mean difference of trainer's and engine's log-probabilities in its last step."""
        self.evaluations: list[Evaluated] = []
        self.tokens = 0
        """Sampled in training episodes."""
        self.belief = TaskBelief()
        self.facts: dict[str, float] = {}
        """What was done before the first step."""
        self._task_of: dict[int, int] = {}
        """Draw -> task that the sampler chose for it."""
        self.family = family_of(spec.environment)
        if isinstance(self.family, RowFamily):
            self.family.lines = lines
        shown = list(lines.training) if lines is not None else []
        self._trainer = Trainer(spec, 1, LIFE, home, device, IntervalLog())
        self._engine = TorchEngine(device, rows=ROWS)
        document = spec.model_dump(mode="json")
        config = ChildConfig("engine", 1, 1, 1, LIFE, device, 1, "127.0.0.1", "", home, document)
        self._source = StatePlaneSource(self._engine, config)
        self._pins: dict[str, PolicyPin] = {}
        self._codecs: dict[str, Codec] = {}
        self._renderers: dict[str, Renderer | None] = {}
        for policy in spec.policies:
            made = self._trainer.bind(BindRequest(policy, CREATE, demonstrations=shown))
            self.facts |= made.facts
            self._codecs[policy] = Codec(made.tokenizer)
            self._renderers[policy] = renderer_of(made.tokenizer, made.chat)
            self._serve(policy, 0, made.digest)

    @classmethod
    def of_template(cls, template: str, home: str, changes: Mapping[str, Any] | None = None) -> Self:
        return cls(resolve(changes or {}, template=template).spec, home)

    def step(self) -> None:
        """Play a cohort and take one step of every policy on it."""
        batch, step = self.spec.batch, self.steps_done
        first = step * batch.tasks_per_step
        draws = range(first, first + batch.tasks_per_step)
        self._task_of = self._chosen(draws)
        groups = self.play(draws, Origin.TRAIN, batch.episodes_per_task)
        rows: dict[str, list[list[TrainRow]]] = {policy: [] for policy in self.plan.trainable}
        scores = []
        for draw, group in zip(draws, groups, strict=True):
            settled, values = self._judged(group)
            self._observe(draw, settled)
            scores += [outcome.team_score for outcome in settled.event.episodes]
            for policy, own in self._rows(settled, values).items():
                rows[policy].append(own)
        self.rewards.append(sum(scores) / len(scores))
        for policy, found in rows.items():
            if found:  # of a policy that was never asked, the version stays
                self._train(policy, found, step)
        self.steps_done += 1

    def _chosen(self, draws: range) -> dict[int, int]:
        """Return the task of each draw of a step, where the sampler chooses."""
        tasks, members = self.plan.tasks, self.plan.cohort.members
        if not tasks.chosen_from:
            return {}
        wanted = Wanted(self.spec.seed, draws[0], self.steps_done, tasks.chosen_from, len(draws), members, frozenset())
        return dict(zip(draws, tasks.sampler.choose(self.belief, wanted), strict=True))

    def members_of(self, draw: int, members: int) -> int:
        """Return how many members the group of a draw has, where others have so many."""
        return members

    def turns_of(self, draw: int) -> int:
        """Return after how many turns the episodes of a draw end; 0: as many as the environment lets them have."""
        return 0

    def _observe(self, draw: int, settled: SettledGroup) -> None:
        """Count what a group said, and let the sampler see how it ended."""
        episodes, tasks = settled.event.episodes, self.plan.tasks
        self.tokens += sum(sample.tokens for episode in episodes for sample in episode.samples)
        if draw in self._task_of:
            shares = tuple(episode.team_score / tasks.best_score for episode in episodes)
            played = PlayedTask(tasks.chosen_from, self._task_of[draw], self.steps_done, shares, all_alike(episodes))
            tasks.sampler.observe(self.belief, played)

    def train(self, tokens: int, evaluations: int) -> None:
        """Train until so many tokens are sampled, and evaluate as often on the way, equally far apart."""
        marks = [tokens * (number + 1) // evaluations for number in range(evaluations)]
        while marks:
            self.step()
            if self.tokens >= marks[0]:
                self.evaluate()
                marks = [mark for mark in marks if mark > self.tokens]

    def evaluate(self) -> Evaluated:
        """Play the held-out tasks, greedily, as the run does."""
        draws = range(EVALUATION_DRAWS, EVALUATION_DRAWS + self.spec.evaluation.tasks)
        outcomes = [one.outcome for (one,) in self.play(draws, Origin.EVAL, 1) if one.outcome is not None]
        solved = sum(outcome.solved for outcome in outcomes) / len(outcomes)
        score = sum(outcome.team_score for outcome in outcomes) / len(outcomes)
        self.evaluations.append(Evaluated(self.steps_done, solved, score))
        return self.evaluations[-1]

    def play(self, draws: Sequence[int], origin: Origin, members: int) -> list[list[EpisodeAttempt]]:
        """Play episode groups, all at once, turn by turn."""
        seats = self._seats(greedy=origin is Origin.EVAL)
        groups = [
            [self._begin(draw, member, origin, seats) for member in range(self.members_of(draw, members))]
            for draw in draws
        ]
        live = [episode for group in groups for episode in group]
        while live := [episode for episode in live if episode.asks]:
            self._advance(live)
        for group in groups:
            for episode in group:
                attempt = episode.attempt
                if attempt.order.cuts_off(len(attempt.turns)) and episode.environment.asks():
                    attempt.outcome = truncated(len(attempt.turns), (attempt.turns[-1].role, attempt.turns[-1].turn))
                else:
                    attempt.outcome = checked(episode.environment.outcome(), seats)
                attempt.status = EpisodeStatus.FINISHED
        return [[episode.attempt for episode in group] for group in groups]

    def _begin(self, draw: int, member: int, origin: Origin, seats: dict[str, Seat]) -> _Episode:
        held_out, seed = origin is Origin.EVAL, self.spec.seed
        task = (
            self.plan.evaluation_seed(draw - EVALUATION_DRAWS)
            if held_out
            else self.plan.training_seed(self._task_of.get(draw, draw))
        )
        most = 0 if held_out else self.turns_of(draw)
        order = EpisodeOrder(draw, member, 1, task, held_out, seed, 120.0, 120.0, None, most_turns=most)
        own = episode_seed(seed, draw, member)
        random.seed(own)  # what games of packages draw from
        np.random.seed(own % 2**32)
        environment = self.family.make(task, held_out, random.Random(own))
        return _Episode(EpisodeAttempt(order), environment, Speech(seats), environment.asks())

    def _seats(self, greedy: bool) -> dict[str, Seat]:
        found = {}
        for role, agent in self.spec.agents.items():
            policy = self.spec.policy_of(role)
            temperature = 0.0 if greedy else agent.sampling.temperature
            pin, codec = self._pins[policy], self._codecs[policy]
            renderer = self._renderers[policy]
            found[role] = Seat(
                policy, pin, codec, agent.sampling.max_tokens, temperature,
                instructions=agent.instructions, context_tokens=agent.context_tokens, renderer=renderer,
            )  # fmt: skip
        return found

    def _advance(self, live: list[_Episode]) -> None:
        """Answer every open turn, and let the episodes move on."""
        asked = []
        for number, episode in enumerate(live):
            for place, ask in enumerate(episode.asks):
                speech = episode.speech
                turn = request_of(episode.attempt.order, ask, speech, speech.prompt(ask))
                asked.append((f"{number}.{place}", self._opened(episode, place, turn)))
        answers = self._answers(asked)
        for number, episode in enumerate(live):
            replies = []
            for place, ask in enumerate(episode.asks):
                turn, reply = answers[f"{number}.{place}"]
                no = episode.speech.turn_of(ask)
                begins = episode.speech.begins(ask)
                if not ask.aside:
                    episode.attempt.turns.append(
                        Turn(ask.role, no, turn.prompt, turn.allowed, turn.temperature, reply, begins)
                    )
                replies.append(episode.speech.hear(ask, reply.choice))
            episode.environment.act(replies)
            ends = episode.attempt.order.cuts_off(len(episode.attempt.turns))
            episode.asks = [] if ends else episode.environment.asks()

    def _opened(self, episode: "_Episode", place: int, turn: TurnRequest) -> TurnRequest:
        """Return a turn with what its reply begins with."""
        return turn

    def _answers(self, asked: list[tuple[str, TurnRequest]]) -> dict[str, tuple[TurnRequest, TurnReply]]:
        turns = dict(asked)
        self._engine.submit([_request(name, turn) for name, turn in asked])
        done: list[Finished] = []
        while self._engine.busy:
            done += self._engine.step()
        return {
            one.request.request_id: (
                turns[one.request.request_id],
                TurnReply(_choice(one), LIFE, 0.0),
            )
            for one in done
        }

    def _judged(self, group: list[EpisodeAttempt]) -> tuple[SettledGroup, list[list[float]]]:
        """Return a group as it is recorded, and what the core makes of it: the advantage of each turn."""
        order = PlayGroups(pool="local", epoch=1, origin=Origin.TRAIN, groups=(), pins=self._pins, sampling_seed=0)
        settled = settled_group(order, 1, group, self._seats(greedy=False))
        outcomes = settled.event.episodes
        rewards = [
            self.plan.settlement.shaper.shape(
                self.plan.settlement.reply_limits, outcome, self.plan.settlement.rewards(outcome)
            )
            for outcome in outcomes
        ]
        settlement = self.plan.settlement
        return settled, settlement.advantage.estimate(settlement.group_key, outcomes, rewards)

    def _rows(self, settled: SettledGroup, advantages: list[list[float]]) -> dict[str, list[TrainRow]]:
        given = {
            (episode.member, turn.role, turn.turn): advantage
            for episode, own in zip(settled.event.episodes, advantages, strict=True)
            for turn, advantage in zip(episode.samples, own, strict=True)
        }
        rows: dict[str, list[TrainRow]] = {}
        for row in settled.samples:
            if row.role in self.plan.trained_roles:
                own = [given[row.member, row.role, row.turn + number] for number in range(len(row.spans))]
                rows.setdefault(row.policy, []).append(train_row(row, own))
        return rows

    def _train(self, policy: str, groups: list[list[TrainRow]], step: int) -> None:
        size, epoch = self.spec.batch.micro_batch_groups, f"{step}:{LIFE}"
        entropy_coef, numbers, entropy, tokens, gap = self.plan.entropy_coefficient(step), [], 0.0, 0.0, 0.0
        for number, start in enumerate(range(0, len(groups), size)):
            rows = [row for group in groups[start : start + size] for row in group]
            stats = self._trainer.accumulate(AccumulateRequest(policy, epoch, number, entropy_coef, rows)).stats
            entropy, tokens = entropy + stats["entropy_sum"], tokens + stats["tokens"]
            gap += stats["logprob_gap_sum"]
            numbers.append(number)
        rate = self.plan.learning_rate(policy, step)
        made = self._trainer.step(StepRequest(policy, epoch, numbers, step + 1, rate))
        self.entropy[policy].append(entropy / tokens)
        self.gaps[policy] = gap / tokens
        self._serve(policy, made.version, made.digest)

    def _serve(self, policy: str, version: int, digest: str) -> None:
        self._engine.load(policy, version, digest, self._source(policy, digest))
        self._pins[policy] = PolicyPin(version=version, digest=digest)


def _choice(one: Finished) -> CompletionChoice:
    told = {"steps": list(one.steps), "uncertainty": one.uncertainty}
    return CompletionChoice(0, one.token_ids, one.logprobs, one.reason, one.segments, **told)


def _request(name: str, turn: TurnRequest) -> Request:
    begun = turn.begun or NOTHING_DONE
    return Request(
        name, turn.policy, turn.prompt, turn.max_tokens, turn.seed, turn.temperature, turn.allowed, turn.stop,
        turn.pin.version, turn.pin.digest, done=tuple(begun.token_ids), done_logprobs=tuple(begun.logprobs),
        done_segments=tuple(begun.segments), done_uncertainty=tuple(begun.uncertainty), sampling=turn.sampling,
    )  # fmt: skip


def train_row(row: SampleRow, advantages: list[float]) -> TrainRow:
    """Return a recorded row as the trainer takes it."""
    prompt, response, allowed = (np.array(ids, "<i4").tobytes() for ids in (row.prompt, row.response, row.allowed))
    return TrainRow(
        prompt, response, np.array(row.logprobs, "<f4").tobytes(), allowed, row.temperature, advantages, 1.0,
        list(row.segments), f"{row.draw}:{row.role}", row.member, row.turn, [n for span in row.spans for n in span[:2]],
        steps=steps_of(row.spans),
    )  # fmt: skip


def learn(training: LocalTraining, steps: int | None = None) -> Learned:
    """Train to the target of the specification, or for so many steps, or to its last one."""
    budget, began, reached = training.spec.budget, time.process_time(), False
    target, last = budget.target, steps or budget.train_steps
    assert target is not None
    while not reached and training.steps_done < last:
        training.step()
        if training.steps_done % training.spec.evaluation.every_steps == 0:
            reached = value_of(training.evaluate(), target.metric) >= target.value
    best = max(value_of(one, target.metric) for one in training.evaluations)
    return Learned(reached, training.evaluations[-1].step, best, time.process_time() - began)


def value_of(found: Evaluated, metric: str) -> float:
    return found.solved if metric == "eval/solved" else found.team_score
