"""Which ids may come next in a reply that is held to a grammar: llguidance over a tokenizer, for engines and trainers.

Invariants. Both sides compile by the very same calls, so equal grammars, tokenizers and ids so far give equal masks. An
id that ends replies may come exactly where the reply is whole, and where nothing else may follow it is the only one.
"""

from collections.abc import Sequence

from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from pydantic import TypeAdapter, ValidationError

from flexmarl.contracts.specification.sampling import StructuredOutput
from flexmarl.contracts.structured import fault_of, grammar_of

LIMITS = LLParserLimits()
"""Of automata, and of the work for one mask: milliseconds, whatever a grammar says."""
_OUTPUT: TypeAdapter[StructuredOutput] = TypeAdapter(StructuredOutput)


class NoMasks(ValueError):
    """No masks can be made of a grammar or with a tokenizer; the text says why."""


def reader(tokenizer_json: str, words: int, stop: Sequence[int]) -> LLTokenizer:
    """Return a tokenizer over so many ids, of which `stop` end a reply. Raises NoMasks."""
    try:
        return LLTokenizer(tokenizer_json, n_vocab=words, eos_token=list(stop))
    except ValueError as error:
        raise NoMasks(str(error)) from error


def output_of(structured: str) -> StructuredOutput:
    """Read what a reply must be, and refuse what is not taken. Raises NoMasks."""
    try:
        output = _OUTPUT.validate_json(structured)
    except ValidationError as error:
        raise NoMasks(f"is not known: {error.errors()[0]['msg']}") from error
    if fault := fault_of(output):
        raise NoMasks(fault)
    return output


def matcher(tokenizer: LLTokenizer, output: StructuredOutput) -> LLMatcher:
    """Compile a grammar; replies walk copies of what is returned. Raises NoMasks."""
    made = LLMatcher(tokenizer, grammar_of(output), log_level=0, limits=LIMITS)
    if not made.is_error():
        made.compute_bitmask()  # what is lazy in it: copies have it ready
    if made.is_error():
        raise NoMasks(f"{' '.join(made.get_error().split())[:300]}; say less in it")
    return made
