"""What the header of a run says of a verb that was asked for and has not happened yet."""

from typing import Any

import pytest

from webui.views.verbs import pending


def stopping(step: int, train_steps: int) -> dict[str, Any]:
    return {
        "status": "stopping", "pending_verb": "stop", "step": step, "attempt": 0, "progress": {"frozen": False},
        "spec": {"budget": {"train_steps": train_steps}},
    }  # fmt: skip


@pytest.mark.parametrize(("step", "train_steps", "named"), [(0, 3, 1), (2, 3, 3), (3, 3, 3), (0, 0, 1)])
def test_a_run_stops_after_a_step_that_it_has(step: int, train_steps: int, named: int) -> None:
    """Behind the last step it evaluates and writes its checkpoint: there is no step after it."""
    assert pending(stopping(step, train_steps)) == f"Stopping at the end of step {named}"
