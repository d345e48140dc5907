"""A process of a reward function: `python -m workers.adopted workers.rewards.host FUNCTION SETTINGS`.

It reads an episode a line and answers each with a line, `{"earned": ...}` or `{"error": ...}`, until its worker hangs
up. Whatever the function prints goes elsewhere than the answers.
"""

import json
import os
import pkgutil
import signal
import sys
from collections.abc import Callable, Mapping
from typing import IO, Any

Function = Callable[[dict[str, Any], dict[str, Any]], Mapping[str, Any]]


def main() -> None:
    """Answer until standard input ends."""
    # The worker decides when it ends, by hanging up, also when a terminal interrupts both.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    serve(sys.stdin.buffer, answers, sys.argv[1], json.loads(sys.argv[2]))


def serve(asked: IO[bytes], answers: IO[bytes], name: str, settings: dict[str, Any]) -> None:
    """Answer line by line; the function is imported with the first one."""
    function: Function | None = None
    for line in asked:
        try:
            function = function or load(name)
            answer = json.dumps({"earned": dict(function(json.loads(line), settings))})
        except Exception as error:  # foreign code: whatever it raises is this reward's failure
            answer = json.dumps({"error": f"{type(error).__name__}: {error}"})
        answers.write(answer.encode() + b"\n")
        answers.flush()


def load(name: str) -> Function:
    """Import the function `package.module:function`. Raises ImportError or AttributeError where there is none."""
    function: Function = pkgutil.resolve_name(name)
    return function


if __name__ == "__main__":
    main()
