"""What one policy keeps in the state plane, and what it lets go.

Invariants: the newest versions stay restorable (weights and training state); weights stay longer, because evaluations
and engines speak of older ones; what a checkpoint names stays until the next checkpoint of its label. Claims lie on
disk, so a new life of the trainer knows what the last one kept. Weights behind the newest training state stay, since
steps are redone up to them. What adapters are laid over is kept under a claim of its own, for as long as the state
plane's folder is, and each of their versions names it.
"""

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from flexmarl.contracts.specification.team import Lora
from flexmarl.host.backups import removals_held
from workers.models.adapter import base_of, description
from workers.transfer import LocalTier, StateMissing
from workers.transfer.contents import Encoded, encode

if TYPE_CHECKING:
    import torch

    Weights = Mapping[str, torch.Tensor]

log = structlog.get_logger(__name__)

RESTORABLE = 3
"""Newest versions whose training state is kept: the committed one, one in flight, one to spare."""
WEIGHTS_COUNT = 12
WEIGHTS_BYTES = 256 * 2**20
"""Older weights are kept up to this count and size: the versions behind the newest that slow readers still ask for."""
GRACE_S = 60.0
"""A checkpoint's claims younger than this are not collected: its command may run twice at once."""

_WEIGHTS, _STATE, BASE = "weights", "training_state", "base"


@dataclass(frozen=True, slots=True)
class StoredVersion:
    """Digests of a version: what engines load, and what a trainer restores."""

    weights: str
    state: str


def holder_of(owner: str, label: str) -> str:
    """Name the owner of what a checkpoint of a label keeps."""
    return f"{owner}-{label}"


def owner_of(run_id: int, policy: str) -> str:
    """Name the owner of what a policy of a run keeps."""
    return f"run-{run_id}-{policy}"


