"""Errors of the launcher. Each text is one line that says what to do."""


class LaunchError(Exception):
    """Something on this machine keeps a process from starting; the text tells a person the next step."""

    exit_code = 1


class AlreadyRunning(LaunchError):
    """A supervisor holds this home folder."""

    exit_code = 3

    def __init__(self, url: str, pid: int) -> None:
        super().__init__(f"already running at {url or 'an address not known yet'}, pid {pid}; stop it with: kill {pid}")
        self.url = url
        self.pid = pid
