"""An environment of verifiers with one turn, as its documentation writes them: it knows nothing of FlexMARL."""

import re

import verifiers as vf
from datasets import Dataset


def rows(pairs: list[tuple[int, int]]) -> Dataset:
    """Return a question and an answer for each pair."""
    return Dataset.from_list(
        [{"question": f"What is {left}+{right}?", "answer": str(left + right)} for left, right in pairs]
    )


def load_environment(largest: int = 9, system_prompt: str = "Answer with only the number.") -> vf.Environment:
    """Sums of two numbers up to `largest`; every fifth one is held out."""
    pairs = [(left, right) for left in range(largest + 1) for right in range(largest + 1)]
    parser = vf.Parser(extract_fn=lambda text: "".join(re.findall(r"-?\d+", text)[-1:]))

    def correct(parser: vf.Parser, completion: vf.Messages, answer: str) -> float:
        """1.0 for the right number."""
        return 1.0 if parser.parse_answer(completion) == answer else 0.0

    def brief(completion: vf.Messages) -> float:
        """1.0 for nothing but a number."""
        return 1.0 if str(completion[-1]["content"]).strip().isdigit() else 0.0

    return vf.SingleTurnEnv(
        dataset=rows([pair for place, pair in enumerate(pairs) if place % 5]),
        eval_dataset=rows(pairs[::5]),
        system_prompt=system_prompt,
        parser=parser,
        rubric=vf.Rubric(funcs=[correct, brief], weights=[1.0, 0.2], parser=parser),
    )
