"""Every series that the orchestrator writes is defined once, and the document says the same."""

import re
from pathlib import Path

from flexmarl.controlplane.telemetry.charts.definitions import DEFINITIONS, FAMILIES, TEAM_TOO, USER_PREFIX, define

ROOT = Path(__file__).resolve().parents[2]
WRITTEN = re.compile(r'ctx\.metric\(\s*f?"([^"]+)"')
NAMED = {"groups/{signal}": {"groups/useful", "groups/easy", "groups/hard"}}
"""Names made of a value, written out."""
FACT = re.compile(r'"(warmup_\w+)":')
"""What the trainer says of a warm-up: facts of a policy that have titles of their own."""


VOTE = re.compile(r'"(vote_\w+)":')
"""What a vote of a group says: facts of the team with titles of their own."""


def written() -> set[str]:
    names = {"policy/version"}
    for path in (ROOT / "platform/flexmarl/orchestrator").rglob("*.py"):
        for name in WRITTEN.findall(path.read_text(encoding="utf-8")):
            names |= NAMED.get(name, {name})
    return names


def test_every_written_series_is_defined_and_no_other() -> None:
    plain = {name for name in written() if "{" not in name}
    for module in ("warmup", "conversations", "exported_rows"):
        text = (ROOT / f"workers/training/{module}.py").read_text(encoding="utf-8")
        plain |= {f"fact/{name}" for name in FACT.findall(text)}
    shaping = (ROOT / "platform/flexmarl/algorithms/shaping.py").read_text(encoding="utf-8")
    plain |= {f"fact/{name}" for name in VOTE.findall(shaping)}
    assert plain == set(DEFINITIONS)
    made = {name.split("{")[0] for name in written() if "{" in name}
    assert made == set(FAMILIES) - {USER_PREFIX}
    assert set(DEFINITIONS) >= TEAM_TOO


def test_a_series_of_a_family_is_titled_by_its_last_part() -> None:
    assert define("fact/guesses_left").title == "Guesses left"
    assert define("eval/fact/dishes").meaning == FAMILIES["eval/fact/"].meaning
    assert define("user/probe/accuracy").title == "Probe, accuracy"
    assert define("reward/team").unit == ""


def table() -> str:
    """The table that the document must hold."""
    lines = ["| Series | Title | Unit | Of | Meaning |", "|---|---|---|---|---|"]
    for name, found in [*sorted(DEFINITIONS.items()), *((f"{prefix}*", d) for prefix, d in FAMILIES.items())]:
        of = f"{found.of}, team" if name in TEAM_TOO else found.of
        lines.append(f"| `{name}` | {found.title} | {found.unit or '–'} | {of} | {found.meaning} |")
    return "\n".join(lines)


def test_the_document_says_what_the_code_says() -> None:
    assert table() in (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