class VersionStore:
    def __init__(self, home: str, run_id: int, policy: str) -> None:
        self._home = home
        self._owner = owner_of(run_id, policy)
        self._tier = LocalTier(home, self._owner)
        self._states: dict[str, str] = {}
        """State digest -> weights digest, oldest first."""
        self._weights: dict[str, int] = {}
        """Weights digest -> bytes, oldest first."""
        self._beside = ThreadPoolExecutor(1, thread_name_prefix=f"store-{policy}")
        self._evicting: Future[None] | None = None
        self._storing: Future[object] | None = None
        """A training state that is written beside the next step."""
        self._about: dict[str, object] = {}
        """What the description of each version says beside its kind."""
        self._recall()

    def put(self, weights: "Weights", state: "Weights") -> StoredVersion:
        """Store a version durably; what is too old by then goes while the next one is trained."""
        published = self._published(weights)
        restorable = encode(state, {"kind": _STATE, "weights": published.digest})
        self.settle()
        storing = self._beside.submit(self._tier.store, restorable)  # both wait for the disk, so they wait together
        try:
            manifest = self._tier.store(published)
            storing.result()
        except BaseException:  # no version: whichever of the two was stored goes as well, once both are done
            storing.exception()
            self._evict([each.digest for each in (published, restorable) if not self._known(each.digest)])
            raise
        self._note_weights(manifest.digest, manifest.bytes)
        self._note_state(restorable.digest, published.digest)
        self._evicting = self._beside.submit(self._evict, self._let_go())
        return StoredVersion(published.digest, restorable.digest)

    def put_behind(self, weights: "Weights", state: "Weights") -> StoredVersion:
        """Store a version whose training state is on disk, and may change, only when `settle` has returned."""
        published = self._published(weights)
        restorable = encode(state, {"kind": _STATE, "weights": published.digest})
        self.settle()
        manifest = self._tier.store(published)
        self._note_weights(manifest.digest, manifest.bytes)
        self._storing = self._beside.submit(self._tier.store, restorable)
        self._note_state(restorable.digest, published.digest)
        self._evicting = self._beside.submit(self._evict, self._let_go())
        return StoredVersion(published.digest, restorable.digest)

    def put_weights(self, weights: "Weights") -> str:
        """Store the weights of a version without its training state."""
        self.settle()
        manifest = self._tier.store(self._published(weights))
        self._note_weights(manifest.digest, manifest.bytes)
        self._evicting = self._beside.submit(self._evict, self._let_go())
        return manifest.digest

    def adopt(self, stored: StoredVersion) -> bool:
        """Keep a version that lies here already; False when it does not."""
        self.settle()
        manifest = self._tier.locate(stored.weights) if self._tier.claim(stored.weights) else None
        if manifest is None or (stored.state and not self._tier.claim(stored.state)):
            return False
        self._note_weights(manifest.digest, manifest.bytes)
        if stored.state:
            self._note_state(stored.state, stored.weights)
        self._evicting = self._beside.submit(self._evict, self._let_go())
        return True

    def put_state(self, weights: str, state: "Weights") -> StoredVersion:
        """Store the training state of a version whose weights lie here."""
        self.settle()
        manifest = self._tier.store(encode(state, {"kind": _STATE, "weights": weights}))
        self._note_state(manifest.digest, weights)
        return StoredVersion(weights, manifest.digest)

    def put_base(self, base: "Weights", lora: Lora) -> None:
        """Keep what the adapters put from now on are laid over."""
        manifest = LocalTier(self._home, f"{self._owner}-{BASE}").put(base, {"kind": BASE})
        self._about = description(manifest.digest, lora)

    @property
    def base_digest(self) -> str:
        """Name what this policy's adapters are laid over."""
        return str(self._about["base"])

    def base(self) -> "dict[str, torch.Tensor]":
        """Return what this policy's adapters are laid over."""
        return self._tier.mapped(self.base_digest)

    def find_base(self, digest: str, policy: str, lora: Lora) -> None:
        """Go on with what a published adapter is laid over. Raises WrongAdapterError for one of another kind."""
        self._about = description(base_of(self._tier.meta(digest), policy, lora), lora)

    def keep_base(self) -> "dict[str, torch.Tensor]":
        """Keep what this policy's adapters are laid over as its own run's; return it."""
        base = str(self._about["base"])
        if not LocalTier(self._home, f"{self._owner}-{BASE}").claim(base):
            raise StateMissing(base, "the weights beneath the adapter are not here")
        return self.base()

    def described(self, digest: str) -> dict[str, object]:
        return self._tier.meta(digest)

    def weights(self, digest: str) -> "dict[str, torch.Tensor]":
        return self._tier.mapped(digest)

    def state(self, digest: str, weights: str) -> "dict[str, torch.Tensor] | None":
        """Return the training state of a digest, None when it belongs to other weights."""
        if self._tier.meta(digest).get("weights") != weights:
            return None
        return self._tier.mapped(digest)

    def hold(self, digest: str, label: str) -> str:
        """Keep a version for the checkpoint of a label, and let go of the one that label held before.

        Returns the digest of its training state, empty when there is none.
        """
        states = [state for state, weights in self._states.items() if weights == digest]
        self.hold_all({digest, *states}, label)
        return states[-1] if states else ""

    def hold_all(self, digests: set[str], label: str) -> None:
        """Keep contents under a label, and let go of what that label held before."""
        self.settle()
        holder = LocalTier(self._home, holder_of(self._owner, label))
        for each in digests:
            holder.claim(each)
        if not removals_held(self._home):
            holder.collect(digests, GRACE_S)

    def settle(self) -> None:
        """Wait for what is written beside, and for the last eviction, so that it never meets a put of the same content.

        Raises what kept a training state from being written.
        """
        storing, self._storing = self._storing, None
        evicting, self._evicting = self._evicting, None
        if evicting is not None:
            evicting.result()
        if storing is not None:
            storing.result()

    def _published(self, weights: "Weights") -> Encoded:
        return encode(weights, {"kind": _WEIGHTS, **self._about})

    def _known(self, digest: str) -> bool:
        return digest in self._states or digest in self._weights

    def _note_state(self, state: str, weights: str) -> None:
        self._states.pop(state, None)
        self._states[state] = weights

    def _note_weights(self, digest: str, size: int) -> None:
        self._weights.pop(digest, None)
        self._weights[digest] = size

    def _let_go(self) -> list[str]:
        """Return what is no longer kept; nothing while a backup is made, after which it goes with the next version."""
        if removals_held(self._home):
            return []
        gone = []
        while len(self._states) > RESTORABLE:
            oldest = next(iter(self._states))
            del self._states[oldest]
            gone.append(oldest)
        needed = set(self._states.values()) | self._behind_newest_state()
        for digest in list(self._weights)[:-1]:  # the newest stays, however large: a frozen policy has nothing else
            if len(self._weights) <= WEIGHTS_COUNT and sum(self._weights.values()) <= WEIGHTS_BYTES:
                break
            if digest not in needed:
                del self._weights[digest]
                gone.append(digest)
        return gone

    def _behind_newest_state(self) -> set[str]:
        """Return the weights of versions that follow the newest one whose training state is kept."""
        newest = next(reversed(self._states.values()), "")
        order = list(self._weights)
        return set(order[order.index(newest) :]) if newest in self._weights else set()

    def _evict(self, digests: list[str]) -> None:
        for digest in digests:
            try:
                self._tier.evict(digest)
            except OSError as error:  # it stays on disk a life longer; no step may fail for that
                log.warning("cannot evict", digest=digest, error=str(error))

    def _recall(self) -> None:
        """Learn from the claims on disk what an earlier life kept."""
        for digest in self._tier.claims():
            manifest = self._tier.locate(digest)
            if manifest is None:
                self._tier.evict(digest)  # claimed, but its writer died before it was whole
                continue
            meta = self._tier.meta(digest)
            if meta.get("kind") == _STATE:
                self._states[digest] = str(meta["weights"])
            else:
                self._weights[digest] = manifest.bytes
