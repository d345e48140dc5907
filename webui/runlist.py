"""The list of runs as words: views, chips, columns, orders. Pure: a query string in, words and addresses out.

The names of filters are those of the REST list, so a page's query string is also a query of the API, a saved view and
the filter of a bulk verb.
"""

import re
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.http import QueryDict

from flexmarl.contracts.status import SHOWN_STATUSES

OWN = ("cursor", "columns", "format", "project", "ordering")
"""Parameters of the page that narrow nothing."""
DEFAULT_ORDERING = "-created_at"


class RunListView(NamedTuple):
    word: str
    statuses: tuple[str, ...] = ()
    mine: bool = False


VIEWS = (
    RunListView("All"),
    RunListView("Mine", mine=True),
    RunListView("Active", ("starting", "running", "pausing", "resuming", "stopping")),
    RunListView("Waiting", ("draft", "queued")),
    RunListView("Paused", ("paused",)),
    RunListView("Failed", ("failed",)),
)


class Filter(NamedTuple):
    """One thing the list can be narrowed by. `kind`: text, choice, time, config or metric."""

    name: str
    words: str
    menu: str
    kind: str = "text"
    many: bool = False


FILTERS = (
    Filter("status", "State is", "State", "choice", True),
    Filter("owner", "Owner is", "Owner", many=True),
    Filter("tag", "Tag is", "Tag", many=True),
    Filter("template", "Template is", "Template", "choice", True),
    Filter("preset", "Preset is", "Preset", "choice", True),
    Filter("environment", "Environment is", "Environment", "choice", True),
    Filter("experiment", "Experiment is", "Experiment"),
    Filter("name__ic", "Name contains", "Name"),
    Filter("created_at__gte", "Created after", "Created after", "time"),
    Filter("started_at__gte", "Started after", "Started after", "time"),
    Filter("finished_at__gte", "Ended after", "Ended after", "time"),
    Filter("created_at__lte", "Created before", "Created before", "time"),
    Filter("archived", "Archived is", "Archived", "choice"),
    Filter("config", "", "Configuration", "config"),
    Filter("metric", "", "Newest value", "metric"),
)
OTHER = {
    "q": "Name, key, notes or tag contains", "name": "Name is", "key": "Key is", "external_id": "External id is",
    "parent": "Cloned from", "model": "Of the model", "created_at__lt": "Created before",
    "started_at__lte": "Started before", "finished_at__lte": "Ended before",
}  # fmt: skip
SIGNS = {"": "is", "__n": "is not", "__gte": "≥", "__lte": "≤"}


class Column(NamedTuple):
    """A column. `order` is its ordering, without direction; `fixed` ones cannot be left out; `wide` ones begin so."""

    name: str
    head: str
    order: str = ""
    number: bool = False
    fixed: bool = False
    shown: bool = True


COLUMNS = (
    Column("run", "Run", "name", fixed=True),
    Column("state", "State", "status", fixed=True),
    Column("verdict", "Verdict"),
    Column("progress", "Progress", "step"),
    Column("eta", "ETA", number=True),
    Column("reward", "Team reward", "reward", number=True),
    Column("agents", "Reward per agent"),
    Column("evaluation", "Evaluation", number=True),
    Column("step_time", "Step time", number=True, shown=False),
    Column("tokens", "Tokens/s", number=True),
    Column("devices", "Devices", number=True),
    Column("preset", "Preset", shown=False),
    Column("tags", "Tags", shown=False),
    Column("owner", "Owner"),
    Column("created", "Created", "created_at", shown=False),
)


def address(path: str, query: QueryDict) -> str:
    """Write an address with a query, without a `?` when it is empty."""
    return f"{path}?{query.urlencode(safe='/:@,')}" if query else path


def having(query: QueryDict, drop: Iterable[str] = ("cursor",), **changes: Any) -> QueryDict:
    """Copy a query with other values; an empty value takes the parameter away."""
    made = query.copy()
    for name in [*drop, *changes]:
        made.pop(name, None)
    for name, value in changes.items():
        if value:
            made.setlist(name, [value] if isinstance(value, str) else list(value))
    return made


def narrowing(query: QueryDict) -> QueryDict:
    """Keep the parameters that narrow the list."""
    made = having(query, OWN)
    for name in [name for name in made if not any(made.getlist(name))]:
        del made[name]
    return made


def views(path: str, query: QueryDict, counts: dict[str, tuple[int, int]], me: str) -> list[dict[str, Any]]:
    """Each built-in view with its count; `counts` is status -> (runs, runs of mine)."""
    now = _normal(narrowing(query))
    found = []
    for view in VIEWS:
        wanted = QueryDict(mutable=True)
        wanted.setlist("status", list(view.statuses))
        if view.mine:
            wanted["owner"] = me
        kept = having(wanted, [] if view.statuses else ["status"], ordering=query.get("ordering", ""))
        pairs = [pair for status, pair in counts.items() if not view.statuses or status in view.statuses]
        found.append(
            {
                "label": view.word,
                "count": sum(pair[1] if view.mine else pair[0] for pair in pairs),
                "url": address(path, kept),
                "on": now == _normal(narrowing(kept)),
            }
        )
    return found


def saved(path: str, query: QueryDict, rows: Iterable[dict[str, Any]], me: str) -> list[dict[str, Any]]:
    """The saved views, each with whether it is the one shown."""
    now = _normal(narrowing(query))
    return [
        {
            **row,
            "link": f"{path}?{row['query']}" if row["query"] else path,
            "on": now == _normal(narrowing(QueryDict(row["query"]))),
            "mine": row["owner"] == me,
        }
        for row in rows
    ]


