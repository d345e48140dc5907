"""The models that the form of a run offers."""

import json
from typing import Any

from flexmarl.contracts.resolve import resolve
from flexmarl.contracts.specification.team import RegisteredModel
from webui.forms import model_choices

ROW = {"project": "default", "name": "smollm2", "revision": 3, "parameters": 134_515_008}


def sources(groups: model_choices.Groups) -> dict[str, Any]:
    return {one.label: json.loads(one.value) for _, choices in groups for one in choices}


def test_imported_models_come_first_and_name_their_version() -> None:
    groups = model_choices.offered([ROW], converses=True)
    assert [title for title, _ in groups] == ["Imported", "Packages"]
    source = sources(groups)["smollm2 v3, 135 M"]
    assert RegisteredModel.model_validate(source).version == 3
    assert source["project"] == "default"


def test_of_several_projects_each_is_named() -> None:
    groups = model_choices.offered([ROW, {**ROW, "project": "other"}], converses=False)
    assert {"default/smollm2 v3, 135 M", "other/smollm2 v3, 135 M"} <= set(sources(groups))


def test_models_of_game_words_are_offered_to_games_alone() -> None:
    games = sources(model_choices.offered([], converses=False))
    assert {"factory S", "factory M"} <= set(games)
    assert not any(source["type"] == "factory" for source in sources(model_choices.offered([], True)).values())
    for label in ("factory S", "factory M", "SmolLM2-135M-Instruct"):
        spec = {"agents": {"speaker": {}, "listener": {}}, "policies": {"speaker": {"model": games[label]}}}
        made = resolve({**spec, "environment": {"type": "reference_game"}})
        assert games[label].items() <= made.document["policies"]["speaker"]["model"].items()
