"""Which version made which tokens: [version, tokens, version, tokens, ...] over a reply, cut and joined. Pure."""

from collections.abc import Sequence


def count(segments: Sequence[int]) -> int:
    """Return the number of tokens they cover."""
    return sum(segments[1::2])


def until(segments: Sequence[int], tokens: int) -> list[int]:
    """Return the segments of the first tokens."""
    kept: list[int] = []
    for version, length in zip(segments[::2], segments[1::2], strict=True):
        if tokens <= 0:
            break
        kept += [version, min(length, tokens)]
        tokens -= length
    return kept


def since(segments: Sequence[int], tokens: int) -> list[int]:
    """Return the segments of everything behind the first tokens."""
    kept: list[int] = []
    for version, length in zip(segments[::2], segments[1::2], strict=True):
        if length > max(tokens, 0):
            kept += [version, length - max(tokens, 0)]
        tokens -= length
    return kept


def joined(first: Sequence[int], second: Sequence[int]) -> list[int]:
    """Return two stretches as one; where they meet in one version that is one segment."""
    if first and second and first[-2] == second[0]:
        return [*first[:-1], first[-1] + second[1], *second[2:]]
    return [*first, *second]
