"""docs/api.md and docs/security.md say what the code does."""

import re
from pathlib import Path

from django.conf import settings
from django.urls.resolvers import RoutePattern

from flexmarl.controlplane import urls
from flexmarl.controlplane.accounts.choices import PROJECT_SCOPES_OF, SCOPES_OF, ProjectRole, Role
from flexmarl.controlplane.common import problems
from flexmarl.controlplane.common.api.exceptions import InternalError
from flexmarl.controlplane.common.problems import ProblemError
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.telemetry import urls as telemetry_urls

LISTENERS = (Path(__file__).resolve().parents[2] / "docs" / "security.md").read_text(encoding="utf-8")
TEXT = (Path(__file__).resolve().parents[2] / "docs" / "api.md").read_text(encoding="utf-8")


def test_every_problem_is_explained_with_its_status() -> None:
    explained: dict[str, str] = {}
    for codes, statuses in re.findall(r"^\| (`[a-z_`, ]+`) \| ([\d, ]+) \|", TEXT, re.MULTILINE):
        numbers = statuses.split(", ")
        for index, code in enumerate(re.findall(r"`([a-z_]+)`", codes)):
            explained[code] = numbers[min(index, len(numbers) - 1)]
    kinds = {kind for kind in vars(problems).values() if isinstance(kind, type) and issubclass(kind, ProblemError)}
    assert {kind.code for kind in (kinds | {InternalError}) - {ProblemError}} <= set(explained)
    for kind in kinds - {ProblemError}:
        assert explained[kind.code] == str(kind.status), kind.code


def test_every_scope_belongs_to_the_role_the_table_says() -> None:
    names = "|".join([*Role, *ProjectRole])
    rows = dict(re.findall(rf"^\| ({names}) \| (.+) \|$", TEXT, re.MULTILINE))
    known: set[str] = set()
    for role in ProjectRole:  # each row adds to the one above it
        known |= set(re.findall(r"`([a-z]+:[a-z-]+)`", rows[role]))
        assert known == {str(scope) for scope in PROJECT_SCOPES_OF[role]}, role
    for role in (Role.MEMBER, Role.AUDITOR):
        named = set(re.findall(r"`([a-z]+:[a-z-]+)`", rows[role]))
        assert named == {str(scope) for scope in SCOPES_OF[role]}, role
    assert SCOPES_OF[Role.CLUSTER_ADMIN] == frozenset(Scope)


def test_every_route_that_is_no_page_is_a_listener_of_the_security_model() -> None:
    table = LISTENERS.partition("## What each listener accepts")[2].partition("\n## ")[0]
    named = re.findall(r"`(/[a-z0-9/-]+)`", table)
    routes = [one for one in (*urls.urlpatterns, *telemetry_urls.urlpatterns) if isinstance(one.pattern, RoutePattern)]
    prefixes = {f"/{one.pattern}" for one in routes if str(one.pattern)} | {settings.STATIC_URL, "/ws/v1/"}
    unnamed = {prefix for prefix in prefixes if not any(f"{prefix}/".startswith(path) for path in named)}
    assert unnamed == set()
