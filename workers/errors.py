"""Errors of the data plane by the boundary they arose at. Codes are for programs, texts for people; all pickle."""


class WorkerError(Exception):
    """Base: a code and a text."""

    code = "worker_error"


class SettingsError(WorkerError):
    """An environment variable is missing or wrong; the text names it and says what to set."""

    code = "settings"


class NotAdmitted(WorkerError):
    """The node token was revoked or replaced: this process has no business here any more."""

    code = "not_admitted"


class JoinRefused(WorkerError):
    """The request of this host to join was rejected, has expired or cannot be made; the text says what to do."""

    code = "join_refused"


class ImportRefused(WorkerError):
    """What somebody asked to import cannot be; `code` is stable, the text says what would be accepted."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(code, detail)
        self.code, self.detail = code, detail

    def __str__(self) -> str:
        return self.detail


class HostingError(WorkerError):
    """A child could not be started, or a former one could not be proved dead."""

    code = "hosting"


class ChildUnreachable(WorkerError):
    """The child did not answer: it died, or is about to be counted as lost."""

    code = "child_unreachable"


class ChildRefused(WorkerError):
    """The child answered that the request does not fit its state, or failed at it."""

    def __init__(self, code: str, detail: str, status: int = 409) -> None:
        super().__init__(code, detail, status)
        self.code, self.detail, self.status = code, detail, status

    def __str__(self) -> str:
        return self.detail
