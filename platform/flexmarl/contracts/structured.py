"""What a reply must be as a grammar of llguidance, and which ones no engine takes. Pure.

Every engine draws replies by these grammars: one that is refused here is taken by none, and one that is taken here
compiles in each. Bounds are looked at before anything is compiled: without them a few letters of a schema are an
automaton of gigabytes (`multipleOf` has a state for each remainder).
"""

import json
import math
from collections.abc import Iterator
from fractions import Fraction

from llguidance import LLMatcher

from flexmarl.contracts.specification.sampling import ChoiceOutput, JsonOutput, RegexOutput, StructuredOutput

MOST_CHARACTERS = 32_000
MOST_DEPTH = 64
MOST_COUNT = 100_000
MOST_REMAINDERS = 10_000
COUNTS = frozenset({"minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"})


def grammar_of(output: StructuredOutput) -> str:
    """Return the grammar in the words of llguidance. It need not compile."""
    match output:
        case ChoiceOutput(choices=choices):
            return LLMatcher.grammar_from_lark(f"start: {' | '.join(map(_quoted, choices))}")
        case RegexOutput(pattern=pattern):
            return LLMatcher.grammar_from_regex(pattern)
        case JsonOutput(of=schema):
            return LLMatcher.grammar_from_json_schema(schema)


def fault_of(output: StructuredOutput) -> str:
    """Return what is wrong with it and what would not be; empty where engines take it."""
    if isinstance(output, JsonOutput) and (beyond := _beyond(output.of)):
        return beyond
    wrong, said = LLMatcher.validate_grammar_with_warnings(grammar_of(output))
    if not wrong:
        return ""
    return f"{' '.join(said[0].split())[:300]}; write it without"


def _quoted(choice: str) -> str:
    return json.dumps(choice, ensure_ascii=False)


def _beyond(schema: dict[str, object]) -> str:
    """Return the bound that a schema exceeds; empty where it keeps all of them."""
    remainders = 1
    for depth, name, value in _members(schema):
        if depth > MOST_DEPTH:
            return f"it is nested more than {MOST_DEPTH} deep; nest it less"
        if not isinstance(value, int | float) or isinstance(value, bool):
            continue
        if name in COUNTS and value > MOST_COUNT:
            return f"{name} is {value}; at most {MOST_COUNT} is taken"
        if name == "multipleOf" and math.isfinite(value) and value > 0:
            step = Fraction(str(value))
            remainders = math.lcm(remainders, step.numerator * step.denominator)
            if remainders > MOST_REMAINDERS:
                rule = f"their least common multiple, without decimal points, is at most {MOST_REMAINDERS}"
                return f"multipleOf is {value}, beside others perhaps; {rule}"
    if (length := len(json.dumps(schema))) > MOST_CHARACTERS:
        return f"it has {length} characters; at most {MOST_CHARACTERS} are taken"
    return ""


def _members(schema: object) -> Iterator[tuple[int, str, object]]:
    """Yield every value within a schema with its depth and name; those of lists have none."""
    left: list[tuple[int, str, object]] = [(0, "", schema)]
    while left:
        depth, name, value = left.pop()
        yield depth, name, value
        if depth > MOST_DEPTH:
            continue
        if isinstance(value, dict):
            left += [(depth + 1, key, inner) for key, inner in value.items()]
        elif isinstance(value, list):
            left += [(depth + 1, "", inner) for inner in value]
