"""What a node makes of commands it does not know and of children that answer nonsense: a code, nothing is written."""

import asyncio
from uuid import uuid4

import pytest

from flexmarl.contracts.commands import ReleaseLease
from flexmarl.store.control.commands import Taken
from flexmarl.store.errors import Refused
from workers.errors import ChildRefused
from workers.nodes.carrying_out import Prepared, perform, prepare
from workers.nodes.child_client import _refusal
from workers.training.wire import BindRequest


def unknown() -> Taken:
    return Taken(1, 5, uuid4(), 1, 1, ReleaseLease(lease_id=3))


def test_a_command_of_another_release_is_refused_before_a_child_is_asked() -> None:
    with pytest.raises(Refused, match="release_lease") as refused:
        prepare(None, unknown())  # type: ignore[arg-type]
    assert refused.value.code == "unknown_command"
    with pytest.raises(ChildRefused, match="release_lease") as again:
        asyncio.run(perform(None, Prepared(unknown(), BindRequest("solver"))))  # type: ignore[arg-type]
    assert again.value.code == "unknown_command"


@pytest.mark.parametrize("kind", ["application/json", "application/msgpack"])
@pytest.mark.parametrize("answer", [b"", b"<html>bad gateway</html>", b"\xff\xfe", b'{"code": 5}'])
def test_an_answer_that_is_no_refusal_is_told_with_its_status(kind: str, answer: bytes) -> None:
    refused = _refusal(502, answer, kind)
    assert (refused.code, refused.status) == ("child_error", 502)
    assert "502" in refused.detail
