"""The specification of a run: every value with its source, filtered, searched, and compared with another run's."""

from typing import Any

from django.http import HttpRequest, HttpResponse

from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.common.problems import NotFound
from flexmarl.controlplane.runs import queries as runs
from webui import yamltext
from webui.views import words
from webui.views.base import page, show
from webui.views.run import run_frame

SOURCES = (
    ("", "All values"),
    ("user", "Set for this run"),
    ("template", "From the template"),
    ("preset", "From the preset"),
    ("default", "Defaults"),
)
OTHERS = 20


@page()
def config(request: HttpRequest, key: str) -> HttpResponse:
    """Show the resolved specification with the source of each value, alone or beside another run's."""
    context = run_frame(request, key, "config")
    only, q = request.GET.get("only", ""), request.GET.get("q", "").strip()[:80]
    against, refusal = _other(request, request.GET.get("against", "").strip()[:64])
    everything = request.GET.get("equal") == "1"
    compared = runs.config_diff(context["found"], against) if against else None
    groups = diff_groups(compared, everything=everything) if compared else words.config_groups(context["run"], only)
    return show(
        request,
        "webui/run_config.html",
        {
            **context,
            "groups": searched(groups, q),
            "only": only,
            "q": q,
            "sources": SOURCES,
            "against": request.GET.get("against", "").strip()[:64],
            "refusal": refusal,
            "compared": compared,
            "everything": everything,
            "candidates": [other for other in runs.runs(actor_of(request))[:OTHERS] if other.key != key],
        },
    )


@page()
def download(request: HttpRequest, key: str) -> HttpResponse:
    """The resolved specification as YAML."""
    found = runs.find_run(actor_of(request), key)
    order = [*ExperimentSpec.model_fields]
    spec = {name: found.spec[name] for name in sorted(found.spec, key=lambda n: order.index(n) if n in order else 99)}
    answer = HttpResponse(yamltext.dump(spec), content_type="application/yaml")
    answer["Content-Disposition"] = f'attachment; filename="{found.key}.yaml"'
    return answer


def _other(request: HttpRequest, reference: str) -> tuple[Any, str]:
    """Find the run to compare with; returns it, or why there is none."""
    if not reference:
        return None, ""
    try:
        return runs.find_run(actor_of(request), reference), ""
    except NotFound as problem:
        return None, problem.detail


def diff_groups(compared: dict[str, Any], *, everything: bool) -> list[dict[str, Any]]:
    """Lay a comparison out by top-level section; equal values only on request."""
    groups: dict[str, list[dict[str, Any]]] = {name: [] for name in ("run", *ExperimentSpec.model_fields)}
    for row in compared["results"]:
        if row["equal"] and not everything:
            continue
        top, _, rest = row["pointer"].lstrip("/").partition("/")
        groups.setdefault(top if rest else "run", []).append(
            {
                "path": (rest or top).replace("/", "."),
                "value": words.text_of(row["value"]) if row["present"] else "",
                "present": row["present"],
                "source": row["source"],
                "other": words.text_of(row["other_value"]) if row["other_present"] else "",
                "other_present": row["other_present"],
                "other_source": row["other_source"],
                "equal": row["equal"],
            }
        )
    return [{"name": name, "rows": rows} for name, rows in groups.items() if rows]


def searched(groups: list[dict[str, Any]], text: str) -> list[dict[str, Any]]:
    """Keep the values whose path or value holds a text."""
    if not text:
        return groups
    wanted = text.lower()
    kept = [
        {
            **group,
            "rows": [
                row
                for row in group["rows"]
                if wanted in f"{group['name']}.{row['path']} {row['value']} {row.get('other', '')}".lower()
            ],
        }
        for group in groups
    ]
    return [group for group in kept if group["rows"]]
