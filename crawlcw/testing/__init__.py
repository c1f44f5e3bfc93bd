"""Test spiders without a network, and custom downloaders and layers against their contracts."""

from crawlcw.testing.contracts import DownloaderContract, LayerContract
from crawlcw.testing.replay import Replay, ReplayDownloader

__all__ = ["DownloaderContract", "LayerContract", "Replay", "ReplayDownloader"]
