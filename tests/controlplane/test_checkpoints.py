"""Checkpoints over REST: pinned by people, forked into new runs, told truthfully when they are gone."""

import json

import pytest

from flexmarl.contracts.commands import KeepCheckpoints
from flexmarl.contracts.specification.team import FactoryModel
from flexmarl.contracts.status import RunStatus
from flexmarl.controlplane.accounts.models import Membership
from flexmarl.controlplane.common.models import AuditEntry
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.runs import origin_grants
from flexmarl.controlplane.runs.models import Run
from flexmarl.store.control import checkpoint_rows, model_rows
from flexmarl.store.data import lineage
from tests.support.controlplane import SPEC, make_person, set_state

pytestmark = pytest.mark.django_db


def keep(run, step: int, state: str = "s" * 64, **columns: object) -> None:
    """Let a run have a checkpoint of both policies after a step."""
    part = {"version": step, "digest": f"{step:064x}", "state": state}
    row = {
        "run_id": run.no, "label": "last", "step": step, "versions": json.dumps({"speaker": step, "listener": step}),
        "path": f"/home/checkpoints/run-{run.no}/step-{step}", "bytes": 100, "node": "box",
        "parts": json.dumps({"speaker": part, "listener": part}), **columns,
    }  # fmt: skip
    names = ", ".join(row)
    places = ", ".join(["%s"] * len(row))
    store_connection().execute(f"INSERT INTO store.checkpoint ({names}) VALUES ({places})", list(row.values()))


@pytest.fixture
def run(editor, make_run):
    run = make_run(editor, RunStatus.RUNNING)
    for step in (2, 4, 6):
        keep(run, step)
    return run


def checkpoints(api, run) -> dict[int, dict]:
    return {row["step"]: row for row in api.get(f"/api/v1/runs/{run.id}/checkpoints").json()["results"]}


def let_go(run, newest: int = 6) -> list[int]:
    """Let the rules keep nothing; return what the node may remove."""
    conn = store_connection()
    checkpoint_rows.keep_checkpoints(conn, run.no, KeepCheckpoints(newest=newest, kept=()))
    return sorted(folder.step for folder in checkpoint_rows.leaving(conn, "box"))


def fork(api, run, **body: object):
    return api.post(f"/api/v1/runs/{run.id}/actions/fork", {"checkpoint": 4, **body})


def test_a_pin_outweighs_the_rules_until_it_is_taken_back(api, run) -> None:
    answer = api.post(f"/api/v1/runs/{run.id}/checkpoints/4/actions/pin")
    assert answer.status_code == 200, answer.content
    assert (answer.json()["pinned"], answer.json()["pinned_by"]) == (True, "edith")
    assert let_go(run) == [2, 6]
    assert {step: row["state"] for step, row in checkpoints(api, run).items()} == {
        2: "removing", 4: "whole", 6: "removing",
    }  # fmt: skip
    assert api.post(f"/api/v1/runs/{run.id}/checkpoints/4/actions/unpin").json()["pinned"] is False
    assert let_go(run) == [2, 4, 6]
    actions = AuditEntry.objects.filter(target_id=str(run.id)).values_list("action", flat=True)
    assert {"checkpoint.pin", "checkpoint.unpin"} <= set(actions)


def test_what_is_gone_is_neither_pinned_nor_forked_nor_downloaded(api, run) -> None:
    let_go(run)
    for answer in (
        api.post(f"/api/v1/runs/{run.id}/checkpoints/4/actions/pin"),
        fork(api, run),
        api.get(f"/api/v1/runs/{run.id}/checkpoints/4/archive"),
    ):
        assert (answer.status_code, answer.json()["code"]) == (409, "checkpoint_gone"), answer.content
        assert answer.json()["errors"][0]["hint"]
    missing = api.post(f"/api/v1/runs/{run.id}/checkpoints/5/actions/pin")
    assert missing.status_code == 404


