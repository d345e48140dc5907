"""Words of fetches of a hub's datasets: what failed, and what to do about it."""

LOST = "Try again; if it happens again, ask an operator to look at the node's log."
UPLOAD = "Save its rows as JSON lines or Parquet and upload that file."
REASONS = {
    "hub_off": ("No hub configured on the node", "An operator sets FLEXMARL_HUB on every node."),
    "hub_unreachable": ("Hub unreachable", "Try again; an operator may check the node's connection to the hub."),
    "hub_not_found": ("Not found on the hub", "Correct its name, or name the secret of an account with access."),
    "hub_no_revision": ("No such revision", "Name an existing branch, tag or commit."),
    "hub_gated": ("Access not granted", "Ask its owner for access, and name the secret of that account."),
    "hub_mismatch": ("A file is not what the hub said", "Try again; if it happens again, choose another revision."),
    "secret_missing": ("Secret not found", "An operator sets it on every node; or name another one."),
    "no_data": ("No files of rows", UPLOAD),
    "no_configuration": ("No such configuration", "Look it up again, and choose one that is listed."),
    "no_split": ("No such split", "Look it up again, and choose those that are listed."),
    "unreadable_files": ("Files of another format", UPLOAD),
    "too_large": ("Too large", "Choose fewer splits, or ask an operator to raise FLEXMARL_MOST_DATASET_MIB."),
    "state_full": ("Disk full", "An operator frees space on that node or of the database; then try again."),
    "out_of_memory": ("Out of memory", LOST),
    "time_limit": ("Timed out", LOST),
    "gave_up": ("Abandoned", LOST),
    "fault": ("Fetch error", LOST),
}
"""Code of a failed fetch -> what it is called, and what to do."""
