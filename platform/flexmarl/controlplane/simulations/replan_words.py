"""What reasons and rates of a plan anew mean, in words for people. Pure."""

from collections.abc import Sequence

from flexmarl.algorithms.replanning import ComparedRate
from flexmarl.controlplane.simulations.choices import ReplanReason

REASONS: dict[ReplanReason, str] = {
    ReplanReason.NO_PLAN: "No plan predicted this run: there is nothing to compare its rates with. Plan with "
    "predict: true, and send the plan_token with the run.",
    ReplanReason.FLEET: "The number of engines changes while the run goes on: its own rule sizes the fleet "
    "(mechanisms.scaling).",
    ReplanReason.NOT_RUNNING: "The run is not running; it is looked at again when it is.",
    ReplanReason.UNDER_WAY: "The run is being changed; it is looked at again when that is done.",
    ReplanReason.TOO_FEW: "Too few train steps were measured since the last change, or the run's start.",
    ReplanReason.WITHIN: "All measured rates are as assumed, within the dead band.",
    ReplanReason.SEEN: "Rates differ from the plan since a moment ago; some more train steps are measured first.",
    ReplanReason.NOT_CHOSEN: "Other devices cannot be chosen for this run.",
    ReplanReason.NO_BETTER: "Rates differ from the plan; by the measured ones the run has the best split.",
    ReplanReason.NOT_WORTH: "Rates differ from the plan; the best other split saves too little.",
    ReplanReason.DOES_NOT_PAY: "Another split is faster, but the rest of the run does not save enough to pay for the "
    "change.",
    ReplanReason.TRIED: "The best other split was tried from here and did not help, or was dismissed.",
    ReplanReason.HOLD: "Another split is faster; it is proposed if it still is when the hold after the last "
    "change ends.",
    ReplanReason.NO_CHECKPOINT: "Another split is faster, but there is no complete checkpoint to go on from. Set "
    "checkpoints.every_steps, or wait for the next one.",
    ReplanReason.PROPOSED: "Another split of the run's devices is faster.",
    ReplanReason.WITHDRAWN: "The last proposal was withdrawn: by the newest rates it saves too little.",
    ReplanReason.DISMISSED: "The last proposal was dismissed.",
    ReplanReason.APPLIED: "Another run goes on with the proposed devices.",
}
NAMES = {
    "step": "time per step",
    "generation": "generation of {of}",
    "load": "loading weights of {of}",
    "training": "gradients of {of}",
    "optimizer_step": "optimizer step of {of}",
    "reply": "replies of {of}",
}


def rate_name(name: str, of: str) -> str:
    """Name a rate as people call it."""
    return NAMES[name].format(of=of)


def wrong_words(rates: Sequence[ComparedRate], source: str) -> str:
    """Say which rates differ most from what was assumed."""
    told = [
        f"{rate_name(one.name, one.of)} {one.measured:.3g} {one.unit} instead of {one.assumed:.3g}"
        for one in sorted(rates, key=lambda one: -one.felt)[:3]
    ]
    basis = "planned" if source == "plan" else "measured before"
    return f"Differs from what was {basis}: {'; '.join(told)}." if told else REASONS[ReplanReason.PROPOSED]
