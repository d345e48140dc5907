"""Errors of the launcher. Each text is one line that says what to do."""


class LaunchError(Exception):
    """Something on this machine keeps a process from starting; the text tells a person the next step."""

    exit_code = 1


class AlreadyRunning(LaunchError):
    """A supervisor holds this home folder."""

    exit_code = 3

    def __init__(self, url: str, pid: int, lock: str) -> None:
        where = f"already running at {url}" if url else "already starting or stopping"
        then = (
            f"pid {pid}; stop it with: kill {pid}"
            if pid
            else f"by a process that is not visible from here; see: lslocks | grep {lock}"
        )
        super().__init__(f"{where}, {then}")
        self.url = url
        self.pid = pid
