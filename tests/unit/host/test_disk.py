"""Free space in words, on file systems that are really small."""

from pathlib import Path

from flexmarl.host import disk
from flexmarl.host.disk import DiskLevel, DiskSpace
from tests.support.small_disk import fill, small_disk

MIB = 2**20


def test_levels_go_by_what_a_database_needs_and_by_the_size_of_the_disk() -> None:
    assert DiskSpace(10 * MIB, 2**40, 1000).level is DiskLevel.FULL
    assert DiskSpace(400 * MIB, 2**40, 1000).level is DiskLevel.LOW
    assert DiskSpace(600 * MIB, 2**40, 1000).level is DiskLevel.OK
    assert DiskSpace(200 * MIB, 900 * MIB, 1000).level is DiskLevel.OK, "a small disk that is meant to be small"
    assert DiskSpace(2**40, 2**40, 0).level is DiskLevel.FULL, "no file can be made"


def test_a_full_disk_is_described_with_who_takes_it_and_what_to_do(short_tmp: Path) -> None:
    with small_disk(short_tmp, 200) as place:
        home = place / "home"
        for name, size in (("payloads", 3 * MIB), ("postgres", 9 * MIB), ("odd", MIB)):
            (home / name).mkdir(parents=True)
            (home / name / "file").write_bytes(bytes(size))
        assert disk.describe(home) == ""
        fill(place)
        text = disk.describe(home)
        assert text.startswith("The disk of the data folder is full: ")
        assert "The data folder takes: database 9 MiB, sample payloads 3 MiB, other files 1 MiB." in text
        assert "Free some space" in text
        assert str(place) not in text


def test_a_home_that_is_not_there_yet_is_measured_where_it_will_be(tmp_path: Path) -> None:
    assert disk.space(tmp_path / "a" / "b").total == disk.space(tmp_path).total
    assert disk.shares(tmp_path / "a") == []
