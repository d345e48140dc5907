"""A process that compares answers: `python -m workers.adopted workers.scoring.math_host`, a line in and a line out.

math-verify hands parts of a reply to sympy's parser, which evaluates them as Python. So the process gives up files,
network and other processes once its libraries are imported, before it reads the first line.
"""

import contextlib
import math
import os
import re
import resource
import signal
import sys
import tempfile
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import msgspec

from workers.scoring.confinement import Limits, confine
from workers.scoring.math import MathAnswer, MathQuestion

MEMORY_BYTES = 2 * 2**30
MOST_DIGITS = 400
"""Of one number; more would be powers that nobody can write down."""
_LONG = re.compile(rf"\d{{{MOST_DIGITS},}}")
_GSM8K = re.compile(r"####\s*(.+?)\s*$", re.DOTALL)
_LIFE_S = 10**9
"""Of the process: each comparison has a limit of its own."""


class TooMuchTime(BaseException):
    """A comparison used its processor time up; no handler of a library that catches exceptions stops it."""


def main() -> None:
    """Confine this process, then answer until its worker hangs up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    library, failed = _library(), ""
    folder = tempfile.mkdtemp(prefix="flexmarl-math-")
    try:
        confine(Limits(_LIFE_S, MEMORY_BYTES, 0), folder, [one for one in sys.path if os.path.isdir(one)])
    except OSError as error:
        failed = str(error)
    for line in sys.stdin.buffer:
        question = msgspec.json.decode(line, type=MathQuestion)
        answer = MathAnswer(False, failed=failed) if failed else compared(library, question)
        answers.write(msgspec.json.encode(answer) + b"\n")
        answers.flush()


def _library() -> Any:
    """Import what compares, and use it once, so that whatever it loads late is there."""
    library = import_module("math_verify")
    compared(library, MathQuestion("\\frac{1}{2}", "\\boxed{0.5}", False, 6, math.inf))
    return library


def compared(library: Any, question: MathQuestion) -> MathAnswer:
    """Compare two answers, whatever they are."""
    if _LONG.search(question.said):
        return MathAnswer(False, f"a number of more than {MOST_DIGITS} digits")
    try:
        with _processor(question.cpu_s):
            wanted = library.parse(golden(question.wanted), parsing_timeout=None)
            text = f"${question.said.strip('$ ')}$" if question.boxed else question.said
            said = library.parse(text, parsing_timeout=None)
            if not wanted:
                return MathAnswer(False, "the row's answer is not a mathematical expression")
            if not said:
                return MathAnswer(False, "no mathematics in the answer")
            equal = bool(library.verify(wanted, said, float_rounding=question.digits, timeout_seconds=None))
    except TooMuchTime:
        return MathAnswer(False, f"timeout: more than {question.cpu_s:g} s of a processor")
    except MemoryError:
        return MathAnswer(False, "memory: the comparison took too much")
    except Exception as error:  # a parser of what a model wrote may raise anything
        return MathAnswer(False, f"not comparable: {type(error).__name__}")
    return MathAnswer(equal, f"read as {str(said[0])[:200]}")


def golden(answer: str) -> str:
    """Return a row's answer as it is parsed: the part behind `####`, LaTeX between dollars."""
    if found := _GSM8K.search(answer):
        answer = found.group(1).replace(",", "")
    if "$" in answer or "\\boxed" in answer or "\\(" in answer or "\\[" in answer:
        return answer
    return f"${answer.strip()}$"


@contextlib.contextmanager
def _processor(limit_s: float) -> Iterator[None]:
    """Raise TooMuchTime once this process has computed for so long; in one long C call the kernel ends it later."""
    if math.isinf(limit_s):
        yield
        return

    def late(number: int, frame: object) -> None:
        raise TooMuchTime

    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = int(used.ru_utime + used.ru_stime + limit_s) + 2
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, _LIFE_S))
    signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, limit_s, 0.1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)


if __name__ == "__main__":
    main()
