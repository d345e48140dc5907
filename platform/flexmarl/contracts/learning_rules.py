"""Rules inside the algorithm: settings that a loss reads, and ranges that would quietly do nothing."""

from collections.abc import Iterator

from flexmarl.contracts.problems import Problem
from flexmarl.contracts.spec.algorithm import CLIPPED, Loss
from flexmarl.contracts.spec.experiment import ExperimentSpec

WIDEST_ROW_CLIP = 0.05
"""Above this a clip of row ratios never bites: they are means over a row's tokens, within thousandths of 1."""


def learning_rules(spec: ExperimentSpec) -> Iterator[Problem]:
    """Return what the algorithm of a specification breaks."""
    yield from _loss_settings(spec.algorithm.loss)
    yield from _row_clip(spec.algorithm.loss)
    yield from _gamma(spec)


def _loss_settings(loss: Loss) -> Iterator[Problem]:
    """Refuse a setting that the chosen loss does not read: it would be believed in."""
    plain = Loss()
    reads = {
        "dual_clip": loss.type == "ppo_clip",
        "gate_positive": loss.type == "sapo",
        "gate_negative": loss.type == "sapo",
        "norm_tokens": loss.aggregation == "constant_norm",
        "clip_low": loss.type in CLIPPED,
        "clip_high": loss.type in CLIPPED,
    }
    for name, read in reads.items():
        value, default = getattr(loss, name), getattr(plain, name)
        if not read and value != default:
            by = f"aggregation {loss.aggregation}" if name == "norm_tokens" else loss.type
            yield Problem(
                pointer=f"/algorithm/loss/{name}",
                code="not_read",
                detail=f"{name} is {value}, and {by} does not read it.",
                hint="Remove it." if default is None else f"Remove it, or set {default}.",
            )


def _row_clip(loss: Loss) -> Iterator[Problem]:
    """Refuse a token's clip range under a loss of rows, where it would switch clipping off."""
    for name, published in (("clip_low", 0.0003), ("clip_high", 0.0004)):
        value = getattr(loss, name)
        if loss.type == "gspo" and value > WIDEST_ROW_CLIP:
            yield Problem(
                pointer=f"/algorithm/loss/{name}",
                code="out_of_range",
                detail=f"gspo clips the geometric mean of a row's ratios, which is within thousandths of 1; {name} "
                f"{value} would clip nothing.",
                hint=f"Set {published}, or at most {WIDEST_ROW_CLIP}.",
            )


def _gamma(spec: ExperimentSpec) -> Iterator[Problem]:
    advantage = spec.algorithm.advantage
    if advantage.gamma != 1.0 and not advantage.per_turn:
        yield Problem(
            pointer="/algorithm/advantage/gamma",
            code="needs_per_turn",
            detail="gamma discounts the reward-to-go of turns and needs per_turn.",
            hint="Set per_turn: true, or gamma: 1.",
        )
