"""Groups of episodes cross the wire with every bit, and what does not fit is refused by the name of its place."""

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from pydantic import TypeAdapter

from flexmarl.contracts.events import EpisodeOutcome, GroupSettled
from flexmarl.store import node_wire
from flexmarl.store.data.groups import EpisodeRow, SampleRow, SettledGroup
from flexmarl.store.data.spans import Span
from flexmarl.store.node_operations import OPERATIONS

PUT = OPERATIONS["groups.put_groups"]
ODD = [-0.1, 1e-45, 3.4028235e38, -0.0]
"""Numbers of which a narrower type, or decimal text, would lose bits."""


def group(**sample: Any) -> SettledGroup:
    row = SampleRow(
        draw=3, member=0, attempt=1, role="speaker", turn=0, policy="speaker", version=2, segments=[2, 4],
        prompt=[5, 6, 2**31 - 1], response=[7, 8, 9, 10], logprobs=ODD, allowed=list(range(20)),
        spans=[Span(3, 4, "stop", 0.5, "box.cpu0", 12.25, 0, "a digest")],
    )  # fmt: skip
    episode = EpisodeRow(
        3, 0, 1, "train", "finished", "", {"hit": 1.0}, 1.0, True, 2, 14, {"speaker": 2}, {"seed": 9},
        [["speaker", "a b", 1]], 1.5, 2.5, 7, {"x": 0.1}, [], ["a b", "c"], {"cut": [("speaker", 0)]},
    )  # fmt: skip
    outcome = EpisodeOutcome(member=0, attempt=1, status="finished", scores={"hit": 1.0}, team_score=1.0)
    event = GroupSettled(
        draw=3, origin="train", epoch=0, command_no=5, episodes=(outcome,), started_at=1.5, finished_at=2.5,
        versions={"speaker": 2},
    )  # fmt: skip
    return SettledGroup(event, [episode], [replace(row, **sample)], ["a grammar"])


def read(*groups: SettledGroup) -> list[SettledGroup]:
    """Read groups as the control plane reads them, without the command that they belong to."""
    kind = node_wire._request(PUT.name).model_fields["groups"]
    sent = msgspec.msgpack.decode(node_wire.encode(list(groups)))
    found: list[SettledGroup] = TypeAdapter(kind.rebuild_annotation()).validate_python(sent)
    return found


def test_groups_arrive_as_they_were_sent() -> None:
    sent = [group(), group(logprobs=np.array(ODD, "<f4"), prompt=np.arange(3, dtype="<i4"))]
    plain, arrays = read(*sent)
    assert plain == sent[0]
    [row] = arrays.samples
    assert isinstance(row.logprobs, list)
    assert np.array(row.logprobs, "<f4").tobytes() == np.array(ODD, "<f4").tobytes()
    assert list(row.prompt) == [0, 1, 2]
    assert isinstance(row.spans[0], Span)


@pytest.mark.parametrize(
    ("sample", "place"),
    [
        ({"prompt": [1, "x"]}, "samples.0.prompt.1"),
        ({"response": "7"}, "samples.0.response"),
        ({"logprobs": [0.5, None]}, "samples.0.logprobs.1"),
        ({"segments": [[2]]}, "samples.0.segments.0"),
        ({"spans": [[1]]}, "samples.0.spans.0"),
        ({"allowed": {"1": 2}}, "samples.0.allowed"),
    ],
)
def test_what_does_not_fit_is_refused_by_its_place(sample: dict[str, Any], place: str) -> None:
    with pytest.raises(ValueError, match=place):
        read(group(**sample))
