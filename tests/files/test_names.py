"""Names of saved files, for any header of the server (HOSTILE 3.10)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawlcw.files.names import stored_name

pytestmark = pytest.mark.quick

SHA = "3f" * 32


def named(path: str = "/", *, kind: str = "application/octet-stream", disposition: str = "") -> str:
    """Return the part of a name after the checksum."""
    url = f"https://a.example{path}"
    name = stored_name(SHA, url=url, content_type=kind, disposition=disposition)
    assert name.startswith(SHA)
    return name.removeprefix(SHA)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/films/Der%20Film.mp4?v=1#t", "-Der-Film.mp4"),
        ("/a.b/c.d.TAR.gz", "-c-d.tar.gz"),
        ("/%D1%84%D0%B8%D0%BB%D1%8C%D0%BC.mp4", "-фильм.mp4"),
        ("/a%CC%88.png", "-ä.png"),
        ("/", ".bin"),
        ("/films/", "-films.bin"),
        ("/..%2f..%2f..%2fetc/passwd", "-passwd.bin"),
        ("/..%5c..%5cCON", "-CON.bin"),
        ("/.bashrc", "-bashrc.bin"),
        ("/a%00.sh%0a%1b[31m.jpg", "-sh-31m.jpg"),
        ("/%2e%2e", ".bin"),
        ("/a%E2%80%AEgpj.exe", "-a-gpj.exe"),
        ("/%ff%fe", ".bin"),
        ("/" + "%F0%9F%98%80" * 99, ".bin"),
        ("/" + "%C3%A4" * 500 + ".mp4", "-" + "ä" * 30 + ".mp4"),
        ("/a." + "x" * 300, "-a-" + "x" * 58 + ".bin"),
    ],
)
def test_a_name_is_that_of_the_url_made_harmless(path: str, name: str) -> None:
    assert named(path) == name


@pytest.mark.parametrize(
    ("path", "kind", "name"),
    [
        ("/image.php", "image/jpeg; a=b", "-image.jpg"),
        ("/image", "IMAGE/PNG", "-image.png"),
        ("/image.gif", "image/jpeg", "-image.gif"),
        ("/image", "image/jpg", "-image.jpg"),
        ("/x.php", "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
         "-x.docx"),
        ("/x", "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet", "-x.xlsx"),
        ("/x", "image/webp", "-x.webp"),
        ("/x", "application/epub+zip", "-x.epub"),
        ("/x", "application/gzip", "-x.gz"),
        ("/x", "text/markdown;charset=utf-8", "-x.md"),
        ("/x", "font/woff2", "-x.woff2"),
        ("/x", "application/geo+json", "-x.json"),
        ("/x.aspx", "application/atom+xml", "-x.xml"),
        ("/x.rar", "application/octet-stream", "-x.rar"),
        ("/data.xyz9", "no/such", "-data.xyz9"),
        ("/data", "no/such", "-data"),
        ("/data", "", "-data"),
    ],
)  # fmt: skip
def test_the_type_gives_the_extension_where_the_name_has_none_that_is_known(
    path: str, kind: str, name: str
) -> None:
    assert named(path, kind=kind) == name


@pytest.mark.parametrize(
    ("disposition", "name"),
    [
        ('attachment; filename="film.mp4"', "-film.mp4"),
        ("attachment; filename*=UTF-8''f%C3%BCr.mp4", "-für.mp4"),
        ('attachment; filename="../../x/film.mp4"', "-film.mp4"),
        (r'attachment; filename="C:\x\film.mp4"', "-film.mp4"),
        # RFC 6266, section 4.3: the extended parameter wins, in any position.
        ("attachment; filename=a.mp4; filename*=UTF-8''f%C3%BCr.mp4", "-für.mp4"),
        ("attachment; filename*=UTF-8''f%C3%BCr.mp4; filename=a.mp4", "-für.mp4"),
        ("attachment; filename*=ISO-8859-1'de'f%FCr.mp4", "-für.mp4"),
        ("attachment; filename*=EUC-JP''%AD%A1.mp4", "-①.mp4"),
        ("attachment; filename*=unicode_escape''a; filename=b.mp4", "-b.mp4"),
        # HTTP does not have the continuations of RFC 2231 (RFC 6266, appendix D).
        ("attachment; filename*0*=ISO-8859-15''a; filename*=ISO-8859-1''b.mp4", "-b.mp4"),
        ("attachment; filename*0=a.mp4; filename=b.mp4", "-b.mp4"),
        # A value that cannot be decoded is ignored.
        ("attachment; filename*=no-such''a%FFb.mp4", "-url.bin"),
        ("attachment; filename*=no-such''a%FFb.mp4; filename=b.mp4", "-b.mp4"),
        ("attachment; filename*=UTF-8''%FF.mp4; filename=b.mp4", "-b.mp4"),
        ("attachment; filename*=hex''6162; filename=b.mp4", "-b.mp4"),
        ("attachment; filename*=\0''a; filename=b.mp4", "-b.mp4"),
        ("attachment; filename*=UTF-8'a.mp4; filename=b.mp4", "-b.mp4"),
        ("attachment; filename*=UTF-8''a.mp4; filename*=UTF-8''b.mp4", "-a.mp4"),
        ("attachment; filename=a.mp4; filename=b.mp4", "-a.mp4"),
        (r'attachment; other="a\"; filename=\"b"; filename="c.mp4"', "-c.mp4"),
        (r'attachment; filename="a\"b\c.mp4"', "-a-bc.mp4"),
        ('attachment; filename="a.mp4".txt', "-a.mp4"),
        ('attachment; FileName = "a; b.mp4" ; x=y', "-a-b.mp4"),
        ("attachment; filename=a b.mp4; x", "-a-b.mp4"),
        ("attachment; xfilename=a.mp4", "-url.bin"),
        ('attachment; filename="film.mp4', "-film.mp4"),
        ("filename=film.mp4", "-film.mp4"),
        ("attachment; filename", "-url.bin"),
        ("attachment", "-url.bin"),
        ('attachment; filename=""', "-url.bin"),
        ("attachment; filename=" + "a" * 100_000, "-" + "a" * 60 + ".bin"),
    ],
)
def test_content_disposition_names_a_file_before_its_url_does(disposition: str, name: str) -> None:
    assert named("/url", disposition=disposition) == name


_DISPOSITIONS = st.lists(
    st.sampled_from(
        ["attachment", "filename", "*0", "*", "=", ";", '"', "\\", "'", "%E4", "utf-8", "a"]
    )
    | st.text(max_size=3)
).map("".join)


@given(st.text(), st.text(), _DISPOSITIONS | _DISPOSITIONS.map("attachment; filename*={}".format))
def test_no_name_leads_anywhere_else(url: str, kind: str, disposition: str) -> None:
    name = stored_name(SHA, url=url, content_type=kind, disposition=disposition)

    assert name.startswith(SHA)
    assert len(name.encode()) <= 143
    assert not set(name) & set('/\\:\0*?"<>|')
    assert name.isprintable()
    assert not name.endswith((".", " ", "-"))
