"""The digest of what pip installed, in the forms in which its versions say it."""

import hashlib
from pathlib import Path
from typing import Any

import pytest

from workers.packages.building import sha256_of

SAID = "ab" * 32
INDEX = "https://index.test/games-1.0-py3-none-any.whl"


@pytest.mark.parametrize(
    ("download", "digest"),
    [
        ({"url": INDEX, "archive_info": {"hash": f"sha256={SAID}", "hashes": {"sha256": SAID}}}, SAID),
        ({"url": INDEX, "archive_info": {"hash": f"sha256={SAID}"}}, SAID),  # pip 23.0
        ({"url": "file:///games.whl", "archive_info": {"hashes": {"sha256": SAID}}}, SAID),
        ({"url": INDEX, "archive_info": {}}, ""),
        ({"url": INDEX, "vcs_info": {}}, ""),
    ],
)
def test_a_digest_is_what_pip_said(download: dict[str, Any], digest: str, tmp_path: Path) -> None:
    (tmp_path / "games.whl").write_bytes(b"a wheel")
    assert sha256_of(download, str(tmp_path / "games.whl")) == digest


def test_of_a_file_that_it_was_given_pip_may_say_nothing(tmp_path: Path) -> None:
    (given := tmp_path / "games.whl").write_bytes(b"a wheel")
    download = {"url": "file:///games.whl", "archive_info": {}}  # pip 23.0
    assert sha256_of(download, str(given)) == hashlib.sha256(b"a wheel").hexdigest()
    assert sha256_of(download, "") == ""
