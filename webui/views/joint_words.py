"""Names of what the orchestrator decides and of how far a cohort is, as pages say them."""

from flexmarl.contracts.commands import COMMAND_KINDS

COHORT_STATES = {
    "open": ("muted", "circle-dashed", "Open", "No worker has started on it yet"),
    "playing": (
        "",
        "player-play",
        "Playing",
        "Its episode groups are being played; settled ones may already be in training",
    ),
    "settled": ("", "list-check", "Settled", "Every group is settled; its rows wait to be cut into micro-batches"),
    "cut": ("", "stack-2", "Cut", "Its rows are in micro-batches not yet applied by an optimizer step"),
    "applied": ("ok", "circle-check", "Applied", "Every policy has stepped on it"),
    "abandoned": ("muted", "ban", "Abandoned", "The run ended before its optimizer step; its rows are never trained"),
}
"""State -> (tone, icon, word, meaning)."""

DECISIONS = {kind: about.word for kind, about in COMMAND_KINDS.items()} | {
    "devices_bound": "Give devices",
    "devices_taken": "Take devices",
    "devices_turned": "Turn shared devices",
    "engine_assigned": "Assign a free engine slot",
    "engine_moved": "Move an engine",
    "engine_emptied": "Empty an engine",
    "cohort_settled": "Cohort settled",
    "group_refused": "Refuse a group",
    "group_branched": "Continue episodes",
    "group_rescued": "Inject a success",
    "group_sized": "Size a group",
    "group_limited": "Limit the turns of a group",
    "group_dropped": "Drop a group",
    "group_surplus": "Discard surplus",
    "rows_dropped": "Drop rows",
    "null_step": "Null step",
    "fleet_sized": "Size the fleet",
    "step_carried": "Carry a gradient",
}
"""Kind of a decision -> what it does."""

TRANSITIONS = {
    "ready": ("Rows ready", "A micro-batch is cut: its rows have everything the loss needs"),
    "backward": ("Gradient accumulated", "A micro-batch's gradient is in the accumulator"),
    "step": ("Step", "The optimizer produced the next version"),
    "publish": ("Served", "An engine fully holds a version"),
}
"""Kind of a transition -> (word, meaning), as a policy's data goes."""

DROP_CAUSES = {
    "group_refused": "refused",
    "group_dropped": "dropped",
    "group_surplus": "surplus",
    "stale": "stale",
    "overtaken": "overtaken",
    "not_kept": "of members not kept",
}
"""Cause that rows left training for -> word."""
