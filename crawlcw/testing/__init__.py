"""Test spiders without a network, and test whether extensions keep their contracts."""

from crawlcw.testing.command_contract import CommandContract
from crawlcw.testing.contracts import DownloaderContract, LayerContract
from crawlcw.testing.feed_contract import FeedContract
from crawlcw.testing.replay import Replay, ReplayDownloader
from crawlcw.testing.store_contract import StoreContract

__all__ = [
    "CommandContract",
    "DownloaderContract",
    "FeedContract",
    "LayerContract",
    "Replay",
    "ReplayDownloader",
    "StoreContract",
]
