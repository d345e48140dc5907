"""Scores tried on a row, as rollout workers score replies to it.

Invariant: what is computed in this process takes time in proportion to the reply, and is code of the product.
Everything else (programs, mathematics, scores of other distributions) is computed by a node, under deadlines.
"""

import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import Any

from django.conf import settings
from pydantic import ValidationError

from flexmarl.algorithms.scores import RowScorer
from flexmarl.contracts.problems import problems_of
from flexmarl.contracts.specification.dataset import DatasetTasks
from flexmarl.contracts.specification.scores import SCORE, ScoreOptions
from flexmarl.contracts.trials import TRIAL_S, ScoreTrial, ScoreTrialAnswer, TriedScore
from flexmarl.controlplane.common.problems import Busy, FieldError, ValidationProblem
from flexmarl.controlplane.common.store import store_connection
from flexmarl.language.dataset_rows import DatasetRow, to_line
from flexmarl.store.control import nodes

NODES = 2
"""That are asked, one after the other."""


class NoNodeScores(Busy):
    code = "no_node_scores"
    title = "No node computes these scores now"


def judged(row: DatasetRow, scores: Sequence[Any], reply: str) -> dict[str, Any]:
    """Return what a reply is worth, in all and by each score.

    Raises ValidationProblem for scores that are refused, NoNodeScores where a node is needed and none answers.
    """
    given = {"type": "dataset", "scores": list(scores)}
    try:
        options = DatasetTasks.model_validate(given).scores
    except ValidationError as error:
        found = [
            FieldError(one.pointer, one.code, one.detail, one.hint) for one in problems_of(error, DatasetTasks, given)
        ]
        raise ValidationProblem(found[0].detail, errors=found) from error
    return _shape(_here(options, row, reply) if all(map(_quick, options)) else _on_a_node(options, row, reply))


def _quick(score: ScoreOptions) -> bool:
    return score.computed == "here" and type(score) in SCORE.builtins


def _here(options: Sequence[ScoreOptions], row: DatasetRow, reply: str) -> ScoreTrialAnswer:
    scorer = RowScorer(options)
    parts = scorer.parts(row, reply)
    tried = {name: TriedScore(value=one.value, why=one.why, broken=one.broken) for name, one in parts.items()}
    return ScoreTrialAnswer(parts=tried, score=scorer.worth(parts))


def _on_a_node(options: Sequence[ScoreOptions], row: DatasetRow, reply: str) -> ScoreTrialAnswer:
    scores = [one.model_dump(mode="json") for one in options]
    body = ScoreTrial(row=to_line(row).decode(), reply=reply, scores=scores).model_dump_json().encode()
    said = "none is running"
    addresses = nodes.addresses_for(store_connection(), 0)[:NODES]
    for address in addresses:
        request = urllib.request.Request(
            f"http://{address}/v1/scores",
            data=body,
            headers={"Authorization": f"Bearer {settings.CLUSTER_KEY}", "Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=len(options) * TRIAL_S) as answer:
                return ScoreTrialAnswer.model_validate_json(answer.read())
        except (urllib.error.URLError, OSError, ValidationError) as error:
            said = f"the last one asked failed: {error}"
    raise NoNodeScores(f"Scores math and code are computed on a node; {said}.", headers={"Retry-After": "5"})


def _shape(found: ScoreTrialAnswer) -> dict[str, Any]:
    parts = found.parts
    return {
        "score": found.score,
        "parts": {name: one.value for name, one in parts.items()},
        "why": {name: one.why for name, one in parts.items() if one.why},
        "broken": [name for name, one in parts.items() if one.broken],
        "sandbox": found.sandbox,
    }
