"""The keys of the pages: the dialog on `?`, the table in the help, and what scripts listen to say the same.

Single letters can be turned off; a test presses each key on a page that names it.
"""

from typing import NamedTuple


class Key(NamedTuple):
    """Keys pressed one after the other (or with a modifier), and what they do."""

    keys: tuple[str, ...]
    words: str
    where: str = "everywhere"


RUN_PAGES = frozenset(
    {
        "run",
        "metrics",
        "agents",
        "agent",
        "trajectories",
        "trajectory",
        "pipeline",
        "load",
        "timeline",
        "events",
        "config",
    }
    | {"checkpoints", "attempts", "playground", "what_if", "trajectory_compare", "sessions", "session"}
)
LIST_PAGES = frozenset(
    {
        "runs",
        "queue",
        "cluster",
        "trajectories",
        "tokens",
        "serving_keys",
        "audit",
        "members",
        "checkpoints",
        "simulations",
        "agent_definitions",
        "teams",
        "models",
        "datasets",
        "experiments",
        "sweeps",
        "packages",
        "sessions",
    }
)
TRAJECTORY_PAGES = frozenset({"trajectories", "trajectory", "trajectory_compare"})
GROUPS = (
    ("everywhere", "Everywhere", None),
    ("lists", "Lists", LIST_PAGES),
    ("run", "Pages of a run", RUN_PAGES),
    ("trajectory", "Trajectories", TRAJECTORY_PAGES),
)
"""(where, heading, route names of pages; None: all)."""
KEYS = (
    Key(("Ctrl", "K"), "Search or command"),
    Key(("/",), "Search this page"),
    Key(("g", "h"), "Home"),
    Key(("g", "r"), "Runs"),
    Key(("g", "q"), "Queue"),
    Key(("g", "c"), "Pools and nodes"),
    Key(("g", "n"), "New run"),
    Key(("g", "s"), "Simulations"),
    Key(("g", "m"), "Models"),
    Key(("g", "a"), "Agents"),
    Key(("?",), "Keys of this page"),
    Key(("j",), "Next row", "lists"),
    Key(("k",), "Previous row", "lists"),
    Key(("x",), "Select the row", "lists"),
    Key(("Enter",), "Open the row", "lists"),
    Key(("[",), "Previous step", "run"),
    Key(("]",), "Next step", "run"),
    Key(("1", "…", "7"), "Tab by position", "run"),
    Key(("v",), "Next view of the tab", "run"),
    Key(("Space",), "Follow the run, or freeze the figures", "run"),
    Key(("{",), "Previous member of the group", "trajectory"),
    Key(("}",), "Next member of the group", "trajectory"),
    Key(("t",), "Token colours", "trajectory"),
    Key(("p",), "Replay turn by turn, or pause", "trajectory"),
    Key((",",), "Previous turn of the replay", "trajectory"),
    Key((".",), "Next turn of the replay", "trajectory"),
    Key(("e",), "Expand everything", "trajectory"),
    Key(("c",), "Compare the selection; again to close", "trajectory"),
)


def of(route: str) -> list[tuple[str, list[Key]]]:
    """The keys that a page knows, by group."""
    return [
        (heading, [key for key in KEYS if key.where == where])
        for where, heading, pages in GROUPS
        if pages is None or route in pages
    ]


def everything() -> list[tuple[str, list[Key]]]:
    """All keys, by group."""
    return [(heading, [key for key in KEYS if key.where == where]) for where, heading, _ in GROUPS]
