"""Metadata for PyPI: versions, URLs, a README with valid links, and an sdist with its tests."""

import re
import tomllib
from pathlib import Path

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

import crawlcw
from crawlcw import Settings
from crawlcw.guide.pages import NAMES

pytestmark = pytest.mark.quick

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def metadata():
    return WheelBuilder(str(ROOT)).metadata.core


def test_the_version_is_the_same_everywhere(metadata):
    minor = crawlcw.__version__.rpartition(".")[0]

    assert metadata.version == crawlcw.__version__
    assert Settings().user_agent.startswith(f"crawlcw/{minor} ")


def test_the_default_user_agent_names_a_page_of_the_metadata(metadata):
    (named,) = re.findall(r"\(\+(.*)\)", Settings().user_agent)

    assert named in metadata.urls.values()


def test_the_links_of_the_readme_on_pypi_lead_to_the_site_and_the_repository(metadata):
    site, source = metadata.urls["Documentation"], metadata.urls["Source"]
    targets = re.findall(r"\]\(([^)\s]+)\)", metadata.readme)

    assert "pip install crawlcw && crawlcw demo" in metadata.readme
    assert {each for each in targets if not each.startswith("https://")} == set()
    pages = {each.removeprefix(site).strip("/") for each in targets if each.startswith(site)}
    assert pages == {name for name in NAMES if not name.startswith("api-")}
    files = {each for each in targets if each.startswith(source)}
    missing = [each for each in files if not (ROOT / each.partition("/blob/main/")[2]).exists()]
    assert files
    assert missing == []


def test_the_sdist_carries_what_its_tests_read():
    carried = {each.distribution_path for each in SdistBuilder(str(ROOT)).recurse_included_files()}

    for path in (".ci/run", "mkdocs.yml", "CHANGELOG.md", "SECURITY.md", "tests/conftest.py"):
        assert path in carried
    assert not [each for each in carried if ".venv" in each or ".crawlcw/" in each]


def test_the_changelog_of_the_first_release_is_read_in_minutes():
    released = (ROOT / "CHANGELOG.md").read_text().partition("\n## 0.1.0 ")[2]

    section = re.split(r"^## ", released, flags=re.MULTILINE)[0]
    assert section
    assert len(section.splitlines()) <= 120


def test_every_change_has_a_kind_that_the_changelog_knows():
    towncrier = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["towncrier"]
    folder = ROOT / towncrier["directory"]
    files = [each.name for each in folder.iterdir() if each.name != "README.md"]

    kinds = "|".join(towncrier["fragment"])
    assert [
        each for each in files if not re.fullmatch(rf"(\d+|\+[\w-]+)\.({kinds})\.md", each)
    ] == []
    assert towncrier["start_string"] in (ROOT / towncrier["filename"]).read_text()
    explained = re.findall(r"^\| `(\w+)`", (folder / "README.md").read_text(), re.MULTILINE)
    assert explained == list(towncrier["fragment"])
