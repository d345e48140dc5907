"""A repeated POST acts once and is answered as the first one was."""

import threading

import pytest
from django.db import connection
from rest_framework.test import APIClient

from flexmarl.controlplane.common.models import StoredAnswer
from flexmarl.controlplane.runs.models import Operation, Run
from tests.support.controlplane import SPEC, key

pytestmark = pytest.mark.django_db


def post(api, body, idempotency_key):
    return api.post("/api/v1/runs", body, headers={"Idempotency-Key": idempotency_key})


def test_creation_needs_a_key(api) -> None:
    answer = api.post("/api/v1/runs", {"spec": SPEC})
    assert answer.status_code == 400
    assert answer.json()["errors"][0] | {"hint": ""} == {
        "pointer": "Idempotency-Key",
        "location": "header",
        "code": "required",
        "detail": "Idempotency-Key is missing.",
        "hint": "",
    }


def test_the_same_request_is_answered_from_the_first(api) -> None:
    once = key()
    first = post(api, {"spec": SPEC}, once)
    again = post(api, {"spec": SPEC}, once)
    assert (first.status_code, again.status_code) == (201, 201)
    assert first.json() == again.json()
    assert again["Idempotency-Replayed"] == "true"
    assert "Idempotency-Replayed" not in first
    assert again["Location"] == first["Location"]
    assert Run.objects.count() == 1


def test_another_body_under_the_key_is_refused(api) -> None:
    once = key()
    post(api, {"spec": SPEC}, once)
    answer = post(api, {"spec": {**SPEC, "seed": 9}}, once)
    assert (answer.status_code, answer.json()["code"]) == (422, "idempotency_mismatch")
    assert Run.objects.count() == 1


def test_a_refused_request_may_be_corrected_under_its_key(api) -> None:
    once = key()
    assert post(api, {"spec": {**SPEC, "seed": -1}}, once).status_code == 400
    assert post(api, {"spec": SPEC}, once).status_code == 201


def test_keys_belong_to_their_caller(api, admin_api) -> None:
    once = key()
    assert post(api, {"spec": SPEC}, once).status_code == 201
    assert "Idempotency-Replayed" not in post(admin_api, {"spec": SPEC}, once)
    assert Run.objects.count() == 2


def test_an_action_repeated_under_its_key_asks_once(api, editor, make_run) -> None:
    run, once = make_run(editor), key()
    answers = [
        api.post(f"/api/v1/runs/{run.id}/actions/start", {}, headers={"Idempotency-Key": once}) for _ in range(3)
    ]
    assert [a.status_code for a in answers] == [202, 202, 202]
    assert len({a.json()["id"] for a in answers}) == 1
    assert Operation.objects.count() == 1


def test_an_expired_answer_is_forgotten(api) -> None:
    once = key()
    post(api, {"spec": SPEC}, once)
    StoredAnswer.objects.update(expires_at="2020-01-01T00:00:00Z")
    assert "Idempotency-Replayed" not in post(api, {"spec": SPEC}, once)


def test_expired_answers_do_not_pile_up(api) -> None:
    post(api, {"spec": SPEC}, key())
    StoredAnswer.objects.update(expires_at="2020-01-01T00:00:00Z")
    post(api, {"spec": SPEC}, key())
    assert StoredAnswer.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_two_at_once_act_once(editor, client_of) -> None:
    api, once = client_of(editor), key()
    start, answers = threading.Barrier(2), []

    def send() -> None:
        client = APIClient()
        client.credentials(**api._credentials)
        start.wait()
        try:
            answers.append(post(client, {"spec": SPEC}, once))
        finally:
            connection.close()

    threads = [threading.Thread(target=send) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    codes = sorted(answer.status_code for answer in answers)
    assert codes in ([201, 201], [201, 409])
    assert Run.objects.count() == 1
