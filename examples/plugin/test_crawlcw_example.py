"""The contracts of the extensions, and one test of what each does."""

from xml.etree import ElementTree

import pytest
from click.testing import CliRunner
from crawlcw_example import Mounted, Sign, Xml, domains

from crawlcw.testing import CommandContract, FeedContract, LayerContract, StoreContract


class TestXml(FeedContract):
    def feed(self):
        return Xml

    def read(self, content):
        items = ElementTree.fromstring(content)
        return [{field.get("name"): field.text or "" for field in item} for item in items]


class TestDomains(CommandContract):
    def command(self):
        return domains


class TestSign(LayerContract):
    def layer(self):
        return Sign(key="secret")


class TestMounted(StoreContract):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path, monkeypatch):
        monkeypatch.setenv("LEDGERS", str(tmp_path))

    def store(self):
        return Mounted

    def url(self):
        return "mounted://shop"


def test_a_crawl_that_is_not_recorded_is_an_error(tmp_path):
    result = CliRunner().invoke(domains, ["nosuch", "--ledger", f"sqlite:///{tmp_path}/no.db"])

    assert result.exit_code == 1
    assert "there is no ledger" in str(result.exception)
