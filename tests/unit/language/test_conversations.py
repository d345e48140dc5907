"""A thousand conversations with tools per template: the chain is what the engine saw, and breaks only where it must."""

import json
from collections import Counter
from pathlib import Path

from tokenizers import AddedToken, Tokenizer
from transformers.utils.chat_template_utils import render_jinja_template

from flexmarl.language.chains import Chain
from flexmarl.language.chat_format import ChatFormat
from flexmarl.language.messages import Message
from flexmarl.language.renderer import Break, Renderer
from tests.support.chat_model import chat_home, chat_model  # noqa: F401 - fixtures
from tests.support.chat_templates import END, MARKS, QWEN3, SMOLLM2, tokenizer
from tests.support.conversations import TOOLS, Generator, Spoken
from tests.support.forms import form

OTHER = "<|endoftext|>"
MANY = form(short=250, full=1000)
DESCRIBED = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n"
    + "\n".join(json.dumps(tool, ensure_ascii=False) for tool in TOOLS)
    + "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
    '<tool_call></tool_call> XML tags:\n<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n'
    "</tool_call>"
)


def with_other_end(words: Tokenizer) -> Tokenizer:
    words.add_special_tokens([AddedToken(OTHER, special=True)])
    return words


class Talk:
    """One conversation: plays it through a chain, and holds every prompt against transformers."""

    def __init__(self, words: Tokenizer, template: str, seed: int, *, thoughts: bool, **settings: bool) -> None:
        self.words = words
        self.template = template
        self.settings = settings
        self.stops = tuple(words.token_to_id(end) for end in (END, OTHER))
        self.generator = Generator(seed, thoughts=thoughts)
        self.chain = Chain(Renderer(words, ChatFormat(template=template, stop=self.stops, settings=settings)))
        self.history: list[Message] = []
        self.marked: list[bool] = []
        """Of each reply since the user last spoke: whether the prompt holds a thought of it, or its mark."""
        self.seen = Counter[str]()

    def play(self) -> None:
        delta = self.generator.opening()
        prompt = self.ask(delta)
        assert self.text(prompt) == self.reference()
        for _ in range(self.generator.turns):
            spoken = self.generator.reply()
            sampled = self.sample(spoken)
            said = self.hear(spoken, sampled)
            delta = self.generator.following(said)
            self.history.append(said)
            expected = self.forced(spoken, said, delta)
            before, broken = self.chain.ids, self.chain.breaks
            prompt = self.ask(delta)
            whole = self.reference()
            self.seen[str(expected or "bridge")] += 1
            if expected is None:
                assert self.chain.breaks == broken, (spoken, delta)
                assert prompt[: len(before)] == before
                behind = whole[whole.rindex("<|im_start|>assistant", 0, whole.rindex("<|im_start|>assistant")) :]
                behind = behind[behind.index(END) :]
                closing = self.text(prompt[len(before) :])
                if spoken.open:
                    closing = closing.lstrip().removeprefix("</think>").lstrip()
                assert closing == (behind if spoken.end == "cut" else behind.removeprefix(END))
            else:
                assert self.chain.breaks == (*broken, expected), (spoken, delta)
                assert self.text(prompt) == whole
        assert self.chain.breaks_by_cause == {cause: count for cause, count in self.seen.items() if cause != "bridge"}

    def ask(self, delta: tuple[Message, ...]) -> tuple[int, ...]:
        self.history += delta
        prompt = self.chain.ask(delta, TOOLS)
        assert self.chain.ids == prompt
        return prompt

    def sample(self, spoken: Spoken) -> tuple[int, ...]:
        ids = self.words.encode(spoken.text, add_special_tokens=False).ids
        if spoken.torn:
            ids.append(self.words.token_to_id("Ã"))  # the first of two bytes
        return (*ids, *{"stop": self.stops[:1], "other": self.stops[1:], "cut": ()}[spoken.end])

    def hear(self, spoken: Spoken, sampled: tuple[int, ...]) -> Message:
        """The engine's reply is the end of the chain, and says what its text says."""
        before = self.chain.ids
        said = self.chain.answer(sampled)
        assert self.chain.ids == before + sampled
        assert [json.dumps(call.arguments) for call in said.tool_calls] == [
            json.dumps(call.arguments) for call in spoken.says.tool_calls
        ], spoken
        assert [call.name for call in said.tool_calls] == [call.name for call in spoken.says.tool_calls]
        assert letters(said.content) == letters(spoken.says.content), spoken
        assert said.reasoning.strip() == spoken.says.reasoning.strip(), spoken
        return said

    def forced(self, spoken: Spoken, said: Message, delta: tuple[Message, ...]) -> Break | None:
        """Return the break that the template forces, by what it says of replies and thoughts."""
        self.marked.append(spoken.thought)
        asked = any(message.role == "user" for message in delta)
        left_out = spoken.thought and not said.reasoning
        never_closed = spoken.open and spoken.end != "cut"
        thoughts = any(self.marked) if asked else left_out or never_closed
        cause = None
        if thoughts or self.no_thinking:
            cause = Break.THOUGHTS_REWRITTEN
        elif spoken.words_behind:
            cause = Break.REPLY_REWRITTEN
        elif spoken.end == "other":
            cause = Break.OTHER_END
        if asked:
            self.marked = []
        elif cause is not None:
            self.marked[-1] = bool(said.reasoning)
        return cause

    @property
    def no_thinking(self) -> bool:
        return self.settings.get("enable_thinking") is False

    def text(self, ids: tuple[int, ...]) -> str:
        return self.words.decode(list(ids), skip_special_tokens=False)

    def reference(self) -> str:
        """Return the prompt of the conversation as transformers renders it."""
        known = "tools" in self.template
        messages = [as_dict(message) for message in self.history] if known else in_words(self.history)
        (text,), _ = render_jinja_template(
            [messages], tools=list(TOOLS) if known else None, chat_template=self.template,
            add_generation_prompt=True, **self.settings,
        )  # fmt: skip
        return text