def _normal(query: QueryDict) -> list[tuple[str, list[str]]]:
    return sorted((name, sorted(values)) for name, values in query.lists())


def chips(path: str, query: QueryDict) -> list[dict[str, str]]:
    """The filters in force in words, each with the address that lifts it."""
    known = {one.name: one.words for one in FILTERS} | OTHER
    found = []
    for name, values in narrowing(query).lists():
        words = known.get(name)
        if words is None:
            subject, sign = _family_words(name)
            words = f"{subject} {sign}"
        joined = " and " if name == "tag" else " or "
        shown = joined.join(_value_words(name, value) for value in values if value)
        found.append({"text": words, "value": shown, "url": address(path, having(query, ["cursor", name]))})
    return found


def _family_words(name: str) -> tuple[str, str]:
    subject = name.partition(".")[2].replace(":last", "")
    for suffix in ("__gte", "__lte", "__n"):
        if subject.endswith(suffix):
            return subject.removesuffix(suffix), SIGNS[suffix]
    return subject, SIGNS[""]


def _value_words(name: str, value: str) -> str:
    if "_at__" in name:
        return value[:16].replace("T", " ")
    if name == "archived":
        return {"true": "yes", "any": "yes or no"}.get(value, value)
    return value.replace("_", " ") if name == "status" else value


def columns(query: QueryDict, *, verdicts: bool = True) -> list[Column]:
    """The columns to show: those named in the address, else those that begin shown."""
    named = query.get("columns", "")
    chosen = set(named.split(",")) if named else {column.name for column in COLUMNS if column.shown}
    return [c for c in COLUMNS if (c.fixed or c.name in chosen) and (verdicts or c.name != "verdict")]


def column_choices(path: str, query: QueryDict) -> list[dict[str, Any]]:
    """Every column that can be shown or left out, with the address that does it."""
    shown = {column.name for column in columns(query)}
    found = []
    for column in COLUMNS:
        if column.fixed:
            continue
        wanted = [c.name for c in COLUMNS if (c.name in shown) != (c.name == column.name)]
        found.append(
            {
                "head": column.head,
                "on": column.name in shown,
                "url": address(path, having(query, (), columns=",".join(wanted))),
            }
        )
    return found


def heads(path: str, query: QueryDict, shown: Iterable[Column]) -> list[dict[str, Any]]:
    """Heads of the columns; a sortable one leads to its order, the one in force to the opposite."""
    now = query.get("ordering", DEFAULT_ORDERING)
    found = []
    for column in shown:
        sort, url = "", ""
        if column.order:
            first = column.order if column.order in ("name", "status") else f"-{column.order}"
            other = column.order if first.startswith("-") else f"-{column.order}"
            sort = {column.order: "ascending", f"-{column.order}": "descending"}.get(now, "")
            url = address(path, having(query, ordering=other if now == first else first))
        found.append({"name": column.name, "head": column.head, "num": column.number, "url": url, "sort": sort})
    return found


ORDER_WORDS = {
    "-created_at": "newest first", "created_at": "oldest first", "name": "by name", "-name": "by name, descending",
    "-status_since": "latest state change first", "-step": "most steps first", "step": "fewest steps first",
    "-reward": "best reward first", "reward": "lowest reward first", "status": "by state", "-status": "by state",
    "-updated_at": "latest edit first", "updated_at": "earliest edit first",
}  # fmt: skip

_AGO = re.compile(r"(\d{1,4})\s*(h|d|w)")
_UNIT = {"h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}
_PATH = re.compile(r"[A-Za-z0-9_.-]{1,200}")
_SERIES = re.compile(r"[A-Za-z0-9_./@-]{1,200}")


def added(query: QueryDict, now: datetime) -> tuple[QueryDict, str]:
    """Turn the form of a new filter into the query it means, and say what is wrong with it, if anything."""
    kind, value = query.get("add", ""), query.get("value", "").strip()
    path, sign = query.get("path", "").strip(), query.get("sign", "")
    base = having(query, ("cursor", "add", "value", "path", "sign"))
    one = next((one for one in FILTERS if one.name == kind), None)
    if one is None or not value:
        return base, "Choose a filter and a value."
    if one.kind == "time":
        at = _time(value, now)
        if at is None:
            return base, f"{value} is not a time. Enter 2026-01-31, or 14d for the last fourteen days."
        value = at.isoformat(timespec="seconds")
    name = one.name
    if one.kind == "config":
        if not _PATH.fullmatch(path) or sign not in SIGNS:
            return base, "Enter a field of the specification, such as batch.tasks_per_step."
        name = f"config.{path}{sign}"
    elif one.kind == "metric":
        if not _SERIES.fullmatch(path):
            return base, "Enter a series, such as reward/team or reward/agent@solver."
        name = f"metric.{path}:last{sign if sign in ('__gte', '__lte') else '__gte'}"
    values = [*base.getlist(name), value] if one.many else [value]
    return having(base, (), **{name: list(dict.fromkeys(values))}), ""


def _time(text: str, now: datetime) -> datetime | None:
    if found := _AGO.fullmatch(text):
        return now - int(found[1]) * _UNIT[found[2]]
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return at if at.tzinfo else at.replace(tzinfo=now.tzinfo)


def choices(templates: Iterable[str], presets: Iterable[str], environments: Iterable[str]) -> dict[str, list[str]]:
    """Values that the filters of kind choice offer."""
    return {
        "status": list(SHOWN_STATUSES),
        "template": list(templates),
        "preset": list(presets),
        "environment": sorted(set(environments)),
        "archived": ["true", "any"],
    }
