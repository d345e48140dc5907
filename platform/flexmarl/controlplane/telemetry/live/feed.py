"""What happened in a run: its log, and the lines written for people."""

from typing import Any

from flexmarl.controlplane.common.times import rfc3339
from flexmarl.controlplane.runs.models import LoggedEvent, Note, Run

DEFAULT_LIMIT = 100
MAX_LIMIT = 1000


def events(
    run: Run, after: int = 0, limit: int = DEFAULT_LIMIT, kinds: list[str] | None = None, bodies: bool = False
) -> dict[str, Any]:
    """Return the log behind a sequence number, in order, each event with its notes. `next` is the `after` to go on."""
    rows = LoggedEvent.objects.filter(run_id=run.no, seq__gt=after).order_by("seq")
    if kinds:
        rows = rows.filter(kind__in=kinds)
    if not bodies:
        rows = rows.defer("body")
    found = list(rows[:limit])
    lines: dict[int, list[dict[str, Any]]] = {}
    if found:
        said = Note.objects.filter(run_id=run.no, seq__gte=found[0].seq, seq__lte=found[-1].seq)
        for note in said.order_by("seq", "ord"):
            lines.setdefault(note.seq, []).append(_line(note))
    results = [
        {
            "seq": event.seq,
            "at": rfc3339(event.at),
            "kind": event.kind,
            **_who(lines.get(event.seq, [])),
            "notes": lines.get(event.seq, []),
            **({"body": _shown(event.body)} if bodies else {}),
        }
        for event in found
    ]
    return {"results": results, "next_after": found[-1].seq if found else after, "seq": run.state.seq}


def _shown(body: dict[str, Any]) -> dict[str, Any]:
    """Return an event's body without what only its node has to know; old logs name the folder of a checkpoint."""
    return {name: value for name, value in body.items() if (body.get("kind"), name) != ("checkpoint_written", "path")}


def notes(run: Run, limit: int = DEFAULT_LIMIT, after: int = 0) -> list[dict[str, Any]]:
    """Return the newest lines for people, newest first."""
    rows = Note.objects.filter(run_id=run.no, seq__gt=after).order_by("-seq", "-ord")[:limit]
    return [{"seq": note.seq, **_line(note)} for note in rows]


def _who(lines: list[dict[str, Any]]) -> dict[str, str]:
    """Say of an event who did it, to what and by which request: what its first line says that names somebody."""
    named = next((line for line in lines if line["actor"] or line["target"]), None)
    return {name: named[name] if named else "" for name in ("actor", "target", "cause")}


def _line(note: Note) -> dict[str, Any]:
    return {
        "at": rfc3339(note.at),
        "level": note.level,
        "actor": note.actor,
        "target": note.target,
        "cause": note.cause,
        "text": note.text,
    }
