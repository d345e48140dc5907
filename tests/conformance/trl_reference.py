"""What TRL's own GRPOTrainer and OnlineDPOTrainer compute on given tensors: loss, and gradient by each token's
log-probability.

`python tests/conformance/trl_reference.py` (with the packages of requirements/trl.txt) writes the recorded figures that
`test_trl.py` compares with. It runs the trainers' own methods on a stand-in that has the attributes they read: tensors
come from the record instead of a model.
"""

import hashlib
import json
from collections import defaultdict
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

FIGURES = Path(__file__).with_name("trl_figures.json")
ROWS, TOKENS, LONGEST = 8, 9, 16
Tables = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Case:
    """One set-up of TRL beside the options here that mean the same."""

    name: str
    theirs: dict[str, Any]
    loss: dict[str, Any]
    algorithm: dict[str, Any] = field(default_factory=dict)
    entropy_coef: float = 0.0
    sampled: str = ""
    """TRL's mode of importance sampling against the engine; then its `old` is the trained policy itself."""


ROW_MEAN = {"aggregation": "seq_mean_token_mean"}
CONSTANT = {"aggregation": "constant_norm", "norm_tokens": LONGEST}
SEQUENCE = {"importance_sampling_level": "sequence"}
NARROW = {"epsilon_low": 0.03, "epsilon_high": 0.04}
CASES = (
    Case("grpo", {"loss_type": "grpo"}, {"type": "ppo_clip", **ROW_MEAN}),
    Case("grpo_delta", {"loss_type": "grpo", "delta": 1.5}, {"type": "ppo_clip", "dual_clip": 1.5, **ROW_MEAN}),
    Case("bnpo", {"loss_type": "bnpo"}, {"type": "ppo_clip"}),
    Case("dapo", {"loss_type": "dapo", "epsilon_high": 0.28}, {"type": "ppo_clip", "clip_high": 0.28}),
    Case("dapo_entropy", {"loss_type": "dapo", "entropy_coef": 0.05}, {"type": "ppo_clip"}, entropy_coef=0.05),
    Case("dapo_kl", {"loss_type": "dapo", "beta": 0.04}, {"type": "ppo_clip"}, {"kl": {"coefficient": 0.04}}),
    Case(
        "grpo_kl",
        {"loss_type": "grpo", "beta": 0.5},
        {"type": "ppo_clip", **ROW_MEAN},
        {"kl": {"coefficient": 0.5, "estimator": "k3"}},
    ),
    Case(
        "grpo_kl_weighted",
        {"loss_type": "grpo", "beta": 0.5, "weighted_kl": True},
        {"type": "ppo_clip", **ROW_MEAN},
        {"kl": {"coefficient": 0.5, "estimator": "k3_weighted"}},
    ),
    Case(
        "dapo_kl_weighted",
        {"loss_type": "dapo", "beta": 0.04, "weighted_kl": True},
        {"type": "ppo_clip"},
        {"kl": {"coefficient": 0.04, "estimator": "k3_weighted"}},
    ),
    *(
        Case(
            f"{kind}_entropy_{quantile}",
            {"loss_type": kind, "top_entropy_quantile": round(1.0 - quantile, 9), "beta": 0.04},
            {"type": "ppo_clip", **average, "entropy_quantile": quantile},
            {"kl": {"coefficient": 0.04}},
        )
        for kind, average in (("dapo", {}), ("grpo", ROW_MEAN))
        for quantile in (0.8, 0.3)
    ),
    Case("dr_grpo", {"loss_type": "dr_grpo"}, {"type": "ppo_clip", **CONSTANT}),
    Case("cispo", {"loss_type": "cispo", "epsilon_high": 1.4}, {"type": "cispo", "clip_low": 1.0, "clip_high": 0.4}),
    Case(
        "gspo",
        {"loss_type": "grpo", **SEQUENCE, **NARROW},
        {"type": "gspo", "clip_low": 0.03, "clip_high": 0.04, **ROW_MEAN},
    ),
    Case(
        "luspo",
        {"loss_type": "luspo", **SEQUENCE, **NARROW},
        {"type": "gspo", "clip_low": 0.03, "clip_high": 0.04, "aggregation": "seq_mean_token_sum"},
    ),
    Case("sapo", {"loss_type": "sapo"}, {"type": "sapo", **ROW_MEAN}),
    Case("vespo", {"loss_type": "vespo"}, {"type": "vespo"}),
    Case(
        "off_policy_mask",
        {"loss_type": "dapo", "off_policy_mask_threshold": 0.05},
        {"type": "ppo_clip"},
        {"correction": {"type": "off_policy_filter", "floor": 0.951229424500714}},  # e^-0.05
    ),
    *(
        Case(
            f"{level}_{mode}",
            # The one loss of TRL whose value at ratio 1 is -A log p, as the policy gradient's is.
            {"loss_type": "cispo", "epsilon_high": 2.0, "clip_min": floor if mode == "mask" else None, "clip_max": 1.3},
            {"type": "policy_gradient"},
            {
                "correction": {"type": "masked_importance", "level": level, "limit": 1.3, "floor": floor}
                if mode == "mask"
                else {"type": "truncated_importance", "level": level, "limit": 1.3}
            },
            sampled=f"{level}_{mode}",
        )
        for level in ("token", "sequence")
        for mode, floor in (("truncate", 0.5), ("mask", 0.8))
    ),
)
PAIR_BETAS = (0.1, 0.5, 3.0)
PAIR_FORMS = ("sigmoid", "ipo")
DEFAULTS: dict[str, Any] = {
    "delta": None, "epsilon_low": 0.2, "epsilon_high": 0.2, "importance_sampling_level": "token", "entropy_coef": 0.0,
    "off_policy_mask_threshold": None, "clip_min": None, "clip_max": None, "beta": 0.0, "weighted_kl": False,
    "top_entropy_quantile": 1.0,
}  # fmt: skip


