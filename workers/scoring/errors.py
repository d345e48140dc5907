"""Why a score could not be computed."""

from workers.errors import WorkerError


class ScoringFailed(WorkerError):
    """This host could not compute a score, which says nothing of the reply."""

    code = "scoring_failed"
