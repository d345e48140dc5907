"""What every tier of the state plane promises. The caller says what, never where.

Invariants, kept by the tiers: a digest names exactly one content, so a second put of the same content is the same
content; `get` returns the whole content or raises, never a part of it. Where a tier outlives its processes, a digest
that `put` returned is durable.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    import torch

Tensors: TypeAlias = "Mapping[str, torch.Tensor]"
Meta: TypeAlias = Mapping[str, object]


class StateError(Exception):
    """The state plane cannot answer for a digest."""

    code = "state_error"

    def __init__(self, digest: str, detail: str) -> None:
        super().__init__(digest, detail)
        self.digest = digest
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.detail} (digest {self.digest})"


class StateMissing(StateError):
    """No tier holds the digest, or its manifest was never completed."""

    code = "state_missing"


class CorruptState(StateError):
    """The bytes found under a digest are not the bytes it names."""

    code = "state_corrupt"


class StateFull(StateError):
    """There is no room for a content. Nothing of it stays."""

    code = "state_full"


@dataclass(frozen=True, slots=True)
class ContentManifest:
    """Proof that a content lies whole in a tier; written after everything it speaks of."""

    digest: str
    bytes: int
    """Length of the payload."""
    path: str
    """Where this tier keeps the content; for people."""


class StatePlane(Protocol):
    def put(self, tensors: Tensors, meta: Meta | None = None) -> ContentManifest:
        """Store tensors with a small JSON description and return when that is done. Equal input, equal digest.

        Raises StateFull when there is no room; then nothing of it stays.
        """

    def get(self, digest: str, device: str = "cpu") -> "dict[str, torch.Tensor]":
        """Return the tensors of a digest, checked. Raises StateMissing or CorruptState."""

    def meta(self, digest: str) -> dict[str, object]:
        """Return the description of a digest, checked. Raises like `get`."""

    def locate(self, digest: str) -> ContentManifest | None:
        """Return where a digest lies, or None."""

    def evict(self, digest: str) -> bool:
        """Give up this owner's claim on a digest; True when its content went with it."""

    def collect(self, keep: Collection[str], grace_s: float) -> list[str]:
        """Give up every claim of this owner that is not in `keep` and older than `grace_s`; return their digests."""


class Coming(StateMissing):
    """A source does not have it, and is bringing it itself."""


class NotYet(StateMissing):
    """Whoever asks again a little later may get it."""


class Source(Protocol):
    """Where contents can be fetched from, chunk by chunk. Nothing it gives is trusted: who fetches checks it."""

    name: str

    def manifest(self, digest: str) -> bytes:
        """Return a content's manifest. Raises StateMissing, or StateError when the source cannot be reached."""

    def fetch(self, digest: str, chunk: str, room: memoryview) -> None:
        """Fill memory with a chunk. Raises like `manifest`, CorruptState for one of another length, and NotYet."""

    def order(self, chunks: Sequence[str]) -> Sequence[int]:
        """Return in which order chunks are best fetched, by their places."""
        return range(len(chunks))

    def delta(self, digest: str, bases: Sequence[str], most: float) -> str | None:
        """Return the digest of what makes a content of one of the bases, of at most that share of its bytes.

        None when the source has none, or the whole is to be preferred. Raises StateError when it cannot be reached.
        """
