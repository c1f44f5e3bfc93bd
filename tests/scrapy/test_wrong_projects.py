"""Ten projects that cannot run: one sentence, and the ledger stays as it was."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("scrapy")

from tests.scrapy.written import SPIDER, write_project
from tests.support import needed
from tests.support.programs import environment, run_to_end

BOOKS = "shop/spiders/books.py"
SETTINGS = 'SPIDER_MODULES = ["shop.spiders"]\n'
OLD_SCRAPY = 'version_info = (2, 11, 2)\n__version__ = "2.11.2"\n'
#: Files that replace those of a good project (None: that is missing), and the sentence.
WRONG: dict[str, tuple[dict[str, str | None], str]] = {
    "no cfg": (
        {"scrapy.cfg": None},
        "shops is not a Scrapy project, because it has no scrapy.cfg",
    ),
    "two spiders of a name": (
        {"shop/spiders/more.py": SPIDER},
        "shop.spiders.books.Books and shop.spiders.more.Books have the same name 'books': {}",
    ),
    "import error": (
        {BOOKS: "import scrapy\nfrom scrapy import Book\n"},
        "shops/shop/spiders/books.py, line 2: ImportError: cannot import name 'Book' from {}",
    ),
    "own scheduler": (
        {"shop/settings.py": SETTINGS + 'SCHEDULER = "shop.Queue"\n'},
        "shops/shop/settings.py, line 2: SCHEDULER = shop.Queue: remove it, because the ledger {}",
    ),
    "Python 2": (
        {BOOKS: SPIDER + '        print "books"\n'},
        "shops/shop/spiders/books.py, line 11: this is Python 2 (SyntaxError: Missing {}",
    ),
    "missing module": (
        {BOOKS: "import no_such_module\n"},
        "shops/shop/spiders/books.py, line 1: there is no module 'no_such_module': install {}",
    ),
    "settings that raise": (
        {"shop/settings.py": 'import os\nKEY = os.environ["SHOP_KEY"]\n'},
        "shops/shop/settings.py, line 2: KeyError: 'SHOP_KEY'",
    ),
    "too old a Scrapy": (
        {"../scrapy/__init__.py": OLD_SCRAPY},
        "this environment has Scrapy 2.11.2, and crawlcw needs Scrapy 2.14 or later: {}",
    ),
}


def run(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run the command in *folder*; it obeys file modes, also as root."""
    bound = []
    if os.geteuid() == 0:
        capabilities = "-dac_override,-dac_read_search"
        bound = [needed.program("setpriv"), f"--bounding-set={capabilities}"]
    # Another version of Scrapy than the installed one may stand in PYTHONPATH.
    paths = [environment()["PYTHONPATH"], os.environ.get("PYTHONPATH", "")]
    variables = {"PYTHONPATH": os.pathsep.join(path for path in reversed(paths) if path)}
    return run_to_end(
        [*bound, sys.executable, "-m", "crawlcw", *arguments], folder=folder, variables=variables
    )


@pytest.fixture(scope="module")
def ledger_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger whose crawl has ended."""
    folder = tmp_path_factory.mktemp("crawled")
    (folder / "pages.py").write_text(
        'from crawlcw import Spider\n\nclass Pages(Spider):\n    name = "pages"\n'
        "    start_urls = []\n    allowed_hosts = []\n\n    def parse(self, response): ...\n"
    )
    run(folder, "run", "pages.py", "-q", "--ledger", "sqlite:///ledger.db")
    return folder / "ledger.db"


@pytest.fixture
def shops(ledger_file: Path, tmp_path: Path) -> Path:
    """A folder with the project `shops`, and with a ledger."""
    write_project(tmp_path / "shops")
    (tmp_path / ".crawlcw").mkdir()
    shutil.copy(ledger_file, tmp_path / ".crawlcw")
    return tmp_path


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def check_refused(
    done: "subprocess.CompletedProcess[str]", sentence: str, before: dict[str, bytes], folder: Path
) -> None:
    beginning, is_beginning, _ = f"crawlcw: {sentence}".partition("{}")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(beginning + ("" if is_beginning else "\n"))
    assert done.stderr.count("\n") == 1
    assert contents(folder) == before


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_project_is_refused_in_one_sentence(shops: Path, name: str):
    files, sentence = WRONG[name]
    for path, text in files.items():
        (shops / "shops" / path).unlink(missing_ok=True)
        if text is not None:
            (shops / "shops" / path).parent.mkdir(exist_ok=True)
            (shops / "shops" / path).write_text(text)
    before = contents(shops)

    done = run(shops, "run", "shops:books")

    check_refused(done, sentence, before, shops)


def test_a_wrong_name_suggests_the_nearest(shops: Path):
    before = contents(shops)

    done = run(shops, "run", "shops:book")

    sentence = "there is no spider 'book' in the Scrapy project shops: did you mean books? {}"
    check_refused(done, sentence, before, shops)


def test_a_ledger_without_write_access_is_named(shops: Path):
    (shops / "closed").mkdir(mode=0o500)
    before = contents(shops)

    done = run(shops, "run", "shops:books", "--ledger", "sqlite:///closed/deep/ledger.db")

    assert (done.returncode, done.stdout) == (78, "")
    assert done.stderr == (
        "crawlcw: Cannot create the folder of the ledger closed/deep/ledger.db: Permission "
        "denied.\n"
    )
    assert contents(shops) == before


def test_the_right_project_of_these_tests_is_not_refused(shops: Path):
    done = run(shops, "check", "shops:books")

    assert (done.returncode, done.stderr) == (0, "")
