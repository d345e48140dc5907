"""How a model is spoken to: its chat template, its special tokens, and the ids that end its turn."""

import json
from typing import Self

from pydantic import JsonValue

from flexmarl.contracts.base import Strict
from flexmarl.language.messages import Message
from flexmarl.language.templates import PLAIN, render_text

SAMPLE = (
    Message("system", "You are part of a team."),
    Message("user", "What is 2+3?"),
    Message("assistant", "5"),
    Message("user", "And 3+4?"),
)
"""A conversation that every template must render."""


class ChatFormat(Strict):
    template: str = PLAIN
    plain: bool = False
    """The model came without a template, and `template` is the plain one."""
    special: dict[str, str] = {}
    """Special tokens by the name that templates know them by, such as `bos_token`."""
    settings: dict[str, JsonValue] = {}
    """What else the template reads, by its name there, such as `enable_thinking`."""
    stop: tuple[int, ...] = ()
    """Ids that end the assistant's turn: of the generation configuration, and of the tokenizer's end."""

    def sample(self) -> str:
        """Return a small conversation as the model is shown it. Raises TemplateError; its time is not bounded here."""
        return render_text(self.template, SAMPLE, special=self.special, settings=self.settings)

    def dump(self) -> str:
        return self.model_dump_json()

    @classmethod
    def load(cls, text: str) -> Self:
        return cls.model_validate(json.loads(text))
