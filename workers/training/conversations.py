"""Conversations of a dataset as training rows of a warm-up; one whose chains are longer than the model's context, or
that the template does not render, is left out."""

import random
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from flexmarl.algorithms.seeds import derive
from flexmarl.contracts.specification.experiment import ExperimentSpec
from flexmarl.language.dataset_rows import from_line
from flexmarl.language.demonstrations import DemonstratedChain, chains_of, conversation_of
from flexmarl.language.renderer import Renderer
from flexmarl.language.templates import TemplateError
from workers.models.families import context_of, shape_of
from workers.models.tokenizer import Spoken
from workers.rollout.environments.base import Family
from workers.training.exported_rows import ExportedRows, check_tokenizers
from workers.training.passes import Passes
from workers.training.warmup import Demonstrations, EnvironmentReplies
from workers.training.wire import TrainRow
from workers.vocabulary import Codec, renderer_of


class DatasetConversations(Passes):
    def __init__(
        self, lines: Sequence[bytes], column: str, renderer: Renderer | None, context: int, seed: int
    ) -> None:  # fmt: skip
        """`context` is the longest chain in tokens; 0: any."""
        super().__init__(lines, seed)
        self._column = column
        self._renderer = renderer
        self._context = context
        self._too_long = 0

    def facts(self) -> dict[str, float]:
        """Return how many conversations were learned from, and how many left out."""
        used, skipped = self.counts()
        return {"warmup_conversations": used, "warmup_skipped": skipped}

    def read(self, line: bytes) -> list[TrainRow]:
        """Return the rows of a conversation; none where it is left out."""
        conversation = conversation_of(from_line(line), self._column)
        if not conversation or self._renderer is None:
            return []
        try:
            chains = chains_of(self._renderer, conversation)
        except TemplateError:
            return []
        if self._context and any(chain.length > self._context for chain in chains):
            self._too_long += 1
            return []
        return list(map(train_row, chains))

    def none_left(self) -> str:
        if self._renderer is None:
            return "warmup.demonstrations: the model has no chat template; name a language model that has one"
        rows = len(self._lines)
        why = f"{self._too_long} are longer than its context of {self._context} tokens" if self._too_long else ""
        others = rows - self._too_long
        other = f"{others} have no words of an assistant, or do not fit the chat template" if others else ""
        said = "; ".join(filter(None, (why, other))) or "there are none"
        return f"warmup.demonstrations: of {rows} conversations none can be learned from: {said}"


def train_row(chain: DemonstratedChain) -> TrainRow:
    """Return a chain as a row whose loss is the cross-entropy of what is sampled in it."""
    spans = [len(ids) for pair in zip(chain.read, chain.sampled, strict=True) for ids in pair]
    return TrainRow(
        prompt=_ids(chain.read),
        response=_ids(chain.sampled),
        logprobs=np.zeros(chain.learned, "<f4").tobytes(),
        allowed=b"",
        temperature=1.0,
        advantages=[1.0] * len(chain.sampled),
        weight=1.0,
        spans=spans,
    )


def _ids(parts: Iterable[Sequence[int]]) -> bytes:
    return np.array([number for part in parts for number in part], "<i4").tobytes()


def demonstrations_of(
    spec: ExperimentSpec, policy: str, spoken: Spoken, family: Family[Any], lines: Sequence[bytes]
) -> Demonstrations:
    """Return what a policy's warm-up learns from: imported rows or those of its dataset, which came as lines, or what
    the environment shows."""
    settings, seed = spec.policies[policy], derive(spec.seed, "warmup", policy)
    if settings.warmup is not None and (imported := settings.warmup.rows) is not None:
        check_tokenizers(imported, spec.roles_of(policy), spoken.tokenizer)
        return ExportedRows(lines, context_of(shape_of(settings)), seed)
    if settings.warmup is not None and (shown := settings.warmup.demonstrations) is not None:
        renderer = renderer_of(spoken.tokenizer, spoken.chat)
        return DatasetConversations(lines, shown.column, renderer, context_of(shape_of(settings)), seed)
    return EnvironmentReplies(family, spec.roles_of(policy), Codec(spoken.tokenizer), random.Random(seed))
