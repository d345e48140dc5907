"""Model cards: the README.md beside a model, at whose head its licence stands."""

CARD = "README.md"
DASHES = "---"
"""The line before and behind the head of a card, which is YAML."""


def card_of(licence: str) -> str:
    """Return a model card that says a licence and nothing else."""
    return f"{DASHES}\nlicense: {licence}\n{DASHES}\n"
