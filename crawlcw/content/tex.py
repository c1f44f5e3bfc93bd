"""Read formulas: TeX in MathML, in scripts of MathJax, and in text that a script would draw."""

import re

from selectolax.lexbor import LexborNode

from crawlcw.content import inline

_DELIMITED = re.compile(r"\\\((.*)\\\)|\\\[(.*)\\\]|\$\$(.*)\$\$|\$(.*)\$", re.DOTALL)
_COMMENT = re.compile(r"(?<!\\)%.*?(?:\n|$)")
_STYLED = re.compile(r"\{\\(?:display|text)style (.*)\}", re.DOTALL)
_HTML_START = re.compile(r"<(?=[A-Za-z/!?])")
_LINK_END = re.compile(r"\](?=[(:\[])")
_DOLLAR = re.compile(r"(?<!\\)\$")
_MAX_WRAPPERS = 4


def formula(tex: str, *, is_display: bool) -> str:
    """Return `$...$`, or `$$...$$` if *is_display*; "" if *tex* is empty.

    The function respells parts of *tex* that would be HTML, code or a link in Markdown without
    math.
    """
    styled = _STYLED.fullmatch(tex.strip())
    tex = inline.collapsed(_COMMENT.sub(" ", tex if styled is None else styled[1])).strip()
    tex = _LINK_END.sub("] ", _HTML_START.sub("< ", tex)).replace("`", "'")
    tex = _DOLLAR.sub(r"\\$", tex)
    mark = "$$" if is_display else "$"
    return f"{mark}{tex}{mark}" if tex else ""


def delimited(text: str) -> tuple[str, bool] | None:
    r"""Return the TeX of a text such as `\(x\)`, and whether it is displayed, or None."""
    match = _DELIMITED.fullmatch(text.strip())
    if match is None:
        return None
    return match[match.lastindex or 0], match.lastindex in {2, 3}


def tex_of(math: LexborNode) -> str:
    """Return the TeX of a <math>, or ""."""
    annotation = math.css_first('annotation[encoding="application/x-tex"]')
    return math.attributes.get("alttext") or "" if annotation is None else annotation.text()


def is_display(math: LexborNode) -> bool:
    """Return whether a <math> is displayed on its own line."""
    node: LexborNode | None = math
    for _ in range(_MAX_WRAPPERS):
        if node is None or node.tag == "body":
            break
        attributes = node.attributes
        if attributes.get("display") in {"block", "true"}:
            return True
        if "katex-display" in (attributes.get("class") or ""):
            return True
        node = node.parent
    return False
