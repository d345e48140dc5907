"""Scores that are computed apart: mathematics and programs, whatever a reply holds, and the same twice."""

import json
import pathlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from flexmarl.algorithms.scores import RowScorer
from flexmarl.contracts.specification.dataset import DatasetTasks
from flexmarl.contracts.specification.scores import SCORE, CodeOptions, MathOptions, ScoreOptions
from flexmarl.language.dataset_rows import DatasetRow
from flexmarl.language.messages import Message
from workers.scoring.apart import ApartScorer
from workers.scoring.code import CodeScore, program_in
from workers.scoring.errors import ScoringFailed
from workers.scoring.math import MathScore

EXAMPLES = pathlib.Path(__file__).parents[3] / "examples" / "datasets"
ASKED = (Message("user", "?"),)


@pytest.fixture
async def maths() -> AsyncIterator[MathScore]:
    score = MathScore(MathOptions(cpu_s=1.0))
    yield score
    await score.close()


PAIRS = [
    ("Natalia sold 48/2 = <<48/2=24>>24 clips in May.\n#### 72", "So it is 72.", 1.0),
    ("... #### 1,234", "The answer is $1234$", 1.0),
    ("72", "The answer is 27.", 0.0),
    ("\\frac{1}{2}", "thus \\boxed{0.5}", 1.0),
    ("\\frac{1}{2}", "\\boxed{\\dfrac{2}{4}}", 1.0),
    ("Hence $x = \\boxed{\\frac{3}{4}}$.", "$\\boxed{0.75}$", 1.0),
    ("$\\sqrt{8}$", "$2\\sqrt{2}$", 1.0),
    ("$(1, 2]$", "$(1, 2]$", 1.0),
    ("$(1, 2]$", "$[1, 2]$", 0.0),
    ("\\{1, 2\\}", "$\\{2, 1\\}$", 1.0),
    ("x^2 + 2x + 1", "$(x + 1)^2$", 1.0),
    ("x^2 + 2x + 1", "$(x - 1)^2$", 0.0),
    ("10\\%", "0.1", 1.0),
    ("5", "no idea", 0.0),
    ("7", "", 0.0),
]


async def test_mathematics_is_compared_by_what_it_means(maths: MathScore) -> None:
    found = [(answer, reply, (await maths.score(DatasetRow(ASKED, answer), reply)).value) for answer, reply, _ in PAIRS]
    assert found == PAIRS


ENDLESS = [
    ("\\boxed{9^{9^{9^{9}}}}", "timeout"),
    ("\\boxed{" + "(" * 5000 + "}", "timeout"),
    ("9" * 500, "digits"),
    ("__import__('os').system('true')", "no mathematics"),
]


async def test_a_reply_that_computes_for_ever_is_worth_nothing_and_harms_nobody(maths: MathScore) -> None:
    for reply, why in ENDLESS:
        judged = await maths.score(DatasetRow(ASKED, "7"), reply)
        assert (judged.value, why in judged.why) == (0.0, True), (reply[:40], judged)
    assert (await maths.score(DatasetRow(ASKED, "7"), "7")).value == 1.0


async def test_answers_are_read_where_they_are_said_to_be() -> None:
    boxed = MathScore(MathOptions(read="boxed"))
    assert (await boxed.score(DatasetRow(ASKED, "7"), "7")).why == "no answer in this form"
    assert (await boxed.score(DatasetRow(ASKED, "\\frac12"), "1, no: \\boxed{0.5}")).value == 1.0
    assert (await boxed.score(DatasetRow(ASKED, ""), "\\boxed{1}")).why == "the row has no answer"
    await boxed.close()


def row(tests: Any) -> DatasetRow:
    return DatasetRow(ASKED, "", {"tests": tests})


SUMS = row([{"input": "1 2", "output": "3\n"}, {"input": "5 5", "output": "10"}])
ADDS = "```python\na, b = map(int, input().split())\nprint(a + b)\n```"


async def test_a_program_has_to_print_what_its_tests_expect() -> None:
    score, part = CodeScore(CodeOptions()), CodeScore(CodeOptions(partial=True))
    assert (await score.score(SUMS, f"Like this:\n{ADDS}\nDone.")).value == 1.0
    half = "```\nprint(3)\n```"
    assert (await score.score(SUMS, half)).value == 0.0
    judged = await part.score(SUMS, half)
    assert (judged.value, judged.why) == (0.5, "1 of 2 tests passed; output: test 2 expects something else")
    assert (await score.score(SUMS, "print(3)")).why == "no program in this form"


ASSERTS = row(["assert double(1) == 2", "assert double(2) == 4"])


@pytest.mark.parametrize(
    ("program", "worth", "why"),
    [
        ("def double(x): return 2 * x", 1.0, "2 of 2"),
        ("def double(x): return x + 1", 0.0, "1 of 2 tests passed; error: test 2"),
        ("import os; os._exit(0)", 0.0, "ended before test 1"),
        ("raise SystemExit(0)", 0.0, "ended before its tests"),
        ("def double(x):\n    import sys; sys.exit(0)", 0.0, "ended before its tests"),
        ("print('0 0\\n0 1')\ndef double(x): return 0", 0.0, "0 of 2"),
        ("def double(", 0.0, "SyntaxError"),
    ],
)
async def test_asserts_have_to_pass_one_by_one(program: str, worth: float, why: str) -> None:
    judged = await CodeScore(CodeOptions(form="asserts")).score(ASSERTS, f"```\n{program}\n```")
    assert (judged.value, why in judged.why) == (worth, True), judged.why


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (DatasetRow(ASKED, "", {"other": 1}), "the row has no column tests; its columns: other"),
        (row([]), "not a list of 1 to"),
        (row("{"), "is not JSON"),
        (row([{"input": "1"}]), "not an object with input and output"),
    ],
)
async def test_a_row_without_tests_gives_no_score_instead_of_0(given: DatasetRow, said: str) -> None:
    with pytest.raises(ScoringFailed, match=said):
        await CodeScore(CodeOptions()).score(given, ADDS)


def test_the_last_program_of_a_reply_counts() -> None:
    assert program_in("fence", "```\n1\n```\nno\n```python\n2\n```") == "2"
    assert program_in("tag", "<answer>3</answer>") == "3"
    assert program_in("fence", "4") == ""


def _examples(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (EXAMPLES / name).read_text().splitlines()]


async def test_the_answers_of_the_examples_are_right(maths: MathScore) -> None:
    for given in _examples("fractions.jsonl")[:4]:
        found = await maths.score(DatasetRow(ASKED, given["answer"]), f"\\boxed{{{given['answer']}}}")
        assert found.value == 1.0, given
    adds = _examples("programs.jsonl")[0]
    assert (await CodeScore(CodeOptions()).score(DatasetRow(ASKED, "", adds), ADDS)).value == 1.0


@pytest.mark.parametrize("name", [name for name, one in SCORE.variants().items() if one.deterministic])
async def test_a_score_that_is_declared_deterministic_gives_the_same_twice(name: str) -> None:
    options: tuple[ScoreOptions, ...] = DatasetTasks.model_validate({"scores": [name]}).scores
    replies, found = ("7", "so \\boxed{7}", "x" * 600, "<answer>7</answer>", '{"a": 1}', "A", "\\frac{"), []
    for _ in range(2):
        apart = ApartScorer(options)
        here, given = RowScorer(options), DatasetRow(ASKED, "7")
        found.append([here.parts(given, reply) | await apart.parts(given, reply) for reply in replies])
        await apart.close()
    assert found[0] == found[1]
