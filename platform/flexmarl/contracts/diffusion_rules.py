"""What a block-diffusion policy cannot be combined with: one refusal per broken rule, with a legal value."""

from collections.abc import Iterator

from flexmarl.contracts.problems import Problem
from flexmarl.contracts.specification.branch_controllers import EchoOptions
from flexmarl.contracts.specification.experiment import ExperimentSpec
from flexmarl.contracts.specification.team import DECODING, FactoryModel

CODE = "not_with_block_diffusion"


def diffusion_rules(spec: ExperimentSpec) -> Iterator[Problem]:
    """Return every broken rule of the policies that make replies by block diffusion."""
    for name, policy in spec.policies.items():
        if isinstance(policy.source, FactoryModel):
            yield from _settings(f"/policies/{name}/model", policy.source)
        if policy.log_probs != "dipo" and not policy.denoises:
            yield Problem(
                pointer=f"/policies/{name}/log_probs",
                code="not_read",
                detail=f"{policy.log_probs} is of replies that block diffusion made; those of {name} are made from "
                "left to right.",
                hint="Set dipo, or decoding: block_diffusion in its model.",
            )
    denoising = [name for name, policy in spec.policies.items() if policy.denoises]
    if not denoising:
        return
    yield from _played(spec, denoising)
    trained = [name for name in denoising if name in spec.trainable_policies()]
    if trained:
        yield from _trained(spec, trained[0])
    for name in denoising:
        yield from _policy(spec, name)
    for name in trained:
        if spec.policies[name].log_probs == "diffu_grpo":
            yield from _all_at_once(spec, name)


def _settings(where: str, source: FactoryModel) -> Iterator[Problem]:
    """Return settings that say nothing."""
    for name in sorted(DECODING - {"decoding"}):
        default = FactoryModel.model_fields[name].default
        if not source.denoises and getattr(source, name) != default:
            yield Problem(
                pointer=f"{where}/{name}",
                code="not_read",
                detail=f"{name} is of block diffusion, and decoding is left_to_right.",
                hint=f"Set {default}, or decoding: block_diffusion.",
            )
    if source.denoises and source.denoising_steps > source.block:
        yield Problem(
            pointer=f"{where}/denoising_steps",
            code="out_of_range",
            detail=f"A step reveals one token at least, so a block of {source.block} is done after as many; "
            f"denoising_steps is {source.denoising_steps}.",
            hint=f"Set {source.block} or less.",
        )


def _refused(pointer: str, detail: str, hint: str) -> Problem:
    return Problem(pointer=pointer, code=CODE, detail=detail, hint=hint)


def _played(spec: ExperimentSpec, denoising: list[str]) -> Iterator[Problem]:
    """Return what no engine can do with such replies."""
    if spec.resources.engine != "torch":
        for name in denoising:
            yield Problem(
                pointer=f"/policies/{name}/model/decoding",
                code="not_with_engine",
                detail=f"{spec.resources.engine} makes replies from left to right; only the torch engine makes them by "
                "block diffusion.",
                hint="Set left_to_right, or resources: {engine: torch}.",
            )
    if spec.mechanisms.ordered:
        yield _refused(
            "/mechanisms/ordered",
            "The kernels of ordered runs compute one token of a reply at a time, and block diffusion whole blocks.",
            "Set false, or decoding: left_to_right in the models.",
        )
    if isinstance(spec.sampling.branch_controller, EchoOptions):
        yield _refused(
            "/sampling/branch_controller/type",
            "Block diffusion makes whole blocks, so no reply can be begun with the tokens before one in doubt.",
            "Set none, or decoding: left_to_right in the models.",
        )
    if spec.sampling.sharing.on:
        yield _refused(
            "/sampling/sharing",
            "Rollouts that are exchanged say nothing of the steps in which tokens were revealed.",
            "Turn sharing off, or set decoding: left_to_right in the models.",
        )


def _trained(spec: ExperimentSpec, name: str) -> Iterator[Problem]:
    """Return what of the algorithm needs replies from left to right."""
    algorithm = spec.algorithm
    if algorithm.advantage.has_critic:
        yield _refused(
            "/algorithm/advantage/type",
            f"{algorithm.advantage.type} judges what a policy has read before the first token of a reply; {name} reads "
            "it together with the reply's first block.",
            "Set grpo, or decoding: left_to_right in the models.",
        )
    if algorithm.loss.paired:
        yield _refused(
            "/algorithm/loss/type",
            f"{algorithm.loss.type} compares how probable whole replies are, and that of replies of {name} is known "
            "along the steps of their own decoding alone.",
            "Set ppo_clip, or decoding: left_to_right in the models.",
        )


def _policy(spec: ExperimentSpec, name: str) -> Iterator[Problem]:
    policy, where, lag = spec.policies[name], f"/policies/{name}", spec.lag_policy_of(name)
    if policy.trainer == "transformers":
        yield _refused(
            f"{where}/trainer",
            "The library has no model that makes replies by block diffusion.",
            "Set native, or decoding: left_to_right in its model.",
        )
    if policy.warmup is not None:
        yield _refused(
            f"{where}/warmup",
            "What is demonstrated has no steps in which its tokens were revealed.",
            "Remove it, or set decoding: left_to_right in its model.",
        )
    if policy.devices.most > 1:
        yield _refused(
            f"{where}/devices",
            "Trainer ranks share out rows of replies from left to right.",
            "Set 1, or decoding: left_to_right in its model.",
        )
    if lag.in_flight in ("continue", "resume"):
        yield _refused(
            f"{spec.lag_policy_pointer(name)}/in_flight",
            f"Half a block cannot be carried on by newer weights; in_flight of {name} is {lag.in_flight}.",
            "Set finish, or restart_turn.",
        )


def _all_at_once(spec: ExperimentSpec, name: str) -> Iterator[Problem]:
    """What diffu_grpo says of a token is no log-probability that an engine could have reported: no ratio is there."""
    algorithm, lag = spec.algorithm, spec.lag_policy_of(name)
    why = f"diffu_grpo of {name} gives a reply other log-probabilities than the engine that made it"
    hint = "or log_probs: dipo."
    if lag.bound > 0:
        yield _refused(
            f"{spec.lag_policy_pointer(name)}/bound",
            f"{why}, so rows of older weights have no ratio; the bound is {lag.bound}.",
            f"Set 0, {hint}",
        )
    if spec.sampling.replay.on:
        yield _refused(
            "/sampling/replay", f"{why}, so rows of older weights have no ratio.", f"Turn replay off, {hint}"
        )
    if algorithm.correction.type != "none":
        yield _refused(
            "/algorithm/correction/type",
            f"{why}, so {algorithm.correction.type} would mix two kinds.",
            f"Set none, {hint}",
        )
    if algorithm.loss.compares:
        yield _refused(
            "/algorithm/loss/type",
            f"{why}, and {algorithm.loss.type} reads the engine's.",
            f"Set ppo_clip, {hint}",
        )
