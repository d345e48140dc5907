"""A whole run in memory that learns: the real core decides, and two tables of logits are what it trains.

A speaker names one of some objects with a word, a listener says which object it was. Facts reach the core in random
order, so that under a schedule with a bound rows are as old as that schedule lets them be. Replies come from the
weights that the core pinned, or, where a policy follows, from the newest; gradients are those of the trainer's own
losses, with the corrections and advantages of the specification.
"""

from typing import Any

import torch

from flexmarl.algorithms.losses import Rows
from flexmarl.contracts import commands as c
from flexmarl.contracts.events import Verb
from flexmarl.contracts.status import RunStatus
from flexmarl.contracts.wire import EpisodeOutcome, EpisodeStatus, Origin, SampleRef
from tests.unit.orchestrator.fake_cluster import FakeCluster
from workers.training.objective import Objective, total

OBJECTS = 4
SPEAKER, LISTENER = "speaker", "listener"


class LearningCluster(FakeCluster):
    def __init__(self, spec: Any, seed: int, rate: float, paid: dict[str, float] | None = None) -> None:
        """`rate` is the step along the mean gradient; `paid`: the unit in which a role's own score is counted."""
        super().__init__(spec, seed=seed)
        self._made = torch.Generator().manual_seed(seed)
        self._objective = Objective.of(spec.algorithm.loss, spec.algorithm)
        self._rate = rate
        self._paid = paid or {}
        self.tables = {SPEAKER: [self._start() + self._code()], LISTENER: [self._start()]}
        """Policy -> its logits [what it hears, what it says] by version."""
        self.corrected: list[float] = []
        """Of each step, the share of its rows that the correction truncated or left out."""
        self.clipped: list[float] = []
        """Of each step, the share of its rows that the loss clipped or the correction cut off."""
        self._said: dict[tuple[int, int, str], tuple[int, int, float, int]] = {}

    def _start(self) -> torch.Tensor:
        return 0.3 * torch.randn(OBJECTS, OBJECTS, generator=self._made, dtype=torch.float64)

    def _code(self) -> torch.Tensor:
        """Say what differs from the first word on: else two objects may share a name for good, by luck alone."""
        order = torch.randperm(OBJECTS, generator=self._made)
        return 1.5 * torch.eye(OBJECTS, dtype=torch.float64)[order]

    def start(self) -> None:
        """Play the run to its end."""
        self.verb(Verb.START)
        self.run()
        assert self.status is RunStatus.COMPLETED, self.core.state.lifecycle.reason_text

    def expected(self, version: int = -1) -> float:
        """Return the chance that the listener of a version, the newest one by default, understands its speaker."""
        speaker, listener = (self.tables[name][version].softmax(-1) for name in (SPEAKER, LISTENER))
        return float((speaker @ listener).trace() / OBJECTS)

    def settle(self, number: int, command: Any, group: Any, members: Any = None) -> Any:
        event = super().settle(number, command, group, members)
        if command.origin is not Origin.TRAIN:
            return event
        ending = [episode.member for episode in event.episodes]
        return event.model_copy(update={"episodes": tuple(self._played(command, group.draw, m) for m in ending)})

    def _played(self, command: Any, draw: int, member: int) -> EpisodeOutcome:
        thing = draw % OBJECTS
        word, by_speaker = self._says(command, draw, member, SPEAKER, thing)
        guess, by_listener = self._says(command, draw, member, LISTENER, word)
        score = float(guess == thing)
        scores = {name: self._paid.get(name, 1.0) * score for name in (SPEAKER, LISTENER)}
        samples = tuple(
            SampleRef(role=name, turn=0, tokens=1, reward=scores[name], segments=(version, 1))
            for name, version in ((SPEAKER, by_speaker), (LISTENER, by_listener))
        )
        return EpisodeOutcome(
            member=member, attempt=1, status=EpisodeStatus.FINISHED, team_score=score, scores=scores,
            solved=score == 1.0, samples=samples,
        )  # fmt: skip

    def _says(self, command: Any, draw: int, member: int, policy: str, heard: int) -> tuple[int, int]:
        """Draw a word under the weights that this turn is played with; returns it and their version."""
        pinned = command.pins[policy].version
        version = len(self.tables[policy]) - 1 if policy in command.follows else pinned
        chances = self.tables[policy][version][heard].softmax(-1)
        word = int(torch.multinomial(chances, 1, generator=self._made))
        self._said[draw, member, policy] = (heard, word, float(chances[word].log()), version)
        return word, version

    def made_by(self, sample: Any, policy: str) -> int:
        """Return the version that made a row: with a policy that follows, not always the one that is pinned."""
        return self._said[sample.draw, sample.member, policy][3]

    def commit_step(self, number: int, command: Any, child: Any) -> Any:
        before = len(self.versions[command.policy])
        found = super().commit_step(number, command, child)
        if len(self.versions[command.policy]) > before:
            self.tables[command.policy].append(self._stepped(command))
        return found

    def _stepped(self, command: c.OptimizerStep) -> torch.Tensor:
        """Take one step along the mean gradient of the rows that the core named."""
        table, name = self.tables[command.policy][-1], command.policy
        cut = [s for number in command.micro_batches for s in self.micro_batches[name, number]]
        said = [self._said[s.draw, s.member, name] for s in cut]
        logits = table.clone().requires_grad_()
        heard, words = (torch.tensor([one[place] for one in said]) for place in (0, 1))
        scores = logits.log_softmax(-1)[heard]
        column = torch.ones(len(cut), 1, dtype=torch.float64)
        weights = torch.tensor([[s.weight] for s in cut], dtype=torch.float64)
        rows = Rows.masked(
            scores.gather(1, words[:, None]),
            torch.tensor([[one[2]] for one in said], dtype=torch.float64),
            column,
            torch.tensor([[s.advantages[0]] for s in cut], dtype=torch.float64),
            torch.tensor([[float(command.next_version - 1 - one[3])] for one in said], dtype=torch.float64),
        )
        entropy = -(scores.exp() * scores).sum(-1, keepdim=True)
        objective = self._objective.compared([rows])
        objective = objective.surveyed([rows]) if objective.surveys else objective
        value, sums = total(rows, entropy, weights * objective.aggregate(1)[0], objective, 0.02)
        self.corrected.append(sums.corrected / len(cut))
        self.clipped.append(sums.clipped / len(cut))
        value.backward()
        assert logits.grad is not None
        return table - self._rate * logits.grad / (len(cut) * self._objective.aggregate(1)[1])
