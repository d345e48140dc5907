"""A wheel of an environment of verifiers that does what its options tell it, and the sample ones as source
distributions.

`LIBRARY` stands for verifiers and what it needs where the real ones, of 700 MB, are not installed: so much of them as
the environment uses, under the same names. The same tests play the same environment with the real library.
"""

import tarfile
from pathlib import Path

from tests.support.package_files import wheel

NAME = "odd_env"
CODE = '''
"""An environment that does what it is told."""
import asyncio
import verifiers as vf
from datasets import Dataset
from openai import AsyncOpenAI


class Turns(vf.MultiTurnEnv):
    what = ""

    async def env_response(self, messages, state, **kwargs):
        if self.what == "hang":
            await asyncio.sleep(3600)
        if self.what == "error":
            raise vf.ToolCallError("the shop is closed")
        if self.what == "bug":
            raise ZeroDivisionError("no pieces")
        return [{"role": "user", "content": "Again."}]


def load_environment(what: str = "well", rows: int = 10, judge: str = "gpt-9"):
    """Does what it is told."""
    print(f"loads {what}", flush=True)
    if what == "load":
        raise FileNotFoundError("rows.json")
    if what == "none":
        return None
    data = [{"question": f"Say {n}.", "answer": str(n)} for n in range(rows)]
    if what == "same":
        data = [{"question": "Say 0.", "answer": "0"}] * rows
    if what == "judge_at_load":
        client = AsyncOpenAI()

    def reward(completion, answer, **kwargs):
        if what == "raise":
            raise KeyError("answer_key")
        right = float(answer in completion[-1]["content"])
        return {"nan": float("nan"), "words": "much", "large": 7.0}.get(what, right)

    async def judged(completion, answer, **kwargs):
        asked = client if what == "judge_at_load" else AsyncOpenAI()
        question = [{"role": "user", "content": "Is it right?"}]
        said = await asked.chat.completions.create(model=judge, messages=question)
        return float(said.choices[0].message.content == "yes")

    def grouped(states, **kwargs) -> list[float]:
        return [1.0 for _ in states]

    funcs = {"judge": [judged], "judge_at_load": [judged], "group": [grouped], "empty": []}.get(what, [reward])
    rubric = vf.Rubric(funcs=funcs)
    if what == "no_rows":
        return vf.SingleTurnEnv(dataset=Dataset.from_dict({"question": [], "answer": []}), rubric=rubric)
    if what == "own_rows":
        held_out = Dataset.from_list([{"question": f"Say {n}0.", "answer": f"{n}0"} for n in range(1, 4)])
        return vf.SingleTurnEnv(dataset=Dataset.from_list(data), eval_dataset=held_out, rubric=rubric)
    if what in ("turns", "hang", "error", "bug"):
        made = Turns(dataset=Dataset.from_list(data), rubric=rubric, max_turns=3)
        made.what = what
        return made
    return vf.SingleTurnEnv(dataset=Dataset.from_list(data), rubric=rubric)
'''
LIBRARY = {
    "datasets": """
class Dataset(list):
    from_list = classmethod(lambda kind, rows: kind(rows))
    from_dict = classmethod(lambda kind, columns: kind())

    def __getitem__(self, place):
        found = list.__getitem__(self, place)
        return {name: [row[name] for row in found] for name in found[0]} if isinstance(place, slice) else found
""",
    "openai": """
import asyncio, json, os, urllib.error, urllib.request
from types import SimpleNamespace


class AsyncOpenAI:
    def __init__(self, base_url=None, api_key=None, timeout=None):
        self.base_url, self.api_key = base_url or os.environ["OPENAI_BASE_URL"], api_key or os.environ["OPENAI_API_KEY"]
        self.chat = SimpleNamespace(completions=SimpleNamespace(create=self._create))

    async def _create(self, **body):
        return await asyncio.to_thread(self._asked, body)

    def _asked(self, body):
        request = urllib.request.Request(self.base_url + "/chat/completions", json.dumps(body).encode())
        request.add_header("Authorization", "Bearer " + self.api_key)
        try:
            with urllib.request.urlopen(request) as reply:
                return json.load(reply, object_hook=lambda one: SimpleNamespace(**{"tool_calls": None, **one}))
        except urllib.error.HTTPError as error:
            raise RuntimeError(json.load(error)["error"]["message"]) from None
""",
    "verifiers": '''
"""So much of verifiers as an environment uses that does what it is told."""
import inspect, signal
from types import SimpleNamespace

__version__ = "0.1.14"


class Error(Exception):
    pass


class ToolCallError(Error):
    pass


class Rubric:
    def __init__(self, funcs=()):
        self.funcs, self.weights = list(funcs), [1.0] * len(funcs)

    def _is_group_func(self, func):
        return "states" in inspect.signature(func).parameters

    async def score_rollout(self, state):
        state["reward"] = 0.0
        for func in self.funcs:
            try:
                found = func(completion=state["completion"], answer=state["answer"])
                state["reward"] += float(await found if inspect.isawaitable(found) else found)
            except Exception:
                pass  # as the library does


class OpenAIChatCompletionsClient:
    def __init__(self, client):
        self.client = client

    async def raise_from_native_response(self, response):
        if not response.choices[0].message.content:
            raise Error("empty")

    async def from_native_response(self, response):
        message = response.choices[0].message
        message.content = message.content or None
        return SimpleNamespace(message=message)


class Environment:
    score_rollouts, sampling_args = True, {"n": 1, "extra_body": {}}

    def __init__(self, dataset=None, eval_dataset=None, rubric=None, max_turns=1):
        asking = lambda row: {**row, "prompt": [{"role": "user", "content": row["question"]}]}
        self.dataset = type(dataset)(map(asking, dataset))
        self.eval_dataset = None if eval_dataset is None else type(dataset)(map(asking, eval_dataset))
        self.rubric, self.max_turns = rubric, max_turns
        signal.signal(signal.SIGTERM, lambda *_: None)

    def get_dataset(self):
        return self.dataset

    def get_eval_dataset(self):
        return self.dataset if self.eval_dataset is None else self.eval_dataset

    async def run_rollout(self, row, client, model, sampling_args):
        state = {**row, "completion": [], "error": None}
        messages = list(row["prompt"])
        for turn in range(self.max_turns):
            try:
                messages += await self.env_response(messages, state) if turn else []
                response = await client.client.chat.completions.create(model=model, messages=messages, n=1)
                await client.raise_from_native_response(response)
                said = (await client.from_native_response(response)).message
            except Error as error:
                state["error"] = {"error": "Error", "error_chain_repr": repr(error)}
                break
            messages.append({"role": "assistant", "content": said.content})
        state["completion"] = messages[len(row["prompt"]) :]
        await self.rubric.score_rollout(state)
        return {**state, "metrics": {}}

    async def _teardown(self):
        pass


class MultiTurnEnv(Environment):
    pass


class SingleTurnEnv(MultiTurnEnv):
    pass
''',
}
"""Module -> its text."""


def odd_wheel(*, alone: bool) -> tuple[str, bytes]:
    """Return the wheel; `alone`: the library is not in it."""
    return wheel(code=CODE, name=NAME, beside=None if alone else LIBRARY)


def sample_environment(folder: Path, name: str, needs: str = "") -> Path:
    """Return a source distribution of an environment in examples/verifiers, unchanged, or with another requirement."""
    root, stem = Path(__file__).resolve().parents[2] / "examples/verifiers" / name, f"{name}-0.1.0"
    made = folder / f"{stem}.tar.gz"
    with tarfile.open(made, "w:gz") as archive:
        for path in sorted(root.iterdir()):
            if path.suffix in {".py", ".toml"}:
                other = needs and path.suffix == ".toml"
                archive.add(_other(folder, path, needs) if other else path, f"{stem}/{path.name}")
    return made


def _other(folder: Path, path: Path, needs: str) -> Path:
    text = path.read_text().replace("verifiers>=0.1.11", needs)
    (folder / path.name).write_text(text)
    return folder / path.name
