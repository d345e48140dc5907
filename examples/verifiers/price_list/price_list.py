"""An environment of verifiers with a tool, as its documentation writes them: it knows nothing of FlexMARL."""

import verifiers as vf
from datasets import Dataset

PRICES = {"apple": 3, "bread": 7, "cheese": 12, "mug": 9, "rope": 5, "lamp": 21}


def price(item: str) -> str:
    """Look up what an item costs.

    Args:
        item: name of the item

    Returns:
        Its price
    """
    return str(PRICES[item.lower()])


async def correct(completion: vf.Messages, answer: str) -> float:
    """1.0 if the last reply has the answer."""
    return 1.0 if answer in str(completion[-1]["content"]) else 0.0


def load_environment(most: int = 4) -> vf.Environment:
    """Questions about the price of up to `most` pieces of an item; there is no dataset for evaluation."""
    asked = [(item, count) for item in PRICES for count in range(1, most + 1)]
    dataset = Dataset.from_list(
        [{"question": f"What do {n} pieces of {item} cost?", "answer": str(PRICES[item] * n)} for item, n in asked]
    )
    return vf.ToolEnv(tools=[price], max_turns=4, dataset=dataset, rubric=vf.Rubric(funcs=[correct]))
