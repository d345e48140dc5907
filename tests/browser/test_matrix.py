"""Every page, in both themes and three widths: fits the screen, says nothing on the console, passes axe, has a title.

Pages are found among the routes: a new one fails here until `EXAMPLES` says how to reach it (or `NOT_PAGES` why it is
none). Each page also shows the calls behind it; each of them is made with a token, and must be answered.
"""

import json
import urllib.request
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from django.urls import get_resolver

from tests.browser.seeded_agents import AGENT, TEAM
from tests.browser.seeded_datasets import DATASET
from tests.browser.seeded_evaluations import EVALUATION, SUITE
from tests.browser.seeded_experiments import EXPERIMENT, SWEEP
from tests.browser.seeded_joins import JOIN
from tests.browser.seeded_models import MODELS
from tests.browser.seeded_packages import PACKAGES
from tests.browser.seeded_simulations import SIMULATIONS
from tests.browser.visitor import COLOURS, WCAG, WHOLE, Site, Visitor
from tests.support.forms import form
from webui import calls

pytestmark = [pytest.mark.browser, pytest.mark.services, pytest.mark.slow]

FINISHED, RUNNING, PAUSED, FAILED, QUEUED, PROGRAM, WAITING = 0, 1, 3, 4, 5, 6, 7
EXAMPLES: dict[str, str] = {
    "home": "/",
    "help": "/help",
    "plugins": "/help/plugins",
    "components": "/help/components",
    "cluster": "/cluster",
    "queue": "/queue",
    "storage": "/storage",
    "cluster_timeline": "/cluster/timeline",
    "members": "/members",
    "service_accounts": "/service-accounts",
    "projects": "/projects",
    "users": "/users",
    "audit": "/audit",
    "tokens": "/settings/tokens",
    "serving_keys": "/serving-keys",
    "profile": "/settings/profile",
    "runs": "/runs",
    "new_run": "/runs/new?from={finished}",
    "run": "/runs/{running}",
    "trajectories": "/runs/{finished}/trajectories",
    "sessions": "/runs/{program}/trajectories/sessions",
    "session": "/runs/{program}/trajectories/sessions/5a1d2900-0000-0000-0000-000000000000",
    "tasks": "/runs/{waiting}/trajectories/tasks",
    "trajectory": "/runs/{finished}/trajectories/955-0-1",
    "trajectory_compare": "/runs/{finished}/trajectories/compare?ids=955-0-1,955-1-1",
    "checkpoints": "/runs/{finished}/checkpoints",
    "metrics": "/runs/{running}/metrics",
    "agents": "/runs/{running}/metrics/agents",
    "agent": "/runs/{running}/metrics/agents/solver",
    "attempts": "/runs/{paused}/config/attempts",
    "pipeline": "/runs/{running}/performance",
    "load": "/runs/{running}/performance/load",
    "timeline": "/runs/{running}/performance/timeline?window=300",
    "events": "/runs/{failed}/logs",
    "config": "/runs/{finished}/config",
    "playground": "/runs/{finished}/trajectories/playground",
    "what_if": "/runs/{finished}/performance/what-if",
    "models": "/models",
    "import_model": "/models/import",
    "model": f"/models/{MODELS['ready']}",
    "packages": "/packages",
    "build_package": "/packages/add",
    "package": f"/packages/{PACKAGES['ready']}",
    "datasets": "/datasets",
    "import_dataset": "/datasets/import",
    "dataset": f"/datasets/{DATASET}",
    "experiments": "/experiments",
    "experiment": f"/experiments/{EXPERIMENT}",
    "compare": f"/compare?experiment={EXPERIMENT}",
    "sweeps": "/sweeps",
    "new_sweep": "/sweeps/new",
    "sweep": f"/sweeps/{SWEEP}",
    "evaluations": "/evaluations",
    "new_evaluation": f"/evaluations/new?suite={SUITE}&run=some-run&step=3",
    "evaluation": f"/evaluations/{EVALUATION}",
    "suites": "/suites",
    "new_suite": f"/suites/new?from={SUITE}",
    "suite": f"/suites/{SUITE}",
    "agent_definitions": "/agents",
    "new_agent_definition": "/agents/new",
    "agent_definition": f"/agents/{AGENT}",
    "teams": "/teams",
    "new_team": "/teams/new",
    "team": f"/teams/{TEAM}",
    "simulations": "/simulations",
    "new_simulation": "/simulations/new?workload=long_tail&preset=sync",
    "simulation": f"/simulations/{SIMULATIONS[0]}?ordering=-tokens_s",
}
"""Route name -> an address of it over the seeded rows."""
NOT_PAGES = {
    "sign_in",
    "sign_out",
    "new_run_text",
    "new_run_graph",
    "figures",
    "config_yaml",
    "simulation_figures",
    "compare_figures",
    "sweep_figures",
}
"""Answers to forms and scripts; `*_part` and `*_rows` are parts of pages. Signing in has tests of its own."""
Look = tuple[str, int, list[str]]
"""Theme and width of a window, and the rules that axe is asked there; none: the page only has to fit."""
WIDE, BETWEEN, PHONE = WHOLE[0], ("light", 1024), WHOLE[1]
"""In the other theme of a width the same document has other colours and nothing else. Between the widest view and that
of a phone it is the widest one's, with less room."""
PAGES: tuple[tuple[Look, ...], ...] = form(
    short=(((*WIDE, WCAG), (*BETWEEN, []), (*PHONE, COLOURS)),),
    full=(
        ((*WIDE, WCAG), (*BETWEEN, [])), ((*PHONE, WCAG),), (("dark", 1440, COLOURS),), (("light", 390, COLOURS),),
    ),
)  # fmt: skip
"""Rounds through all pages. A page is loaded once in a round and looked at in each of its windows one after the other,
every second page from the last one to the first."""
STATES = form(short=((*WIDE, COLOURS), (*PHONE, COLOURS)), full=((*WIDE, WCAG), (*PHONE, WCAG)))
"""Where further states are loaded and looked at: in the short form each in one of them."""
VARIANTS: dict[str, str] = {
    "runs-none": "/runs?q=nothing-is-called-so",
    "runs-one": "/runs?q=arithmetic",
    "runs-filtered": "/runs?status=running&status=failed&ordering=-reward&config.batch.tasks_per_step__gte=1",
    "runs-wrong-filter": "/runs?status=asleep",
    "new-run-choose": "/runs/new",
    "new-run-template": "/runs/new?template=reference_game",
    "run-paused-long-name": "/runs/{paused}",
    "run-failed": "/runs/{failed}",
    "run-queued": "/runs/{queued}",
    "run-by-version": "/runs/{running}?x=version&smooth=2",
    "metrics-open": "/runs/{running}/metrics?open=train/entropy&open=reward/team&with={finished}",
    "config-diff": "/runs/{running}/config?against={finished}",
    "trajectories-filtered": "/runs/{finished}/trajectories?step=239&reward__gte=0.9&ordering=-tokens",
    "trajectories-none": "/runs/{queued}/trajectories",
    "trajectories-nothing-found": "/runs/{finished}/trajectories?search=nosuchword",
    "trajectory-scores": "/runs/{finished}/trajectories/955-0-1?view=scores",
    "trajectory-raw": "/runs/{finished}/trajectories/955-0-1?view=raw",
    "trajectory-compare-all": "/runs/{finished}/trajectories/compare?draw=955&show=all",
    "sessions-none": "/runs/{waiting}/trajectories/sessions",
    "sessions-nothing-matches": "/runs/{program}/trajectories/sessions?state=ended&purpose=evaluation",
    "sessions-wrong-filter": "/runs/{program}/trajectories/sessions?state=asleep",
    "tasks-played": "/runs/{waiting}/trajectories/tasks?played=yes",
    "tasks-none": "/runs/{failed}/trajectories/tasks",
    "sessions-of-another-run": "/runs/{failed}/trajectories/sessions",
    "run-of-programs": "/runs/{program}",
    "checkpoints-none": "/runs/{queued}/checkpoints",
    "pipeline-step": "/runs/{running}/performance?step=137",
    "pipeline-paused": "/runs/{paused}/performance?step=31",
    "pipeline-cohorts": "/runs/{running}/performance?cohorts=under_way",
    "pipeline-counted": "/runs/{finished}/performance?count=1",
    "pipeline-no-cohort": "/runs/{queued}/performance",
    "load-ended": "/runs/{failed}/performance/load",
    "load-table": "/runs/{failed}/performance/load?view=table&window=1800",
    "load-none": "/runs/{queued}/performance/load",
    "load-nothing-matches": "/runs/{running}/performance/load?state=draining&policy=solver",
    "decisions": "/runs/{running}/logs?view=decisions",
    "decisions-filtered": "/runs/{running}/logs?view=decisions&kind=cut_micro_batch",
    "decisions-of-a-step": "/runs/{running}/logs?view=decisions&step=137&policy=solver",
    "decisions-none": "/runs/{queued}/logs?view=decisions&kind=null_step",
    "decisions-refused": "/runs/{running}/logs?view=decisions&cursor=abc",
    "transitions": "/runs/{running}/logs?view=transitions",
    "transitions-filtered": "/runs/{running}/logs?view=transitions&moved=step&policy=solver",
    "transitions-none": "/runs/{queued}/logs?view=transitions",
    "transitions-refused": "/runs/{running}/logs?view=transitions&cursor=abc",
    "simulation-chosen": f"/simulations/{SIMULATIONS[0]}?show=flexmarl&show=sync&of=sync&ordering=-lag",
    "simulation-queued": f"/simulations/{SIMULATIONS[1]}",
    "agent-definitions-none": "/agents?q=nothing-is-called-so",
    "agent-definition-older": f"/agents/{AGENT}?version=1&against=3",
    "simulations-wrong-filter": "/simulations?state=asleep",
    "evaluations-none": "/evaluations?q=nothing-is-called-so",
    "suite-unplayed": f"/suites/{SUITE}?version=1",
    "datasets-none": "/datasets?q=nothing-is-called-so",
    "dataset-searched": f"/datasets/{DATASET}?version=1&q=7&held_out=no",
    "new-run-of-a-dataset": f"/runs/new?template=chat_dataset&dataset={DATASET}",
    "new-run-of-a-team": "/runs/new?template=marti_debate",
    "models-none": "/models?q=nothing-is-called-so",
    "models-ordered": "/models?ordering=name&state=done",
    "models-archived": "/models?archived=yes",
    "models-wrong-filter": "/models?state=asleep",
    "model-import-folder": f"/models/import?from={MODELS['failed']}",
    **{f"model-{state}": f"/models/{MODELS[state]}" for state in MODELS if state != "ready"},
    "packages-none": "/packages?q=nothing-is-called-so",
    **{f"package-{state}": f"/packages/{PACKAGES[state]}" for state in PACKAGES if state != "ready"},
    "new-run-of-a-package": f"/runs/new?package={PACKAGES['ready']}&environment=Maze-v0",
    "new-run-of-a-model": f"/runs/new?template=chat_sums&model={MODELS['ready']}",
    "new-run-choose-model": f"/runs/new?model={MODELS['ready']}",
    "playground-no-version": "/runs/{queued}/trajectories/playground",
    "timeline-table": "/runs/{running}/performance/timeline?view=table",
    "events-none": "/runs/{running}/logs?q=nothing-says-this",
    "events-refused": "/runs/{running}/logs?q=(&regex=1",
    "cluster-drain": "/cluster?drain=atlas&mode=move",
    "cluster-stop": "/cluster?drain-device=atlas.cpu0&mode=stop",
    "cluster-devices": "/cluster?view=devices",
    "cluster-pool": "/cluster?edit=default",
    "cluster-add": "/cluster?add=node",
    "cluster-join": f"/cluster?join={JOIN}",
    "cluster-join-gone": "/cluster?join=no-such",
    "serving-keys-none": "/serving-keys?q=nothing-is-called-so",
    "serving-keys-revoked": "/serving-keys?state=revoked",
    "members-choose": "/members?project=all",
    "audit-none": "/audit?request_id=none-such",
    "plugins-none": "/help/plugins?q=nothing-is-called-so",
    "not-found": "/no/such/page",
    "no-such-run": "/runs/nobody-0000",
}
"""More states of pages: none, one, long names, refusals, what is open or being asked."""
SHOWN = """(url) => fetch(url).then((answer) => answer.text()).then((text) => {
    const page = new DOMParser().parseFromString(text, "text/html");
    return ["curl", "python"].map((language) =>
        [...page.querySelectorAll(`#api-pop [data-language-of=${language}]`)].map((shown) => shown.textContent));
})"""
"""The calls that a page comes with, in both languages."""
ALLOWED = ("404 (Not Found)", "403 (Forbidden)")


