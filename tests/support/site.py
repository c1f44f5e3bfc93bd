"""The documentation site, as a hook of MkDocs: pages from files outside the manual.

The folder of the pages is the manual. The hook adds the README, ARCHITECTURE and the
other pages of the repository, and a page for each example. Links between the files become
links of the site; links to other files lead to the repository.
Diagrams become SVG, and the pages load nothing from other hosts.
"""

import ast
import functools
import posixpath
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

from jinja2 import ChoiceLoader, DictLoader, Environment
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from crawlcw.guide import pages as manual  # noqa: E402  # MkDocs loads this file alone
from tests.support import architecture_drawing, pictures, state_drawing  # noqa: E402

#: Pages of the repository beside the manual, by their names on the site.
PROJECT = {
    "changelog.md": "CHANGELOG.md",
    "architecture.md": "crawlcw/ARCHITECTURE.md",
    "contributing.md": "CONTRIBUTING.md",
    "security.md": "SECURITY.md",
    "conduct.md": "CODE_OF_CONDUCT.md",
}
EXAMPLES = sorted(path.name for path in (ROOT / "examples").glob("*.*") if path.is_file())
#: The file of the repository for each page of the site.
ORIGINS = {
    "index.md": "README.md",
    **{f"{name}.md": f"crawlcw/guide/{name}.md" for name in manual.NAMES},
    "examples/index.md": "examples",
    **{f"examples/{name}.md": f"examples/{name}" for name in EXAMPLES},
    "examples/deploy.md": "examples/deploy/README.md",
    **PROJECT,
}
#: The pictures have the same paths on the site.
_PICTURES = [f"examples/{pictures.FOLDER.name}/{file.name}" for file in pictures.FOLDER.iterdir()]
#: The pages and pictures of the site, by the files of the repository.
_PAGES = {origin: page for page, origin in ORIGINS.items()}
_PAGES |= {"examples/deploy": "examples/deploy.md", **{file: file for file in _PICTURES}}
#: Weight of a page in the search: answers come before lists of names, and those before programs.
_BOOST = {
    **dict.fromkeys(("index.md", *(f"{name}.md" for name in manual.KINDS["Begin"])), 3),
    **dict.fromkeys((f"{name}.md" for name in manual.KINDS["How to"]), 4),
    **dict.fromkeys((f"{name}.md" for name in manual.KINDS["Reference"]), 2),
    **dict.fromkeys((f"{name}.md" for name in manual.KINDS["Explanation"]), 2),
    **dict.fromkeys((f"{name}.md" for name in manual.KINDS["API reference"]), 0.2),
    "installation.md": 1,  # it names each extra, and another page is about it
}
_OTHER_BOOST = 0.5
_STYLES = "assets/site.css"
#: Texts of the theme and their replacements.
_THEME = {
    # Without this mark Material's script does not ask api.github.com for the repository's stars.
    "partials/source.html": (' data-md-component="source"', ""),
    # A screen reader says the name of a dialog.
    "partials/search.html": (
        'role="dialog"',
        'role="dialog" aria-label="{{ lang.t(\'search\') }}"',
    ),
}
#: The text of each page with its links, for `llms.txt`.
_TEXTS: dict[str, str] = {}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Set the navigation: the manual by its kinds, the examples, the project."""
    kinds: list[Any] = [
        {kind: [f"{name}.md" for name in names]} for kind, names in manual.KINDS.items()
    ]
    programs = [f"examples/{name}.md" for name in [*EXAMPLES, "deploy"]]
    kinds.append({"Examples": ["examples/index.md", *programs]})
    config.nav = [{"Home": "index.md"}, *kinds, {"Project": [*PROJECT]}]
    config.extra_css.append(_STYLES)
    return config


def on_env(env: Environment, config: MkDocsConfig, files: Files) -> Environment:
    """Change some texts of the theme; a theme without them fails the build."""
    changed = {}
    assert env.loader is not None
    for name, (text, other) in _THEME.items():
        source, *_ = env.loader.get_source(env, name)
        if text not in source:
            raise PluginError(f"the theme's {name} has no {text!r} any more")
        changed[name] = source.replace(text, other)
    env.loader = ChoiceLoader([DictLoader(changed), env.loader])
    return env


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from files outside the manual's folder."""
    texts = {
        page: (ROOT / origin).read_text(encoding="utf-8")
        for page, origin in ORIGINS.items()
        if page in PROJECT or page in ("index.md", "examples/deploy.md")
    }
    texts["index.md"] = _home(texts["index.md"])
    texts |= {f"examples/{name}.md": _program(name) for name in EXAMPLES}
    texts |= {"examples/index.md": _gallery()}
    for page, text in texts.items():
        files.append(File.generated(config, page, content=text))
    as_they_are = {_STYLES: "tests/support/site.css", **{file: file for file in _PICTURES}}
    for shown, origin in as_they_are.items():
        files.append(File.generated(config, shown, abs_src_path=str(ROOT / origin)))
    return files


