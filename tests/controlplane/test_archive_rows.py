"""A run's archive of replay, or its pool of successes, begins with imported rows: all of them, or a refusal by name."""

from typing import Any

import numpy as np
import pytest

from flexmarl.contracts.imported_rows import RowsImported
from flexmarl.contracts.resolve import resolve
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.runs.models import Run
from flexmarl.orchestrator.plan import make_plan
from flexmarl.store.control import inbox
from tests.controlplane.test_datasets import errors, post
from tests.controlplane.test_row_sets import bring, changed, described, line, tensor
from tests.support.packing import packed
from tests.support.row_exports import TOKENIZER, folder_of, trained_row

pytestmark = pytest.mark.django_db
WHERE = "/sampling/replay/begins_with/name"
ROLES = ("planner", "solver")
PLAYED = resolve({}, template="arithmetic").spec.environment.model_dump(mode="json")
"""Environment of the runs and of the export."""
CLIPPED: dict[str, Any] = {"algorithm": {"loss": {"type": "ppo_clip"}}, "batch": {"tasks_per_step": 2}}
CLIPPED["batch"] |= {"micro_batch_groups": 2, "rollout_groups": 2}
IN_ORDER = {"type": "greso", "tasks": 8, "least_easy": 1.0, "least_hard": 1.0}


def export(tmp_path, rows=None, name: str = "rows", **about: Any) -> bytes:
    made = rows or [trained_row(number, role) for number in range(6) for role in ROLES]
    return packed(folder_of(tmp_path / name, made, environment=PLAYED, **about))


def archive(**options: Any) -> dict[str, Any]:
    return CLIPPED | {"sampling": {"replay": {"type": "archive", "share": 0.5, "max_age": 1, **options}}}


def rescue(named: object = "earlier", **more: Any) -> dict[str, Any]:
    replay = {"type": "rescue", "begins_with": named}
    return CLIPPED | {"sampling": {"task_sampler": IN_ORDER, "replay": replay}} | more


def create(api, spec: dict[str, Any], start: bool = True):
    return post(api, "runs", {"template": "arithmetic", "spec": spec, "start": start})


def begun(api, spec: dict[str, Any]) -> tuple[Run, RowsImported]:
    made = create(api, spec)
    assert made.status_code == 201, made.content
    run = Run.objects.get(pk=made.json()["id"])
    facts = inbox.take_events(store_connection(), run.no)
    assert [fact.event.kind for fact in facts] == ["rows_imported", "run_verb"], "before the run begins"
    event = facts[0].event
    assert isinstance(event, RowsImported)
    return run, event


def samples(run: Run) -> list[tuple[Any, ...]]:
    rows = store_connection().execute(
        "SELECT draw, member, attempt, role, turn, policy, version, segments, n_prompt, n_response, temperature,"
        " payload FROM store.sample WHERE run_id = %s ORDER BY draw, member, role",
        [run.no],
    )
    return rows.fetchall()


def test_an_archive_begins_with_the_newest_groups_that_its_steps_can_draw(api, tmp_path) -> None:
    found = bring(api, export(tmp_path), "earlier").json()
    run, event = begun(api, archive(begins_with="earlier"))
    named = run.spec["sampling"]["replay"]["begins_with"]
    tokenizers = dict.fromkeys(ROLES, TOKENIZER)
    assert named == {"name": "earlier", "project": "default", "digest": found["digest"], "tokenizers": tokenizers}
    assert (event.name, event.rows, event.successes) == ("earlier", 12, ())
    assert [group.draw for group in event.groups] == [-3, -2, -1], "three groups, the newest last"
    newest = event.groups[-1].rows["solver"]
    assert [(row.member, row.role, row.turn, row.weight, row.tokens) for row in newest] == [
        (0, "solver", 0, 0.25, 3), (1, "solver", 0, 0.25, 3),
    ]  # fmt: skip
    assert newest[0].advantages == pytest.approx((0.4 - 1 / 3,) * 2)
    rows = samples(run)
    assert len(rows) == 12
    assert rows[0][:11] == (-3, 0, 1, "planner", 0, "planner", -1, [-1, 3], 3, 3, pytest.approx(0.7))
    logprobs = np.linspace(-1.5, -0.1, 3, dtype=np.float32).tobytes()
    ids = np.array([1, 2, 3, 4, 5, 6], "<i4").tobytes()
    assert bytes(rows[0][11]) == ids + logprobs + np.array([4, 5, 6, 9], "<i4").tobytes()


def test_no_more_groups_come_than_can_be_drawn_before_all_are_too_old(api, tmp_path) -> None:
    bring(api, export(tmp_path, [trained_row(number) for number in range(20)]), "earlier")
    _, event = begun(api, archive(begins_with={"name": "earlier"}))
    assert [group.draw for group in event.groups] == [-4, -3, -2, -1], "two for each of versions 0 and 1"
    assert create(api, archive(begins_with="earlier", share=0.0)).status_code == 201


