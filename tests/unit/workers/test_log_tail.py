"""Following a child's log file: whole lines, once, never in the child's way."""

import time

from workers.log_tail import PER_LOOK, LogTail, parsed


def follow(path):
    told = []
    tail = LogTail(path, lambda fields, level: told.append((fields["event"], level)))
    tail.start()
    return tail, told


def until(check, seconds=30.0):
    end = time.monotonic() + seconds
    while not check() and time.monotonic() < end:
        time.sleep(0.02)
    return check()


def test_lines_written_from_now_on_are_told_once(tmp_path):
    path = tmp_path / "engine-1.log"
    path.write_text('{"event": "of an earlier life"}\n')
    tail, told = follow(path)
    with path.open("a") as file:
        file.write('{"event": "ready", "level": "info"}\nTraceback ')
        file.flush()
        assert until(lambda: told)
        file.write("of something\n")
    assert until(lambda: len(told) == 2)
    tail.stop()
    assert told == [("ready", "info"), ("Traceback of something", "warning")]


def test_what_is_written_last_is_still_read_after_the_end(tmp_path):
    path = tmp_path / "trainer-2.log"
    tail, told = follow(path)
    path.write_text('{"event": "last words", "level": "error"}\n')
    tail.stop()
    assert until(lambda: told == [("last words", "error")])


def test_a_flood_is_left_out_with_a_word(tmp_path):
    path = tmp_path / "engine-3.log"
    tail, told = follow(path)
    path.write_text("x" * (PER_LOOK * 2) + "\nend\n")
    assert until(lambda: ("end", "warning") in told)
    tail.stop()
    assert "left out" in told[0][0]
    assert sum(len(text) for text, _ in told) < PER_LOOK * 1.1


def test_a_line_that_is_no_json_is_its_own_text():
    assert parsed(b'["a"]') == ({"event": '["a"]'}, "warning")
    assert parsed(b'{"event": "x", "level": "error"}') == ({"event": "x", "level": "error"}, "error")
