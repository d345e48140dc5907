"""What people may ask of several runs at once, in words: each verb with its result and why it may not fit. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Bulk:
    """One verb of the bar below a selection. `why_not` is shown where no selected run allows it."""

    verb: str
    label: str
    icon: str
    result: str = ""
    why_not: str = ""


BAR = (
    Bulk("tag", "Tag", "tag"),
    Bulk("start", "Start", "player-play"),
    Bulk("pause", "Pause", "player-pause"),
    Bulk("resume", "Resume", "player-play"),
    Bulk(
        "stop",
        "Stop",
        "player-stop",
        "Each run ends after its current step, with a checkpoint. It cannot be resumed.",
    ),
)
NOT_ARCHIVED = "Only ended runs and drafts can be archived."
MENU = (
    Bulk("clone", "Clone", "copy"),
    Bulk("retry", "Retry", "refresh"),
    Bulk(
        "kill",
        "Kill",
        "ban",
        "Each run ends immediately. Episodes of its current step are discarded; committed steps are kept.",
    ),
    Bulk("untag", "Remove tag", "tag"),
    Bulk("archive", "Archive", "archive", "They are hidden from lists. Restore brings them back.", NOT_ARCHIVED),
    Bulk("restore", "Restore", "archive-off", why_not="None of them is archived."),
    Bulk(
        "delete",
        "Delete",
        "trash",
        "This permanently deletes metrics, trajectories, events, log lines, labels, checkpoints and weights. "
        "Forks that have begun keep their own copies. It cannot be undone.",
        "Only ended runs and drafts can be deleted. Stop or kill them first.",
    ),
)


def possible(run: Mapping[str, Any], archivable: bool) -> list[str]:
    """List the verbs that a run allows now, those that file or delete it among them."""
    filing = ["restore"] if run["archived_at"] else ["archive"] if archivable else []
    return [*run["allowed_actions"], *filing, *(["delete"] if archivable else [])]
