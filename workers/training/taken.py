"""What was taken into a gradient: how a micro-batch is told from another, and how committed steps are taken again."""

import hashlib
from collections.abc import Callable, Sequence

import msgspec

from workers.training.held_replies import HeldReplies
from workers.training.learner import Learner
from workers.training.trained_model import TokenScorer
from workers.training.version_store import VersionStore
from workers.training.wire import RedoStep, TrainRow


def redo(
    learner: Learner,
    step: RedoStep,
    store: VersionStore,
    reference: TokenScorer | None = None,
    replies: Callable[[], HeldReplies] | None = None,
) -> None:
    """Take a committed step again: the optimizer's state is made anew, the weights are the committed ones.

    Raises StateError when those weights are not on the store.
    """
    accumulator = learner.accumulator
    accumulator.open(f"redo:{step.version}")
    for batch in sorted(step.batches, key=lambda own: own.micro_batch):
        content = content_of(batch.rows)
        learner.accumulate(
            accumulator.epoch, batch.micro_batch, content, batch.rows, batch.entropy_coef, step.version - 1, reference,
            batch.proximal, replies().know(batch.grammars) if replies is not None and batch.grammars else None,
        )  # fmt: skip
    learner.step(step.learning_rate)
    learner.parameters.take(store.weights(step.digest))


def content_of(rows: Sequence[TrainRow]) -> bytes:
    """Return what identifies a micro-batch's rows, whatever their order."""
    content = hashlib.blake2b(digest_size=16)
    for encoded in sorted(map(msgspec.msgpack.encode, rows)):
        content.update(hashlib.blake2b(encoded, digest_size=16).digest())
    return content.digest()
