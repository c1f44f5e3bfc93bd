"""Files of pages: their names, their front matter, and when they are written."""

import os
import re
from pathlib import Path

import pytest
import yaml

from crawlcw.errors import FilesUnwritableError, UsageError
from crawlcw.site.folder import MarkdownFolder, file_name, front_matter

pytestmark = pytest.mark.quick

HOST = "https://docs.example.com"


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/", "index.md"),
        ("/guide/", "guide/index.md"),
        ("/guide/intro", "guide/intro.md"),
        ("/guide/intro.html", "guide/intro.html.md"),
        ("/library/xml.etree.html", "library/xml.etree.html.md"),
        ("/%C3%BCber/", "über/index.md"),
    ],
)
def test_a_plain_path_is_the_name_of_its_file(path: str, name: str):
    assert file_name(HOST + path) == f"docs.example.com/{name}"


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/guide?page=2", "guide"),
        ("/Guide", "Guide"),
        ("/index", "index"),
        ("//guide", "guide"),
        ("/a--b", "a-b"),
        ("/%2e%2e%2f%2e%2e%2fetc%2fpasswd", "etc-passwd"),
        ("/.bashrc", "bashrc"),
        ("/%00%1b%E2%80%AE", "_"),
        ("/con.txt", "_con.txt"),
        ("/nul/", "_nul/index"),
        ("/guide.md/x", "guide-md/x"),
        ("/" + "x" * 300, "x" * 60),
        ("/" + "d/" * 30, "/".join("d" * 8) + "/index"),
    ],
)
def test_another_path_has_a_harmless_name_with_a_digest(path: str, name: str):
    prefix, digest = file_name(HOST + path).removesuffix(".md").rsplit("-", 1)

    assert prefix == f"docs.example.com/{name}"
    assert re.fullmatch("[0-9a-f]{16}", digest)


def test_no_two_pages_have_one_file_even_if_the_case_is_ignored():
    paths = [
        "/a",
        "/A",
        "/a/",
        "/A/",
        "/a.html",
        "/a.md",
        "/a?x",
        "/a?X",
        "/index",
        "/",
        "/a/index",
    ]

    assert len({file_name(HOST + path).casefold() for path in paths}) == len(paths)


@pytest.mark.parametrize(
    "text",
    [
        'a "quoted" title\\',
        "---\nadmin: true\n---",
        "a: b # c",
        "\x00\x1b[31m\x7f\x85\u2028\ufeff\ud800",
        "日本語 \U0001f600",
        "",
        None,
    ],
)
def test_front_matter_keeps_hostile_values_as_values(text: str | None):
    lines = front_matter({"url": HOST, "title": text}).splitlines()

    assert (lines[0], lines[-1], len(lines)) == ("---", "---", 4)
    values = yaml.safe_load("\n".join(lines[1:-1]))
    assert values == {"url": HOST, "title": text and text.replace("\ud800", "?")}


def test_a_file_is_written_only_if_its_content_has_changed(tmp_path: Path):
    folder = MarkdownFolder(tmp_path / "out")
    path = tmp_path / "out" / folder.write(f"{HOST}/a/", "# A\n", {"title": "A"})
    os.utime(path, (1, 1))

    folder.write(f"{HOST}/a/", "# A\n", {"title": "A"})
    unchanged_time = path.stat().st_mtime
    folder.write(f"{HOST}/a/", "# B\n", {"title": "A"})

    assert unchanged_time == 1
    assert path.stat().st_mtime > 1
    assert path.read_text() == '---\ntitle: "A"\n---\n\n# B\n'
    assert [entry.name for entry in path.parent.iterdir()] == ["index.md"]


def test_the_part_of_a_crash_is_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = MarkdownFolder(tmp_path)
    with monkeypatch.context() as crash, pytest.raises(KeyboardInterrupt):
        crash.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        folder.write(f"{HOST}/a", "# A\n", {})

    folder.write(f"{HOST}/a", "# A\n", {})

    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["a.md"]


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path):
    (tmp_path / "out").write_text("")

    with pytest.raises(UsageError, match="out is a file"):
        MarkdownFolder(tmp_path / "out")
    with pytest.raises(UsageError, match="x is a file"):
        MarkdownFolder(tmp_path / "out" / "x")


def test_a_file_that_cannot_be_written_is_no_fault_of_the_page(tmp_path: Path):
    folder = MarkdownFolder(tmp_path)
    (tmp_path / "docs.example.com").write_text("in the way")

    with pytest.raises(FilesUnwritableError, match="cannot write to"):
        folder.write(f"{HOST}/a/", "# A\n", {})
