"""Tests of spiders: a downloader without a network, and contracts for downloaders and layers."""

from crawlcw.testing.downloaders import DownloaderContract
from crawlcw.testing.layers import LayerContract
from crawlcw.testing.replay import Replay, ReplayDownloader

__all__ = ["DownloaderContract", "LayerContract", "Replay", "ReplayDownloader"]
