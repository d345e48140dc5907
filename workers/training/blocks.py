"""Training rows of one shape as checked arrays: decoding the wire, refusing bad rows, sharing equal inputs.

A row that cannot be trained on refuses the whole micro-batch: dropping or zero-filling it in silence would change the
gradient. Rows that feed a model the same tokens under the same mask and temperature differ in advantage and in the last
token at most; they share one forward pass. That changes no gradient, only how often equal numbers are computed: in
small games most of a batch is shared.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flexmarl.algorithms.aggregation import Aggregation
from workers.training.errors import RefusalCode, TrainerRefusal
from workers.training.held_replies import HeldReplies, HeldTokens, MaskTable
from workers.training.unrolling import Sight, Unrolling
from workers.training.wire import ID_BYTES, TrainRow

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

NO_VERSION = -1
"""Trained version of rows that no version of the policy made, such as demonstrations: they are not old."""


@dataclass(frozen=True, slots=True)
class TokenBlock:
    """n rows of P read and R sampled tokens in the same T turns, drawn from u distinct inputs.

    What is behind the last token that predicts a sampled one is never read. Rows of one input are neighbours.
    """

    spans: tuple[int, ...]
    """[2 T]: tokens read, tokens sampled, ... by turns"""
    predicting: Ints
    """[R]: the place in an input of what predicts each sampled token"""
    inputs: Ints
    """[u, last predicting + 1]"""
    temperature: Floats
    """[u]"""
    allowed: tuple[bytes, ...]
    """u masks as allowed ids; empty bytes allow everything."""
    source: Ints
    """[n], ascending: the input of each row."""
    targets: Ints
    """[n, R]"""
    behaviour: Floats
    """[n, R]: log-probabilities the engine reported."""
    lags: Floats
    """[n, R]: how many versions older than the trained one the weights were that made a token."""
    advantages: Floats
    """[n, R]: each token has that of its turn"""
    coefficients: Floats
    """[n]: c_i of the normal form."""
    held: HeldTokens | None = None
    """Masks along the inputs' replies; None where none was held to a grammar."""
    sight: Sight | None = None
    """What the tokens of an input see; None: those before them."""

    @property
    def length(self) -> int:
        return int(self.inputs.shape[1])

    @property
    def width(self) -> int:
        return int(self.targets.shape[1])

    @property
    def predictions(self) -> int:
        """Count the positions whose logits are asked for."""
        return len(self.inputs) * self.width

    def part(self, start: int, stop: int) -> "TokenBlock":
        """Return the inputs `start..stop` with their rows."""
        rows = slice(*np.searchsorted(self.source, (start, stop)))
        return TokenBlock(
            self.spans,
            self.predicting,
            self.inputs[start:stop],
            self.temperature[start:stop],
            self.allowed[start:stop],
            self.source[rows] - start,
            self.targets[rows],
            self.behaviour[rows],
            self.lags[rows],
            self.advantages[rows],
            self.coefficients[rows],
            None if self.held is None else self.held.part(start, stop),
            self.sight,
        )


@dataclass(frozen=True, slots=True)
class _Problem:
    row: int
    code: RefusalCode
    text: str


def blocks_of(
    rows: Sequence[TrainRow],
    aggregate: Aggregation,
    vocabulary: int,
    version: int = NO_VERSION,
    replies: HeldReplies | None = None,
    unrolling: Unrolling | None = None,
) -> list[TokenBlock]:
    """Decode and check rows; return one block per shape, shortest inputs first. Rows without response are left out.

    `version` is the one that is trained, from which the ages of tokens are counted; `replies` makes the masks of those
    that were held to a grammar; `unrolling` lays out those of a block-diffusion policy.

    Raises TrainerRefusal naming the first bad row and how many there are.
    """
    problems: list[_Problem] = []
    blocks: list[TokenBlock] = []
    table = None if replies is None else MaskTable(replies, vocabulary)
    rows = rows if unrolling is None else unrolling.prepared(rows, vocabulary)
    for numbers in _by_shape(rows, problems, unrolling):
        members = [rows[number] for number in numbers]
        found = _bad(numbers, members, vocabulary)
        problems += found
        if not found and members[0].response:
            block, order = _block(members, aggregate, version, table, unrolling)
            problems += _not_held(block, [numbers[place] for place in order])
            blocks.append(block)
    if problems:
        first = min(problems, key=lambda problem: problem.row)
        raise TrainerRefusal(first.code, f"row {first.row}: {first.text} ({len(problems)} of {len(rows)} rows are bad)")
    return sorted(blocks, key=lambda block: (block.length, block.width))


