"""Two agents with adapters over one base are trained on one engine, through the real services."""

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from flexmarl.store.reads.report import consistency_report
from tests.support.counting import assert_accounted
from tests.support.forms import FULL, form
from tests.support.system import System
from workers.transfer import LocalTier

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.timeout(900)]

ROLES = ("guesser", "hinter")
SPEC: dict[str, Any] = {
    "budget": form(
        short={"train_steps": 3, "target": None},
        full={"train_steps": 80, "target": {"metric": "eval/solved", "value": 0.7}},
    ),
    "checkpoints": {"every_steps": 100},
}


@pytest.fixture(scope="module")
def system(installations: Callable[[int], System]) -> System:
    return installations(0)


def test_two_adapters_over_one_base_are_trained_on_one_engine(system: System) -> None:
    api = system.api()
    run_id = api.create_run(name="adapters", template="hot_cold_adapters", spec=SPEC)["id"]
    run = api.finish(run_id, 600)
    assert run["status"] == "completed", run["reason_text"]
    if FULL:
        assert "eval/solved reached" in run["reason_text"], "they learn"
        ((_, solved),) = api.series(run_id, "eval/solved").values()
        assert solved[0] < 0.6
    plane = LocalTier(system.home)
    with psycopg.connect(system.database_url, autocommit=True) as conn:
        wrong = [check for check in consistency_report(conn, run["no"]) if not check.ok]
        assert not wrong
        assert_accounted(conn, run["no"])
        engines = conn.execute("SELECT count(*) FROM store.lease WHERE run_id = %s AND use = 'engine'", [run["no"]])
        assert engines.fetchone() == (1,)
        newest = dict(
            conn.execute(
                "SELECT DISTINCT ON (policy) policy, digest FROM store.policy_version WHERE run_id = %s "
                "ORDER BY policy, version DESC",
                [run["no"]],
            ).fetchall()
        )
    assert sorted(newest) == sorted(ROLES)
    (base,) = {str(plane.meta(digest)["base"]) for digest in newest.values()}
    whole = plane.locate(base)
    assert whole is not None
    for digest in newest.values():
        published = plane.locate(digest)
        assert published is not None
        assert published.bytes < whole.bytes / 3, "a version is its adapter, not the model"
