"""A conversation with a chat model for benchmarks: one role answers so many times, a fixed number of tokens each.

Messages go through the model's own template, tokenizer and chains, as in any run; only engines are told no id that ends
a turn, so that every reply has its full length and two sides can be compared.
"""

import random
from pathlib import Path

from tokenizers import Tokenizer

from flexmarl.language.chat_format import ChatFormat
from flexmarl.language.messages import Message
from flexmarl.language.renderer import Renderer
from flexmarl.store.data.model_roots import ModelRoots
from workers.models.opening import allow
from workers.models.tokenizer import Spoken, folder_spoken
from workers.rollout.environments.base import Ask, Demonstration, Outcome, Reply

TEXT = (
    "The river had been rising since the morning, and by noon the lower road was under water. Two of the farms had "
    "moved their cattle to the hill, where a barn stood empty; the third one waited, because its owner was away."
)
QUESTION_WORDS = 24
SYSTEM = Message("system", "You are one of a team of two. Go on with the story that the others tell.")


def spoken(folder: Path) -> Spoken:
    """Return how a folder's model reads and writes."""
    allow(ModelRoots((str(folder.parent),)))
    return folder_spoken(str(folder))


class Endless(Renderer):
    """A model's renderer that names no id at which a reply ends: every one has its full length, as if cut off."""

    def __init__(self, spoken: Spoken) -> None:
        super().__init__(Tokenizer.from_str(spoken.tokenizer.decode()), ChatFormat.load(spoken.chat))

    @property
    def stop_ids(self) -> tuple[int, ...]:
        return ()


def question(task: int, turn: int) -> Message:
    """Return what is said to the role before a turn of a task."""
    rng = random.Random(f"{task}.{turn}")
    return Message("user", " ".join(rng.choices(TEXT.split(), k=QUESTION_WORDS)))


class ChatTalk:
    """One role talks `turns` times, a fixed number of tokens each, and is told something new before each of them."""

    def __init__(self, role: str, tokens: int, turns: int) -> None:
        self.roles, self.tokens, self.turns = (role,), tokens, turns

    def make(self, task_seed: int, held_out: bool, rng: random.Random) -> "ChatConversation":
        return ChatConversation(self, task_seed)

    async def close(self) -> None:
        """End nothing: it scores by itself."""

    def demonstrations(self, rng: random.Random, count: int) -> list[Demonstration]:
        return []


class ChatConversation:
    def __init__(self, talk: ChatTalk, task: int) -> None:
        self.talk, self.task, self.said = talk, task, 0

    def asks(self) -> list[Ask]:
        if self.said == self.talk.turns:
            return []
        asked = question(self.task, self.said)
        messages = (asked,) if self.said else (SYSTEM, asked)
        return [Ask(self.talk.roles[0], "", self.talk.tokens, messages=messages)]

    def act(self, replies: list[Reply]) -> None:
        self.said += 1

    def outcome(self) -> Outcome:
        return Outcome({self.talk.roles[0]: 1.0}, 1.0, True)

    def describe(self) -> dict[str, object]:
        return {"title": "talk", "facts": {}}


class Prompts:
    """The ids that such conversations put to the engine, for clients that keep no chain."""

    def __init__(self, spoken: Spoken) -> None:
        self._renderer = Endless(spoken)

    def first(self, seed: int) -> list[int]:
        """Return the first prompt of a task."""
        return list(self._renderer.render((SYSTEM, question(seed, 0))))

    def next(self, prompt: list[int], reply: list[int], seed: int, turn: int) -> list[int]:
        """Return the prompt of a later turn: behind the reply the end of the turn and what is said next."""
        asked, said = (SYSTEM, Message("user", "?")), "x"
        text, ids = self._renderer.text(asked), self._renderer.encode(said)
        heard = (*asked, Message("assistant", said), question(seed, turn))
        return [*prompt, *reply, *self._renderer.bridge(text, ids, heard).ids]