def test_a_pool_begins_with_the_newest_success_of_each_task_of_the_run(api, tmp_path) -> None:
    plan = make_plan(resolve(rescue(None), template="arithmetic").spec)
    seeds = [plan.training_seed(number) for number in (5, 5, 2)] + [7]
    rows = [trained_row(number, role, task_seed=seeds[number // 2]) for number in range(8) for role in ROLES]
    bring(api, export(tmp_path, rows), "earlier")
    run, event = begun(api, rescue())
    assert [(one.draw, one.task, one.episode.member) for one in event.successes] == [(-2, 2, 0), (-1, 5, 0)]
    episode = event.successes[1].episode
    assert episode.team_score == pytest.approx(0.5), "of draw 1, the newer group of task 5"
    said = [(one.role, one.turn, one.tokens, one.follows) for one in episode.samples]
    assert said == [("planner", 0, 1, 0), ("planner", 1, 2, 1), ("solver", 0, 1, 0), ("solver", 1, 2, 1)]
    assert [row[:4] for row in samples(run)] == [(draw, 0, 1, role) for draw in (-2, -1) for role in ROLES]


def refused(api, spec: dict[str, Any]) -> list[tuple[str, str]]:
    answer = create(api, spec, start=False)
    found = errors(answer)
    assert answer.json()["errors"][0]["hint"]
    return found


@pytest.mark.parametrize(
    ("change", "spec", "code"),
    [
        (tensor("logprobs", lambda told: np.where(told < 0, 1, told).astype("<f4")), archive, "missing_logprobs"),
        (line({"attempt": 40_000}), archive, "bad_row"),
        (line({"steps": [0, 1, 0]}), archive, "not_with_block_diffusion"),
        (line({"task_seed": None, "rewards": []}), rescue, "missing_task_seed"),
        (described({"environment": PLAYED | {"modulus": 11}}), rescue, "other_tasks"),
        (described({}), rescue, "no_rows"),
        (described({"environment": {"type": "kitchen"}}), archive, "other_environment"),
    ],
)  # fmt: skip
def test_rows_that_cannot_be_trained_again_are_refused_by_what_they_lack(api, tmp_path, change, spec, code) -> None:
    bring(api, changed(export(tmp_path), *change), "earlier")
    given = spec() if spec is rescue else archive(begins_with="earlier")
    [(where, found)] = refused(api, given)
    assert (where, found) == (WHERE, code)
    assert not Run.objects.exists()


def test_rows_of_held_replies_of_other_roles_and_too_many_are_refused(api, tmp_path, monkeypatch) -> None:
    held = changed(export(tmp_path), *line({"grammars": ["d1", ""]}))
    bring(api, changed(held, *described({"grammars": {"d1": "{}"}})), "held")
    assert refused(api, archive(begins_with="held")) == [(WHERE, "held_replies")]
    bring(api, export(tmp_path, [trained_row(number, "cook") for number in range(4)], "others"), "cooks")
    assert refused(api, archive(begins_with="cooks")) == [(WHERE, "other_roles")]
    assert refused(api, archive(begins_with="helt")) == [(WHERE, "unknown_rows")]
    bring(api, export(tmp_path, name="many"), "many")
    monkeypatch.setattr("flexmarl.controlplane.runs.row_sets.archive_rows.MOST_ROWS", 3)
    assert refused(api, archive(begins_with="many")) == [(WHERE, "too_many_rows")]


def test_rows_that_were_archived_meanwhile_do_not_begin_a_run(api, editor, tmp_path) -> None:
    found = bring(api, export(tmp_path), "earlier").json()
    made = create(api, archive(begins_with="earlier"), start=False).json()
    api.post(f"{found['url']}/actions/archive")
    answer = post(api, f"runs/{made['id']}/actions/start", {})
    assert errors(answer) == [(WHERE, "unknown_rows")]
    assert refused(api, archive(begins_with="earlier")) == [(WHERE, "unknown_rows")]
    api.post(f"{found['url']}/actions/restore")
    assert post(api, f"runs/{made['id']}/actions/start", {}).status_code == 202
    assert len(samples(Run.objects.get(pk=made["id"]))) == 12


def test_a_run_without_replay_reads_no_rows(api, tmp_path) -> None:
    assert create(api, CLIPPED).status_code == 201
    run = Run.objects.get()
    assert [one.event.kind for one in inbox.take_events(store_connection(), run.no)] == ["run_verb"]
    assert samples(run) == []


def test_the_form_of_a_run_has_the_field_where_rows_are_replayed(browser) -> None:
    page = browser.get("/runs/new?template=arithmetic").content.decode()
    assert 'data-pointer="/sampling/replay/begins_with/name"' in page
    assert "Begins with imported rows" in page
