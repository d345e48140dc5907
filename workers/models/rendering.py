"""Foreign chat templates, rendered in a process that has so much time and memory and no more.

`python -m workers.models.rendering` reads a chat format as JSON and writes the sample conversation as its template
shows it. Its caller is `sample_of`.

The template's own bounds (`flexmarl.language.bounded_templates`) end it first; this process is the wall behind them.
Invariant: whatever a template does, it costs its caller at most `RENDER_S` seconds of a processor, `MEMORY_BYTES` of
memory and a refusal by name. Seconds of a processor are what is counted, so that a busy host refuses no good template.
"""

import math
import os
import resource
import subprocess
import sys
import time
from functools import lru_cache

from flexmarl.host.exits import last_words
from flexmarl.language.bounded_templates import OutOfBounds
from flexmarl.language.chat_format import ChatFormat
from flexmarl.language.templates import TemplateError
from workers.children import child_environment
from workers.models.errors import ModelRefused
from workers.roots import python_path

RENDER_S = 5
"""Most seconds of a processor; a template that is well takes thousandths of one."""
WAIT_S = 240.0
"""Longest time until a process has started and rendered, on a host whose processors are busy."""
MEMORY_BYTES = 2**30
"""Most memory of the process, the interpreter among it."""
SAMPLE_BYTES = 2**20
"""Longest rendered sample; the conversation itself has 60 characters."""
KEPT = 64
"""Chat formats whose sample a process remembers; what was refused is rendered again."""
FAILS, TOO_LARGE, OUT_OF_BOUNDS = 3, 4, 5
"""Exit codes: the text says why the template does not render; it takes too much memory, or writes too much; it was
ended by its own bounds, and the text says which."""


def sample_of(chat: ChatFormat) -> str:
    """Return the sample conversation as the model is shown it. Raises TemplateError, or ModelRefused for a template
    that is out of bounds."""
    return _sampled(chat.dump())


@lru_cache(maxsize=KEPT)
def _sampled(chat: str) -> str:
    """Return what a process of its own renders. A trainer asks at each bind and each checkpoint of its policies."""
    command = [sys.executable, "-m", __name__]
    environment = child_environment({"PYTHONPATH": python_path()})
    slow = f"the chat template does not render a small conversation within {RENDER_S} s of a processor; use another one"
    try:
        done = subprocess.run(
            command, input=chat.encode(), env=environment, capture_output=True, timeout=WAIT_S, check=False
        )
    except subprocess.TimeoutExpired as late:
        text = f"the process that renders the chat template did not end within {WAIT_S:.0f} s; try again"
        raise ModelRefused("template_too_slow", text) from late
    said = done.stdout.decode(errors="replace")
    if done.returncode == FAILS:
        raise TemplateError(said)
    if done.returncode == OUT_OF_BOUNDS:
        raise ModelRefused("template_out_of_bounds", f"{said}; use a model with another one")
    if done.returncode == TOO_LARGE:
        text = f"the chat template takes more than {MEMORY_BYTES // 2**20} MiB of memory for a small conversation, "
        raise ModelRefused("template_too_large", f"{text}or writes more than {SAMPLE_BYTES // 2**20} MiB; use another")
    if done.returncode < 0:  # the kernel ended it: at its limit of time
        raise ModelRefused("template_too_slow", slow)
    if done.returncode:
        last = last_words(done.stderr, done.returncode)
        raise TemplateError(f"the process that renders the chat template ended with code {done.returncode}: {last}")
    return said


def main() -> None:
    given = sys.stdin.buffer.read()
    chat = ChatFormat.load(given.decode())
    seconds = math.ceil(time.process_time()) + RENDER_S
    for limit, most in ((resource.RLIMIT_AS, MEMORY_BYTES), (resource.RLIMIT_CPU, seconds), (resource.RLIMIT_CORE, 0)):
        resource.setrlimit(limit, (most, most))
    try:
        text = chat.sample()
    except MemoryError:
        os._exit(TOO_LARGE)
    except TemplateError as error:
        if isinstance(error.__cause__, MemoryError):
            os._exit(TOO_LARGE)
        _say(str(error)[:SAMPLE_BYTES])
        sys.exit(OUT_OF_BOUNDS if isinstance(error.__cause__, OutOfBounds) else FAILS)
    if len(text) > SAMPLE_BYTES:
        os._exit(TOO_LARGE)
    _say(text)


def _say(text: str) -> None:
    sys.stdout.buffer.write(text.encode(errors="replace"))
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
