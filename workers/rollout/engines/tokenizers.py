"""Which tokenizer the run speaks to each policy by, as its engines know it: by digest, for no engine reads text.

Invariant: weights are served only to who speaks by the tokenizer that they were first loaded with, and by the one that
lies beside the model on this host. Ids of another one would be other words, and nothing else would show it.
"""

import hashlib
from collections.abc import Mapping

from flexmarl.contracts.specification.team import FactoryModel, PolicySpec
from workers.models.opening import TOKENIZER_BYTES, ModelFolder
from workers.models.places import folder_of
from workers.rollout.engines.wire import LoadRequest

SHOWN = 12


class TokenizerDiffersError(ValueError):
    """The run's tokenizer of a policy is not the one this engine knows; the text says what to do."""


class Tokenizers:
    def __init__(self, policies: Mapping[str, PolicySpec]) -> None:
        self._policies = policies
        self._known: dict[str, str] = {}

    def check(self, asked: LoadRequest) -> None:
        """Compare what a load names with what is known of its policy. Raises TokenizerDiffersError."""
        if not asked.tokenizer or asked.policy not in self._policies:
            return
        known = self._known.setdefault(asked.policy, self._of_this_host(asked.policy) or asked.tokenizer)
        if known != asked.tokenizer:
            raise TokenizerDiffersError(
                f"the run speaks to {asked.policy} by tokenizer {asked.tokenizer[:SHOWN]}, this engine knows it by "
                f"{known[:SHOWN]}; put the folder that the policy was made from on every host, as it was, and retry"
            )

    def _of_this_host(self, policy: str) -> str:
        """Return the digest of the tokenizer in a policy's folder; empty where there is none."""
        known = self.of(policy)
        return "" if known is None else hashlib.sha256(known).hexdigest()

    def of(self, policy: str) -> bytes | None:
        """Return the tokenizer.json in a policy's folder on this host; None where there is none."""
        source = self._policies[policy].source
        if isinstance(source, FactoryModel):
            return None
        with ModelFolder(folder_of(source)) as folder:
            return folder.read("tokenizer.json", TOKENIZER_BYTES) if folder.has("tokenizer.json") else None
