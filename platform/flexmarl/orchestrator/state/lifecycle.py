"""Where a run stands: status and reason, epoch, attempt, the last verb, its pause and how it ends. Owner: `run`."""

from dataclasses import dataclass, field

from flexmarl.contracts.events import Verb
from flexmarl.contracts.status import RunReason, RunStatus


@dataclass(slots=True)
class RequestedVerb:
    """The last accepted verb and its author; events that follow from it name this author."""

    verb: Verb
    operation: str
    actor: str
    cause: str
    open: bool = True
    """Its outcome has not been reported yet."""


@dataclass(slots=True)
class PauseState:
    """State of the pause of a run: pausing, paused or resuming."""

    frozen: bool = False
    """Open draws are not played: their episodes are counted as cancelled until they are proposed again."""
    hold_s: float | None = None
    since: float | None = None
    """When the run was paused; its clocks stand still until it runs again."""
    release_at: float | None = None
    """When its devices are released."""


@dataclass(slots=True)
class AttemptState:
    """Number of the current or last attempt, and whether it is open."""

    no: int = 0
    open: bool = False


@dataclass(slots=True)
class Ending:
    """Why a run that stops or fails will end once its devices are released."""

    reason: RunReason = RunReason.NONE
    text: str = ""
    uncertain_rows: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Policy -> rows and tokens of its step that may have been committed while the run ended."""
    uncertain_replayed: dict[str, int] = field(default_factory=dict)
    """Policy -> replayed rows of that step."""


@dataclass(slots=True)
class Lifecycle:
    status: RunStatus = RunStatus.DRAFT
    reason: RunReason = RunReason.NONE
    reason_text: str = ""
    epoch: int = 1
    attempt: AttemptState = field(default_factory=AttemptState)
    requested_verb: RequestedVerb | None = None
    pause: PauseState = field(default_factory=PauseState)
    ending: Ending = field(default_factory=Ending)
