"""A game whose package is not installed is refused with what to install; other templates are not touched."""

import pytest

from flexmarl.controlplane.common.problems import ValidationProblem
from flexmarl.controlplane.experiments import plans, queries
from flexmarl.controlplane.experiments.plans import Draft

pytestmark = pytest.mark.django_db


def test_a_game_whose_package_is_missing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "find_spec", lambda module: None)
    with pytest.raises(ValidationProblem) as refused:
        plans.required(Draft(template="nim"))
    (error,) = refused.value.errors
    assert (error.pointer, error.code) == ("/environment/type", "not_installed")
    assert "textarena needs packages that are not installed: textarena." in error.detail
    assert plans.resolve_draft(Draft(template="kitchen")).spec.environment.type == "kitchen"
    assert "nim" in [row["name"] for row in queries.templates()], "the page still lists it"