def letters(text: str) -> str:
    return "".join(text.split())


def as_dict(message: Message) -> dict:
    calls = [
        {"type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in message.tool_calls
    ]
    thoughts = {"reasoning_content": message.reasoning} if message.reasoning else {}
    return {"role": message.role, "content": message.content, **thoughts, **({"tool_calls": calls} if calls else {})}


def in_words(history: list[Message]) -> list[dict]:
    """Return what a template without tools is to read: the convention of `plain_tools`, written once more."""
    found: list[dict] = []
    if history[0].role == "system":
        found.append({"role": "system", "content": history[0].content + "\n\n" + DESCRIBED})
        history = history[1:]
    else:
        found.append({"role": "system", "content": DESCRIBED})
    results = False
    for message in history:
        content = message.content
        if message.role == "tool":
            content = f"<tool_response>\n{content}\n</tool_response>"
            if results:
                found[-1]["content"] += "\n" + content
                continue
        for call in message.tool_calls:
            head, arguments = json.dumps(call.name, ensure_ascii=False), json.dumps(call.arguments, ensure_ascii=False)
            content += (
                "\n" if content else ""
            ) + f'<tool_call>\n{{"name": {head}, "arguments": {arguments}}}\n</tool_call>'
        results = message.role == "tool"
        found.append({"role": "user" if results else message.role, "content": content})
    return found


def played(words: Tokenizer, template: str, seeds: range, *, thoughts: bool, **settings: bool) -> Counter[str]:
    seen = Counter[str]()
    for seed in seeds:
        talk = Talk(words, template, seed, thoughts=thoughts, **settings)
        try:
            talk.play()
        except AssertionError as failed:
            raise AssertionError(f"conversation {seed}: {failed}") from failed
        seen += talk.seen
    return seen


def test_many_conversations_on_the_template_of_qwen3() -> None:
    seen = played(with_other_end(tokenizer(MARKS)), QWEN3, range(MANY), thoughts=True)
    assert seen["bridge"] > MANY
    assert min(seen[cause] for cause in (Break.THOUGHTS_REWRITTEN, Break.REPLY_REWRITTEN, Break.OTHER_END)) > MANY // 50
    assert set(seen) == {"bridge", Break.THOUGHTS_REWRITTEN, Break.REPLY_REWRITTEN, Break.OTHER_END}


def test_a_prompt_that_opens_with_an_empty_thought_is_rewritten_by_qwen3_in_every_turn() -> None:
    seen = played(with_other_end(tokenizer(MARKS)), QWEN3, range(200), thoughts=False, enable_thinking=False)
    assert seen["bridge"] == 0


def test_many_conversations_on_the_template_of_smollm2() -> None:
    seen = played(with_other_end(tokenizer()), SMOLLM2, range(MANY), thoughts=False)
    assert set(seen) == {"bridge", Break.REPLY_REWRITTEN, Break.OTHER_END}
    assert seen["bridge"] > 3 * MANY


def test_conversations_at_the_vocabulary_of_smollm2(chat_model: Path) -> None:  # noqa: F811 - a fixture
    words = Tokenizer.from_file(str(chat_model / "tokenizer.json"))
    template = (chat_model / "chat_template.jinja").read_text(encoding="utf-8")
    assert template == SMOLLM2
    assert played(words, template, range(200), thoughts=False)["bridge"] > 600
