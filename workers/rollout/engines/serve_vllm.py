"""The vLLM engine child: `python -m workers.rollout.engines.serve_vllm`, under the interpreter that has vLLM.

Invariants. vLLM runs inside this process, so its end takes everything along; the ranks of an engine of several devices
are processes that end with it (`vllm_ranks`). Nothing is fetched from anywhere. A cause that a restart does not mend
(vLLM missing or broken, a model it does not serve) is said in the place of the ready line.
"""

import logging
import os
import sys
import traceback
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NoReturn

from flexmarl.contracts.specification.experiment import ExperimentSpec
from flexmarl.contracts.specification.program import ProgramEnvironment
from flexmarl.contracts.specification.team import FactoryModel, Lora, PolicySpec
from workers import child_server
from workers.child import ChildConfig, ChildFailed, IntervalLog
from workers.models.adapter import no_adapter
from workers.models.architecture import UnsupportedModel
from workers.models.places import folder_of
from workers.rollout.engines.adapters import Adapters
from workers.rollout.engines.base import EngineFailedError
from workers.rollout.engines.requests import NotHeldError
from workers.rollout.engines.serving import serve_engine
from workers.rollout.engines.stop_strings import StopStrings
from workers.rollout.engines.tokenizers import Tokenizers
from workers.rollout.engines.vllm_adapters import SharedEngine
from workers.rollout.engines.vllm_engine import VllmEngine
from workers.rollout.engines.vllm_instance import Instance, build, said
from workers.rollout.engines.vllm_models import vllm_model
from workers.rollout.engines.vllm_ranks import PROCESSES
from workers.transfer.local import LocalTier

if TYPE_CHECKING:
    import torch

logging.getLogger("torch._library.triton").setLevel(logging.ERROR)  # that a CPU has no triton is no news; also in ranks
ROWS = 256
"""Requests of one policy version in generation at once."""


class Instances:
    """Makes instances: an engine of its own for weights of a policy, a place on a shared one for its adapters."""

    def __init__(self, config: ChildConfig, spec: ExperimentSpec, rows: int = ROWS) -> None:
        """Raises UnsupportedModel for a model that vLLM does not serve."""
        policies = spec.policies
        self.models = {name: vllm_model(policy.source, config.devices) for name, policy in policies.items()}
        self.rows = rows
        self._policies = policies
        self._device, self._home = config.device, config.home
        self._shared: dict[str, SharedEngine] = {}
        self._stop_strings = StopStrings(Tokenizers(policies).of)
        program = spec.environment if isinstance(spec.environment, ProgramEnvironment) else None
        also_trained = program is not None and program.formats == "held"
        held = {role for role, agent in spec.agents.items() if agent.sampling.structured is not None}
        if program is not None:  # a call may say what its reply must be
            held |= {role for role, agent in spec.agents.items() if also_trained or not agent.trainable}
        self._structured = {spec.policy_of(role) for role in held} & policies.keys()
        """Policies whose replies are structured, or may be: vLLM reads their text."""

    def share(self, settings: PolicySpec, base: "dict[str, torch.Tensor]") -> SharedEngine:
        """Start the engine that holds a base, for all policies that train adapters over it."""
        over = {
            name: own.tuning
            for name, own in self._policies.items()
            if own.model == settings.model and isinstance(own.tuning, Lora)
        }
        model = self.models[next(iter(over))]
        shared = SharedEngine(
            model, base, list(over.values()), self._device, self.rows, self._stop_strings, self._tokenizer(over)
        )
        self._shared.update(dict.fromkeys(over, shared))
        return shared

    def __call__(self, policy: str, words: int) -> Instance:
        tuning, model = self._policies[policy].tuning, self.models[policy]
        if isinstance(tuning, Lora):
            return self._shared[policy].instance(tuning)
        engine = build(model, words, self._device, self.rows, tokenizer=self._tokenizer([policy]))
        return Instance(model, words, engine, self._stop_strings, self._home)

    def _tokenizer(self, policies: Iterable[str]) -> str:
        """Return the folder of the tokenizer by which vLLM reads text of policies of one model; empty: of none."""
        source = next((self._policies[name].source for name in policies if name in self._structured), None)
        return "" if source is None or isinstance(source, FactoryModel) else folder_of(source)


class VllmStatePlaneSource:
    """Brings a version's weights from the state plane, and makes the first instance of its policy ready meanwhile."""

    def __init__(
        self, engine: VllmEngine, config: ChildConfig, policies: Mapping[str, PolicySpec], instances: Instances
    ) -> None:
        self._engine = engine
        self._plane = LocalTier(config.home)
        self._policies = policies
        self._models = instances.models
        self._adapters = Adapters(self._plane, instances.share)

    def __call__(self, policy: str, digest: str) -> object:
        if policy not in self._policies:
            raise NotHeldError(f"policy {policy!r} is not part of this run; it has {sorted(self._policies)}")
        settings = self._policies[policy]
        if isinstance(settings.tuning, Lora):
            shared, adapter = self._adapters.get(policy, settings, settings.tuning, digest)
            return self._engine.prepare(policy, adapter, shared.words)
        no_adapter(self._plane.meta(digest), policy)
        state = self._plane.get(digest)
        return self._engine.prepare(policy, state, self._models[policy].check(state))

    def forget(self) -> None:
        """Keep what is there: it belongs to engines that stay."""


def make_engine(instances: Instances) -> VllmEngine:
    """Return an engine without policies yet. Raises EngineFailedError when vLLM cannot be imported."""
    try:
        from vllm.v1.engine.llm_engine import LLMEngine
    except Exception as error:  # a broken build raises whatever its extension modules raise
        raise EngineFailedError(f"vLLM cannot be imported by {sys.executable}: {error}") from error
    del LLMEngine  # imported now, so that the first load need not wait for it
    return VllmEngine(instances, instances.rows)


def main() -> None:
    """Read the configuration from standard input and serve."""
    config = child_server.read_config()
    answer = child_server.take_standard_output()
    try:
        spec = ExperimentSpec.model_validate(config.spec)
        instances = Instances(config, spec)
        engine = make_engine(instances)
    except UnsupportedModel as refused:
        failed = ChildFailed("unsupported_model", str(refused), "choose another model, or resources.engine: torch")
    except EngineFailedError as broken:
        failed = ChildFailed("engine_failed", str(broken), "fix the environment of FLEXMARL_VLLM_PYTHON")
    else:
        source = VllmStatePlaneSource(engine, config, spec.policies, instances)
        _serve(config, engine, source, answer)
    child_server.say(answer, failed)
    sys.exit(1)


def _serve(config: ChildConfig, engine: VllmEngine, source: VllmStatePlaneSource, answer: int) -> NoReturn:
    """Serve, then leave at once: taking vLLM apart in order takes longer than a parent waits, and may hang."""
    code = 1
    try:
        child_server.run_loop(serve_engine(config, engine, source, IntervalLog(), answer))
        code = 0
    except Exception as error:  # whatever broke generation: a fresh life follows
        traceback.print_exc()
        sys.stderr.write(
            f"{PROCESSES.lost() or said(error)}\n"
        )  # the last words of this one: an error may end in lines that say nothing
    finally:
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
