"""What tests of spiders need: a downloader without a network."""

from crawlcw.downloader.replay import Replay, ReplayDownloader

__all__ = ["Replay", "ReplayDownloader"]