def routes() -> set[str]:
    names = {str(name) for name in get_resolver("webui.urls").reverse_dict if isinstance(name, str)}
    return {name for name in names if name not in NOT_PAGES and not name.endswith(("_part", "_rows", "_data", "_csv"))}


def address(site: Site, template: str) -> str:
    names = {"finished": FINISHED, "running": RUNNING, "paused": PAUSED, "failed": FAILED, "queued": QUEUED,
             "program": PROGRAM, "waiting": WAITING}  # fmt: skip
    return template.format(**{name: site.keys[index] for name, index in names.items()})


def test_every_page_has_an_example_and_its_calls() -> None:
    assert routes() - set(EXAMPLES) == set(), "say in EXAMPLES how to reach these pages"
    assert set(EXAMPLES) - routes() == set(), "these pages are gone"
    assert routes() - set(calls.CALLS) == set(), "declare in webui/calls.py which calls give these pages' data"


@pytest.fixture(scope="module")
def guest(chromium: Any, seeded: Site) -> Iterator[Visitor]:
    """Return a signed-in window that is kept for the module."""
    context = chromium.new_context(reduced_motion="reduce")
    context.set_default_timeout(60_000)
    made = Visitor(context.new_page(), seeded)
    made.sign_in()
    yield made
    context.close()


