"""Test support: a downloader without network, and contract tests for downloaders and layers."""

from crawlcw.testing.contracts import DownloaderContract, LayerContract
from crawlcw.testing.replay import Replay, ReplayDownloader

__all__ = ["DownloaderContract", "LayerContract", "Replay", "ReplayDownloader"]
