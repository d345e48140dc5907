"""Chart data in few bytes is the same data: lists travel once, and smoothed lines can be made again."""

import json

from webui.figures.base import SeriesSet
from webui.packing import packed

XS = [float(x) for x in range(1, 21)]
YS = [0.1 * x + 0.012345 for x in XS]


def restored(answer):
    """What `packing.js` does."""
    lists = answer["lists"]

    def back(value):
        if isinstance(value, list):
            return [back(member) for member in value]
        if not isinstance(value, dict):
            return value
        if "$" in value:
            values, out = lists[value["$"]], []
            if "keep" not in value:
                return values
            for one in values:
                out.append(one if not out else value["keep"] * out[-1] + (1 - value["keep"]) * one)
            return out
        if "by_column" in value:
            columns = [back(column) for column in value["by_column"]]
            return {"columns": value["columns"], "rows": [list(row) for row in zip(*columns, strict=True)]}
        return {name: back(member) for name, member in value.items()}

    return back({name: member for name, member in answer.items() if name != "lists"})


def chart(ys):
    soft = SeriesSet([]).soft(ys)
    rows = [[int(x), y] for x, y in zip(XS, ys, strict=True)]
    return {"x": XS, "y": soft, "customdata": ys, "table": {"columns": ["step", "mean"], "rows": rows}}


def test_lists_travel_once_and_come_back() -> None:
    answer = json.loads(json.dumps(packed({"step": 3, "charts": [chart(YS), chart(YS)], "range": [0.0, 1.23456]})))
    assert len(answer["lists"]) == 2, "the steps and the values"
    back = restored(answer)
    assert back["range"] == [0, 1.235]
    first, second = back["charts"]
    assert first == second
    assert first["x"] == XS
    assert all(abs(a - b) < 1e-3 for a, b in zip(first["customdata"], YS, strict=True))
    assert [row[1] for row in first["table"]["rows"]] == first["customdata"]


def test_smoothed_lines_are_made_again_from_the_raw_ones() -> None:
    jagged = [float(i % 2) for i in range(200)]
    soft = SeriesSet([]).soft(jagged)
    answer = packed({"raw": jagged, "smooth": soft})
    assert len(answer["lists"]) == 1
    back = restored(answer)
    assert back["raw"] == jagged
    assert max(abs(a - b) for a, b in zip(back["smooth"], soft, strict=True)) < 1e-9
    assert max(back["smooth"][100:]) - min(back["smooth"][100:]) < 0.2


def test_gaps_and_short_lists_stay_as_they_are() -> None:
    answer = packed({"gap": [None, *YS], "short": [1.0, 2.5], "table": {"columns": ["step"], "rows": []}})
    assert answer["short"] == [1, 2.5]
    assert restored(answer)["gap"][0] is None
    assert restored(answer)["table"] == {"columns": ["step"], "rows": []}
