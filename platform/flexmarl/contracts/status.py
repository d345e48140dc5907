"""The life cycle of a run: states, reasons, verbs and the one table that joins them.

Status and reason are two enums. The driver alone moves a run; a verb is a request and shows as `pending_verb` until
the driver has handled it. `allowed_verbs` is what the API publishes and what a 409 lists. Nothing but a retry leaves
an end, and a completed run has none.
"""

from enum import StrEnum

from flexmarl.contracts.events import Verb


class RunStatus(StrEnum):
    DRAFT = "draft"
    QUEUED = "queued"
    """Wants devices that are not free; the reason text says which."""
    STARTING = "starting"
    RUNNING = "running"
    PAUSING = "pausing"
    PAUSED = "paused"
    RESUMING = "resuming"
    """Gets devices again where it gave them back, and every policy at its committed version; then it runs."""
    STOPPING = "stopping"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    KILLED = "killed"


class RunReason(StrEnum):
    NONE = ""
    WAITING_FOR_DEVICES = "waiting_for_devices"
    STARTING_CHILDREN = "starting_children"
    BINDING_POLICIES = "binding_policies"
    USER_REQUEST = "user_request"
    DEVICES_GIVEN_BACK = "devices_given_back"
    """A paused run has held its devices long enough; it gets others when it is resumed."""
    BUDGET_STEPS = "budget_steps"
    BUDGET_TIME = "budget_time"
    TARGET_REACHED = "target_reached"
    RECOVERING_ENGINE = "recovering_engine"
    RECOVERING_TRAINER = "recovering_trainer"
    WAITING_FOR_SPACE = "waiting_for_space"
    """A disk is full; the work is taken up again by itself once there is room."""
    WAITING_FOR_UPLOAD = "waiting_for_upload"
    """No node stores what a node with a token made; the work is taken up again by itself once one does."""
    MOVING = "moving"
    """A lease was recalled; training goes on until its replacement is ready."""
    EPISODES_FAILED = "episodes_failed"
    COMMAND_FAILED = "command_failed"
    CHILDREN_LOST = "children_lost"
    """Engines or trainers died too often for the run to go on."""
    CANNOT_START = "cannot_start"
    """An engine or a trainer of the run cannot work where it was placed, and none of its kind does elsewhere."""
    OUT_OF_MEMORY = "out_of_memory"
    """An engine or a trainer lacks memory for what the run asks of it."""
    ORCHESTRATOR_ERROR = "orchestrator_error"
    STORE_DIFFERS = "store_differs"
    """The rows do not agree with the log: something was lost or changed behind the driver's back."""


WAITING_OUTSIDE: frozenset[RunReason] = frozenset({RunReason.WAITING_FOR_SPACE, RunReason.WAITING_FOR_UPLOAD})
"""Reasons of a run that waits for what somebody mends outside it."""

STOPPED = "stopped"
"""What people and the API read of a run that somebody stopped before its work was done. In the store it has completed:
its end was orderly and its steps count."""
SHOWN_STATUSES: tuple[str, ...] = (*(status.value for status in RunStatus), STOPPED)
"""Every status that a run may be shown in."""


def shown_status(status: str, reason: str) -> str:
    """Return the status that people and the API read for a stored status and its reason."""
    stopped = status == RunStatus.COMPLETED and reason == RunReason.USER_REQUEST
    return STOPPED if stopped else str(status)


MEMORY_NEXT = "free memory on that host, use fewer devices there, or choose a smaller model or shorter replies"
"""What helps where memory ran out, whoever lacked it."""

SPACE_NEXT = "free some space there; the run then continues automatically"
"""What helps where a disk is full."""

QUOTA_NEXT = (
    "delete checkpoints of this run, or raise FLEXMARL_UPLOAD_QUOTA_GIB on that node; "
    "the run then continues automatically"
)
"""What helps where a run has uploaded as much as it may."""

UPLOAD_NEXT = (
    "see on Pools and nodes that a node agent with the installation's secrets is alive, and read its log; "
    "the run then continues automatically"
)
"""What helps where no node stores what is uploaded."""

TERMINAL: frozenset[RunStatus] = frozenset(
    {RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED, RunStatus.KILLED}
)

SHOWN_TERMINAL: frozenset[str] = frozenset({*TERMINAL, STOPPED})

