"""Scores that people try on a reply: each computed as in play, each under the same deadlines, none touching another."""

import asyncio

from pydantic import TypeAdapter

from flexmarl.algorithms.scores import RowScorer, ScorePart
from flexmarl.contracts.specification.scores import ScoreOptions, ScoreSpec
from flexmarl.contracts.trials import TRIAL_S, ScoreTrial, ScoreTrialAnswer, TriedScore
from flexmarl.language.dataset_rows import from_line
from workers.scoring.apart import ApartScorer
from workers.scoring.errors import ScoringFailed
from workers.scoring.sandbox import in_force

TRIALS = 2
"""At once on one node."""
_SCORES: TypeAdapter[list[ScoreOptions]] = TypeAdapter(list[ScoreSpec])


class ScoreTrials:
    """One per node."""

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(TRIALS)

    async def answer(self, asked: ScoreTrial) -> ScoreTrialAnswer:
        """Score a reply. Raises ValidationError for scores that are none."""
        options, row = _SCORES.validate_python(asked.scores), from_line(asked.row.encode())
        scorer, tried, parts = RowScorer(options), dict[str, TriedScore](), dict[str, ScorePart]()
        async with self._places:
            parts |= await asyncio.to_thread(scorer.parts, row, asked.reply)
            for one in options:
                if one.computed == "asked":
                    why = f"an agent of the run gives it ({getattr(one, 'agent', '')}); try it in a run"
                    tried[one.label] = TriedScore(why=why)
                elif one.computed == "apart":
                    apart = ApartScorer([one])
                    try:
                        async with asyncio.timeout(TRIAL_S):
                            parts |= await apart.parts(row, asked.reply)
                    except ScoringFailed as failed:
                        tried[one.label] = TriedScore(why=str(failed))
                    except TimeoutError:
                        tried[one.label] = TriedScore(why=f"no result within {TRIAL_S:g} s")
                    finally:
                        await apart.close()
        whole = all(one.label in parts for one in options if one.counts_for(None))
        tried |= {name: TriedScore(value=one.value, why=one.why, broken=one.broken) for name, one in parts.items()}
        ordered = {one.label: tried[one.label] for one in options}
        return ScoreTrialAnswer(parts=ordered, score=scorer.worth(parts) if whole else None, sandbox=in_force())
