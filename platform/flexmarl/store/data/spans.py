"""Turns of a sample row: a chain of one policy, in which what it read and what it said take turns.

A row of one turn says all of it in its columns, unless its reply was held to a grammar or made by block diffusion. A
row of several keeps its turns beside, as JSON; its columns then hold sums of lengths, reward and time, and the finish
and the engine of the last turn. Turns of other chains of the same role may stand between those of a row.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate, groupby, islice
from typing import NamedTuple

import numpy as np
import orjson

from flexmarl.store.data.payload import Arrays, pack, unpack


class Span(NamedTuple):
    """One turn of a chain: what is new in its context, and then what was sampled."""

    context: int
    """Tokens"""
    sampled: int
    """Tokens"""
    finish: str
    reward: float = 0.0
    engine: str = ""
    latency_ms: float = 0.0
    offset: int = 0
    """How many turns of the role it stands behind the first one of the row."""
    grammar: str = ""
    """Digest of what its reply was held to, of which `store.reply_grammar` has the text; empty: nothing."""
    steps: str = ""
    """Of a reply made by block diffusion its step map, a character of `DIGITS` for each token; empty: of another."""

    @property
    def plain(self) -> bool:
        """Tell whether the columns of a row say all of it, where it is the row's only turn."""
        return not (self.grammar or self.steps)


DIGITS = "0123456789abcdefghijklmnopqrstuv"
"""Of steps in the step maps of spans."""


def step_digits(steps: Sequence[int]) -> str:
    """Return a step map as spans keep it."""
    return "".join(DIGITS[step] for step in steps)


def steps_of(spans: Sequence[Span]) -> bytes:
    """Return the step map of a row's sampled tokens as int16; empty where it has none."""
    return np.array([DIGITS.index(digit) for span in spans for digit in span.steps], "<i2").tobytes()


def encoded(spans: Sequence[Span]) -> bytes | None:
    """Return what a row keeps of its turns; None where its columns say all."""
    if len(spans) == 1 and spans[0].plain:
        return None
    return orjson.dumps([_kept(span) for span in spans])


def _kept(span: Span) -> list[object]:
    """Return a turn without what it has nothing of at its end."""
    if span.plain:
        return list(span[:-2])
    return list(span if span.steps else span[:-1])


def decoded(kept: Sequence[Sequence[object]] | None, alone: Span) -> list[Span]:
    """Return the turns of a row by what it keeps of them; `alone` is what its columns make of it."""
    return [alone] if kept is None else [Span(*one) for one in kept]  # type: ignore[arg-type]


def turns_of(arrays: Arrays, spans: Sequence[Span]) -> Iterator[Arrays]:
    """Part a row's arrays into its turns, each with all that came before it as its prompt."""
    if len(spans) == 1 or not arrays.payload:
        yield from [arrays] * len(spans)
        return
    context, sampled, logprobs = arrays.prompt_ids(), arrays.response_ids(), arrays.response_logprobs()
    allowed, said = arrays.allowed_ids(), []
    read_ends = accumulate(span.context for span in spans)
    said_ends = accumulate(span.sampled for span in spans)
    for span, read, end in zip(spans, read_ends, said_ends, strict=True):
        said += context[read - span.context : read].tolist()
        reply = slice(end - span.sampled, end)
        payload = pack(said, sampled[reply], logprobs[reply], allowed)
        yield unpack(payload, len(said), span.sampled, arrays.n_allowed)
        said += sampled[reply].tolist()


def parted(segments: Sequence[int], lengths: Sequence[int]) -> list[list[int]]:
    """Part version, tokens, version, tokens, ... over a row into the same over each of its turns."""
    pairs = zip(segments[::2], segments[1::2], strict=True)
    versions = (version for version, count in pairs for _ in range(count))
    turns = (groupby(list(islice(versions, length))) for length in lengths)
    return [[n for version, own in turn for n in (version, len(list(own)))] for turn in turns]


EACH_TURN = """LATERAL (
  SELECT s.turn, s.n_prompt, s.n_response, s.finish, s.latency_ms WHERE s.spans IS NULL
  UNION ALL
  SELECT s.turn + (k.span ->> 6)::int, (sum((k.span ->> 0)::int + (k.span ->> 1)::int) OVER (ORDER BY k.ord))::int
      - (k.span ->> 1)::int, (k.span ->> 1)::int, k.span ->> 2, (k.span ->> 5)::real
  FROM jsonb_array_elements(s.spans) WITH ORDINALITY AS k(span, ord)
) AS t(turn, n_prompt, n_response, finish, latency_ms)"""
"""Turns of a row of `store.sample s`: the length of all that each read, and what its reply was."""
