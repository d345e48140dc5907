"""Files of datasets: how rows are read, which columns are what, and which rows are held out."""

import io
import json
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexmarl.controlplane.common.problems import ValidationProblem
from flexmarl.controlplane.datasets import reading
from flexmarl.controlplane.datasets.bad_rows import BadRow, UnreadableFile
from flexmarl.controlplane.datasets.importing import imported, read_choices
from flexmarl.controlplane.datasets.mapping import ColumnMapping, CountSplit, MappedRow, ShareSplit, mapped, sides
from flexmarl.controlplane.datasets.reading import rows_of

PROMPTS = ColumnMapping(prompt="q", answer="a")


def read(text: str | bytes, kind: str = "jsonl") -> list[Any]:
    return list(rows_of(io.BytesIO(text.encode() if isinstance(text, str) else text), kind))


def test_csv_has_a_head_quotes_and_lines_in_cells() -> None:
    assert read('\ufeffq,a\r\n"two, lines\nof it",4\r\n\r\nlast,5', "csv") == [
        (3, {"q": "two, lines\nof it", "a": "4"}),
        (5, {"q": "last", "a": "5"}),
    ]


@pytest.mark.parametrize("between", [";", "\t"])
def test_csv_as_spreadsheets_write_it_has_semicolons_or_tabs(between: str) -> None:
    text = f'q{between}a\n"one{between} two, three",4\n1{between}2\n'.replace('",4', f'"{between}4')
    assert read(text, "csv") == [(2, {"q": f"one{between} two, three", "a": "4"}), (3, {"q": "1", "a": "2"})]
    assert read(f"q,a{between}b\n1,2\n", "csv") == [(2, {"q": "1", f"a{between}b": "2"})]


@pytest.mark.parametrize(
    ("text", "line", "code"),
    [
        ("", 1, "no_head"),
        ("q,q\n", 1, "no_head"),
        ("q,\n", 1, "no_head"),
        (b"q,a\n\xff,1\n", 2, "no_utf8"),
        ('q,a\n"open,1\n', 2, "no_csv"),
        ("q\n" + "x" * (reading.MOST_ROW_BYTES + 1), 2, "too_long"),
    ],
)
def test_a_csv_that_cannot_be_read_on_is_refused_by_its_line(text: str | bytes, line: int, code: str) -> None:
    with pytest.raises(UnreadableFile) as refused:
        read(text, "csv")
    assert (refused.value.bad.line, refused.value.bad.code) == (line, code)


def test_rows_of_another_width_and_lines_that_are_no_objects_are_bad_rows() -> None:
    assert [(line, row.code) for line, row in read("q,a\n1\n1,2,3\n", "csv")] == [(2, "wrong_width")] * 1 + [
        (3, "wrong_width")
    ]
    wide = json.dumps({str(n): n for n in range(reading.MOST_COLUMNS + 1)})
    deep = "[" * 5000 + "]" * 5000
    found = read(f'{{"a":1}}\n\n"x"\n{{\n{wide}\n{{"a": {deep}}}\n{{"a": "\\ud800"}}\n')
    assert [(line, row.code if isinstance(row, BadRow) else row) for line, row in found] == [
        (1, {"a": 1}),
        (3, "no_object"),
        (4, "no_json"),
        (5, "too_many_columns"),
        (6, "no_json"),
        (7, "no_json"),
    ]


CHAT = ColumnMapping(messages="m")
USER = {"role": "user", "content": "hi"}


@pytest.mark.parametrize(
    ("messages", "code"),
    [
        ([USER], ""),
        ([{"role": "system", "content": "s"}, USER, {"role": "assistant", "content": "b"}, USER], ""),
        ("hi", "no_messages"),
        ([], "no_messages"),
        ([{"role": "tool", "content": "x"}], "bad_message"),
        ([{"role": "user"}], "bad_message"),
        ([USER, {"role": "system", "content": "late"}, USER], "bad_message"),
        ([USER, {"role": "assistant", "content": "b"}], ""),
        ([USER, {"role": "assistant", "content": "b"}, {"role": "assistant", "content": "c"}], "no_question"),
        ([{"role": "assistant", "content": "b"}], "no_question"),
    ],
)
def test_messages_end_with_a_question_of_the_user_and_its_answer_at_most(messages: Any, code: str) -> None:
    found = mapped(7, {"m": messages, "other": 1}, CHAT)
    assert (found.code if isinstance(found, BadRow) else "") == code
    if isinstance(found, MappedRow):
        assert found.row.columns == {"other": 1}
        said = [one.content for one in found.row.messages]
        answered = messages[-1]["role"] == "assistant"
        assert [*said, *([found.row.answer] if answered else [])] == [one["content"] for one in messages]


def test_answers_are_texts_numbers_and_truth_values() -> None:
    answers = [mapped(1, {"q": "x", "a": value}, PROMPTS) for value in ("t", 3, 2.5, True, None)]
    assert [one.row.answer if isinstance(one, MappedRow) else one.code for one in answers] == [
        "t", "3", "2.5", "true", "no_answer",
    ]  # fmt: skip


texts = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1).filter(lambda text: text.strip())


def prompts_of(rows: list[Any]) -> list[str]:
    return [" ".join(one.row.prompt.split()) for one in rows]


