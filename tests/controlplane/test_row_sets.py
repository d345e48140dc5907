"""Rows that a run exported come in bit for bit, under a name that runs may use, or not at all."""

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from safetensors.numpy import load, save

from flexmarl.contracts.row_files import ImportedRow, game_of
from flexmarl.controlplane.common.models import AuditEntry
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.runs.models import RowSet
from flexmarl.store.data import dataset_contents
from tests.controlplane.test_datasets import errors, post
from tests.support.packing import packed, parts, repacked
from tests.support.row_exports import GAME, TOKENIZER, folder_of, trained_row

pytestmark = pytest.mark.django_db
WHERE = "/policies/planner/warmup/rows"


def export(tmp_path: Path, count: int = 6, shard_tokens: int = 1_000_000, **about: Any) -> bytes:
    rows = [trained_row(number, ("planner", "solver")[number // 2 % 2]) for number in range(count)]
    return packed(folder_of(tmp_path / "rows", rows, shard_tokens, **about))


def bring(api, body: bytes, name: str = "good_run", **more: str):
    query = "&".join(f"{one}={value}" for one, value in {"name": name, **more}.items())
    return api.post(f"/api/v1/row-sets?{query}", body, content_type="application/octet-stream")


def halves(content: bytes) -> tuple[dict[str, Any], bytes]:
    """Head and bytes of tensors of a file; the order of what a head says is that of no writer."""
    end = 8 + int.from_bytes(content[:8], "little")
    return json.loads(content[8:end]), content[end:]


def kept(found: dict[str, Any]) -> list[ImportedRow]:
    lines = dataset_contents.lines(store_connection(), found["digest"])
    return [msgspec.msgpack.decode(line, type=ImportedRow) for _, line in lines]


@pytest.mark.parametrize("shard_tokens", [1_000_000, 13])
def test_what_was_exported_comes_in_bit_for_bit(api, tmp_path, shard_tokens) -> None:
    body = export(tmp_path, shard_tokens=shard_tokens)
    made = bring(api, body)
    assert made.status_code == 201, made.content
    found, files = made.json(), dict(parts(body))
    described = json.loads(files.pop("export.json"))
    assert len(described["files"]) == (1 if shard_tokens > 13 else 2)
    rows = kept(found)
    assert b"".join(row.line + b"\n" for row in rows) == b"".join(
        files[f"{one['name']}.jsonl"] for one in described["files"]
    )
    for file in described["files"]:
        own, rows = rows[: file["rows"]], rows[file["rows"] :]
        joined = {
            name: np.frombuffer(b"".join(getattr(row, name) for row in own), kind)
            for name, kind in (("ids", "<i4"), ("mask", "u1"), ("logprobs", "<f4"), ("advantages", "<f4"))
        }
        joined["offsets"] = np.cumsum([0, *(len(row.mask) for row in own)], dtype=np.int64)
        joined["allowed"] = np.frombuffer(b"".join(row.allowed for row in own), "<i4")
        joined["allowed_offsets"] = np.cumsum([0, *(len(row.allowed) // 4 for row in own)], dtype=np.int64)
        told = {"format": "flexmarl-rows", "version": "3"}
        assert halves(save(joined, told)) == halves(files[f"{file['name']}.safetensors"])
    assert rows == []


def test_imported_rows_say_what_they_are_of_and_are_archived_and_restored(api, editor, browser, tmp_path) -> None:
    assert "No imported rows yet" in browser.get("/datasets").content.decode()
    found = bring(api, export(tmp_path)).json()
    solver = {"policy": "solver", "tokenizer": TOKENIZER, "rows": 2, "solved": 1, "sampled": 6}
    assert found["roles"] == {"planner": {**solver, "policy": "planner", "rows": 4, "solved": 2, "sampled": 12}} | {
        "solver": solver
    }
    assert (found["source"], found["game"], found["environment"], found["rows"]) == ("run-7", "arithmetic", GAME, 6)
    assert (found["author"], found["version"]) == (editor.username, 1)
    assert api.get(found["url"]).json() == found
    assert [one["name"] for one in api.get("/api/v1/row-sets?q=good").json()["results"]] == ["good_run"]
    page = browser.get("/datasets").content.decode()
    assert "good_run" in page
    assert "2 of 4 rows solved" in page
    archived = api.post(f"{found['url']}/actions/archive", HTTP_IF_MATCH='W/"1"')
    assert archived.json()["allowed_actions"] == ["restore"]
    assert api.post(f"{found['url']}/actions/archive").status_code == 409
    assert api.post(f"{found['url']}/actions/restore", HTTP_IF_MATCH='W/"1"').status_code == 412
    assert api.get("/api/v1/row-sets?archived=no").json()["results"] == []
    assert api.post(f"{found['url']}/actions/restore").json()["archived_at"] is None
    did = AuditEntry.objects.filter(action__startswith="row_set.").order_by("id").values_list("action", flat=True)
    assert list(did) == ["row_set.import", "row_set.archive", "row_set.restore"]


def test_the_same_rows_come_in_once_and_others_need_another_name(api, tmp_path) -> None:
    first = bring(api, export(tmp_path)).json()
    assert bring(api, export(tmp_path / "again")).json() == first
    other = bring(api, export(tmp_path / "other", 4))
    assert (other.status_code, other.json()["code"]) == (409, "duplicate_name")
    assert bring(api, export(tmp_path / "third", 4), "others").status_code == 201
    assert RowSet.objects.count() == 2


def changed(body: bytes, name: str, change: Any) -> bytes:
    files = dict(parts(body))
    files[name] = change(files[name])
    return repacked({one: content for one, content in files.items() if content is not None})


def tensor(name: str, change: Any) -> Any:
    """A change of one tensor; None takes it away."""

    def changing(content: bytes) -> bytes:
        tensors = load(content)
        value = change(tensors.pop(name))
        return save(tensors if value is None else {**tensors, name: value})

    return "rows-00000.safetensors", changing


def placed(place: int, value: float) -> Any:
    def change(array: Any) -> Any:
        array = array.copy()
        array[place] = value
        return array

    return change


def line(change: Any) -> Any:
    def changing(content: bytes) -> bytes:
        first, rest = content.split(b"\n", 1)
        return json.dumps({**json.loads(first), **change}).encode() + b"\n" + rest

    return "rows-00000.jsonl", changing


def described(change: Any) -> Any:
    return "export.json", lambda content: json.dumps({**json.loads(content), **change}).encode()


def test_a_line_of_another_writer_is_kept_as_it_is(api, tmp_path) -> None:
    body = changed(export(tmp_path), *line({}))
    found = kept(bring(api, body).json())
    written = dict(parts(body))["rows-00000.jsonl"].splitlines()
    assert b'"role": "planner"' in written[0]
    assert [row.line for row in found] == written


def test_rows_whose_replies_were_held_to_a_grammar_come_in_with_its_name(api, tmp_path) -> None:
    body = changed(export(tmp_path), *line({"grammars": ["d1", ""]}))
    found = kept(bring(api, changed(body, *described({"grammars": {"d1": "{}"}}))).json())
    assert json.loads(found[0].line)["grammars"] == ["d1", ""]


TENSORS, LINES = "/file/rows-00000.safetensors", "/file/rows-00000.jsonl"


@pytest.mark.parametrize(
    ("change", "wrong", "says"),
    [
        (("export.json", lambda _: None), ("/file", "not_an_export"), "no export.json"),
        (("../x", lambda _: b""), ("/file", "not_an_export"), "plain files"),
        (described({"format_version": 1}), ("/file/export.json", "unknown_format"), "flexmarl-rows 2 and 3 are read"),
        (described({"tokenizers": {"planner": ""}}), ("/file/export.json", "no_tokenizer"), "SHA-256"),
        (described({"tokenizers": {"planner": TOKENIZER}}), (f"{LINES}/3", "no_tokenizer"), "solver"),
        (described({"rows": 7}), ("/file/export.json", "bad_row"), "7 rows"),
        (described({"rows": 2_000_000}), ("/file/export.json", "too_many_rows"), "legal"),
        (("rows-00000.safetensors", lambda _: b"\x80\x04."), (TENSORS, "not_safetensors"), "safetensors"),
        (("rows-00000.safetensors", lambda _: None), (TENSORS, "missing_file"), "not there"),
        (tensor("logprobs", lambda _: None), (TENSORS, "missing_logprobs"), "correct"),
        (tensor("logprobs", placed(2, np.nan)), (TENSORS, "not_finite"), "logprobs[2] is nan"),
        (tensor("logprobs", placed(2, 0.5)), (TENSORS, "not_a_logprob"), "logprobs[2] is 0.5"),
        (tensor("logprobs", placed(0, -0.5)), (TENSORS, "wrong_tensors"), "only read"),
        (tensor("advantages", placed(2, np.inf)), (TENSORS, "not_finite"), "advantages[2] is inf"),
        (tensor("advantages", placed(2, 0.5)), (f"{LINES}/1", "bad_row"), "disagree"),
        (tensor("ids", placed(2, 7)), (f"{LINES}/1", "bad_row"), "not among those allowed"),
        (tensor("ids", lambda ids: ids.astype(np.int64)), (TENSORS, "wrong_tensors"), "legal is int32"),
        (tensor("offsets", placed(1, 5)), (f"{LINES}/1", "bad_row"), "5 tokens"),
        (tensor("offsets", placed(-1, 5)), (TENSORS, "wrong_tensors"), "does not cut it"),
        (line({"spans": [2, 2, 1, 1]}), (f"{LINES}/1", "bad_row"), "mask"),
        (line({"segments": [3, 2]}), (f"{LINES}/1", "bad_row"), "which version"),
        (line({"policy": "solver"}), (f"{LINES}/2", "bad_row"), "by solver and by planner"),
        (line({"temperature": 0}), (f"{LINES}/1", "bad_row"), "temperature"),
        (line({"score": 1}), (f"{LINES}/1", "bad_row"), "score"),
        (line({"grammars": ["d1", ""]}), (f"{LINES}/1", "bad_row"), "grammars"),
        (line({"rewards": [1.0]}), (f"{LINES}/1", "bad_row"), "rewards"),
        (line({"offsets": [0, 0]}), (f"{LINES}/1", "bad_row"), "offsets"),
        (line({"steps": [32]}), (f"{LINES}/1", "bad_row"), "steps are not one of 0 to 31"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_by_file_and_rule_and_nothing_is_kept(api, tmp_path, change, wrong, says) -> None:
    name, how = change
    body = export(tmp_path)
    body = repacked({**dict(parts(body)), name: b"x"}) if name.startswith("..") else changed(body, name, how)
    answer = bring(api, body)
    assert errors(answer) == [wrong]
    assert says in answer.json()["errors"][0]["detail"]
    assert answer.json()["errors"][0]["hint"]
    assert not RowSet.objects.exists()


def test_other_files_names_projects_and_sizes_are_refused(api, tmp_path, settings) -> None:
    body = export(tmp_path)
    assert errors(bring(api, b"PK\x03\x04 not a tar file")) == [("/file", "not_an_export")]
    assert errors(bring(api, body, "Good Run")) == [("name", "invalid")]
    assert errors(bring(api, body, project="nowhere"), 403) == []
    settings.MOST_DATASET_BYTES = 1000
    assert bring(api, body).status_code == 413


def warm(api, rows: dict[str, Any], environment: dict[str, Any] = GAME, policy: str = "planner"):
    spec = {"environment": environment, "policies": {policy: {"warmup": {"steps": 2, "rows": rows}}}}
    return post(api, "runs/plan", {"template": "arithmetic", "spec": spec})


def refused(planned) -> list[tuple[str, str, str]]:
    return [(one["pointer"], one["code"], one["hint"]) for one in planned.json()["errors"]]


def test_a_run_pins_digest_and_tokenizers_of_the_rows_it_names(api, tmp_path) -> None:
    found = bring(api, export(tmp_path)).json()
    planned = warm(api, {"name": "good_run", "digest": "0" * 64, "tokenizers": {"planner": "cd" * 32}})
    assert (planned.status_code, planned.json()["errors"]) == (200, []), planned.content
    warmup = planned.json()["spec"]["policies"]["planner"]["warmup"]
    assert warmup["rows"] == {
        "name": "good_run", "project": "default", "solved": True, "least_score": None, "digest": found["digest"],
        "tokenizers": {"planner": TOKENIZER, "solver": TOKENIZER},
    }  # fmt: skip
    assert warm(api, {"name": "good_run"}, {"type": "arithmetic", "modulus": 7}).json()["errors"] == []


def test_rows_that_do_not_fit_a_run_are_refused_with_field_and_rule(api, tmp_path) -> None:
    bring(api, export(tmp_path))
    unsolved = [trained_row(number, "verifier") for number in (1, 3)]
    bring(api, packed(folder_of(tmp_path / "failed", unsolved)), "failed")
    bring(api, packed(folder_of(tmp_path / "kitchen", unsolved, environment={"type": "kitchen"})), "cooks")
    bring(api, packed(folder_of(tmp_path / "planners", [trained_row(0)])), "planners")
    assert refused(warm(api, {"name": "good_ran"})) == [(f"{WHERE}/name", "unknown_rows", "Did you mean good_run?")]
    hint = "Name rows of arithmetic, or play kitchen."
    assert refused(warm(api, {"name": "cooks"})) == [(f"{WHERE}/name", "other_environment", hint)]
    where = WHERE.replace("planner", "verifier")
    hint = "It has rows of planner."
    assert refused(warm(api, {"name": "planners"}, policy="verifier")) == [(f"{where}/name", "other_roles", hint)]
    assert refused(warm(api, {"name": "failed"}, policy="verifier")) == [(f"{where}/solved", "no_rows", "Set false.")]
    assert refused(warm(api, {"name": "failed", "solved": False}, policy="verifier")) == []


def test_rows_of_a_project_that_one_may_not_read_are_not_there(api, person, client_of, tmp_path) -> None:
    from flexmarl.controlplane.accounts.models import Project

    found = bring(api, export(tmp_path)).json()
    Project.objects.create(name="other")
    stranger = client_of(person("editor", project="other"))
    assert stranger.get(found["url"]).status_code == 404
    named = {"name": "good_run", "project": "default"}
    spec = {"environment": GAME, "policies": {"planner": {"warmup": {"steps": 2, "rows": named}}}}
    planned = post(stranger, "runs/plan", {"template": "arithmetic", "spec": spec, "project": "other"})
    assert [one[:2] for one in refused(planned)] == [(f"{WHERE}/name", "unknown_rows")]


def test_a_game_has_the_name_of_its_type_package_and_environment() -> None:
    assert game_of({"type": "package", "package": "textarena@0.7.4", "environment": "Nim-v0"}) == (
        "package textarena Nim-v0"
    )
    assert game_of({"type": "reasoning_gym", "dataset": "gcd", "config": {}}) == "reasoning_gym gcd"
    assert game_of({"type": "logged", "dataset": {"name": "talks"}}) == "logged"
