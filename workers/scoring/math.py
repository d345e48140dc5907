"""Answers compared as mathematics by math-verify, in processes that can be killed: sympy may compute for ever.

Invariant: a reply that used its processor time up is worth 0; one whose process had no processor to use, or died of
something else, is not scored at all.
"""

import msgspec

from flexmarl.algorithms.scores import ScorePart
from flexmarl.contracts.specification.scores import MathOptions
from flexmarl.language.answers import answer_in
from flexmarl.language.dataset_rows import DatasetRow
from workers.line_processes import LineProcesses, NoAnswerInTime, ProcessDied
from workers.scoring.errors import ScoringFailed

HOST = "workers.scoring.math_host"
START_S = 60.0
"""Time to start a process and import sympy on a busy host, beside the comparison's own."""
BUSY = 4.0
"""How many times its processor time a comparison may take by the clock, on a host that does other things as well."""


class MathQuestion(msgspec.Struct, frozen=True):
    """One line to a process."""

    wanted: str
    said: str
    boxed: bool
    """`said` is the answer and nothing else."""
    digits: int
    cpu_s: float


class MathAnswer(msgspec.Struct, frozen=True):
    """One line from a process."""

    equal: bool
    why: str = ""
    failed: str = ""
    """It could not be confined: this host's fault."""


class MathScore:
    def __init__(self, options: MathOptions) -> None:
        self._options = options
        self._processes = LineProcesses(HOST)

    async def score(self, row: DatasetRow, reply: str) -> ScorePart:
        """Compare the answer of a reply with that of its row."""
        said = answer_in(self._options.read, reply)
        if said is None:
            return ScorePart(0.0, "no answer in this form")
        if not row.answer.strip():
            return ScorePart(0.0, "the row has no answer")
        limit = self._options.cpu_s
        question = MathQuestion(row.answer, said, self._options.read != "whole", self._options.digits, limit)
        try:
            text = await self._processes.ask(msgspec.json.encode(question), START_S + BUSY * limit)
        except NoAnswerInTime as late:
            if late.cpu_s >= limit:
                return ScorePart(0.0, f"timeout: more than {limit:g} s of a processor")
            raise ScoringFailed(f"math: no processor to compare with for {START_S + BUSY * limit:g} s") from late
        except ProcessDied:
            # What is left once a process is warm: the reply took more memory or time than the kernel lets it have.
            return ScorePart(0.0, "the comparison took too much time or memory")
        answer = msgspec.json.decode(text, type=MathAnswer)
        if answer.failed:
            raise ScoringFailed(f"math: {answer.failed}")
        return ScorePart(float(answer.equal), answer.why)

    async def close(self) -> None:
        """End the processes."""
        await self._processes.close()
