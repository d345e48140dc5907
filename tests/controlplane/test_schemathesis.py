"""The whole API against its own description: what is made from the schema is answered or refused as documented.

Bounded so that it ends: few examples per operation, from a fixed seed, without shrinking. Operations that would stop
the caller from going on (a new password) are called elsewhere.
"""

import pytest
from django.core import signals
from django.db import DatabaseError, close_old_connections, transaction

from flexmarl.contracts.status import RunStatus
from tests.support.forms import form
from tests.support.played import play

schemathesis = pytest.importorskip("schemathesis")
hypothesis = pytest.importorskip("hypothesis")

pytestmark = [pytest.mark.django_db, pytest.mark.slow]
EXAMPLES = form(short=2, full=7)
LEFT_OUT = {"stream", "me_password"}
"""Streams never end; a new password ends the session of the caller."""
JSON = "application/json"
PATH = {"run_id": "run", "trajectory_id": "0-0-1", "device_id": "box.cpu0", "verb": "pause"}


@pytest.fixture
def caller(admin_api, editor, make_run):
    """Return a cluster admin's client and the key of a run with rows."""
    run = make_run(editor, RunStatus.RUNNING)
    play(run)
    return admin_api, run.key


def operations():
    from django.test import Client

    document = Client().get("/api/v1/openapi.json").json()
    schema = schemathesis.openapi.from_dict(document)
    found = [result.ok() for result in schema.get_all_operations()]
    raws = [(operation, operation.definition.raw) for operation in found]
    spoken = [(o, raw) for o, raw in raws if JSON in raw.get("requestBody", {"content": JSON})["content"]]
    return [operation for operation, raw in spoken if raw["operationId"] not in LEFT_OUT]


def test_every_operation_answers_as_documented(caller) -> None:
    client, key = caller
    wrong: list[str] = []
    asked = operations()
    assert len(asked) > 50
    for operation in asked:
        tried = hypothesis.given(case=operation.as_strategy())(lambda case: wrong.extend(send(client, key, case)))
        hypothesis.settings(
            max_examples=EXAMPLES, deadline=None, database=None, derandomize=True,
            phases=[hypothesis.Phase.generate], suppress_health_check=list(hypothesis.HealthCheck),
        )(tried)()  # fmt: skip
    assert sorted(set(wrong)) == []


def send(client, key: str, case) -> list[str]:
    """Send one case and return what was not as documented."""
    path = case.formatted_path
    for name in case.path_parameters or {}:
        if name in PATH:
            path = path.replace(f"/{case.path_parameters[name]}", f"/{key if name == 'run_id' else PATH[name]}", 1)
    headers = {name: str(value) for name, value in dict(case.headers or {}).items() if str(value).isprintable()}
    given = {} if case.body is None or "NotSet" in type(case.body).__name__ else {"data": case.body, "format": "json"}
    name = f"{case.method} {case.path}"
    query = dict(case.query or {})
    method = getattr(client, case.method.lower())
    try:
        with transaction.atomic():
            answer = method(path, query_params=query, headers=headers, **given)
            body = read(answer)
    except UnicodeEncodeError:
        return []  # the client cannot write such a header or address; a server never sees it
    except DatabaseError as error:
        return [f"{name} breaks while it answers: {str(error)[:120]}"]
    kind = answer.headers.get("Content-Type", "").partition(";")[0]
    documented = case.operation.definition.raw["responses"]
    found = [f"{name} {answer.status_code}"] if answer.status_code >= 500 else []
    shown = documented.get(str(answer.status_code), documented.get("default"))
    if shown is None:
        return [*found, f"{name} {answer.status_code} is not documented"]
    legal = set(shown.get("content", {}))
    if body and legal and kind not in legal:
        found.append(f"{name} {answer.status_code} answers {kind}, not {sorted(legal)}")
    return found


def read(answer) -> bytes:
    """Return the body; streams that follow what happens have no end and are closed unread."""
    if not answer.streaming:
        return answer.content
    if answer.is_async:
        signals.request_finished.disconnect(close_old_connections)  # they are those of this test
        answer.close()
        signals.request_finished.connect(close_old_connections)
        return b"..."
    return b"".join(answer)
