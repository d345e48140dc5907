"""Names of what the orchestrator decides and of how far a cohort is, as pages say them."""

COHORT_STATES = {
    "open": ("muted", "circle-dashed", "Open", "No worker has taken a part of it yet"),
    "playing": (
        "",
        "player-play",
        "Playing",
        "Its episode groups are played; those that settled may be trained already",
    ),
    "settled": ("", "list-check", "Settled", "Every group is settled; its rows wait for their cut"),
    "cut": ("", "stack-2", "Cut", "Its rows are in micro-batches that a step has not applied yet"),
    "applied": ("ok", "circle-check", "Applied", "Every policy has stepped on it"),
    "abandoned": ("muted", "ban", "Abandoned", "Its run ended before its step; its rows are never trained"),
}
"""State -> (tone, icon, word, meaning)."""

DECISIONS = {
    "request_devices": "Ask for devices",
    "release_lease": "Give a device back",
    "keep_checkpoints": "Say which checkpoints stay",
    "cut_micro_batch": "Cut a micro-batch",
    "host_lease": "Start a child",
    "play_groups": "Play groups",
    "hold_groups": "Hold surplus, or let it go on",
    "bind_policy": "Bind a policy",
    "join_gang": "Join a policy's gang",
    "suspend_policy": "Suspend a policy",
    "devices_bound": "Give devices",
    "devices_taken": "Take devices",
    "devices_turned": "Turn shared devices",
    "sleep_engine": "Let an engine sleep",
    "wake_engine": "Wake an engine",
    "vacate_trainer": "Empty a trainer",
    "accumulate": "Accumulate",
    "optimizer_step": "Step",
    "load_weights": "Serve weights",
    "unload_policy": "Serve no more",
    "engine_assigned": "Give a free place",
    "engine_moved": "Move an engine",
    "engine_emptied": "Empty an engine",
    "write_checkpoint": "Write a checkpoint",
    "cohort_settled": "Cohort settled",
    "group_refused": "Refuse a group",
    "group_dropped": "Drop a group",
    "group_surplus": "Leave surplus out",
    "rows_dropped": "Drop rows",
    "null_step": "No step",
    "step_carried": "Carry a gradient",
}
"""Kind of a decision -> what it does."""

TRANSITIONS = {
    "ready": ("Rows ready", "A micro-batch is cut: its rows have all that the loss needs"),
    "backward": ("Gradient taken", "A micro-batch's gradient is in the accumulator"),
    "step": ("Step", "The optimizer made the next version"),
    "publish": ("Served", "An engine wholly holds a version"),
}
"""Kind of a transition -> (word, meaning), as a policy's data goes."""

DROP_CAUSES = {
    "group_refused": "refused",
    "group_dropped": "dropped",
    "group_surplus": "surplus",
    "stale": "too old",
    "overtaken": "overtaken",
}
"""Cause that rows left training for -> word."""
