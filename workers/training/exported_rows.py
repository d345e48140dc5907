"""Rows that an earlier run exported, as training rows of a warm-up: what its policy sampled is said again.

Behaviour cloning corrects for nothing, so the log-probabilities and advantages that the rows have are not read; nor is
their temperature: the cross-entropy is that of the model's own distribution, over the ids that could be sampled.
"""

from collections.abc import Collection, Sequence
from hashlib import sha256

import msgspec
import numpy as np

from flexmarl.contracts.row_files import ImportedRow, RowLine
from flexmarl.contracts.specification.demonstrations import NamedRows
from flexmarl.contracts.specification.experiment import ExperimentSpec
from workers.training.errors import RefusalCode, TrainerRefusal
from workers.training.passes import Passes
from workers.training.wire import TrainRow

_kept = msgspec.msgpack.Decoder(ImportedRow)
_said = msgspec.json.Decoder(RowLine)


class ExportedRows(Passes):
    """Rows longer than the model's context, or without anything that was sampled, are left out."""

    def __init__(self, lines: Sequence[bytes], context: int, seed: int) -> None:
        """`context` is the longest row in tokens; 0: any."""
        super().__init__(lines, seed)
        self._context = context

    def facts(self) -> dict[str, float]:
        """Return how many rows were learned from, and how many left out."""
        used, skipped = self.counts()
        return {"warmup_rows": used, "warmup_skipped": skipped}

    def read(self, line: bytes) -> list[TrainRow]:
        row = _kept.decode(line)
        ids, sampled = np.frombuffer(row.ids, "<i4"), np.frombuffer(row.mask, np.uint8) == 1
        if not sampled.any() or (self._context and len(ids) > self._context):
            return []
        spans = _said.decode(row.line).spans
        return [
            TrainRow(
                prompt=ids[~sampled].tobytes(),
                response=ids[sampled].tobytes(),
                logprobs=np.zeros(int(sampled.sum()), "<f4").tobytes(),
                allowed=row.allowed,
                temperature=1.0,
                advantages=[1.0] * (len(spans) // 2),
                weight=1.0,
                spans=spans,
            )
        ]

    def none_left(self) -> str:
        most = f"its context of {self._context} tokens" if self._context else "any context"
        return f"warmup.rows: all {len(self._lines)} rows are longer than {most}, or nothing was sampled in them"


def check_tokenizers(shown: NamedRows, roles: Collection[str], tokenizer: bytes, where: str = "warmup.rows") -> None:
    """Refuse rows whose ids are those of another tokenizer than the policy's: they would be other words. `where` names
    the field."""
    own = sha256(tokenizer).hexdigest()
    for role in roles:
        if (theirs := shown.tokenizers.get(role, own)) != own:
            detail = f"{where}: the rows of {role} in {shown.name} are ids of tokenizer {theirs[:12]}"
            rest = f"the policy's is {own[:12]}; name rows of a run with this model and environment, or none"
            raise TrainerRefusal(RefusalCode.TOKENIZER_DIFFERS, f"{detail}, {rest}")


def check_archive(spec: ExperimentSpec, policy: str, tokenizer: bytes) -> None:
    """Refuse rows of another tokenizer than the policy's that its archive of replay begins with."""
    replay = spec.sampling.replay
    if replay.on and replay.begins_with is not None:
        roles = [role for role in spec.roles_of(policy) if spec.agents[role].trainable]
        check_tokenizers(replay.begins_with, roles, tokenizer, "sampling.replay.begins_with")