def test_a_fork_begins_with_the_checkpoints_versions_and_both_runs_say_so(api, run) -> None:
    answer = fork(api, run, overrides={"seed": 99, "batch": {"tasks_per_step": 8}}, name="second")
    assert answer.status_code == 201, answer.content
    made = Run.objects.get(pk=answer.json()["id"])
    assert (made.parent_id, made.seed, made.name) == (run.pk, 99, "second")
    origins = lineage.origins(store_connection(), made.no)
    assert {one.policy: (one.from_version, one.digest, one.state) for one in origins.values()} == dict.fromkeys(
        ("speaker", "listener"), (4, f"{4:064x}", "")
    ) | {"speaker": (4, f"{4:064x}", ""), "listener": (4, f"{4:064x}", "")}
    told = api.get(f"/api/v1/runs/{made.id}/lineage").json()
    assert [(o["policy"], o["run"]["key"], o["version"], o["step"], o["training_state"]) for o in told["origins"]] == [
        ("listener", run.key, 4, 4, False), ("speaker", run.key, 4, 4, False),
    ]  # fmt: skip
    copies = api.get(f"/api/v1/runs/{run.id}/lineage").json()["copies"]
    assert {(copy["policy"], copy["run"]["key"], copy["version"]) for copy in copies} == {
        ("speaker", made.key, 4), ("listener", made.key, 4),
    }  # fmt: skip
    assert AuditEntry.objects.filter(action="run.fork", target_id=str(made.id)).exists()


def test_a_checkpoint_stays_while_a_fork_waits_for_it(api, run) -> None:
    made = Run.objects.get(pk=fork(api, run).json()["id"])
    conn = store_connection()
    conn.execute("UPDATE store.checkpoint SET read_until = NULL WHERE run_id = %s", [run.no])
    assert let_go(run) == [2, 6]
    for policy in ("speaker", "listener"):
        lineage.bound(conn, made.no, policy)
    assert let_go(run) == [2, 4, 6]


def promote(api, run, step: int = 4, **body: object):
    return api.post(f"/api/v1/runs/{run.id}/checkpoints/{step}/actions/promote", {"name": "mine", **body})


def test_a_checkpoint_becomes_a_model_of_its_project_and_both_say_so(api, run) -> None:
    answer = promote(api, run, policy="speaker")
    assert answer.status_code == 202, answer.content
    model = answer.json()
    assert (model["name"], model["revision"], model["state"], model["project"]) == ("mine", 1, "queued", "default")
    assert model["source"] == {
        "type": "checkpoint", "run": run.key, "step": 4, "policy": "speaker",
        "source": FactoryModel(size="S").model_dump(mode="json"),
    }  # fmt: skip
    [made] = api.get(f"/api/v1/runs/{run.id}/lineage").json()["models"]
    assert (made["name"], made["revision"], made["step"], made["policy"]) == ("mine", 1, 4, "speaker")
    assert [row["id"] for row in api.get("/api/v1/models?source=checkpoint").json()["results"]] == [model["id"]]
    assert AuditEntry.objects.filter(action="model.import", target_id=model["id"]).exists()
    conn = store_connection()
    assert model_rows.take(conn, "other", 15.0) is None, "only the node that has the checkpoint can read it"
    taken = model_rows.take(conn, "box", 15.0)
    assert (str(taken.id), taken.from_run, taken.source["policy"]) == (model["id"], run.no, "speaker")
    assert let_go(run) == [2, 6]
    assert model_rows.done(conn, taken, "a" * 64, {"parameters": 1})
    assert let_go(run) == [2, 4, 6]


def test_what_cannot_become_a_model_is_refused_with_what_can(api, run) -> None:
    several = promote(api, run)
    assert several.status_code == 400
    assert several.json()["errors"][0]["hint"] == "Its policies: listener, speaker."
    assert promote(api, run, policy="third").json()["errors"][0]["code"] == "unknown_policy"
    assert promote(api, run, 5, policy="speaker").status_code == 404
    keep(run, 8, state="")
    store_connection().execute("UPDATE store.checkpoint SET state = 'damaged' WHERE step = 8")
    damaged = promote(api, run, 8, policy="speaker")
    assert (damaged.status_code, damaged.json()["code"]) == (409, "checkpoint_damaged")
    let_go(run)
    assert promote(api, run, policy="speaker").json()["code"] == "checkpoint_gone"
    assert model_rows.waiting(store_connection()) == []


