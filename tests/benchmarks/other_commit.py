"""Another commit of crawlcw, installed by pip in an environment of its own."""

import subprocess
import sys
from importlib import metadata
from pathlib import Path

from tests.support.docs import REPOSITORY


def described(commit: str) -> str:
    """Return the commit's short name. Raises `SystemExit` if the repository lacks it."""
    command = ["git", "-C", str(REPOSITORY), "rev-parse", "--short", f"{commit}^{{commit}}"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    if found.returncode:
        raise SystemExit(f"--against {commit}: {found.stderr.strip()}")
    return found.stdout.strip()


def install(commit: str, folder: Path) -> str:
    """Install *commit* below *folder*, compiled; return its Python.

    Its dependencies have the same versions as here.
    """
    source, environment = folder / "source", folder / "environment"
    source.mkdir(parents=True)
    archive = ["git", "-C", str(REPOSITORY), "archive", "--format=tar", commit]
    packed = subprocess.run(archive, check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", str(source)], input=packed, check=True)
    same = folder / "constraints.txt"
    same.write_text("\n".join(f"{name}=={version}" for name, version in _installed()))
    python = str(environment / "bin" / "python")
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    pip = [python, "-m", "pip", "install", "--quiet", "--compile", "--constraint", str(same)]
    subprocess.run([*pip, str(source)], check=True, stdout=sys.stderr)
    return python


def _installed() -> set[tuple[str, str]]:
    found = {(each.name, each.version) for each in metadata.distributions()}
    return {(name, version) for name, version in found if name != "crawlcw"}