def tables(seed: int = 5) -> Tables:
    """Ragged rows of all signs; ratios spread around 1 by some tenths, wide enough that every clip bites somewhere."""
    made = torch.Generator().manual_seed(seed)
    lengths = [9, 1, 4, 7, 9, 2, 6, 3]
    logprobs = -2.0 * torch.rand(ROWS, TOKENS, generator=made) - 0.2
    return {
        "logprobs": logprobs,
        "behaviour": logprobs - 0.3 * torch.randn(ROWS, TOKENS, generator=made),
        "reference": logprobs - 0.4 * torch.randn(ROWS, TOKENS, generator=made),
        "entropy": torch.rand(ROWS, TOKENS, generator=made),
        "present": torch.tensor([[float(t < n) for t in range(TOKENS)] for n in lengths]),
        "advantages": torch.tensor([1.3, -0.7, 0.4, -1.1, 0.0, 0.9, -0.2, 1.0]),
    }


def computed(case: Case, given: Tables) -> tuple[float, list[list[float]]]:
    """Ask TRL for the loss of a case and its gradient."""
    from trl import GRPOTrainer

    logprobs = given["logprobs"].clone().requires_grad_()
    own = DEFAULTS | case.theirs
    inputs = {
        "prompt_ids": torch.zeros(ROWS, 1, dtype=torch.long),
        "prompt_mask": torch.ones(ROWS, 1),
        "completion_ids": torch.zeros(ROWS, TOKENS, dtype=torch.long),
        "completion_mask": given["present"],
        "advantages": given["advantages"],
        "num_items_in_batch": given["present"].sum(),
        "ref_per_token_logps": given["reference"],
        "old_per_token_logps": logprobs.detach() if case.sampled else given["behaviour"],
    }
    if case.sampled:
        inputs["importance_sampling_ratio"] = _importance(case, own, given)
    stand_in = _stand_in(own, logprobs, given["entropy"], bool(case.sampled))
    loss = GRPOTrainer._compute_loss(stand_in, SimpleNamespace(training=True), inputs)
    loss.backward()
    return loss.item(), logprobs.grad.tolist()


def _stand_in(own: dict[str, Any], logprobs: torch.Tensor, entropy: torch.Tensor, sampled: bool) -> SimpleNamespace:
    from trl import GRPOTrainer

    nothing = SimpleNamespace(
        gather=lambda x: x, reduce=lambda x, reduction: x, num_processes=1, sync_gradients=False,
        pad_across_processes=lambda x, dim, pad_index: x,
    )  # fmt: skip
    args = SimpleNamespace(
        delta=own["delta"], use_bias_correction_kl=own["weighted_kl"], steps_per_generation=1, sapo_temperature_pos=1.0,
        sapo_temperature_neg=1.05, vespo_k_pos=2.0, vespo_lambda_pos=3.0, vespo_k_neg=3.0, vespo_lambda_neg=2.0,
    )  # fmt: skip
    return SimpleNamespace(
        args=args, loss_type=own["loss_type"], epsilon_low=own["epsilon_low"], epsilon_high=own["epsilon_high"],
        importance_sampling_level=own["importance_sampling_level"], beta=own["beta"],
        off_policy_mask_threshold=own["off_policy_mask_threshold"], aux_loss_enabled=False, use_vllm=sampled,
        vllm_importance_sampling_correction=sampled, max_completion_length=LONGEST, accelerator=nothing,
        current_gradient_accumulation_steps=1, model=SimpleNamespace(training=True), use_adaptive_entropy=False,
        _entropy_bonus_enabled=own["entropy_coef"] > 0, entropy_coef=own["entropy_coef"],
        _metrics={"train": defaultdict(list)}, get_off_policy_mask=GRPOTrainer.get_off_policy_mask,
        get_gamma_weights=GRPOTrainer.get_gamma_weights,
        top_entropy_quantile=own["top_entropy_quantile"],
        get_high_entropy_mask=partial(GRPOTrainer.get_high_entropy_mask, SimpleNamespace(accelerator=nothing)),
        _get_per_token_logps_and_entropies=lambda *args, **kwargs: (logprobs, entropy, None),
    )  # fmt: skip


