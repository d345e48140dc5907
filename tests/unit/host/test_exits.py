"""What a process that failed said last."""

import subprocess
import sys

import pytest

from flexmarl.host.exits import last_words


@pytest.mark.parametrize(
    ("program", "last"),
    [
        ("raise SystemExit('no such file')", "no such file"),
        ("import warnings; warnings.warn('slow', RuntimeWarning); raise ValueError('seven')", "ValueError: seven"),
        (
            "import sys, warnings; print('out of disk', file=sys.stderr); warnings.warn('slow'); sys.exit(3)",
            "out of disk",
        ),
        ("import sys, warnings; warnings.warn('slow', RuntimeWarning); sys.exit(4)", "exit status 4"),
        ("raise SystemExit(5)", "exit status 5"),
    ],
)
def test_it_is_its_error_and_no_warning(program: str, last: str) -> None:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert last_words(done.stderr, done.returncode) == last
    assert last_words(done.stderr.decode(), done.returncode) == last
