"""Find the Scrapy project and the spider that a reference on the command line names."""

from collections.abc import Iterable
from pathlib import Path

from crawlcw.errors import SpiderError

#: The folder that commands search for spiders.
SPIDERS_FOLDER = Path("spiders")


def target_of(reference: str) -> tuple[Path, str] | None:
    """Return the folder of the Scrapy project and the spider in it that *reference* names.

    Return None for a reference to any other spider. Raises `SpiderError` for a folder alone.
    """
    location, colon, name = reference.partition(":")
    folder = Path(location)
    is_project = has_config(folder)
    # A folder in the working directory may also be a package: `package:Class`.
    may_be_package = "/" not in location and (folder / "__init__.py").exists()
    if is_project or (colon and location and _is_folder(folder) and not may_be_package):
        if name or not is_project:
            return folder, name
        raise SpiderError(
            f"{location} is a Scrapy project: name a spider of it, such as {location}:SPIDER "
            "(`crawlcw list` lists them, if you run it in the project)"
        )
    if colon or "/" in reference or reference.endswith(".py"):
        return None
    current_project = project_folder()
    if current_project is None or _offers(reference):
        return None
    return current_project, reference


def project_folder() -> Path | None:
    """Return the folder of the Scrapy project that the working directory is in, or None."""
    return next(filter(has_config, (Path.cwd(), *Path.cwd().parents)), None)


def has_config(folder: Path) -> bool:
    """Return whether *folder* is the folder of a Scrapy project."""
    try:
        return (folder / "scrapy.cfg").is_file()
    except OSError:
        return False  # loading the reference reports the error


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:
        return False  # loading the reference reports the error


def _offers(name: str) -> bool:
    """Return whether a file in ./spiders, inside a Scrapy project, has the spider *name*."""
    from crawlcw.checking.reading import located  # reads spider files without running them

    path_and_class = located(name, SPIDERS_FOLDER)
    return path_and_class is not None and is_of_crawlcw(path_and_class[0])


def is_of_crawlcw(path: Path) -> bool:
    """Return whether a spider file uses crawlcw; the other files belong to the Scrapy project."""
    try:
        return b"crawlcw" in path.read_bytes()
    except OSError:
        return True  # loading it reports the error


def of_scrapy(assignments: Iterable[str]) -> list[str]:
    """Return the `NAME=VALUE` texts whose names are in capitals, as Scrapy's settings are."""
    return [text for text in assignments if text.partition("=")[0].isupper()]
