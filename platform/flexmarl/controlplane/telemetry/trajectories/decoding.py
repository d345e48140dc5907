"""Token ids of a run as text, by the tokenizer that each policy was bound with.

What a policy wrote is hostile text: it is returned as it is, and whoever shows it escapes it.
"""

from collections.abc import Sequence
from functools import lru_cache

from tokenizers import Tokenizer

from flexmarl.controlplane.common.store import store_connection
from flexmarl.language.chat_format import ChatFormat
from flexmarl.language.renderer import Renderer
from flexmarl.store.data import tokenizers

_BEHIND = 6
"""Tokens before one that its text is read with: a token's text may depend on its neighbours."""


def decoder_of(run_no: int, policy: str) -> Tokenizer | None:
    """Return a policy's tokenizer, None until its version 0 is bound."""
    if policy not in _bodies(run_no):
        _bodies.cache_clear()
        _chats.cache_clear()
    bodies = _bodies(run_no)
    # What an external agent wrote is recorded in the words of the run's first policy.
    body = bodies.get(policy) or next((bodies[name] for name in sorted(bodies)), None)
    return None if body is None else _parse(body)


def renderer_of(run_no: int, policy: str) -> Renderer | None:
    """Return what renders messages for a policy; None where it was not bound, or its model has no chat template."""
    decoder = decoder_of(run_no, policy)
    chat = _chats(run_no).get(policy) if decoder is not None else None
    if not chat or decoder is None:
        return None
    return Renderer(decoder, ChatFormat.load(chat))


def text_of(decoder: Tokenizer | None, ids: Sequence[int], *, special: bool = True) -> str:
    """Decode ids, with special tokens or without; without a tokenizer they are shown as numbers."""
    return " ".join(map(str, ids)) if decoder is None else decoder.decode(list(ids), skip_special_tokens=not special)


def token_texts(decoder: Tokenizer | None, ids: Sequence[int]) -> list[str]:
    """Return what each id adds to the text: joined they are the text."""
    if decoder is None:
        return [f" {identity}" if place else str(identity) for place, identity in enumerate(ids)]
    texts = []
    for place in range(len(ids)):
        first = max(0, place - _BEHIND)
        before = decoder.decode(list(ids[first:place]), skip_special_tokens=False)
        after = decoder.decode(list(ids[first : place + 1]), skip_special_tokens=False)
        alone = place == 0 or not after.startswith(before)
        texts.append(decoder.decode([ids[place]], skip_special_tokens=False) if alone else after[len(before) :])
    return texts


@lru_cache(maxsize=64)
def _bodies(run_no: int) -> dict[str, bytes]:
    return tokenizers.load(store_connection(), run_no)


@lru_cache(maxsize=64)
def _chats(run_no: int) -> dict[str, str]:
    return tokenizers.load_chats(store_connection(), run_no)


@lru_cache(maxsize=64)
def _parse(body: bytes) -> Tokenizer:
    return Tokenizer.from_str(body.decode())
