"""Turns of a sample row: a chain of one policy, in which what it read and what it said take turns.

A row of one turn says all of it in its columns, unless its reply was held to a grammar. A row of several keeps its
turns beside, as JSON; its columns then hold sums of lengths, reward and time, and the finish and the engine of the last
turn. Turns of other chains of the same role may stand between those of a row.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate, groupby, islice
from typing import NamedTuple

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


def encoded(spans: Sequence[Span]) -> bytes | None:
    """Return what a row keeps of its turns; None where its columns say all."""
    if len(spans) == 1 and not spans[0].grammar:
        return None
    return orjson.dumps([list(span) if span.grammar else list(span)[:-1] for span in spans])


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
