"""How processes end.

One that its environment does not let work ends with one line, and a code that says so to its supervisor. Of one that
failed, whoever started it says what it wrote last.
"""

import contextlib
import os
import re
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

CONFIGURATION = 78
"""EX_CONFIG of sysexits.h: a setting is wrong. Starting the process again without changing it helps nobody."""


def refuse(text: str) -> NoReturn:
    """Say which setting is wrong, and end."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
    raise SystemExit(CONFIGURATION)


def leave(status: int = 0) -> NoReturn:
    """End a process that has done all it had to, at once.

    The interpreter would take apart every module first, a second of a processor for a process that has loaded pages
    and routes; and a library whose threads still work may abort then. Functions registered with `atexit` are not
    called, and threads that still work are not waited for.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BrokenPipeError):  # nobody reads any more
            stream.flush()
    os._exit(status)


def carry_out(main: Callable[[], object]) -> NoReturn:
    """Run what a process is for and end it with the status of that, or with the error on standard error, at once.

    The interpreter would wait for threads that still work, also for those of libraries that nobody stopped.
    """
    status = 0
    try:
        main()
    except SystemExit as ended:
        if isinstance(ended.code, str):
            sys.stderr.write(f"{ended.code}\n")
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except KeyboardInterrupt:
        pass  # told to stop before it could listen
    except BaseException:
        traceback.print_exc()
        status = 1
    leave(status)


_WARNING = re.compile(r"^.*\b\w*Warning: .*\n?(?:^[ \t]+.*\n?)?", re.MULTILINE)
"""A warning of Python's, and the line of source below it."""


def last_words(said: bytes | str, status: int) -> str:
    """Return the last line that a failed process wrote which is no warning, or its exit status where there is none."""
    text = said.decode(errors="replace") if isinstance(said, bytes) else said
    return _WARNING.sub("", text).strip().rpartition("\n")[2].strip() or f"exit status {status}"
