"""Why a trainer refuses a request. A refusal changes nothing: what was held before is held after."""

from enum import StrEnum

from workers.transfer.base import StateError, StateFull


class RefusalCode(StrEnum):
    NOT_BOUND = "not_bound"
    """The trainer does not hold the policy, or no longer knows its state; bind it."""
    NOT_TRAINABLE = "not_trainable"
    """Every agent of the policy is frozen."""
    OTHER_ACCUMULATOR = "other_accumulator"
    """The request is meant for another epoch of the accumulator."""
    DUPLICATE = "duplicate"
    """A micro-batch of this number is in the accumulator with other rows."""
    OUT_OF_ORDER = "out_of_order"
    """The run is ordered, and a later micro-batch is in the sum already."""
    OTHER_MICRO_BATCHES = "other_micro_batches"
    """The accumulator does not hold exactly the micro-batches named."""
    OTHER_VERSION = "other_version"
    """The version asked for does not follow the version held."""
    MALFORMED_ROW = "malformed_row"
    NONFINITE_ROW = "nonfinite_row"
    OTHER_GRAMMAR = "other_grammar"
    """The masks that a row was drawn under cannot be made here, or do not allow what was drawn."""
    NONFINITE_GRADIENT = "nonfinite_gradient"
    STATE = "state"
    """The state plane does not hold, or holds damaged, what a request names."""
    STATE_FULL = "state_full"
    """There is no room for a version or a checkpoint; nothing of it was kept."""
    NO_DEMONSTRATIONS = "no_demonstrations"
    """A warm-up was asked for, and the environment has nothing to show."""
    UNSUPPORTED_MODEL = "unsupported_model"
    TOKENIZER_DIFFERS = "tokenizer_differs"
    """The tokenizer names more ids than the model's embedding has rows, or rows of a warm-up are ids of another one."""
    WRONG_ADAPTER = "wrong_adapter"
    """An adapter does not fit the weights it is to be laid over, or is not of the policy's kind."""
    GANG_INCOMPLETE = "gang_incomplete"
    """Not every rank of the policy's gang was there in time."""
    RANK_LOST = "rank_lost"
    """A rank of the policy's gang is gone: its accumulator is void, and the policy is held no more."""
    SUPERSEDED = "superseded"
    """Asked for before the trainer's device was given up, and come late."""
    OUT_OF_MEMORY = "out_of_memory"
    """Memory ran out; the policy is held no more, and bound again from what is on disk."""


CONFLICTS = frozenset(
    {
        RefusalCode.NOT_BOUND,
        RefusalCode.OTHER_ACCUMULATOR,
        RefusalCode.DUPLICATE,
        RefusalCode.OUT_OF_ORDER,
        RefusalCode.OTHER_MICRO_BATCHES,
        RefusalCode.OTHER_VERSION,
        RefusalCode.GANG_INCOMPLETE,
        RefusalCode.RANK_LOST,
        RefusalCode.SUPERSEDED,
    }
)
"""The request is sound but meant for another state of the trainer (409); others are wrong in themselves (422)."""


def refusal_of(error: StateError) -> "TrainerRefusal":
    """Return what a trainer answers when the state plane cannot do what a request needs."""
    code = RefusalCode.STATE_FULL if isinstance(error, StateFull) else RefusalCode.STATE
    return TrainerRefusal(code, str(error))


def status_of(code: RefusalCode) -> int:
    """Return the HTTP status of a refusal; those for lack of memory (503) or space (507) may be asked again."""
    if code is RefusalCode.OUT_OF_MEMORY:
        return 503
    if code is RefusalCode.STATE_FULL:
        return 507
    return 409 if code in CONFLICTS else 422


class TrainerRefusal(Exception):
    """Raised by the trainer's verbs; carried to the node as `wire.Refusal`."""

    def __init__(
        self, code: RefusalCode, detail: str, accumulator: str = "", micro_batches: tuple[int, ...] = ()
    ) -> None:
        super().__init__(code, detail)
        self.code = code
        self.detail = detail
        self.accumulator = accumulator
        self.micro_batches = micro_batches

    def __str__(self) -> str:
        return f"{self.code}: {self.detail}"