def states(place: int) -> dict[str, str]:
    """Return the further states that are looked at in one of `STATES`."""
    taken = form(short=slice(place, None, len(STATES)), full=slice(None))
    return dict(list(VARIANTS.items())[taken])


def test_every_further_state_is_looked_at() -> None:
    assert {name for place in range(len(STATES)) for name in states(place)} == set(VARIANTS)


def looked_at(guest: Visitor, name: str, look: Look) -> list[str]:
    """What is wrong with a page as this window shows it."""
    theme, width, rules = look
    sideways = guest.stays_sideways()
    wrong = [f"sideways by {sideways} px"] if sideways > 0 else []
    if rules:
        wrong += [f"axe {found}" for found in guest.violations(rules=rules)]
        wrong += [f"{n} h1" for n in [guest.page.locator("h1").count()] if n != 1]
        wrong += [f"title {t}" for t in [guest.page.title()] if not t.endswith("FlexMARL")]
    shown = guest.page.evaluate("document.documentElement.dataset.bsTheme")
    wrong += [] if shown == theme else [f"theme {shown}"]
    guest.keep(f"{name}-{width}-{theme}", wanted=form(short=bool(wrong), full=True))
    return [f"{theme} {width}: {text}" for text in wrong]


def gone_through(guest: Visitor, site: Site, name: str, path: str, looks: Sequence[Look]) -> list[str]:
    """Load a page in the first window, and return what is wrong with it there and in the others."""
    heard, wrong = len(guest.complaints), []
    for place, look in enumerate(looks):
        if place == 0:
            guest.dress(*look[:2])
            guest.goto(address(site, path))
            guest.settle()
        else:
            guest.turn(*look[:2])
        wrong += looked_at(guest, name, look)
    return wrong + [text for text in guest.complaints[heard:] if not any(word in text for word in ALLOWED)]


