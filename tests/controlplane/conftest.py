"""People with their clients, and runs in any state.

Django is imported inside the fixtures: this file is read before Django is set up.
"""

import uuid
from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def _fresh_cache() -> None:
    from django.core.cache import cache, caches

    cache.clear()
    caches["process"].clear()


@pytest.fixture
def person(db: None) -> Callable[..., Any]:
    """Return a function that makes a person with a role, in a project unless it is an installation role."""
    from tests.support.controlplane import make_person

    def make(role: str = "editor", name: str = "", project: str = "default") -> Any:
        return make_person(name or f"{role}-{uuid.uuid4().hex[:6]}", role, project)

    return make


@pytest.fixture
def client_of() -> Callable[..., Any]:
    """Return a function that gives a person's client with a token of some scopes."""
    from rest_framework.test import APIClient

    from flexmarl.controlplane.accounts.actions import create_token
    from flexmarl.controlplane.accounts.queries import actor_of_user

    def make(user: Any, scopes: list[str] | None = None) -> APIClient:
        _, text = create_token(actor_of_user(user), "test", scopes)
        client = APIClient()
        client.credentials(HTTP_AUTHORIZATION=f"Bearer {text}")
        return client

    return make


@pytest.fixture
def editor(person: Callable[..., Any]) -> Any:
    return person("editor", "edith")


@pytest.fixture
def browser(editor: Any) -> Any:
    """Return a browser in which an editor is signed in."""
    from django.test import Client

    client = Client()
    client.force_login(editor)
    return client


@pytest.fixture
def api(editor: Any, client_of: Callable[..., Any]) -> Any:
    """Return an editor's client."""
    return client_of(editor)


@pytest.fixture
def admin_api(person: Callable[..., Any], client_of: Callable[..., Any]) -> Any:
    """Return a cluster admin's client."""
    return client_of(person("cluster_admin", "ada"))


@pytest.fixture
def make_run() -> Callable[..., Any]:
    """Return a function that makes a person's run, in a state if one is named."""
    from flexmarl.controlplane.accounts.queries import actor_of_user
    from flexmarl.controlplane.common.store import store_connection
    from flexmarl.controlplane.experiments.plans import Draft
    from flexmarl.controlplane.runs import actions, queries
    from flexmarl.store import partitions
    from tests.support.controlplane import SPEC, set_state

    def make(owner: Any, status: str | None = None, pending: str = "", **spec: Any) -> Any:
        run = actions.create_run(actor_of_user(owner), Draft(spec={**SPEC, **spec}))
        partitions.ensure(store_connection(), run.no)  # whatever state it is put into, it has its tables
        if status is not None or pending:
            set_state(run, status=status or "draft", pending_verb=pending)
        return queries.find_run(actor_of_user(owner), run.id)

    return make