def _by_shape(rows: Sequence[TrainRow], problems: list[_Problem], unrolling: Unrolling | None) -> Iterator[list[int]]:
    shapes: dict[tuple[tuple[int, ...], tuple[int, ...]], list[int]] = {}
    for number, row in enumerate(rows):
        prompt, response = len(row.prompt), len(row.response)
        if prompt == 0 or (prompt | response | len(row.allowed)) % ID_BYTES or len(row.logprobs) != response:
            problems.append(_Problem(number, RefusalCode.MALFORMED_ROW, "empty prompt or lengths that disagree"))
        elif row.segments and sum(row.segments[1::2]) * ID_BYTES != response:
            problems.append(_Problem(number, RefusalCode.MALFORMED_ROW, "version segments of another length"))
        elif wrong := _not_turns(lengths := row.lengths(), row) or (unrolling.fault(row) if unrolling else ""):
            problems.append(_Problem(number, RefusalCode.MALFORMED_ROW, wrong))
        else:
            shapes.setdefault((lengths, unrolling.shape(row) if unrolling else ()), []).append(number)
    yield from shapes.values()


def _not_turns(lengths: Sequence[int], row: TrainRow) -> str:
    """Return what is wrong with a row's turns, empty when nothing is."""
    if len(lengths) != 2 * len(row.advantages):
        return f"{len(row.advantages)} advantages of {len(lengths) / 2:g} turns"
    if row.grammars and 2 * len(row.grammars) != len(lengths):
        return f"{len(row.grammars)} grammars of {len(lengths) / 2:g} turns"
    read, sampled = sum(lengths[::2]) * ID_BYTES, sum(lengths[1::2]) * ID_BYTES
    if min(lengths) < 0 or lengths[0] < 1 or (read, sampled) != (len(row.prompt), len(row.response)):
        return "turns of other lengths than the row's"
    return ""


def _bad(numbers: Sequence[int], rows: Sequence[TrainRow], vocabulary: int) -> list[_Problem]:
    """Return what is wrong with rows of one shape."""
    prompts, responses, logprobs = _joined(rows)
    figures = np.array([(*row.advantages, row.weight, row.temperature) for row in rows])
    outside = ((prompts < 0) | (prompts >= vocabulary)).any(1) | ((responses < 0) | (responses >= vocabulary)).any(1)
    finite = np.isfinite(figures).all(1) & np.isfinite(logprobs).all(1)
    legal = _legal(rows, responses, vocabulary)
    verdicts = (
        (outside, RefusalCode.MALFORMED_ROW, f"token ids outside 0..{vocabulary - 1}"),
        (~legal, RefusalCode.MALFORMED_ROW, "a response token that was not allowed"),
        (~finite, RefusalCode.NONFINITE_ROW, "log-probabilities, advantage, weight or temperature are not finite"),
        (~(figures[:, -1] > 0), RefusalCode.MALFORMED_ROW, "temperature 0: a greedy turn has no gradient"),
    )
    found: dict[int, _Problem] = {}
    for bad, code, text in verdicts:
        for index in np.flatnonzero(bad).tolist():
            found.setdefault(index, _Problem(numbers[index], code, text))
    return list(found.values())


def _legal(rows: Sequence[TrainRow], responses: Ints, vocabulary: int) -> npt.NDArray[np.bool_]:
    """Say of each row whether its mask is inside the vocabulary and allows all of its response."""
    legal = np.ones(len(rows), np.bool_)
    masks = [row.allowed for row in rows]
    for mask in set(masks):
        if mask:
            allowed = np.frombuffer(mask, "<i4")
            mine = np.array([other == mask for other in masks])
            inside = allowed.min() >= 0 and allowed.max() < vocabulary
            legal[mine] = inside & np.isin(responses[mine], allowed).all(1)
    return legal


