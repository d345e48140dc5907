"""docs/refusals.md lists exactly the codes that processes refuse with."""

import re
from pathlib import Path

from flexmarl.contracts.package_manifests import BuildRefusal
from flexmarl.contracts.plane_tokens import PlaneRefusalCode
from flexmarl.store import errors
from workers import errors as worker_errors
from workers.memory import OUT_OF_MEMORY
from workers.training.errors import RefusalCode
from workers.transfer.base import CorruptState, StateError, StateFull, StateMissing
from workers.transfer.receiving import BusyReceiving, ContentTooLarge, NotExpected
from workers.transfer.upload_quota import QuotaReached

ROOT = Path(__file__).resolve().parents[2]
SAID = re.compile(
    r'(?:Refused|_refusal|Refusal|ChildFailed|TurnRefusedError)\(\s*(?:\d+,\s*)?"([a-z_]+)"'
    r'|refused\(\s*(?:\d+|[A-Z_]+|HTTPStatus\.[A-Z_]+), "([a-z_]+)"'
    r'|fail\(conn, taken, "([a-z_]+)"|code="([a-z_]+)"'
)


def said_in_source() -> set[str]:
    """Codes that are named where they are raised."""
    inventory = ROOT / "platform/flexmarl/controlplane/inventory"
    doors = [inventory / "node_uploads.py", inventory / "join_door.py"]
    sources = [*doors, *(ROOT / "platform/flexmarl/store").rglob("*.py"), *(ROOT / "workers").rglob("*.py")]
    found = [SAID.findall(path.read_text()) for path in sources]
    return {"".join(groups) for places in found for groups in places}


def codes() -> set[str]:
    classes = [cls for module in (errors, worker_errors) for cls in vars(module).values() if isinstance(cls, type)]
    states = [
        StateError, StateFull, StateMissing, CorruptState, NotExpected, ContentTooLarge, BusyReceiving, QuotaReached,
    ]  # fmt: skip
    own = {str(cls.__dict__["code"]) for cls in [*classes, *states] if "code" in vars(cls)}
    return (
        own
        | {OUT_OF_MEMORY}
        | {code.value for code in (*PlaneRefusalCode, *RefusalCode, *BuildRefusal)}
        | said_in_source()
    )


def documented() -> set[str]:
    rows = [line for line in (ROOT / "docs/refusals.md").read_text().splitlines() if line.startswith("| `")]
    return {code for row in rows for code in re.findall(r"`([a-z_]+)`", row.split("|")[1])}


def test_every_code_is_documented_and_every_documented_code_exists() -> None:
    assert documented() - codes() == set(), "nothing says these any more"
    assert codes() - documented() == set(), "say in docs/refusals.md what they mean and what to do"


def test_every_row_says_what_to_do() -> None:
    rows = [line for line in (ROOT / "docs/refusals.md").read_text().splitlines() if line.startswith("| `")]
    assert [row for row in rows if not row.rstrip("|").split("|")[-1].strip() and "worker_error" not in row] == []
