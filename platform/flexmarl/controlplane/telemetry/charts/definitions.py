"""What each series is called, measured in and means. One definition per figure: pages, the API and the table in
`docs/metrics.md` read it here, and a series that the orchestrator writes without a definition fails a test.
"""

from dataclasses import dataclass

USER_PREFIX = "user/"
"""Series of scripts. No series of the platform begins so, so that a script can never overwrite one."""


@dataclass(frozen=True, slots=True)
class Definition:
    """`of` says what a series is kept for: the team, each role, or each policy."""

    title: str
    unit: str
    of: str
    meaning: str


def _team(title: str, unit: str, meaning: str) -> Definition:
    return Definition(title, unit, "team", meaning)


def _role(title: str, unit: str, meaning: str) -> Definition:
    return Definition(title, unit, "role", meaning)


def _policy(title: str, unit: str, meaning: str) -> Definition:
    return Definition(title, unit, "policy", meaning)


DEFINITIONS: dict[str, Definition] = {
    "reward/team": _team(
        "Team reward", "", "Team score of the step's finished training episodes: mean, and the worst and best episode."
    ),
    "reward/agent": _role("Reward", "", "Mean score of the role over the step's finished training episodes."),
    "solved": _team("Solved share", "share", "Share of the step's finished training episodes that solved their task."),
    "eval/solved": _team(
        "Solved share on held-out tasks", "share", "Share of finished evaluation episodes that solved their task."
    ),
    "eval/team_score": _team(
        "Team score on held-out tasks", "", "Mean team score of the finished evaluation episodes after this step."
    ),
    "train/loss": _policy("Loss", "", "Sum of the weighted token losses of the step over the step's Z."),
    "train/entropy": _policy(
        "Entropy", "nats", "Mean entropy per trained token of the trainer's distribution over the allowed tokens."
    ),
    "train/kl_engine": _policy(
        "Engine-trainer mismatch (KL)",
        "nats",
        "Mean estimated KL divergence from the engine to the trainer, over tokens that the trained version made.",
    ),
    "train/logprob_gap": _policy(
        "Log-probability difference",
        "nats",
        "Absolute difference between trainer's and engine's log-probability: mean and largest, of the same tokens.",
    ),
    "train/kl_reference": _policy(
        "KL to reference", "nats", "Mean estimated KL divergence per trained token, as it is penalised."
    ),
    "train/kl_update": _policy(
        "KL to older weights",
        "nats",
        "Mean estimated KL divergence from the engine to the trainer, over tokens that older versions made.",
    ),
    "train/value_loss": _policy(
        "Value loss",
        "",
        "Mean loss of the critic per turn: half the squared error of its value, with habc that of both heads.",
    ),
    "train/clipped": _policy(
        "Clipped tokens", "share", "Share of trained tokens that the loss clipped, or the correction cut off."
    ),
    "train/corrected": _policy(
        "Corrected tokens", "share", "Share of trained tokens whose weight the correction truncated or set to 0."
    ),
    "train/grad_norm": _policy("Gradient norm", "", "Norm of the step's gradient before it is clipped."),
    "train/learning_rate": _policy("Learning rate", "", "Learning rate of the step."),
    "train/entropy_coef": _policy("Entropy coefficient", "", "Weight of the entropy term in the step's loss."),
    "policy/version": _policy("Policy version", "version", "Version that the policy had when the step ended."),
    "length/response": _role("Response length", "tokens", "Mean response tokens per turn of the role in the step."),
    "groups/useful": _team(
        "Useful groups", "share", "Share of the step's settled groups in which some member did better than another."
    ),
    "groups/easy": _team("Groups too easy", "share", "Share of groups in which all members solved the task."),
    "groups/hard": _team(
        "Groups too hard", "share", "Share of groups whose members did equally without all solving the task."
    ),
    "groups/members_kept": _team(
        "Members kept", "share", "Share of the members of the step's kept groups that are trained on."
    ),
    "rows/most_repeats": _policy(
        "Most repeats of a row", "times", "Times that a row of the step counted at most, as its pair was drawn."
    ),
    "rows/left_out": _policy(
        "Rows not drawn", "share", "Share of the step's rows whose pair was drawn no time, so that they count nothing."
    ),
    "groups/dropped": _team("Dropped groups", "groups", "Groups of the step dropped after members failed."),
    "groups/drawn": _team(
        "Groups drawn", "groups", "Groups drawn for the step, replacements of rejected ones included."
    ),
    "groups/drawn_per_kept": _team(
        "Groups drawn per group kept", "", "Groups that were proposed for the step over those that were trained on."
    ),
    "groups/deferred": _team(
        "Groups deferred",
        "groups",
        "Surplus groups of this or earlier steps whose tasks wait for a step of their own.",
    ),
    "fleet/engines": _team(
        "Engines",
        "engines",
        "Engines of a fleet that grows and shrinks: at the end of the step, fewest and most since the step before.",
    ),
    "groups/length_rank": _team(
        "Ranking of lengths",
        "",
        "Rank correlation of the lengths expected of the step's groups, where their task was played before, with those "
        "that came.",
    ),
    "groups/handed_on": _team(
        "Groups carried over",
        "groups",
        "Groups still being played when the step was complete, continued for the next one.",
    ),
    "groups/cancelled": _team(
        "Surplus groups cancelled", "groups", "Groups still being played when the step was complete, cancelled."
    ),
    "staleness/own_max": _policy(
        "Largest own lag", "versions", "Largest distance between a cut sample's version and the weights it trains."
    ),
    "staleness/start": _policy(
        "Own lag from the start",
        "versions",
        "Trained version minus the version of a trained row's first token: mean, 99th percentile and largest.",
    ),
    "staleness/completion": _policy(
        "Own lag from completion",
        "versions",
        "Trained version minus the version that was committed when a trained row's group settled: mean, 99th "
        "percentile and largest.",
    ),
    "staleness/token": _policy(
        "Own lag per token",
        "versions",
        "Trained version minus the version that made a trained token: mean, 99th percentile and largest.",
    ),
    "staleness/dropped": _policy("Stale rows dropped", "rows", "Rows of the step removed as stale or overtaken."),
    "replay/rows": _policy(
        "Replayed rows",
        "rows",
        "Rows of earlier steps that the step was taken on again; they do not count as trained.",
    ),
    "replay/share": _policy("Replayed share", "share", "Replayed rows over all rows that the step was taken on."),
    "replay/age": _policy(
        "Age of replayed rows",
        "versions",
        "Trained version minus the version of the first token of a replayed group: mean over rows, and largest.",
    ),
    "replay/archive": _policy(
        "Groups in the archive", "groups", "Groups that later steps may train again, after the step has drawn."
    ),
    "replay/archive_age": _policy(
        "Age of the archive", "versions", "Version after the step minus that of the oldest group in the archive."
    ),
    "length/trained_ratio": _policy(
        "Trained-to-generated length ratio",
        "",
        "Mean tokens of the step's trained rows over those of its generated rows; below 1, short rows are favoured.",
    ),
    "time/step": _team("Step time", "s", "From the step's first task until its new weights are served."),
    "time/rollout": _team("Rollout time", "s", "From the step's first task until its last group settled."),
    "time/train_tail": _team("Training tail", "s", "From the last settled group until the last optimizer step."),
    "time/publish": _team("Publication", "s", "From the last optimizer step until the new weights are served."),
    "time/wait_samples": _team(
        "Trainer waits for samples", "s", "Time of the step in which some trainer could have worked and had no sample."
    ),
    "time/train": _policy("Training time", "s", "Seconds of backward passes and the optimizer step of the policy."),
    "throughput/tokens": _role(
        "Tokens generated", "tokens/s", "Response tokens of the step's finished episodes over the step time."
    ),
    "throughput/samples": _role(
        "Samples generated", "samples/s", "Turns of the step's finished episodes over the step time."
    ),
    "tokens/delivered": _team(
        "Tokens delivered to a loss",
        "share",
        "Tokens in rows that steps were taken on over all that training episodes sampled, from the run's start on.",
    ),
    "chains/broken": _team(
        "Broken chains",
        "chains",
        "Chains that ended before their episode did, since the next prompt did not extend them; from the run's start.",
    ),
    "fact/warmup_conversations": _policy(
        "Warm-up conversations",
        "conversations",
        "Conversations of a dataset that the warm-up before step 0 learned from.",
    ),
    "fact/warmup_loss_first": _policy(
        "Warm-up loss, first", "nats", "Mean cross-entropy per token in the first batch of the warm-up."
    ),
    "fact/warmup_loss_last": _policy(
        "Warm-up loss, last", "nats", "Mean cross-entropy per token in the last batch of the warm-up."
    ),
    "fact/warmup_rows": _policy(
        "Warm-up rows", "rows", "Rows that another run exported and the warm-up before step 0 learned from."
    ),
    "fact/warmup_seconds": _policy("Warm-up time", "s", "Time that the warm-up before step 0 took."),
    "fact/warmup_skipped": _policy(
        "Warm-up left out", "conversations", "Conversations, or rows, too long for the model, or without a reply."
    ),
    "fact/warmup_steps": _policy("Warm-up steps", "steps", "Optimizer steps of the warm-up before step 0."),
    "fact/warmup_tokens": _policy("Warm-up tokens", "tokens", "Tokens that the warm-up learned, in all its batches."),
    "fact/vote_share": _team(
        "Agreement of votes", "share", "Mean share of a group's members that gave its most frequent answer."
    ),
    "fact/vote_score": _team(
        "Score of voted answers",
        "",
        "Mean score that the environment gives the answer a group voted for; 0 without one, or where it knows none.",
    ),
    "episodes/failed": _team("Failed episodes", "episodes", "Training episodes of the step that failed."),
    "episodes/abandoned": _team(
        "Abandoned episodes",
        "episodes",
        "Episodes of the step that were given up between two turns, since all their rows had become too old.",
    ),
    "episodes/replaced": _team(
        "Replaced episodes", "episodes", "Episodes of the step that a second environment finished before the first."
    ),
    "episodes/shared": _team(
        "Episodes of others", "episodes", "Members of the step's kept groups that other installations said."
    ),
    "episodes/shared_unlearned": _team(
        "Failures of others", "episodes", "Those of them that did worse than their group, of which nothing was learned."
    ),
}
"""Name -> definition of the series the orchestrator writes."""

FAMILIES: dict[str, Definition] = {
    "fact/": _team("Environment metric", "", "Mean over the step's episodes of a metric reported by the environment."),
    "eval/fact/": _team("Environment metric on held-out tasks", "", "The same over evaluation episodes."),
    USER_PREFIX: _team("User series", "", "Written by a script through the API."),
}
"""Prefix -> definition of series whose last part somebody else names."""

TEAM_TOO = frozenset({"throughput/tokens", "throughput/samples"})
"""Series of roles that are kept for the whole team as well."""


def define(name: str) -> Definition:
    """Return the definition of a series; one of a family is titled by its own last part."""
    if name in DEFINITIONS:
        return DEFINITIONS[name]
    family = max((prefix for prefix in FAMILIES if name.startswith(prefix)), key=len, default="")
    title = name.removeprefix(family).replace("_", " ").replace("/", ", ")
    meaning = FAMILIES[family].meaning if family else ""
    return Definition(title[:1].upper() + title[1:], "", "team", meaning)
