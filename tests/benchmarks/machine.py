"""Machine of a benchmark: versions, cores, load."""

import json
import os
import platform
import sqlite3
import subprocess
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from tests.support.docs import REPOSITORY


def described() -> dict[str, str]:
    """Return the versions of the measured software, and the machine, by name."""
    git = ["git", "-C", str(REPOSITORY), "describe", "--always", "--dirty"]
    commit = subprocess.run(git, check=False, capture_output=True, text=True).stdout.strip()
    packages = ("aiohttp", "selectolax", "motor", "pymongo")
    return {
        "crawlcw": commit or metadata.version("crawlcw"),
        "Python": platform.python_version(),
        **{name: _version(name) for name in packages},
        "SQLite": sqlite3.sqlite_version,
        "CPU": _cpu(),
        "cores": str(len(os.sched_getaffinity(0))),
        "load": " ".join(f"{load:.1f}" for load in os.getloadavg()),
    }


def installed(python: str, names: Sequence[str]) -> dict[str, str]:
    """Return the versions of packages installed for another Python, by name."""
    code = (
        "import importlib.metadata as m, json;"
        "print(json.dumps({each.name.lower(): each.version for each in m.distributions()}))"
    )
    said = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout
    versions = json.loads(said)
    return {name: versions.get(name, "missing") for name in names}


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "missing"


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
