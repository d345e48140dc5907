"""Every role keeps its hue; roles of one team differ as long as there are enough hues."""

import pytest

from flexmarl.controlplane.agents.actions import ensure_roles
from flexmarl.controlplane.agents.queries import hues, next_hue
from webui.reading import role_marks


def test_the_hue_that_fewest_roles_have_comes_next() -> None:
    assert next_hue([]) == 1
    assert next_hue([1, 2, 4]) == 3
    assert next_hue([*range(1, 9), 1, 2]) == 3


@pytest.mark.django_db
@pytest.mark.parametrize("known", [0, 7, 8])
def test_a_team_of_new_roles_is_shown_in_the_hues_that_it_will_have(known: int) -> None:
    ensure_roles("default", [f"role{i}" for i in range(known)])
    shown = role_marks(["cook_1", "cook_2"])
    assert len({mark["hue"] for mark in shown}) == 2
    assert all(mark["new"] for mark in shown)
    ensure_roles("default", ["cook_1", "cook_2"])
    given = hues("default")
    assert [mark["hue"] for mark in shown] == [given["cook_1"], given["cook_2"]]
    assert not any(mark["new"] for mark in role_marks(["cook_1", "cook_2"]))
