"""What a store function refuses, by cause. Each carries the fields a log line or an event needs."""


class StoreError(Exception):
    """Base of every refusal of the store. `code` is for programs; docs/operations.md says what to do at each."""

    code = "store_error"


class UnknownRun(StoreError):
    """There is no such run: it was never made here, or it was deleted."""

    code = "unknown_run"

    def __init__(self, run_id: int) -> None:
        super().__init__(f"run {run_id} does not exist")
        self.run_id = run_id


class SchemaMismatch(StoreError):
    """The database's schema version is not the one this code was written for."""

    code = "schema_mismatch"


class SessionsNotKept(StoreError):
    """A pooler in front of the database gives each transaction another session."""

    code = "sessions_not_kept"

    def __init__(self) -> None:
        super().__init__(
            "DATABASE_URL leads to a pooler that gives each transaction another session, and LISTEN, advisory locks"
            " and time limits need their own: set pool_mode = session for this database in PgBouncer, or give the"
            " address of the PostgreSQL server itself"
        )


class FenceLost(StoreError):
    """Another driver holds the run now; nothing of the decision was written."""

    code = "fence_lost"

    def __init__(self, run_id: int, owner: str, fence: int) -> None:
        super().__init__(f"run {run_id} is no longer held by {owner} under fence {fence}")
        self.run_id, self.owner, self.fence = run_id, owner, fence


class TokenLost(StoreError):
    """The command was taken by someone else, ended or voided; nothing was written under the old token."""

    code = "token_lost"

    def __init__(self, run_id: int, no: int) -> None:
        super().__init__(f"command {no} of run {run_id} is not held under this token any more")
        self.run_id, self.no = run_id, no


class EpochStale(StoreError):
    """The run moved to another epoch; work of the old one is refused."""

    code = "epoch_stale"

    def __init__(self, run_id: int, epoch: int, current: int) -> None:
        super().__init__(f"run {run_id} is in epoch {current}, the work is of epoch {epoch}")
        self.run_id, self.epoch, self.current = run_id, epoch, current


class LeaseLost(StoreError):
    """The lease is not held under this token or by this incarnation any more."""

    code = "lease_lost"

    def __init__(self, lease_id: int, detail: str) -> None:
        super().__init__(f"lease {lease_id}: {detail}")
        self.lease_id = lease_id


class Refused(StoreError):
    """The rows do not allow the change: a version exists, a micro-batch is not accumulated, a sample is missing."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code


class PayloadRefused(Refused):
    """A payload by reference cannot be read.

    Codes: payload_missing, payload_truncated, payload_corrupt, payload_unreachable, payload_retired,
    payload_not_kept.
    """


class SamplesAway(StoreError):
    """A retirement has detached the run's samples and not yet ended. Nothing was written; put the same rows again."""

    code = "samples_away"

    def __init__(self, run_id: int) -> None:
        super().__init__(f"the samples of run {run_id} are being retired or taken back; it takes its rows in a moment")
        self.run_id = run_id


class StoreFull(StoreError):
    """A disk is full. Nothing was written; the same rows may be put again once there is space."""

    code = "store_full"

    def __init__(self, where: str, cause: str) -> None:
        super().__init__(f"{where} takes no more samples: {cause}; free some space, or retire samples of ended runs")
        self.where = where