def computed_pairs(form: str, beta: float, given: Tables) -> tuple[float, list[list[float]]]:
    """Ask TRL's OnlineDPOTrainer for the loss of a step and its gradient.

    Row i and row i + 4 answer the same prompt, and `advantages` are their rewards.
    """
    from trl.experimental.online_dpo import OnlineDPOTrainer

    logprobs = given["logprobs"].clone().requires_grad_()
    passes = iter((logprobs, given["reference"]))
    args = SimpleNamespace(
        use_vllm=False, missing_eos_penalty=None, loss_type=form, torch_empty_cache_steps=None, optim="adamw",
        n_gpu=1, gradient_accumulation_steps=1,
    )  # fmt: skip
    accelerator = SimpleNamespace(gather_for_metrics=lambda x: x, backward=lambda loss: loss.backward())
    completions = torch.zeros(ROWS, TOKENS, dtype=torch.long)
    stand_in = SimpleNamespace(
        args=args, beta=beta, ref_model=object(), reward_funcs=[object()], accelerator=accelerator, eos_token_ids=[0],
        stats=defaultdict(list), state=SimpleNamespace(global_step=1),
        processing_class=SimpleNamespace(batch_decode=lambda ids, **_: [""] * len(ids)),
        _generate=lambda *_: (completions[:, :1], completions[:, :1] + 1, completions, given["present"], None),
        _forward=lambda *_: next(passes),
        _calculate_rewards_from_functions=lambda **_: given["advantages"].clone(),
    )  # fmt: skip
    model = SimpleNamespace(train=lambda: None)
    loss = OnlineDPOTrainer.training_step(stand_in, model, {"prompt": [""] * (ROWS // 2)})
    return loss.item(), logprobs.grad.tolist()


def _importance(case: Case, own: dict[str, Any], given: Tables) -> torch.Tensor:
    """TRL makes this ratio inside of its generation step, of which nothing can be called alone: the same lines."""
    level, mode = case.sampled.split("_")
    difference = (given["logprobs"] - given["behaviour"]) * given["present"]
    if level == "sequence":
        difference = difference.sum(dim=-1, keepdim=True)
    ratio = torch.exp(difference)
    if mode == "truncate":
        return torch.clamp(ratio, min=own["clip_min"], max=own["clip_max"])
    low = own["clip_min"] if own["clip_min"] is not None else float("-inf")
    return ratio.masked_fill((ratio < low) | (ratio > own["clip_max"]), 0.0)


def recorded() -> dict[str, Any]:
    """Read the figures of the version that was recorded."""
    return json.loads(FIGURES.read_text(encoding="utf-8"))


def _provenance() -> dict[str, str]:
    import trl
    from trl.experimental.online_dpo import online_dpo_trainer
    from trl.trainer import grpo_trainer

    return {
        "package": f"trl {trl.__version__} (PyPI)",
        **{
            f"{Path(module.__file__).name}, sha256": hashlib.sha256(Path(module.__file__).read_bytes()).hexdigest()
            for module in (grpo_trainer, online_dpo_trainer)
        },
        "torch": torch.__version__,
        "command": "python tests/conformance/trl_reference.py",
    }


def write() -> None:
    """Record inputs, figures, and where they come from."""
    given = tables()
    pairs = {
        f"{form} {beta}": dict(zip(("loss", "gradient"), computed_pairs(form, beta, given), strict=True))
        for form in PAIR_FORMS
        for beta in PAIR_BETAS
    }
    cases = {case.name: dict(zip(("loss", "gradient"), computed(case, given), strict=True)) for case in CASES}
    document = {
        "provenance": _provenance(),
        "tables": {name: table.tolist() for name, table in given.items()},
        "cases": cases,
        "pairs": pairs,
    }
    FIGURES.write_text(json.dumps(document) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write()
