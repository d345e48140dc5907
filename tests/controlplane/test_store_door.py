"""Store functions on Django's connection are in Django's transaction."""

import pytest
from django.db import transaction

from flexmarl.controlplane.common.store import store_connection
from flexmarl.store.control import nodes
from flexmarl.store.control.nodes import NodeFacts


class Undone(Exception):
    """Ends a block without its changes."""


@transaction.atomic
def register_and_fail() -> None:
    nodes.register_node(store_connection(), NodeFacts("ghost", "a:1", "i", "0"), [])
    raise Undone


@pytest.mark.django_db(transaction=True)
def test_what_the_store_writes_first_is_rolled_back_with_the_block() -> None:
    with pytest.raises(Undone):
        register_and_fail()
    assert store_connection().execute("SELECT count(*) FROM store.node WHERE name = 'ghost'").fetchone() == (0,)


@pytest.mark.django_db
def test_json_is_loaded() -> None:
    assert store_connection().execute("""SELECT '{"a": [1]}'::jsonb, '[2]'::json""").fetchone() == ({"a": [1]}, [2])
