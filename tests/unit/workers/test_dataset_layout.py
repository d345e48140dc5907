"""Which configurations and splits a repository's files make, by its card or by their names."""

import time
from typing import Any

import pytest

from workers.datasets.layout import configurations, front_matter, left_out, licence_of, nothing_here


def found(paths: list[str], head: dict[str, Any] | None = None) -> dict[str, dict[str, list[str]]]:
    return {one.name: one.splits for one in configurations(paths, head or {})}


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (["train.jsonl", "test.csv"], {"default": {"train": ["train.jsonl"], "test": ["test.csv"]}}),
        (
            [
                "main/train-00001-of-00002.parquet",
                "main/train-00000-of-00002.parquet",
                "other/test-00000-of-00001.parquet",
            ],
            {
                "main": {"train": ["main/train-00000-of-00002.parquet", "main/train-00001-of-00002.parquet"]},
                "other": {"test": ["other/test-00000-of-00001.parquet"]},
            },
        ),
        (["data/dev-00000-of-00001-0af3.parquet"], {"default": {"dev": ["data/dev-00000-of-00001-0af3.parquet"]}}),
        (["main/validation/0000.parquet"], {"main": {"validation": ["main/validation/0000.parquet"]}}),
        (["sums_eval.jsonl", "all.jsonl"], {"default": {"train": ["all.jsonl"], "test": ["sums_eval.jsonl"]}}),
        (["latest.csv", "contrain.csv"], {"default": {"train": ["contrain.csv", "latest.csv"]}}),
        (
            [".hidden/train.jsonl", "dataset_infos.json", "a/../train.jsonl", "/etc/train.jsonl", "README.md", "x.png"],
            {},
        ),
    ],
)
def test_without_a_card_folders_are_configurations_and_names_say_the_split(paths, expected) -> None:
    assert found(paths) == expected


FILES = ["en/train-0.jsonl", "en/train-1.jsonl", "en/test.jsonl", "fr/deep/train.csv", "all.parquet", "pictures/1.png"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("all.parquet", {"train": ["all.parquet"]}),
        (["en/train-*", "en/train-0.jsonl"], {"train": ["en/train-0.jsonl", "en/train-1.jsonl"]}),
        ({"train": "**/train*", "test": "en/tes?.jsonl"}, {"train": FILES[:2] + FILES[3:4], "test": ["en/test.jsonl"]}),
        ([{"split": "dev", "path": ["./en/train-[0].jsonl"]}], {"dev": ["en/train-0.jsonl"]}),
        ([{"split": "train", "path": "fr/**"}], {"train": ["fr/deep/train.csv"]}),
    ],
)
def test_a_card_names_files_by_pattern(given, expected) -> None:
    assert found(FILES, {"configs": [{"config_name": "c", "data_files": given}]}) == {"c": expected}


def test_a_card_may_name_a_folder() -> None:
    head = {"configs": [{"config_name": "french", "data_dir": "fr"}, {"data_dir": "en", "data_files": "test.jsonl"}]}
    assert found(FILES, head) == {
        "french": {"train": ["fr/deep/train.csv"]}, "default": {"train": ["en/test.jsonl"]},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"data_files": "pictures/*"}, "pictures/1.png is none of .jsonl"),
        (
            {"data_files": [{"split": "test", "path": "none/*"}]},
            "names files for test that the repository does not have",
        ),
        ({"data_files": []}, "files for train"),
        ({"data_dir": "pictures"}, "its folder pictures has none of"),
        ({"data_files": 7}, "files for train"),
    ],
)
def test_what_a_configuration_cannot_be_read_for_is_said(given, why) -> None:
    [one] = configurations(FILES, {"configs": [{"config_name": "c", **given}]})
    assert why in one.refused


def test_a_pattern_that_backtracks_elsewhere_takes_no_time() -> None:
    began = time.process_time()
    assert found(["a" * 250 + ".csv"], {"configs": [{"data_files": "*a" * 200 + "b"}]}) == {"default": {"train": []}}
    assert found(["a/" * 100 + "b.csv"], {"configs": [{"data_files": "**/" * 150 + "c"}]}) == {"default": {"train": []}}
    assert time.process_time() - began < 5.0


@pytest.mark.parametrize(
    ("card", "licence"),
    [
        ("---\nlicense: mit\n---\n# Sums", "mit"),
        ("---\r\nlicense:\r\n- mit\r\n- cc-by-4.0\r\n---\r\n", "mit, cc-by-4.0"),
        ("# Sums\n---\nlicense: mit\n---\n", ""),
        ("---\n- mit\n---\n", ""),
        ("---\nlicense: [\n---\n", ""),
        ("---\na: &a [1]\nlicense: *a\n---\n", ""),
    ],
)
def test_the_head_of_a_card_is_read_within_bounds(card: str, licence: str) -> None:
    assert licence_of(front_matter(card)) == licence


def test_what_is_no_data_is_named_with_what_to_do() -> None:
    paths = ["gsm8k.py", "rows.zip", "cat.png", "sheet.xlsx", "README.md", "train.jsonl"]
    why = {one.path: one.why for one in left_out(paths, ["train.jsonl"])}
    assert why.keys() == {"gsm8k.py", "rows.zip", "cat.png", "sheet.xlsx"}
    assert "no code of a repository runs here" in why["gsm8k.py"]
    assert "upload that file" in why["rows.zip"]
    text = nothing_here("us/script", paths[:4])
    assert "and 1 more" in text
    assert "refs/convert/parquet" in text
