"""What tests of spiders need: a downloader without a network, and tests for one of their own."""

from crawlcw.downloader.contract import DownloaderContract
from crawlcw.downloader.layer_contract import LayerContract
from crawlcw.downloader.replay import Replay, ReplayDownloader

__all__ = ["DownloaderContract", "LayerContract", "Replay", "ReplayDownloader"]
