"""Between the text of a request and the token ids of an agent: its own tokenizer, and nobody's guess.

A word that a word-level vocabulary does not hold is refused with a few it does: it would mean nothing to the agent.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tokenizers import Tokenizer

from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.controlplane.common.problems import Conflict
from flexmarl.controlplane.playground.models_of import Model
from flexmarl.controlplane.playground.observations import allowed_words
from flexmarl.controlplane.playground.questions import MOST_TOKENS, RANGES, Prompt, Question, wrong
from flexmarl.controlplane.telemetry.trajectories.decoding import decoder_of, renderer_of
from flexmarl.language.dialects.calls import ModelCall
from flexmarl.language.instructed import instructed
from flexmarl.language.renderer import Renderer

SHOWN_WORDS = 12
END_WORDS = ("<eos>", "</s>", "<|endoftext|>", "<|im_end|>")
"""Special words by which vocabularies end a text."""


class NoTokenizer(Conflict):
    code = "no_tokenizer"
    title = "The agent has no words yet"


@dataclass(frozen=True, slots=True)
class TokenizedQuestion:
    """A question as token ids of the policy, with its sampling settings."""

    prompts: tuple[tuple[int, ...], ...]
    max_tokens: int
    temperature: float
    allowed: tuple[int, ...]
    stop: tuple[int, ...]
    """Token ids that end a reply and are no part of it."""
    sampling: Mapping[str, Any]
    """Parameters beside those, in the engine's dialect."""
    renderer: Renderer | None = None
    """By which the reply becomes a message; None where it is words."""

    @property
    def stop_texts(self) -> tuple[str, ...]:
        """Texts that end a reply and are no part of it."""
        return tuple(self.sampling["stop"])


def spoken(model: Model, question: Question, tokenizer: Tokenizer) -> TokenizedQuestion:
    """Put a question into token ids. Raises ValidationProblem that names unknown words and some known ones."""
    sampling = model.agent["sampling"]
    temperature = sampling["temperature"] if question.temperature is None else question.temperature
    ids, texts = _stops(tokenizer, question.stop or tuple(sampling["stop"]))
    renderer = None if question.call is None else renderer_of(model.run.no, model.policy)
    usual = reply_length(model)
    return TokenizedQuestion(
        prompts=prompts(model, question, tokenizer, renderer),
        max_tokens=min(question.max_tokens or usual, max(usual, MOST_TOKENS)),
        temperature=float(temperature),
        allowed=() if question.structured else _allowed(model, tokenizer, question.allowed_words),
        stop=tuple(dict.fromkeys((*ids, *(renderer.stop_ids if renderer else ()), *_ends(tokenizer)))),
        sampling={
            "stop": texts,
            **{name: question.drawn.get(name, sampling[name]) for name in RANGES},
            **_structured(question, renderer),
        },
        renderer=renderer,
    )


def prompts(
    model: Model, question: Question, tokenizer: Tokenizer, renderer: Renderer | None
) -> tuple[tuple[int, ...], ...]:
    """Return the ids that the agent reads. Raises ValidationProblem."""
    if question.call is None or renderer is None:
        _refuse_tools(question)
        return tuple(_ids(tokenizer, prompt, question.field) for prompt in question.prompts)
    return (_rendered(renderer, model, question.call),)


def count(model: Model, question: Question) -> int:
    """Count the ids that the agent would read. Raises ValidationProblem."""
    renderer = renderer_of(model.run.no, model.policy)
    return sum(map(len, prompts(model, question, tokenizer_of(model), renderer)))


def tokenizer_of(model: Model) -> Tokenizer:
    """Return the agent's tokenizer. Raises NoTokenizer before its policy was bound."""
    found = decoder_of(model.run.no, model.policy)
    if found is None:
        raise NoTokenizer(f"{model.role} of {model.run.key} has no tokenizer yet: its policy was never bound.")
    return found


def reply_length(model: Model) -> int:
    """How long a reply is when the caller does not say: as long as the environment asks for."""
    spec = ExperimentSpec.model_validate(model.run.spec)
    lengths = {role.name: role.reply_tokens for role in spec.environment.facts().roles}
    return lengths.get(model.role) or spec.longest_reply(model.role)


