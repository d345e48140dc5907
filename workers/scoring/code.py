"""Programs in replies, run against the tests of their rows in a sandbox.

With `stdio` every test is a process of its own, and what it printed is compared here, where the program cannot reach.
With `asserts` tests run in the program's own interpreter, which one that sets out to can deceive; it is not deceived by
a program that merely ends early, since each passed test has to be told by a word that is not there before.
"""

import asyncio
import os
import re
import secrets
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from flexmarl.algorithms.scores import ScorePart
from flexmarl.contracts.specification.scores import CodeOptions
from flexmarl.language.answers import answer_in
from flexmarl.language.dataset_rows import DatasetRow
from workers.scoring.errors import ScoringFailed
from workers.scoring.sandbox import Allowed, ProgramEnd, Ran, SandboxMissing, run

MOST_TESTS = 100
PROGRAMS = os.cpu_count() or 1
"""That one run's score runs at once in one worker: more would only share the same processors."""
_FENCE = re.compile(r"^```[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
_WORDS = {
    ProgramEnd.CPU: "used up its processor time", ProgramEnd.TIME: "was not over in time",
    ProgramEnd.MEMORY: "took too much memory",
    ProgramEnd.OUTPUT: "printed too much", ProgramEnd.FILES: "wrote too much", ProgramEnd.NETWORK: "wanted the network",
    ProgramEnd.ACCESS: "wanted a file outside its folder", ProgramEnd.PROCESS: "wanted another process",
    ProgramEnd.SIGNAL: "was ended by a signal", ProgramEnd.ERROR: "ended by an error",
}  # fmt: skip


class BadTests(ValueError):
    """A row's tests cannot be run; the text says what is legal."""


class CodeScore:
    def __init__(self, options: CodeOptions) -> None:
        self._options = options
        self._places = asyncio.Semaphore(PROGRAMS)
        self._allowed = Allowed(options.cpu_s, options.memory_mib * 2**20, options.output_kib * 2**10)

    async def score(self, row: DatasetRow, reply: str) -> ScorePart:
        """Run the program of a reply."""
        program = program_in(self._options.read, reply)
        try:
            tests = tests_of(self._options, row)
        except BadTests as bad:
            raise ScoringFailed(f"code: {bad}") from bad
        if not program:
            return ScorePart(0.0, "no program in this form")
        async with self._places:
            try:
                if self._options.form == "stdio":
                    passed, why = await self._by_output(program, tests)
                else:
                    passed, why = await self._by_asserts(program, tests)
            except SandboxMissing as missing:
                raise ScoringFailed(f"code: no sandbox on this host: {missing}") from missing
        share = passed / len(tests)
        said = f"{passed} of {len(tests)} tests passed" + (f"; {why}" if why else "")
        return ScorePart(share if self._options.partial else float(passed == len(tests)), said)

    async def close(self) -> None:
        """Do nothing: a program ends with the wait for it."""

    async def _by_output(self, program: str, tests: Sequence[Any]) -> tuple[int, str]:
        """Count the tests whose output is right, and say why the first one that fails does."""
        deadline, passed, why = time.monotonic() + self._options.wall_s, 0, ""
        for number, (given, wanted) in enumerate(tests, start=1):
            if (left := deadline - time.monotonic()) <= 0:
                return passed, why or f"{ProgramEnd.TIME}: test {number} had no time left"
            ran = await run(program, (), given.encode(), self._allowed, left)
            right = ran.ended is ProgramEnd.WELL and _lines(ran.output.decode("utf-8", "replace")) == _lines(wanted)
            passed += right
            if not right and not self._options.partial:
                return passed, _why(number, ran)
            why = why or ("" if right else _why(number, ran))
        return passed, why

    async def _by_asserts(self, program: str, tests: Sequence[str]) -> tuple[int, str]:
        """Count the tests that do not raise, and say why the first one that fails does."""
        word = secrets.token_hex(16)
        given = msgspec.json.encode({"program": program, "tests": list(tests), "word": word})
        ran = await run(_RUNNER, (), given, self._allowed, self._options.wall_s)
        told = [line.split(" ", 2) for line in ran.output.decode("utf-8", "replace").splitlines()]
        passed = len({one[1] for one in told if len(one) >= 2 and one[0] == word})
        if passed >= len(tests):
            return len(tests), ""
        if ran.ended is ProgramEnd.WELL:
            return passed, f"error: the program ended before test {passed + 1}"
        return passed, _why(passed + 1, ran)


_RUNNER = """
import json, os, sys
def main():
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    given = json.loads(sys.stdin.buffer.read())
    word, tests = given.pop("word"), given.pop("tests")
    names = {"__name__": "program"}
    failed = None
    try:
        exec(compile(given["program"], "program", "exec"), names)
        for number, test in enumerate(tests):
            try:
                exec(compile(test, f"test {number + 1}", "exec"), names)
            except Exception as error:
                failed = failed or error
            else:
                answers.write(f"{word} {number}\\n")
                answers.flush()
    except SystemExit:
        raise RuntimeError("the program ended before its tests") from None
    if failed is not None:
        raise failed
main()
"""
"""Runs a program and then each test."""


def program_in(form: str, reply: str) -> str:
    """Return the program of a reply, empty where there is none."""
    if form == "fence":
        blocks = _FENCE.findall(reply)
        return str(blocks[-1]).strip("\n") if blocks else ""
    return answer_in("tag" if form == "tag" else "whole", reply) or ""


def tests_of(options: CodeOptions, row: DatasetRow) -> list[Any]:
    """Return the tests of a row: (input, output), or lines of code. Raises BadTests."""
    value = row.columns.get(options.tests)
    if value is None:
        raise BadTests(f"the row has no column {options.tests}; its columns: {', '.join(row.columns) or 'none'}")
    if isinstance(value, str) and options.form == "stdio":
        try:
            value = msgspec.json.decode(value)
        except msgspec.DecodeError as error:
            raise BadTests(f'{options.tests} is not JSON; write [{{"input": "1", "output": "2"}}]') from error
    tests = [value] if isinstance(value, str) else value
    if not isinstance(tests, list) or not 1 <= len(tests) <= MOST_TESTS:
        raise BadTests(f"{options.tests} is not a list of 1 to {MOST_TESTS} tests")
    if options.form == "asserts":
        if not all(isinstance(test, str) for test in tests):
            raise BadTests(f"{options.tests} holds something else than code")
        return tests
    try:
        return [(str(test["input"]), str(test["output"])) for test in tests]
    except (TypeError, KeyError) as error:
        raise BadTests(f"a test of {options.tests} is not an object with input and output") from error


def _lines(text: str) -> list[str]:
    """Return the lines of an output without the white space at their ends."""
    return [line.rstrip() for line in text.strip().splitlines()]


def _why(number: int, ran: Ran) -> str:
    """Say why a test failed."""
    if ran.ended is ProgramEnd.WELL:
        return f"output: test {number} expects something else"
    said = f" ({ran.said})" if ran.said and ran.ended is not ProgramEnd.TIME else ""
    return f"{ran.ended}: test {number} {_WORDS[ran.ended]}{said}"
