"""Files and texts that others wrote."""

import os
import socket
import time

import pytest

from scalebench.core import untrusted
from scalebench.core.errors import InputError
from scalebench.core.json_files import read_json
from scalebench.core.result import read_result
from scalebench.core.run_folder import RESULT_FILE, progress_path
from scalebench.core.sweep_file import SWEEP_FILE, SweepRecord, new_sweep_record, read_sweep
from scalebench.measure.progress import read_progress

BOMB = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 10)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


def make_socket(path):
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.path.relpath(path))  # an absolute one may be longer than sockets take


ODD_FILES = {
    "pipe": os.mkfifo,
    "socket": make_socket,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "huge": lambda path: (path.touch(), os.truncate(path, 40 << 30)),  # takes no room
    "nested": lambda path: path.write_text("[" * 100_000),
    "half": lambda path: path.write_text('{"a": '),
    "latin": lambda path: path.write_bytes(b'"\xff"'),
}


@pytest.mark.parametrize("kind", ODD_FILES)
def test_any_file_beside_a_result_is_read_or_refused_at_once(kind, tmp_path):
    """Opening a pipe would wait for a writer, and a file may be larger than memory, or nested deeper than the stack."""
    for path in (tmp_path / RESULT_FILE, tmp_path / SWEEP_FILE, progress_path(tmp_path, 0)):
        ODD_FILES[kind](path)
    started_s = time.monotonic()
    with pytest.raises(InputError, match=r"result\.json (is no|is larger|has schema)"):
        read_result(tmp_path / RESULT_FILE)
    with pytest.raises(InputError, match=r"sweep\.json is no record of a sweep: "):
        read_sweep(tmp_path)
    with pytest.raises(ValueError):
        read_json(tmp_path / SWEEP_FILE)
    assert read_progress(tmp_path, 0) is None
    assert time.monotonic() - started_s < 10.0


def test_links_count_only_where_they_are_asked_for(tmp_path):
    (tmp_path / "real").write_text("1")
    (tmp_path / "link").symlink_to("real")
    assert untrusted.read_plain_file(tmp_path / "link", follow_link=True) == b"1"
    with pytest.raises(untrusted.FileRefused, match="is a link"):
        untrusted.read_plain_file(tmp_path / "link")
    with pytest.raises(IsADirectoryError):
        untrusted.read_plain_file(tmp_path)
    with pytest.raises(FileNotFoundError):
        untrusted.read_plain_file(tmp_path / "missing")
    with pytest.raises(untrusted.FileRefused, match="is larger than 0 bytes"):
        untrusted.read_plain_file(tmp_path / "real", max_bytes=0)


def test_a_flat_list_of_texts_is_read_as_it_stands_and_anything_else_is_refused(tmp_path):
    assert untrusted.read_text_list(tmp_path, ".hydra/overrides.yaml") == []
    path = tmp_path / "list"
    path.write_text('- gpus=2\n- "a=\\"b\\""\n- \'note=${oc.env:HOME}\'\n- 3\n- !!binary x\n- >-\n  a\n  b\n')
    assert untrusted.read_text_list(tmp_path, "list") == ["gpus=2", 'a="b"', "note=${oc.env:HOME}", "3", "x", "a b"]
    path.write_text("[]\n")
    assert untrusted.read_text_list(tmp_path, "list") == []
    odd = ("- &a x\n", "- &a x\n- *a\n", "- [x]\n", "- a: b\n", "text\n", "- x\n---\n- y\n", "- [\n")
    for text, reason in (
        *((text, "no flat list") for text in (BOMB, *odd)),
        ("- 'x\n", "is no YAML"),
        ("- \x07\n", "is no YAML"),
        ("- x\n" * (untrusted.MAX_LIST_WORDS + 1), "more than"),
        ("#" * (untrusted.MAX_LIST_BYTES + 1), "larger than"),
    ):
        path.write_text(text)
        with pytest.raises(untrusted.FileRefused, match=reason):
            untrusted.read_text_list(tmp_path, "list")
    private = tmp_path / "private"
    private.mkdir()
    (private / "overrides.yaml").write_text("- mine\n")
    for kind in ("file", "folder", "pipe"):  # elsewhere, or none
        folder = tmp_path / kind
        folder.mkdir()
        if kind == "folder":
            (folder / ".hydra").symlink_to(private)
        else:
            (folder / ".hydra").mkdir()
            path = folder / ".hydra" / "overrides.yaml"
            path.symlink_to(private / path.name) if kind == "file" else os.mkfifo(path)
        with pytest.raises(untrusted.FileRefused, match="is no plain file inside the folder"):
            untrusted.read_text_list(folder, ".hydra/overrides.yaml")


def test_shown_texts_do_nothing():
    texts = {
        "soft\xadhyphen": "soft<U+00AD>hyphen",
        "note\U0001d173\U00013430": "note<U+1D173><U+13430>",
        "\x1b[31mred\x1b[0m\tone\ntwo": "red\tone\ntwo",
        "\x1b]52;c;cm0=\x07": "\ufffd]52;c;cm0=\ufffd",
        "a\x00\x08\x7f": "a\ufffd\ufffd\ufffd",
        "10 %\r20 %\r\nend": "10 %\n20 %\nend",
        "half \ud800 a sign": "half \ufffd a sign",
        "\x9b31m": "<U+009B>31m",
        "rm \u202egpj": "rm <U+202E>gpj",
        "a\u200bb\u2028c\ufeff\U000e0041": "a<U+200B>b<U+2028>c<U+FEFF><U+E0041>",
    }
    texts |= {same: same for same in ("plain ü 漢字 \N{GRINNING FACE}", "hard\xa0space, joined\u200d")}
    for text, shown in texts.items():
        assert untrusted.clean_text(text) == shown
        assert untrusted.clean_line(f"  {text}\n") == " ".join(untrusted.clean_text(text).split())
        assert untrusted.clean_text(text).encode("utf-8")


def test_a_sweep_that_somebody_has_edited():
    for pid in (-1, 0, 2**31, 2**80):  # is no number of a process
        assert SweepRecord("", [], "here", pid, 0.0).is_alive("here") is False
    assert new_sweep_record(["a=http://me:pw@host"], "", "here", None).arguments == ["a=http://***@host"]
    assert SweepRecord("", [], "here", 1, 0.0).time_limit_text == "sweep.max_minutes"
    assert SweepRecord("", [], "here", 1, 0.0, 30.0).time_limit_text == "sweep.max_minutes=30"
