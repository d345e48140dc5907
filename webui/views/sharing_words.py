"""What a run's exchange with other installations is called on its page, and what to do where it is lost."""

from typing import Any

STATES = {
    "connected": ("Connected", ""),
    "unreachable": (
        "Unreachable",
        "The run goes on by itself. Check FLEXMARL_EXCHANGE_URL and that the exchange runs.",
    ),
    "not_admitted": (
        "Not admitted",
        "The run goes on by itself. Set FLEXMARL_EXCHANGE_URL, _MEMBER and _KEY on rollout workers as `enrol` told.",
    ),
    "throttled": (
        "Throttled",
        "The quota of this installation is used up for now; rollouts wait or are left out.",
    ),
    "refused": ("Refused", "The exchange does not take what this version of FlexMARL says. Update either."),
    "bad_answer": ("Answers not understood", "The run goes on by itself. Check what answers at FLEXMARL_EXCHANGE_URL."),
    "silent": ("No report", "No rollout worker has reported within a minute: none plays, or none is running."),
    "ended": ("Ended with the run", ""),
}
REFUSED = {
    "too_long": "longer than this run allows",
    "bad_characters": "with control characters",
    "repeated": "contents that came before",
    "too_many_members": "of more installations than are kept",
    "too_few_turns": "with fewer turns than the task asks for",
    "too_many_turns": "with more turns than the task asks for",
    "unknown_words": "with words that the environment does not know",
    "special_words": "with special tokens of the model",
    "words_not_allowed": "with words that the environment does not allow here",
    "empty": "without a word",
    "not_playable": "that the environment could not play",
    "used_by_another_worker": "used by another rollout worker of the run",
    "refused_by_exchange": "own ones that the exchange refused",
    "own_too_long": "own ones, too long to publish",
    "own_bad_characters": "own ones, with control characters",
}


def shared(found: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return what the card shows; None for a run that does not share."""
    if found is None:
        return None
    text, step = STATES.get(found["state"], (found["state"], ""))
    foreign = found["foreign"]
    members = f"Up to {foreign} members of a group are what other installations said, scored by this run's environment."
    return {
        **found,
        "state_text": text,
        "next_step": step,
        "reason": found["reason"] if step else "",
        "refused": [(REFUSED.get(reason, reason), count) for reason, count in found["refused"]],
        "members": members if foreign else "The run only publishes.",
    }