@pytest.mark.parametrize("looks", PAGES, ids=lambda looks: "-".join(f"{theme}{width}" for theme, width, _ in looks))
def test_every_page_fits_and_is_accessible(guest: Visitor, seeded: Site, looks: tuple[Look, ...]) -> None:
    found = {
        name: gone_through(guest, seeded, name, path, looks[::-1] if place % 2 else looks)
        for place, (name, path) in enumerate(EXAMPLES.items())
    }
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


@pytest.mark.parametrize("place", range(len(STATES)), ids=[f"{theme}{width}" for theme, width, _ in STATES])
def test_every_further_state_fits_and_is_accessible(guest: Visitor, seeded: Site, place: int) -> None:
    found = {name: gone_through(guest, seeded, name, path, [STATES[place]]) for name, path in states(place).items()}
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


def test_each_call_that_a_page_shows_is_answered(guest: Visitor, seeded: Site) -> None:
    guest.goto("/settings/tokens")
    made = guest.page.evaluate(
        """async () => {
            const csrf = document.querySelector('input[name=csrfmiddlewaretoken]').value;
            const body = JSON.stringify({name: 'calls', expires_in_days: 1});
            const answer = await fetch('/api/v1/tokens', {method: 'POST', body,
                headers: {'Content-Type': 'application/json', 'X-CSRFToken': csrf}});
            return [answer.status, await answer.text()];
        }"""
    )
    assert made[0] == 201, made[1]
    token = json.loads(made[1])["token"]
    tried = 0
    for name, path in EXAMPLES.items():
        texts, programs = guest.page.evaluate(SHOWN, f"{seeded.url}{address(seeded, path)}")
        assert texts, f"{name} shows no call"
        for text, program in zip(texts, programs, strict=True):
            assert token not in text
            url = text.rpartition(" '")[2].rstrip("'")
            assert f'"{url}"' in program
            request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
            with urllib.request.urlopen(request, timeout=20) as answer:
                assert answer.status == 200, (name, url)
            tried += 1
    assert tried > 1.5 * len(EXAMPLES)


def test_the_shown_python_runs_as_it_stands(guest: Visitor) -> None:
    guest.dress(*WIDE)
    guest.goto("/settings/profile")
    guest.page.get_by_role("button", name="API").click()
    guest.page.get_by_role("button", name="Python").click()
    program = guest.page.locator("#api-pop [data-language-of=python]").first
    assert program.is_visible()
    compile(program.inner_text(), "shown", "exec")
    guest.page.keyboard.press("Escape")
    assert not program.is_visible()
