"""What the control plane asks of a node that is to answer for a run without engines, and what comes back.

`POST /v1/playground` with the cluster key. The answer never waits for an engine to start: it says that one is coming,
and whoever asked asks again. The token opens generation of this run alone, for some minutes.
"""

from pydantic import Field

from flexmarl.contracts.base import Record


class PlayRequest(Record):
    """Bring an engine up that holds this version."""

    run_id: int
    policy: str = Field(min_length=1, max_length=200)
    version: int = Field(ge=0)


class PlayEngine(Record):
    """An engine that holds it; `endpoint` empty: it is still starting."""

    endpoint: str = ""
    token: str = ""
    digest: str = ""
    since_s: float = 0.0
    """Seconds since the start was asked for."""


ENGINES_BUSY = "engines_busy"
"""Code of a refusal for now: all engines of the node answer somebody."""


class PlayRefusal(Record):
    """Why there will be none."""

    code: str
    detail: str
