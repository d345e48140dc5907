"""What all calls share: packed bodies, entity tags, trimmed rows, and counters of the process."""

import gzip
import json
import zlib

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from flexmarl.contracts.status import RunStatus
from flexmarl.controlplane.common import compression, measuring
from flexmarl.controlplane.common.problems import PayloadTooLarge, ValidationProblem
from tests.support.controlplane import SPEC, key

pytestmark = pytest.mark.django_db
GZIP = {"Accept-Encoding": "gzip, br"}


def test_large_reads_are_packed_for_those_who_take_it(api, editor, make_run) -> None:
    run = make_run(editor)
    plain = api.get(f"/api/v1/runs/{run.key}")
    packed = api.get(f"/api/v1/runs/{run.key}", headers=GZIP)
    assert "Content-Encoding" not in plain
    assert packed["Content-Encoding"] == "gzip"
    assert json.loads(gzip.decompress(packed.content)) == plain.json()
    assert len(packed.content) < len(plain.content) / 2
    assert "Accept-Encoding" in packed["Vary"]
    assert "Content-Encoding" not in api.get(f"/api/v1/runs/{run.key}", headers={"Accept-Encoding": "gzip;q=0"})


def test_what_may_hold_a_secret_is_never_packed(api, client, editor) -> None:
    body = {"name": "n" * 60, "scopes": ["runs:read"], "expires_in_days": 3}
    for _ in range(4):
        made = api.post("/api/v1/tokens", body, headers=GZIP)
        assert "Content-Encoding" not in made
    assert len(api.get("/api/v1/tokens").content) > compression.MIN_BYTES
    assert "Content-Encoding" not in api.get("/api/v1/tokens", headers=GZIP)
    client.force_login(editor)
    page = client.get("/settings/tokens", headers=GZIP)
    assert len(page.content) > compression.MIN_BYTES
    assert "Content-Encoding" not in page
    assert client.get("/help", headers=GZIP)["Content-Encoding"] == "gzip"


def test_static_files_are_packed_once(client) -> None:
    path = "/static/webui/css/tokens.css"
    plain = b"".join(client.get(path))
    packed = client.get(path, headers=GZIP)
    assert packed["Content-Encoding"] == "gzip"
    assert gzip.decompress(packed.content) == plain
    assert packed["Last-Modified"]
    again = client.get(path, headers={**GZIP, "If-Modified-Since": packed["Last-Modified"]})
    assert again.status_code == 304


def test_a_packed_body_is_read_like_a_plain_one(api) -> None:
    body = gzip.compress(json.dumps({"spec": SPEC, "name": "packed"}).encode())
    sent = {"Content-Encoding": "gzip", "Idempotency-Key": key()}
    made = api.generic("POST", "/api/v1/runs", body, "application/json", headers=sent)
    assert made.status_code == 201
    assert made.json()["name"] == "packed"


def test_a_packed_body_is_bounded_when_unpacked(api, settings) -> None:
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 10_000
    bomb = gzip.compress(b"[" + b" " * 2_000_000 + b"]")
    assert len(bomb) < 10_000
    for body, coding, status, code in (
        (bomb, "gzip", 413, "payload_too_large"),
        (b"not packed", "gzip", 400, "validation_error"),
        (gzip.compress(b"{}")[:-6], "gzip", 400, "validation_error"),
        (b"{}", "br", 415, "unsupported_encoding"),
    ):
        answer = api.generic(
            "POST", "/api/v1/runs/plan", body, "application/json", headers={"Content-Encoding": coding}
        )
        assert answer.status_code == status, answer.content
        assert answer["Content-Type"] == "application/problem+json"
        assert answer.json()["code"] == code
        assert answer.json()["request_id"] == answer["X-Request-ID"]


def test_unpacking_stops_at_the_bound() -> None:
    machine = zlib.compressobj(wbits=16 + zlib.MAX_WBITS)
    packed = machine.compress(b"\0" * 50_000_000) + machine.flush()
    with pytest.raises(PayloadTooLarge):
        compression.unpack(packed, 1000)
    with pytest.raises(ValidationProblem):
        compression.unpack(b"", 1000)