def test_the_right_to_a_checkpoint_is_looked_at_again_when_its_bytes_are_read(api, editor, run, client_of) -> None:
    reader = make_person("rita", "editor")
    conn = store_connection()
    first, second = (promote(client_of(reader), run, policy="speaker").json()["id"] for _ in range(2))
    conn.execute("UPDATE store.model SET granted_at = clock_timestamp() - interval '2 minutes'")
    assert model_rows.take(conn, "box", 15.0) is None, "nobody looked lately"
    origin_grants.renew()
    taken = model_rows.take(conn, "box", 15.0)
    assert str(taken.id) == first
    Membership.objects.filter(user=reader).delete()
    origin_grants.renew()
    assert not model_rows.goes_on(conn, taken, "storing", 15.0), "the node stops reading"
    assert not model_rows.done(conn, taken, "a" * 64, {})
    assert model_rows.take(conn, "box", 15.0) is None
    for model in (first, second):
        told = api.get(f"/api/v1/models/{model}").json()
        assert (told["state"], told["reason"]) == ("failed", "origin_forbidden")


def test_the_training_state_goes_along_where_it_is_asked_for_and_was_kept(api, run) -> None:
    made = Run.objects.get(pk=fork(api, run, take="training_state").json()["id"])
    assert {one.state for one in lineage.origins(store_connection(), made.no).values()} == {"s" * 64}
    keep(run, 8, state="")
    refused = fork(api, run, checkpoint=8, take="training_state")
    assert refused.status_code == 400
    [error] = refused.json()["errors"]
    assert (error["pointer"], error["code"]) == ("/take", "no_training_state")
    assert "weights" in error["hint"]


@pytest.mark.parametrize(
    ("overrides", "pointer", "legal"),
    [
        ({"policies": {"speaker": {"model": {"size": "M"}}}}, "/policies/speaker/model/size", "Set S"),
        ({"policies": {"speaker": {"tuning": "lora"}}}, "/policies/speaker/tuning/type", "Set full"),
    ],
)
def test_a_change_that_does_not_fit_the_weights_is_refused_and_no_run_is_made(
    api, run, overrides, pointer, legal
) -> None:
    before = Run.objects.count()
    refused = fork(api, run, overrides=overrides)
    assert refused.status_code == 400, refused.content
    [error] = refused.json()["errors"]
    assert (error["pointer"], error["code"], error["location"]) == (pointer, "incompatible", "spec")
    assert legal in error["hint"]
    assert Run.objects.count() == before


def test_precision_may_change_with_weights_alone(api, run) -> None:
    overrides = {"policies": {"speaker": {"precision": "fp64"}}}
    assert fork(api, run, overrides=overrides).status_code == 201
    refused = fork(api, run, overrides=overrides, take="training_state")
    assert refused.json()["errors"][0]["pointer"] == "/policies/speaker/precision"


def test_the_newest_vector_is_given_by_runs_that_do_not_train(api, run) -> None:
    refused = fork(api, run, checkpoint="newest")
    assert (refused.status_code, refused.json()["code"]) == (409, "invalid_state")
    assert "pause" in refused.json()["allowed_actions"]
    set_state(run, status="completed")
    assert fork(api, run, checkpoint="newest").json()["errors"][0]["code"] == "no_version"
    store_connection().execute(
        "INSERT INTO store.policy_version (run_id, policy, version, digest, state) "
        "VALUES (%s, 'speaker', 7, 'd', 'e'), (%s, 'listener', 5, 'f', '')",
        [run.no, run.no],
    )
    made = Run.objects.get(pk=fork(api, run, checkpoint="newest").json()["id"])
    origins = lineage.origins(store_connection(), made.no)
    assert {(one.policy, one.from_version, one.checkpoint) for one in origins.values()} == {
        ("speaker", 7, False), ("listener", 5, False),
    }  # fmt: skip


def test_what_names_no_checkpoint_is_refused_by_field(api, run) -> None:
    for wrong in ("oldest", -1, True, None):
        refused = fork(api, run, checkpoint=wrong)
        assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (400, "/checkpoint"), wrong
    assert fork(api, run, checkpoint=5).status_code == 404


def test_a_folder_whose_node_is_away_is_told_as_that(api, run) -> None:
    answer = api.get(f"/api/v1/runs/{run.id}/checkpoints/4/archive")
    assert (answer.status_code, answer.json()["code"]) == (503, "node_away")


def test_spec_is_the_parents_but_for_what_was_changed(api, run) -> None:
    made = fork(api, run).json()
    assert made["spec"] == api.get(f"/api/v1/runs/{run.id}").json()["spec"]
    assert set(SPEC["agents"]) <= set(made["spec"]["agents"])
