"""Words that several environments share. Every list is fixed: a word's index is a token id of trained models."""

SPECIALS = ("<pad>", "<bos>", "<eos>")
"""First in every vocabulary."""

_CONSONANTS = "bdfgklmnprstvz"
_VOWELS = "aeiou"


def syllables(count: int) -> tuple[str, ...]:
    """Return the first `count` words without a meaning, at most 70: the raw material of invented codes."""
    words = tuple(consonant + vowel for vowel in _VOWELS for consonant in _CONSONANTS)
    if count > len(words):
        raise ValueError(f"there are {len(words)} syllables, {count} were asked for")
    return words[:count]


def numerals(count: int) -> tuple[str, ...]:
    """Return the words `0` to `count - 1`."""
    return tuple(str(value) for value in range(count))
