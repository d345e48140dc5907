"""Scores tried on a row, as rollout workers score replies to it."""

from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from flexmarl.algorithms.scores import RowScorer
from flexmarl.contracts.problems import problems_of
from flexmarl.contracts.specification.dataset import DatasetTasks
from flexmarl.controlplane.common.problems import FieldError, ValidationProblem
from flexmarl.language.dataset_rows import DatasetRow


def judged(row: DatasetRow, scores: Sequence[Any], reply: str) -> dict[str, Any]:
    """Return what a reply is worth, in all and by each score. Raises ValidationProblem for scores that are refused."""
    given = {"type": "dataset", "scores": list(scores)}
    try:
        options = DatasetTasks.model_validate(given)
    except ValidationError as error:
        found = [
            FieldError(one.pointer, one.code, one.detail, one.hint) for one in problems_of(error, DatasetTasks, given)
        ]
        raise ValidationProblem(found[0].detail, errors=found) from error
    found_of = RowScorer(options.scores).judge(row, reply)
    return {"score": found_of.score, "parts": found_of.parts, "broken": list(found_of.broken)}
