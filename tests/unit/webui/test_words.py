"""Pages speak in the plain terms of the field: phrases that were replaced do not come back."""

import re
from pathlib import Path

import pytest

WEBUI = Path(__file__).resolve().parents[3] / "webui"
REPLACED = {
    "Leave it": "Cancel",
    "Keep as it is": "Cancel",
    "Take a tag away": "Remove tag",
    "Take out": "Remove",
    "Made since": "Created after",
    "Made until": "Created before",
    "No setting is called so": "No settings match",
    "errors are mended": "Fix errors to update the estimate",
    "nobody works": "idle",
    "Nobody speaks": "Idle",
    "Who speaks now": "Active agents",
    "Who hears whom": "Communication graph",
    "Later surprises": "GAE lambda",
    "Discount a turn": "Gamma",
    "Rate's end share": "Final learning-rate ratio",
    "Least rows": "Min rows",
    "Most carries": "Max carries",
    "No rule of the advisor": "No issues found",
    "Promises checked": "Consistency checks",
    "What was asked of it": "Action history",
    "Let go by the rules": "Deleted by retention",
    "Play it again": "Run what-if",
    "Tokens at most": "Max tokens",
    "Words it knows": "Vocabulary",
    "May ask": "Models",
    "Said by": "Speaker",
    "Hosts at most": "Max hosts",
    "Given back when idle": "Idle time before release",
    "one a line": "one per line",
    "Where its hosts come from": "Host provider",
    "Somebody": "who does it, or the passive",
    "gives no answer": "unreachable",
    "Took too long": "Timed out",
    "Disk trouble": "Disk error",
    "out of what the form holds": "from this form",
}
"""A phrase that pages had -> what the field says."""
NEGATION = re.compile(r"[\"'`][^\"'`\n]*(?<!here )\bis no (?!longer|such|more)[a-z]+ ?[^\"'`\n]*\.[\"'`]")
"""A message such as \"'x' is no tag.\": it says what a value is not, and not the rule."""


def shown() -> dict[str, str]:
    """Return the sources of what pages show, without comments."""
    files = [path for kind in ("html", "js") for path in sorted(WEBUI.rglob(f"*.{kind}")) if "vendor" not in path.parts]
    texts = {
        str(path.relative_to(WEBUI)): re.sub(r"(?m)\{#.*?#\}|^\s*(//|\*).*$", "", path.read_text()) for path in files
    }
    quoted = re.compile(r"\"(?!\"\")[^\"\n]*\"")
    views = {str(path.relative_to(WEBUI)): path for path in sorted(WEBUI.rglob("*.py"))}
    return texts | {name: "\n".join(quoted.findall(path.read_text())) for name, path in views.items()}


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    return {name: " ".join(text.split()) for name, text in shown().items()}


def test_replaced_phrases_stay_away(texts: dict[str, str]) -> None:
    assert len(texts) > 200
    found = {(name, old): new for name, text in texts.items() for old, new in REPLACED.items() if old in text}
    assert found == {}


def test_messages_say_the_rule(texts: dict[str, str]) -> None:
    found = {name: hits for name, text in texts.items() if (hits := NEGATION.findall(text))}
    assert found == {}
    assert NEGATION.search("\"'x' is no tag.\"")
