"""Query parameters of trajectory lists."""

from flexmarl.controlplane.common.api.filters import Parameter
from flexmarl.controlplane.telemetry.trajectories.filters import BREAKS, ORDERINGS

FILTERS = (
    Parameter("origin", "Why it was played: `train` when absent.", choices=("train", "eval")),
    Parameter("step", "Train step it was played for, from 1; with `origin=eval`, after which.", "integer"),
    Parameter("draw", "Episode group.", "integer"),
    Parameter("status", "How it ended.", choices=("finished", "failed", "cancelled")),
    Parameter("solved", "Solved or not.", "boolean"),
    Parameter("reward__gte", "Smallest team score.", "number"),
    Parameter("reward__lte", "Largest team score.", "number"),
    Parameter("agent", "Role whose own score `agent_reward__gte` and `agent_reward__lte` bound."),
    Parameter("agent_reward__gte", "Smallest score of `agent`.", "number"),
    Parameter("agent_reward__lte", "Largest score of `agent`.", "number"),
    Parameter("turns__gte", "Fewest turns.", "integer"),
    Parameter("turns__lte", "Most turns.", "integer"),
    Parameter("tokens__gte", "Fewest tokens.", "integer"),
    Parameter("tokens__lte", "Most tokens.", "integer"),
    Parameter("duration_s__gte", "Shortest duration in seconds.", "number"),
    Parameter("duration_s__lte", "Longest duration in seconds.", "number"),
    Parameter("version", "`<policy>:<version>` it was played with; may be repeated, all must hold.", many=True),
    Parameter("search", "Words of the task's title, all of them; the last may be incomplete."),
    Parameter("said", "Words that were said in the episode, all of them; the last may be incomplete."),
    Parameter("said_by", "Role that said all the words of `said` in one turn."),
    Parameter("broken", "Cause by which a chain broke; `any` for any cause.", choices=BREAKS),
    Parameter("label", "Label given by a user; `any` for any label."),
)
ORDERING = Parameter(
    "ordering",
    "Order of the rows; `-draw`, the newest first, when absent.",
    choices=tuple(f"{sign}{name}" for name in ORDERINGS for sign in ("-", "")),
)
