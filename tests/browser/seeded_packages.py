"""Packages for looking at: one in each state that a build can be in."""

from typing import Any
from uuid import UUID

STATES = ("ready", "archived", "failed", "cancelled", "building", "queued")
PACKAGES = {state: UUID(f"01900000-0000-7000-8000-00000000020{place}") for place, state in enumerate(STATES)}
OPTIONS = {
    "type": "object",
    "properties": {"size": {"type": "integer", "minimum": 2, "default": 4}, "kind": {"enum": ["open", "closed"]}},
}
MANIFEST: dict[str, Any] = {
    "version": 1, "python": "3.11.7", "sandbox": "limits",
    "environments": [
        {
            "name": name, "adapter": "textarena", "entry": name, "title": name, "summary": f"The game {name}.",
            "options": OPTIONS, "roles": ["player_0", "player_1"], "opens": ["player_0"],
            "best_score": 1.0, "turns": 16,
        }
        for name in ("Maze-v0", "TicTacToe-v0", "A-game-with-rather-a-long-name-that-has-no-place-to-break-v0")
    ],
    "servers": [
        {
            "name": "mcp-server-time", "entry": "mcp_server_time:main", "title": "mcp-time 2026.10.10",
            "tools": [
                {
                    "name": name, "description": f"{words} in a zone, by its name in the IANA database.",
                    "parameters": {"type": "object", "properties": {"zone": {}, "form": {}}, "required": ["zone"]},
                }
                for name, words in (("get_current_time", "The time"), ("a_tool_with_rather_a_long_name_" * 2, "More"))
            ],
        }
    ],
    "left_out": [{"name": "Wordle-v0", "reason": "LookupError: Resource 'words' not found."}],
}  # fmt: skip
LOCK = [{"name": name, "version": "1.2.3", "sha256": "5e" * 32} for name in ("textarena", "nltk", "rich")]


def packages(owner: Any) -> None:
    """Build, refuse and cancel some, as nodes would."""
    from flexmarl.controlplane.common.store import store_connection
    from flexmarl.store.control import package_rows

    conn, person = store_connection(), (owner.username, str(owner.pk))

    def asked(state: str, version: str) -> Any:
        source = {"type": "requirement", "requirement": f"textarena=={version}", "entry": ""}
        package_rows.create(conn, PACKAGES[state], "default", ("textarena", version), source, person)
        return package_rows.take(conn, "atlas", 10**6) if state != "queued" else None

    built = {"digest": "7d" * 32, "lock": LOCK, "manifest": MANIFEST}
    package_rows.ready(conn, asked("ready", "0.7.4"), built, "Successfully installed textarena-0.7.4")
    package_rows.ready(conn, asked("archived", "0.7.3"), built, "Successfully installed textarena-0.7.3")
    conn.execute("UPDATE store.package SET archived_at = clock_timestamp() WHERE id = %s", [PACKAGES["archived"]])
    package_rows.failed(conn, asked("failed", "9.9"), "not_found", "No matching distribution", "ERROR: No matching")
    asked("cancelled", "0.7.2")
    conn.execute(
        "UPDATE store.package SET state = 'cancelled', reason_text = 'cancelled by ada', "
        "finished_at = clock_timestamp() WHERE id = %s",
        [PACKAGES["cancelled"]],
    )
    package_rows.goes_on(conn, asked("building", "0.7.1"), "installing", "Collecting textarena==0.7.1", 10**6)
    asked("queued", "0.7.0")