def _block(
    rows: Sequence[TrainRow], aggregate: Aggregation, version: int, table: MaskTable | None, unrolling: Unrolling | None
) -> tuple[TokenBlock, Ints]:
    """Return rows of one shape as a block, and which of them each of its rows is."""
    spans = rows[0].lengths()
    sight = None if unrolling is None else unrolling.sight(rows[0])
    predicting = _predicting(spans) if sight is None else sight.predicting
    read = ID_BYTES * (int(predicting[-1]) + 1)

    def given(row: TrainRow) -> bytes:
        if unrolling is None or sight is None:
            return _in_turns(row, spans)[:read]
        return unrolling.input_of(row, sight, version)

    distinct: dict[tuple[bytes, bytes, float, tuple[str, ...]], int] = {}
    source = np.empty(len(rows), np.int64)
    for number, row in enumerate(rows):
        key = (given(row), row.allowed, row.temperature, tuple(row.grammars))
        source[number] = distinct.setdefault(key, len(distinct))
    order = np.argsort(source, kind="stable")
    _, responses, logprobs = _joined(rows)
    inputs = np.frombuffer(b"".join(tokens for tokens, *_ in distinct), "<i4").reshape(len(distinct), -1)
    coefficient, _ = aggregate(responses.shape[1])
    firsts = order[np.searchsorted(source[order], np.arange(len(distinct)))]
    block = TokenBlock(
        spans=spans,
        predicting=predicting,
        inputs=inputs.astype(np.int64),
        temperature=np.array([temperature for _, _, temperature, _ in distinct]),
        allowed=tuple(allowed for _, allowed, _, _ in distinct),
        source=source[order],
        targets=responses[order],
        behaviour=logprobs[order].astype(np.float64),
        lags=_lags(rows, responses.shape[1], version)[order],
        advantages=np.array([row.advantages for row in rows])[order].repeat(spans[1::2], axis=1),
        coefficients=np.array([coefficient * row.weight for row in rows])[order],
        held=_held([grammars for *_, grammars in distinct], spans, responses[firsts], table),
        sight=sight,
    )
    return block, order


def _held(
    grammars: Sequence[tuple[str, ...]], spans: Sequence[int], responses: Ints, table: MaskTable | None
) -> HeldTokens | None:
    """Make the masks along the replies of distinct inputs, each of which a row of `responses` came from."""
    if not any(map(any, grammars)):
        return None
    if table is None:
        raise TrainerRefusal(RefusalCode.OTHER_GRAMMAR, "rows name grammars, and nothing is there that makes masks")
    ends = np.cumsum(spans[1::2])
    parts = [slice(end - tokens, end) for end, tokens in zip(ends.tolist(), spans[1::2], strict=True)]
    replies = [
        (digest, response[part])
        for own, response in zip(grammars, responses, strict=True)
        for digest, part in zip(own or ("",) * len(parts), parts, strict=True)
    ]
    kinds = np.concatenate(table.held(replies)).reshape(responses.shape)
    return HeldTokens(kinds, table)


def _not_held(block: TokenBlock, numbers: Sequence[int]) -> list[_Problem]:
    """Return the rows of a block, of given numbers, with a token that its mask does not allow."""
    if block.held is None:
        return []
    legal = block.held.allows(block.source, block.targets)
    text = "a sampled token that the grammar of its reply does not allow, or allows beyond the library's limits"
    return [_Problem(numbers[row], RefusalCode.OTHER_GRAMMAR, text) for row in np.flatnonzero(~legal).tolist()]


def _predicting(spans: Sequence[int]) -> Ints:
    """Return the place of what predicts each sampled token: the one before it."""
    ends = np.cumsum(spans)
    return np.concatenate(
        [np.arange(end - sampled, end) - 1 for end, sampled in zip(ends[1::2], spans[1::2], strict=True)]
    )


def _in_turns(row: TrainRow, spans: Sequence[int]) -> bytes:
    """Return a row's ids as the policy read and said them."""
    if len(spans) == 2:
        return row.prompt + row.response
    parts, at = [], [0, 0]
    for number, tokens in enumerate(spans):
        side = number % 2
        end = at[side] + tokens * ID_BYTES
        parts.append((row.prompt, row.response)[side][at[side] : end])
        at[side] = end
    return b"".join(parts)


def _lags(rows: Sequence[TrainRow], width: int, version: int) -> Floats:
    """Return each token's age in versions; 0 where it is not known, or nothing is that old."""
    lags = np.zeros((len(rows), width))
    if version == NO_VERSION:
        return lags
    for lag, row in zip(lags, rows, strict=True):
        if len(row.segments) == 2:  # one version made all of it, as nearly always
            lag[:] = version - row.segments[0]
        elif row.segments:
            lag[:] = version - np.repeat(row.segments[::2], row.segments[1::2])
    return lags.clip(min=0.0)


def _joined(rows: Sequence[TrainRow]) -> tuple[Ints, Ints, npt.NDArray[np.float32]]:
    """Return prompts, responses and log-probabilities of rows of one shape as tables."""
    count = len(rows)
    prompts = np.frombuffer(b"".join(row.prompt for row in rows), "<i4").reshape(count, -1)
    responses = np.frombuffer(b"".join(row.response for row in rows), "<i4").reshape(count, -1)
    logprobs = np.frombuffer(b"".join(row.logprobs for row in rows), "<f4").reshape(count, -1)
    return prompts.astype(np.int64), responses.astype(np.int64), logprobs
