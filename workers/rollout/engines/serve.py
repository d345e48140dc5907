"""The engine child: `python -m workers.rollout.engines.serve`, hosted by a device worker."""

import argparse
from typing import TYPE_CHECKING

from flexmarl.contracts.specification.experiment import ExperimentSpec
from flexmarl.contracts.specification.team import Lora, PolicySpec
from workers import child_server
from workers.child import ChildConfig, IntervalLog
from workers.models.adapter import no_adapter
from workers.models.architecture import architecture_of
from workers.models.checks import check_weights
from workers.rollout.engines.adapters import Adapters
from workers.rollout.engines.decoder import Weights
from workers.rollout.engines.requests import NotHeldError
from workers.rollout.engines.serving import serve_engine
from workers.rollout.engines.tokenizers import Tokenizers
from workers.rollout.engines.torch_engine import TorchEngine
from workers.transfer.local import LocalTier

if TYPE_CHECKING:
    import torch

ROWS = 256
"""Requests of one policy version in generation at once: more keeps a tiny model busier, at little memory."""


class StatePlaneSource:
    """Brings a version's weights from the state plane into the engine's form; a base once for all its adapters.

    What an engine leaves where it lies is memory that the engines of a host share: it is read, never written.
    """

    def __init__(self, engine: TorchEngine, config: ChildConfig) -> None:
        self._engine = engine
        self._plane = LocalTier(config.home)
        self._policies = ExperimentSpec.model_validate(config.spec).policies
        self._adapters = Adapters(self._plane, self._prepared)

    def __call__(self, policy: str, digest: str) -> Weights:
        if policy not in self._policies:
            raise NotHeldError(f"policy {policy!r} is not part of this run; it has {sorted(self._policies)}")
        settings = self._policies[policy]
        if isinstance(settings.tuning, Lora):
            base, adapter = self._adapters.get(policy, settings, settings.tuning, digest)
            return self._engine.adapt(base, adapter, settings.tuning)
        no_adapter(self._plane.meta(digest), policy)
        return self._prepared(settings, self._plane.mapped(digest))

    def forget(self) -> None:
        """Keep no base of adapters: the next one is read anew."""
        self._adapters = Adapters(self._plane, self._prepared)

    def _prepared(self, settings: PolicySpec, state: "dict[str, torch.Tensor]") -> Weights:
        architecture = architecture_of(settings.source)
        check_weights(settings.source, state)
        return self._engine.prepare(state, architecture, settings.precision)


def main() -> None:
    """Read the configuration from standard input and serve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS, help="requests of one policy version generated at once")
    rows = parser.parse_args().rows
    config = child_server.read_config()
    prepare_torch(config.own_threads)
    tokenizers = Tokenizers(ExperimentSpec.model_validate(config.spec).policies)
    engine = TorchEngine(config.device, rows, config.ordered, tokenizers.of)
    child_server.run_loop(serve_engine(config, engine, StatePlaneSource(engine, config), IntervalLog()))


def prepare_torch(threads: int) -> None:
    """One thread per process is the rule: a second one waits at barriers whenever the cores are shared."""
    import torch

    torch.set_num_threads(threads)
    torch.set_num_interop_threads(1)
    torch.set_flush_denormal(True)


if __name__ == "__main__":
    main()