def on_page_markdown(text: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Change links to pages of the site or to the repository, and set the page's search weight."""
    shown = page.file.src_path
    page.meta["search"] = {"boost": _BOOST.get(shown, _OTHER_BOOST)}
    parts = re.split(r"(^ *```.*?^ *```$)", text, flags=re.DOTALL | re.MULTILINE)
    parts[::2] = [
        re.sub(
            r"(?<=\]\()(?![a-z]+:|#)([^)#\s]+)(#[^)\s]*)?",
            lambda link: _target(link[1], shown, str(config.repo_url)) + (link[2] or ""),
            part,
        )
        for part in parts[::2]
    ]
    _TEXTS[shown] = text = "".join(parts)
    if shown.removesuffix(".md") in manual.KINDS["API reference"]:
        text = _with_links_to_names(text).replace("```python\n", "```{ .python .signature }\n")
    return re.sub(
        r"^```mermaid\n(.*?)^```$",
        lambda diagram: _drawing(diagram[1], str(page.title)),
        text,
        flags=re.DOTALL | re.MULTILINE,
    )


def _with_links_to_names(text: str) -> str:
    """Link each public name on a page of the API to its section."""
    sections = _sections()
    lines = re.split(r"(^#[^\n]*$|^```.*?^```$)", text, flags=re.DOTALL | re.MULTILINE)
    lines[::2] = [
        re.sub(
            r"(?<!\[)`(\w+(?:\.\w+)?)`",
            lambda name: f"[{name[0]}]({sections[name[1]]})" if name[1] in sections else name[0],
            part,
        )
        for part in lines[::2]
    ]
    return "".join(lines)


@functools.cache
def _sections() -> dict[str, str]:
    """Return the address of the section of each public name, such as `Response.css`."""
    return {
        name: f"{page}.md#{name.lower().replace('.', '')}"
        for page in manual.KINDS["API reference"][1:]
        for name in re.findall(r"^##+ (\S+)$", manual.page(page).text, re.MULTILINE)
    }


def _drawing(mermaid: str, title: str) -> str:
    if mermaid.startswith("flowchart"):
        return architecture_drawing.svg(mermaid, title=f"Flowchart: {title}")
    return state_drawing.svg(mermaid, title=f"State diagram: {title}")


def on_post_build(config: MkDocsConfig) -> None:
    """Write `llms.txt`, and each page as Markdown beside it."""
    site, address = Path(config.site_dir), str(config.site_url)
    for page, text in _TEXTS.items():
        target = site / page
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    lines = [f"# {config.site_name}", "", f"> {config.site_description}"]
    for kind, names in manual.KINDS.items():
        lines += ["", f"## {kind}", ""]
        lines += [
            f"- [{manual.page(n).title}]({address}{n}.md): {manual.page(n).summary}" for n in names
        ]
    lines += ["", "## Examples", ""]
    lines += [f"- [{name}]({address}examples/{name}.md): {_summary(name)}" for name in EXAMPLES]
    (site / "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _home(readme: str) -> str:
    """Return the first page: its own beginning, then the README's sections from the spider on.

    Commands install from PyPI, because readers of the site have no clone.
    """
    beginning = (ROOT / "tests" / "support" / "home.md").read_text(encoding="utf-8")
    heading = "\n## A spider\n"
    readme = beginning + heading + readme.partition(heading)[2]
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    hooks = settings["tool"]["hatch"]["metadata"]["hooks"]
    for each in hooks["fancy-pypi-readme"]["substitutions"]:
        if not each["pattern"].startswith(r"\]"):  # links on PyPI differ from those here
            readme = re.sub(each["pattern"], each["replacement"], readme)
    return readme


def _target(path: str, page: str, repository: str) -> str:
    """Return the target of a link in *page*, which names a file of the repository."""
    origin = ORIGINS[page]
    folder = origin if (ROOT / origin).is_dir() else posixpath.dirname(origin)
    named = posixpath.normpath(posixpath.join(folder, path))
    if named in _PAGES:
        return posixpath.relpath(_PAGES[named], posixpath.dirname(page) or ".")
    # A link to a missing file stays unchanged and fails the build.
    return f"{repository}/blob/main/{named}" if (ROOT / named).exists() else path


# Examples


def _summary(name: str) -> str:
    """Return the summary of a program: the first sentence of its docstring or first comment."""
    text = (ROOT / "examples" / name).read_text(encoding="utf-8")
    if name.endswith(".py"):
        return (ast.get_docstring(ast.parse(text)) or "").split("\n\n")[0].replace("\n", " ")
    return re.findall(r"^# (.*)$", text, re.MULTILINE)[0]


def _gallery() -> str:
    lines = ["# Examples", "", "What crawlcw looks like, and whole programs, which the tests run."]
    for picture in pictures.PICTURES:
        # Material shows a picture whose address ends so on light or dark pages only.
        ends = ("#only-light", "#only-dark") if len(picture.files) == 2 else ("",)
        images = (
            f"![{picture.alt}](pictures/{file}{end})"
            for file, end in zip(picture.files, ends, strict=True)
        )
        lines += ["", f"## {picture.heading}", "", picture.text, "", *images]
    lines += ["", "## Programs", "", "| program | |", "|---|---|"]
    lines += [f"| [`{name}`]({name}) | {_summary(name)} |" for name in EXAMPLES]
    lines.append(
        "| [`deploy/`](deploy/) | Files for systemd, containers, Kubernetes and Prometheus |"
    )
    return "\n".join(lines) + "\n"


def _program(name: str) -> str:
    text = (ROOT / "examples" / name).read_text(encoding="utf-8")
    language = "python" if name.endswith(".py") else "sh"
    return f"# {name}\n\n{_summary(name)}\n\n```{language}\n{text.rstrip()}\n```\n"
