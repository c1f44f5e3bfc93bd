"""A folder of Markdown files, one for each page of a site.

The name of a file depends on the page's URL alone, so it is the same in each run. It is the URL's
path with `.md` behind it, as https://llmstxt.org proposes: `docs.example.com/guide/intro.html.md`,
and `index.md` for a folder. If a part of the URL cannot be in a name, or if a file system that
ignores case could confuse two names, the name ends with a digest of the URL.
"""

import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from urllib.parse import unquote, urlsplit

from crawlcw.errors import FilesUnwritableError, UsageError
from crawlcw.files.names import harmless

_INDEX = "index"
_DIGEST = 16
#: Digits in the name of a file that is being written; pages of one name are rare.
_PART_DIGEST = 8
_MAX_FOLDERS = 8
#: Maximum bytes of a part of a path; with a digest and an extension it fits all file systems.
_LONGEST_PART = 80
#: Names that Windows takes for devices, whatever their extension is.
_DEVICES = re.compile(r"(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\..*)?", re.IGNORECASE)
#: Characters that YAML cannot hold unescaped (YAML 1.2, section 5.1), or reads as line breaks.
_NOT_IN_YAML = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


class MarkdownFolder:
    """Writes a Markdown file for each page, with its front matter."""

    def __init__(self, path: Path) -> None:
        """Create the folder; raises `UsageError` if it is a file, or accepts no files."""
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise UsageError(f"--markdown takes a folder: {path} is a file") from None
        except OSError as error:
            raise UsageError(f"cannot make the folder {path}: {error.strerror}") from None
        if not os.access(path, os.W_OK | os.X_OK):
            raise UsageError(f"this user cannot write to the folder {path}")

    def write(self, url: str, markdown: str, fields: Mapping[str, str | None]) -> str:
        """Write the page *url* if its file has another content; return the file's name.

        *fields* are the front matter. Raises `FilesUnwritableError`.
        """
        name = file_name(url)
        target = self.path / name
        content = f"{front_matter(fields)}\n{markdown}".encode(errors="replace")
        try:
            with suppress(FileNotFoundError):
                if target.read_bytes() == content:
                    return name
            target.parent.mkdir(parents=True, exist_ok=True)
            _replace(target, content)
        except OSError as error:
            raise FilesUnwritableError(f"cannot write to {self.path}: {error.strerror}") from error
        return name


def _replace(target: Path, content: bytes) -> None:
    """Write a file so that each reader, and a crash, finds the old content or the new one."""
    # The name has a digest of the content. Two processes with the same name write the same bytes,
    # so neither disturbs the other. A page is parsed again after a crash, and uses the same name.
    digests = [sha256(text).hexdigest()[:_PART_DIGEST] for text in (target.name.encode(), content)]
    part = target.with_name(f".{'-'.join(digests)}.part")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(content)
    # If another process has just renamed the file, it had the same content.
    with suppress(FileNotFoundError):
        part.replace(target)


def front_matter(fields: Mapping[str, str | None]) -> str:
    """Return *fields* as YAML between two lines `---`; no value can end the front matter."""
    lines = [f"{name}: {_yaml(value)}\n" for name, value in fields.items()]
    return "".join(["---\n", *lines, "---\n"])


def _yaml(value: str | None) -> str:
    # A text in JSON is a quoted text in YAML (YAML 1.2, section 1.3).
    text = json.dumps(value and value.encode(errors="replace").decode(), ensure_ascii=False)
    return _NOT_IN_YAML.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def file_name(url: str) -> str:
    """Return the file's path in the folder, with `/` between its parts."""
    parts = urlsplit(url)
    *folder_texts, text = [unquote(part) for part in parts.path.split("/")[1:]]
    host = _safe(parts.netloc.replace(":", "_"))
    folders = [_safe(folder) for folder in folder_texts if folder][:_MAX_FOLDERS]
    # A folder with the name of a page's file would prevent this file.
    folders = [re.sub(r"\.md\Z", "-md", folder) for folder in folders]
    name = _safe(text) if text else _INDEX
    is_exact = (
        not parts.query
        and text != _INDEX
        and [*folders, name] == [*folder_texts, text or _INDEX]
        and "/".join([*folders, name]).casefold() == "/".join([*folders, name])
    )
    if not is_exact:
        path_and_query = f"{parts.path}?{parts.query}" if parts.query else parts.path
        name = f"{name}-{sha256(path_and_query.encode()).hexdigest()[:_DIGEST]}"
    return "/".join([host, *folders, f"{name}.md"])


def _safe(text: str) -> str:
    """Return a part of a path as a name that all file systems accept."""
    name = ".".join(filter(None, map(harmless, text.split("."))))
    name = name.encode()[:_LONGEST_PART].decode(errors="ignore").rstrip(".-")
    return f"_{name}" if not name or _DEVICES.fullmatch(name) else name
