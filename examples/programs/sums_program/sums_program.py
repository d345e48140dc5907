"""An agent program of two seats, as a distribution: rollout workers call `play` once for each session.

`pyproject.toml` names it as an entry point `flexmarl.program`. The client is made as everywhere else: base URL and key
of the session are in the variables that it reads.
"""

from typing import Any

from openai import OpenAI


def answer(client: OpenAI, left: int, right: int, hint: str) -> str:
    """Have the solver answer and the reviser answer again."""
    question = f"What is {left}+{right}? {hint}"
    asked = {"role": "user", "content": question}
    first = client.chat.completions.create(model="solver", messages=[asked]).choices[0].message.content
    told = {"role": "user", "content": f"{question} A colleague said: {first}"}
    return client.chat.completions.create(model="reviser", messages=[told]).choices[0].message.content or ""


def play(session: Any, hint: str = "Answer with only the number.") -> float:
    """Two agents answer a sum, one after the other."""
    left, right = session.task % 10, session.task // 10 % 10  # its number says which task it is
    return float(answer(OpenAI(), left, right, hint).strip() == str(left + right))


play.seats = ("solver", "reviser")  # type: ignore[attr-defined]