def test_who_holds_the_newest_answer_gets_no_body(api, editor, make_run) -> None:
    run = make_run(editor, RunStatus.RUNNING)
    for path in (f"/api/v1/runs/{run.key}", "/api/v1/runs", f"/api/v1/runs/{run.key}/series"):
        first = api.get(path)
        again = api.get(path, headers={"If-None-Match": first["ETag"]})
        assert (again.status_code, again.content) == (304, b""), path
        assert again["ETag"] == first["ETag"]
        assert api.get(path, headers={"If-None-Match": 'W/"other"'}).status_code == 200
    held = api.get(f"/api/v1/runs/{run.key}")["ETag"]
    assert api.patch(f"/api/v1/runs/{run.key}", {"notes": "x"}, headers={"If-Match": held}).status_code == 200
    assert api.get(f"/api/v1/runs/{run.key}", headers={"If-None-Match": held}).status_code == 200
    assert api.patch(f"/api/v1/runs/{run.key}", {"notes": "y"}, headers={"If-Match": held}).status_code == 412


def test_figures_that_moved_make_another_tag(api, editor, make_run) -> None:
    from tests.support.controlplane import set_state

    run = make_run(editor, RunStatus.RUNNING)
    held = api.get(f"/api/v1/runs/{run.key}")["ETag"]
    set_state(run, step=7)
    fresh = api.get(f"/api/v1/runs/{run.key}", headers={"If-None-Match": held})
    assert fresh.status_code == 200
    assert fresh.json()["step"] == 7


@pytest.mark.parametrize("path", ["/api/v1/runs", "/api/v1/agents", "/api/v1/templates", "/api/v1/presets"])
def test_rows_can_be_trimmed(admin_api, editor, make_run, path) -> None:
    make_run(editor)
    rows = admin_api.get(path).json()["results"]
    if not rows:
        assert admin_api.get(f"{path}?fields=id").status_code == 200
        return
    name = sorted(rows[0])[0]
    assert admin_api.get(f"{path}?fields={name}").json()["results"] == [{name: row[name]} for row in rows]
    refused = admin_api.get(f"{path}?fields={name},nonsense")
    assert refused.status_code == 400
    assert name in refused.json()["errors"][0]["hint"]


def exposed(text: str) -> dict:
    """Name and labels -> value, as Prometheus reads them."""
    families = text_string_to_metric_families(text)
    return {(s.name, *sorted(s.labels.items())): s.value for family in families for s in family.samples}


def test_requests_are_counted_by_route(admin_api, editor, make_run) -> None:
    run = make_run(editor)
    counted = measuring.Measurements()
    counted.observe("GET", "api-run", 200, 0.03)
    counted.observe("GET", "api-run", 204, 9.0)
    counted.observe("GET", 'odd "name"\\', 200, 0.1)
    counted.opened("sockets")
    found = exposed(generate_latest(counted.registry).decode())
    labels = (("method", "GET"), ("route", "api-run"), ("status", "2xx"))
    name = "flexmarl_http_request_seconds"
    below = {bound: found[f"{name}_bucket", ("le", bound), *labels] for bound in ("0.025", "0.05", "+Inf")}
    assert below == {"0.025": 0, "0.05": 1, "+Inf": 2}
    assert found[f"{name}_sum", *labels] == 9.03
    assert found["flexmarl_web_sockets",] == 1
    assert found[f"{name}_count", ("method", "GET"), ("route", 'odd "name"\\'), ("status", "2xx")] == 1
    admin_api.get(f"/api/v1/runs/{run.key}")
    admin_api.get("/no/such/page")
    text = admin_api.get("/metrics").content.decode()
    shown = exposed(text)
    assert shown[f"{name}_count", *labels] >= 1
    assert any(("route", "other") in key and ("status", "4xx") in key for key in shown)
    assert run.key not in text


def test_every_list_can_be_trimmed(client) -> None:
    document = client.get("/api/v1/openapi.json").json()
    without = []
    for path, methods in document["paths"].items():
        shapes = methods.get("get", {}).get("responses", {}).get("200", {}).get("content", {})
        names = [shape["schema"].get("$ref", "").rpartition("/")[2] for shape in shapes.values()]
        lists = [
            name for name in names if "results" in document["components"]["schemas"].get(name, {}).get("properties", {})
        ]
        known = {parameter["name"] for parameter in methods.get("get", {}).get("parameters", [])}
        without += [path] if lists and "fields" not in known else []
    assert without == []
