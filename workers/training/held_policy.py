"""A policy that a trainer holds, and what is said of it."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from flexmarl.contracts.specification.resources import Pace
from workers.models.tokenizer import Spoken
from workers.training.learner import Learner
from workers.training.version_store import StoredVersion
from workers.training.wire import BindReply, StepReply


@dataclass
class HeldPolicy:
    """A policy this trainer holds."""

    version: int
    stored: StoredVersion
    tokenizer: Spoken
    learner: Learner | None
    """None for a policy that nobody trains."""
    created: BindReply | None = None
    """The reply that made version 0, while it is the one held."""
    stepped: dict[tuple[object, ...], StepReply] = field(default_factory=dict)
    """The last step asked for, and its answer."""
    resumed: tuple[str, BindReply] | None = None
    """Ticket that it was taken up by, and the answer."""


def reply_of(policy: str, held: HeldPolicy, created: bool = False, facts: dict[str, float] | None = None) -> BindReply:
    """Return what is said of a policy that is held now."""
    return BindReply(
        policy=policy,
        version=held.version,
        digest=held.stored.weights,
        state=held.stored.state,
        created=created,
        tokenizer=held.tokenizer.tokenizer,
        chat=held.tokenizer.chat,
        facts=facts or {},
    )


def rest_of(held: HeldPolicy, behind: Mapping[int, str]) -> dict[str, object]:
    """Return what comes back with a policy that is suspended, beside its learner. `behind`: what is written yet."""
    return {
        "version": held.version,
        "weights": held.stored.weights,
        "state": held.stored.state,
        "behind": {str(version): state for version, state in behind.items()},
    }


def cpu_of(pace: Pace, ranks: int, since: float) -> float:
    """Return the processor seconds since a mark; 0 of work that waits for a pace or for other ranks, not for cores."""
    return 0.0 if ranks > 1 or pace.micro_batch_s or pace.row_s else time.process_time() - since


def keep_pace(began: float, seconds: float) -> None:
    """Wait until a declared service time is over."""
    left = began + seconds - time.time()
    if left > 0:
        time.sleep(left)
