"""Templates are offered in groups, and found by the words that a person knows."""

import pytest

from flexmarl.controlplane.experiments import queries as experiments
from webui.templates_offered import GROUPS, grouped

pytestmark = pytest.mark.django_db  # hues of roles are rows


def names(query: str = "") -> list[str]:
    return [row["name"] for group in grouped(experiments.templates(), query) for row in group["rows"]]


def test_every_template_is_in_one_group_and_what_one_has_comes_first() -> None:
    groups = grouped(experiments.templates())
    assert [group["name"] for group in groups] == list(GROUPS)
    assert sorted(names()) == sorted(row["name"] for row in experiments.templates())
    assert {"agent_program", "chat_dataset"} <= {row["name"] for row in groups[0]["rows"]}


def test_words_find_titles_agents_and_games_in_any_case_and_order() -> None:
    assert names("MARTI debate") == names("debate marti") == ["marti_debate"]
    assert names("listener") == ["reference_game"]
    assert names("nothing of this kind") == []