def known_words(tokenizer: Tokenizer) -> list[str]:
    """Return the words of a word-level vocabulary in their order, without special ones; empty for other kinds."""
    if not _is_word_level(tokenizer):
        return []
    special = {token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special}
    words = sorted(tokenizer.get_vocab().items(), key=lambda pair: pair[1])
    return [word for word, _ in words if word not in special]


def _ids(tokenizer: Tokenizer, prompt: Prompt, field: str) -> tuple[int, ...]:
    if not isinstance(prompt, str):
        size = tokenizer.get_vocab_size()
        if not all(0 <= number < size for number in prompt):
            raise wrong(field, "holds a token id that the agent does not have", f"ids are 0 to {size - 1}")
        return prompt
    if _is_word_level(tokenizer):
        _refuse_unknown(tokenizer, prompt.split(), field)
    return tuple(tokenizer.encode(prompt).ids)


def _structured(question: Question, renderer: Renderer | None) -> dict[str, str]:
    """Return what the reply must be, if anything. Raises ValidationProblem where the agent cannot be held to it."""
    call = question.call
    if call is None or not question.structured:
        return {}
    rule = "leave it out, or ask an agent of a language model that begins with its words"
    if renderer is None:
        raise wrong(call.structured_field, "the agent's model has no chat template", rule, "unsupported_parameter")
    if renderer.thinks_first:
        raise wrong(call.structured_field, "the agent's replies begin within a thought", rule, "unsupported_parameter")
    if question.allowed_words:
        rule = "send one of the two"
        raise wrong("allowed_words", f"does not go with {call.structured_field}", rule, "unsupported_parameter")
    return {"structured": call.structured}


def _refuse_tools(question: Question) -> None:
    """Refuse what only a chat template can say."""
    call = question.call
    if call is None:
        return
    rule = "leave it out, or ask an agent of a language model"
    if call.tools:
        raise wrong("tools", "the agent's model has no chat template to say them", rule, "unsupported_parameter")
    if any(message.role == "tool" or message.tool_calls for message in call.messages):
        raise wrong("messages", "the agent's model has no chat template to say calls of tools", rule)


def _rendered(renderer: Renderer, model: Model, call: ModelCall) -> tuple[int, ...]:
    """Render a call as its agent is asked in training: behind its own instructions."""
    text = str(model.agent.get("instructions") or "")
    try:
        return renderer.render(instructed(call.messages, text, model.role, tuple(model.run.spec["agents"])), call.tools)
    except ValueError as error:  # also what instructions say of themselves
        rule = "send messages that it renders, such as one of the user"
        raise wrong("messages", f"the model's chat template does not take them: {error}", rule) from error


def _refuse_unknown(tokenizer: Tokenizer, words: Sequence[str], field: str) -> None:
    unknown = list(dict.fromkeys(word for word in words if tokenizer.token_to_id(word) is None))
    if unknown:
        named = ", ".join(repr(word[:40]) for word in unknown[:SHOWN_WORDS])
        known = known_words(tokenizer)
        some = " ".join(known[:SHOWN_WORDS])
        rule = f"it knows {len(known)} words, such as: {some}" if known else "each must be one token of the agent"
        raise wrong(field, f"the agent does not know {named}", rule, "unknown_words")


def _single(tokenizer: Tokenizer, words: Sequence[str], field: str) -> tuple[int, ...]:
    """Return the id of each word; what is no single token of the agent is refused."""
    _refuse_unknown(tokenizer, words, field)
    return tuple(number for word in words if (number := tokenizer.token_to_id(word)) is not None)


def _stops(tokenizer: Tokenizer, stops: Sequence[str]) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Return the ids of the stop strings that are words of a word-level vocabulary, and other texts as they are."""
    return (_single(tokenizer, stops, "stop"), ()) if _is_word_level(tokenizer) else ((), tuple(stops))


def _ends(tokenizer: Tokenizer) -> list[int]:
    return [number for word in END_WORDS if (number := tokenizer.token_to_id(word)) is not None]


def _allowed(model: Model, tokenizer: Tokenizer, words: Sequence[str] | None) -> tuple[int, ...]:
    if words is None:
        return tuple(sorted(allowed_words(model.run, model.role)))
    return tuple(dict.fromkeys(_single(tokenizer, words, "allowed_words")))


def _is_word_level(tokenizer: Tokenizer) -> bool:
    return _kind(tokenizer.to_str()) == "WordLevel"


@lru_cache(maxsize=64)
def _kind(body: str) -> str:
    return str(json.loads(body)["model"]["type"])
