"""Whether a process has ended. An orphan that nobody has collected yet, a zombie, has."""

import psutil


def ended(process: int | psutil.Process) -> bool:
    try:
        one = process if isinstance(process, psutil.Process) else psutil.Process(process)
        return not one.is_running() or one.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