TRANSITIONS: dict[RunStatus, dict[Verb, RunStatus]] = {
    RunStatus.DRAFT: {Verb.START: RunStatus.QUEUED},
    RunStatus.QUEUED: {Verb.STOP: RunStatus.CANCELLED, Verb.KILL: RunStatus.KILLED},
    RunStatus.STARTING: {Verb.STOP: RunStatus.STOPPING, Verb.KILL: RunStatus.KILLED},
    RunStatus.RUNNING: {Verb.PAUSE: RunStatus.PAUSING, Verb.STOP: RunStatus.STOPPING, Verb.KILL: RunStatus.KILLED},
    RunStatus.PAUSING: {Verb.RESUME: RunStatus.RUNNING, Verb.STOP: RunStatus.STOPPING, Verb.KILL: RunStatus.KILLED},
    RunStatus.PAUSED: {Verb.RESUME: RunStatus.RESUMING, Verb.STOP: RunStatus.STOPPING, Verb.KILL: RunStatus.KILLED},
    RunStatus.RESUMING: {Verb.PAUSE: RunStatus.PAUSING, Verb.STOP: RunStatus.STOPPING, Verb.KILL: RunStatus.KILLED},
    RunStatus.STOPPING: {Verb.KILL: RunStatus.KILLED},
    RunStatus.COMPLETED: {},
    RunStatus.FAILED: {Verb.RETRY: RunStatus.QUEUED},
    RunStatus.CANCELLED: {Verb.RETRY: RunStatus.QUEUED},
    RunStatus.KILLED: {Verb.RETRY: RunStatus.QUEUED},
}
"""Status -> verbs that are legal in it, each with the status it leads to at once."""

GOALS: dict[Verb, frozenset[RunStatus]] = {
    Verb.START: frozenset({RunStatus.RUNNING}),
    Verb.PAUSE: frozenset({RunStatus.PAUSED}),
    Verb.RESUME: frozenset({RunStatus.RUNNING}),
    Verb.STOP: frozenset({RunStatus.COMPLETED, RunStatus.CANCELLED}),
    Verb.KILL: frozenset({RunStatus.KILLED}),
    Verb.RETRY: frozenset({RunStatus.RUNNING}),
}
"""Statuses in which a verb has got what it wanted."""

INTERNAL_MOVES: dict[RunStatus, frozenset[RunStatus]] = {
    RunStatus.DRAFT: frozenset(),
    RunStatus.QUEUED: frozenset({RunStatus.STARTING, RunStatus.FAILED}),
    RunStatus.STARTING: frozenset({RunStatus.RUNNING, RunStatus.FAILED}),
    RunStatus.RUNNING: frozenset({RunStatus.STOPPING, RunStatus.FAILED}),
    RunStatus.PAUSING: frozenset({RunStatus.PAUSED, RunStatus.FAILED}),
    RunStatus.PAUSED: frozenset({RunStatus.FAILED}),
    RunStatus.RESUMING: frozenset({RunStatus.RUNNING, RunStatus.FAILED}),
    RunStatus.STOPPING: frozenset({RunStatus.COMPLETED, RunStatus.CANCELLED, RunStatus.FAILED}),
    RunStatus.COMPLETED: frozenset(),
    RunStatus.FAILED: frozenset(),
    RunStatus.CANCELLED: frozenset(),
    RunStatus.KILLED: frozenset(),
}
"""Moves the driver makes by itself: devices granted, children ready, budget used up, drained, broken."""


def may_move(status: RunStatus, to: RunStatus) -> bool:
    """Tell whether the driver may take a run from one status to another without a verb."""
    return to in INTERNAL_MOVES[status]


def allowed_verbs(status: RunStatus) -> tuple[Verb, ...]:
    """List the verbs that are legal in a status, in the order of the table."""
    return tuple(TRANSITIONS[status])


def next_status(status: RunStatus, verb: Verb) -> RunStatus:
    """Return the status a verb leads to. Raises ValueError when the verb is illegal in `status`."""
    try:
        return TRANSITIONS[status][verb]
    except KeyError:
        allowed = ", ".join(allowed_verbs(status)) or "none"
        raise ValueError(f"{verb} is not allowed while {status}; allowed: {allowed}") from None