@given(st.lists(st.sampled_from("abcdefghij") | texts, min_size=1, max_size=40), st.floats(0, 0.9))
def test_no_held_out_prompt_is_in_training_whatever_its_place_and_spaces(prompts: list[str], share: float) -> None:
    rows = [mapped(n, {"q": f" {text} ", "a": n}, PROMPTS) for n, text in enumerate([*prompts, *prompts[::-1]])]
    hashes = [one.hash for one in rows if isinstance(one, MappedRow)]
    assert len(hashes) == len(rows)
    for split in (ShareSplit(share=share), CountSplit(rows=3)):
        held_out = sides(hashes, split)
        of_row = list(zip(prompts_of(rows), held_out, strict=True))
        training, kept = ({prompt for prompt, side in of_row if side is asked} for asked in (False, True))
        assert training.isdisjoint(kept)
    assert sum(sides(hashes, CountSplit(rows=3))) >= min(3, len(hashes))


def test_spaces_of_a_prompt_do_not_count() -> None:
    one, other, third = (mapped(1, {"q": text, "a": 1}, PROMPTS).hash for text in ("a  b\n", " a b", "ab"))
    assert one == other != third


def test_a_prompt_stays_on_its_side_when_rows_are_added() -> None:
    few = [mapped(n, {"q": f"{n}", "a": n}, PROMPTS).hash for n in range(100)]
    more = [mapped(n, {"q": f"{n}", "a": n}, PROMPTS).hash for n in range(200)]
    assert sides(few, ShareSplit(share=0.3)) == sides(more, ShareSplit(share=0.3))[:100]
    assert 15 <= sum(sides(few, ShareSplit(share=0.3))) <= 45
    assert sum(sides(few, CountSplit(rows=7))) == 7


def test_a_file_that_breaks_off_is_refused_with_what_was_bad_before() -> None:
    choices = read_choices({"prompt": "q"}, {})
    with pytest.raises(ValidationProblem) as refused:
        imported(io.BytesIO(b'q\n" "\n"x'), "csv", choices)
    assert [error.code for error in refused.value.errors] == ["no_text", "no_csv"]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_rows_that_are_larger_unpacked_than_a_file_may_be_are_refused(settings: Any, kind: str) -> None:
    """A few bytes can stand for any number of them: names of columns in each row, or what a compression repeats."""
    settings.MOST_DATASET_BYTES = 2**20
    column = "c" * 100_000
    rows = [{"q": f"{n}", column: "x"} for n in range(20)]
    text = "\n".join([f"q,{column}", *(f"{n},x" for n in range(20))])
    file = parquet_of(rows) if kind == "parquet" else io.BytesIO(text.encode())
    with pytest.raises(ValidationProblem) as refused:
        imported(file, kind, read_choices({"prompt": "q"}, {}))
    assert [error.code for error in refused.value.errors] == ["too_large"]
    file.seek(0)
    settings.MOST_DATASET_BYTES = 2**22
    found = imported(file, kind, read_choices({"prompt": "q"}, {}))
    assert found.columns == [column]
    assert [row.prompt for row in found.rows] == [row.row.prompt for row in found.rows] == [f"{n}" for n in range(20)]


def parquet_of(rows: list[dict[str, Any]]) -> io.BufferedIOBase:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    file = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the test
    parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    file.seek(0)
    return file


def test_parquet_holds_texts_numbers_lists_and_times() -> None:
    rows = [
        {"q": f"{n}?", "m": [{"role": "user", "content": "x"}], "at": datetime(2026, 1, 1, tzinfo=UTC)}
        for n in range(200)
    ]
    found = list(rows_of(parquet_of(rows), "parquet"))
    assert len(found) == 200
    assert found[7] == (8, {"q": "7?", "m": rows[0]["m"], "at": "2026-01-01T00:00:00+00:00"})


def test_a_library_that_aborts_when_it_is_taken_apart_spoils_no_file(tmp_path: Path, monkeypatch: Any) -> None:
    """As that of Parquet does now and then, while its threads still work."""
    (tmp_path / "sitecustomize.py").write_text("import atexit, os\natexit.register(os.abort)\n")
    monkeypatch.syspath_prepend(tmp_path)
    rows = [{"q": n} for n in range(3)]
    assert [row for _, row in rows_of(parquet_of(rows), "parquet")] == rows
    with pytest.raises(UnreadableFile, match="300 columns"):
        list(rows_of(parquet_of([{str(n): n for n in range(300)}]), "parquet"))


def test_a_parquet_file_that_is_none_holds_bytes_or_unpacks_to_too_much_is_refused(settings: Any) -> None:
    settings.MOST_DATASET_ROWS = 5
    pytest.importorskip("pyarrow")
    broken = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the test
    broken.write(b"PAR1 no parquet PAR1")
    broken.seek(0)
    bombs = [
        (broken, "no_parquet", "ArrowInvalid"),
        (parquet_of([{"q": n} for n in range(6)]), "no_parquet", "6 rows, at most 5"),
        (parquet_of([{"q": b"x"}]), "no_parquet", "bytes"),
        (parquet_of([{str(n): n for n in range(300)}]), "no_parquet", "300 columns"),
        (parquet_of([{"q": "x" * reading.MOST_ROW_BYTES}] * 5), "too_long", "more than"),
    ]
    for file, code, said in bombs:
        with pytest.raises(UnreadableFile) as refused:
            list(rows_of(file, "parquet"))
        assert (refused.value.bad.code, said in refused.value.bad.detail) == (code, True), refused.value.bad
