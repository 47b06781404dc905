"""Files: lines as editors number them; results written whole or not at all, wherever they go."""

import os
import threading

import pytest

from refimpl import InputError
from refimpl.core.files import check_folder, check_writable, in_place_of, write_whole
from refimpl.core.reading import read_lines


def test_lines_end_where_editors_end_them(tmp_path):
    text = "one\u2028still one\x85and\x0con\r\ntwo\nthree"
    (tmp_path / "a.txt").write_bytes(text.encode())
    assert list(read_lines(tmp_path / "a.txt")) == ["one\u2028still one\x85and\x0con", "two", "three"]


@pytest.mark.parametrize(
    ("content", "reason"), [(None, "No such file"), (b"\xff\xfe", "it is not UTF-8"), ("folder", "Is a directory")]
)
def test_what_cannot_be_read(tmp_path, content, reason):
    path = tmp_path / "a.txt"
    if content == "folder":
        path.mkdir()
    elif content:
        path.write_bytes(content)
    with pytest.raises(InputError, match=f"a.txt: cannot be read: {reason}"):
        list(read_lines(path))


def test_files_are_written_whole_or_not_at_all(tmp_path):
    target = tmp_path / "out.jsonl"
    target.write_text("before\n")

    def lines():
        yield "first"
        raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError):
        write_whole(target, lines())
    assert target.read_text() == "before\n"
    assert [p.name for p in tmp_path.iterdir()] == ["out.jsonl"]


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there" / "file")
    for text in ("first", "second"):
        write_whole(tmp_path / "link", [text])
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "there" / "file").read_text() == f"{text}\n"


def test_a_pipe_stays_a_pipe(tmp_path):
    pipe, found = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: found.append(pipe.read_text()), daemon=True)
    reader.start()
    write_whole(pipe, ["one", "two"])
    reader.join(10)
    assert found == ["one\ntwo\n"]
    assert pipe.is_fifo()


def test_devices_can_be_written_to():
    check_writable(os.devnull)
    write_whole(os.devnull, ["gone"])
    assert not os.path.isfile(os.devnull)


def test_a_folder_is_replaced_whole_or_not_at_all(tmp_path):
    folder = tmp_path / "a" / "b"
    for text in ("first", "second"):
        with in_place_of(folder) as new:
            (new / text).write_text(text)
        assert [path.name for path in folder.iterdir()] == [text]

    def fail():
        with in_place_of(folder) as new:
            (new / "third").write_text("half")
            raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError):
        fail()
    assert [path.name for path in folder.iterdir()] == ["second"]
    assert [path.name for path in folder.parent.iterdir()] == ["b"]


def test_folders_that_cannot_be(tmp_path):
    check_folder(tmp_path / "new" / "and" / "newer")
    assert not (tmp_path / "new").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="file is not a folder"):
        check_folder(tmp_path / "file" / "in")
