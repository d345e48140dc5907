"""What a reply of a trained agent was held to, with all that its masks depend on beside the ids sampled so far. Pure.

The engine that draws a reply and the trainer that computes its gradient make the same masks from this and the reply's
ids. So it names what makes them: the tokenizer by its digest, and the library with its version; another one of either
makes no masks of it.
"""

import hashlib
from importlib.metadata import version

from pydantic import Field

from flexmarl.contracts.base import Strict

LIBRARY = f"llguidance {version('llguidance')}"
"""What makes the masks in this process."""


class ReplyGrammar(Strict):
    structured: str = Field(min_length=1)
    """A `StructuredOutput` of the specification as JSON: what a whole reply must be."""
    stop: tuple[int, ...] = Field(min_length=1)
    """Ids that end a reply, in the order in which the engine was told of them."""
    tokenizer: str = Field(pattern="^[0-9a-f]{64}$")
    """SHA-256 of the policy's tokenizer.json."""
    library: str = LIBRARY
    """What made the masks, with its version."""


def digest_of(body: str) -> str:
    """Return by what rows name a grammar, which is kept as JSON."""
    return hashlib.blake2b(body.encode(), digest_size=16).hexdigest()
