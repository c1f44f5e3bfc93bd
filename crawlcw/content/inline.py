"""Write the text of one block as Markdown: escapes, emphasis, links, code spans.

Text of a page never becomes Markdown or HTML: each character that could begin a structure is
escaped. Emphasis is written only if CommonMark reads it back (section 6.2, "flanking"): spaces and
punctuation move out of the marks, and marks that cannot work are left out.
"""

import re
import unicodedata
from enum import Enum, auto

#: White space that browsers collapse (HTML standard, "ASCII whitespace").
_SPACES = re.compile(r"[ \t\n\r\f]+")
#: Controls, soft hyphens, zero-width spaces, marks that change the order of text on screen only,
#: and the invisible copies of ASCII in plane 14. Zero-width joiners stay, because words need them.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b\x0e-\x1f\x7f-\x9f\u00ad\u180e\u200b\u2060-\u2064\u202a-\u202e\ufeff"
    "\U000e0000-\U000e0fff]"
)
_LINE_SEPARATORS = re.compile("[\u2028\u2029]")
_SPECIAL = re.compile(
    r"[\\`\[\]]|(?<! )\*|\*(?! )|(?<![^\W_])_|_(?![^\W_])|(?<! )~|~(?=~)"
    r"|\$(?=\S(?:[^$]*[^\s$])?\$(?!\d))|&(?=#?\w+;)|<(?=[A-Za-z/!?]|\Z)"
)
#: What begins a block if it stands at the start of a line.
_BLOCK_START = re.compile(
    r"#{1,6}(?=\s|\Z)|[-+](?=\s|\Z)|>|=+\s*\Z|[|:][|:\s-]*-[|:\s-]*\Z|-[|:\s-]*\Z"
)
_NUMBER = re.compile(r"(\d{1,9})(?=[.)](?:\s|\Z))")
_BACKTICKS = re.compile(r"`+")
_IN_ADDRESS = {ord(c): f"%{ord(c):02X}" for c in '()<>\\`"{}^ \t\n\r\f'}
_BRACKETS = {ord("["): "%5B", ord("]"): "%5D"}
_ENTITY = re.compile(r"&(?=#?\w+;)")


class Mark(Enum):
    """Markup around a part of a block's text."""

    EMPHASIS = "*"
    STRONG = "**"
    STRUCK = "~~"
    RAISED = "sup"
    LOWERED = "sub"
    LINK = "["


class _Kind(Enum):
    TEXT = auto()  #: text of the page, unescaped
    RAW = auto()  #: Markdown
    OPEN = auto()
    CLOSE = auto()
    BREAK = auto()


_FLANKING = frozenset({Mark.EMPHASIS, Mark.STRONG, Mark.STRUCK})
Token = tuple[_Kind, str, Mark | None]
_BREAK: Token = (_Kind.BREAK, "", None)


def collapsed(text: str) -> str:
    """Return *text* with the white space of a browser, without invisible characters."""
    if not text.isprintable():
        text = _LINE_SEPARATORS.sub(" ", _INVISIBLE.sub("", text))
    return _SPACES.sub(" ", text)


def visible(text: str) -> str:
    """Return preformatted *text* without invisible characters."""
    if text.isprintable():
        return text
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return _LINE_SEPARATORS.sub("\n", _INVISIBLE.sub("", text))


def code_span(text: str) -> str:
    """Return a code span of *text*; "" for white space only."""
    text = collapsed(text)
    if not text.strip():
        return ""
    longest = max((len(run) for run in _BACKTICKS.findall(text)), default=0)
    lengths = {len(run) for run in _BACKTICKS.findall(text)}
    fence = "`" * next(n for n in range(1, longest + 2) if n not in lengths)
    text = text.strip()
    pad = " " if text[0] == "`" or text[-1] == "`" else ""
    return f"{fence}{pad}{text}{pad}{fence}"


def link_address(url: str) -> str:
    """Return *url* as the address of a link, without characters that could end the link."""
    host_end = url.find("/", len("https://"))
    if host_end > 0:  # the host may be an IPv6 address in brackets
        url = url[:host_end] + url[host_end:].translate(_BRACKETS)
    return _ENTITY.sub(r"\\&", url.translate(_IN_ADDRESS))


def escaped(text: str, *, at_line_start: bool = False, in_brackets: bool = False) -> str:
    """Return *text* so that Markdown reads it as text.

    A `]` is escaped only *in_brackets*, because each `[` is escaped, and `]` alone means nothing.
    """

    def escape(match: re.Match[str]) -> str:
        return match[0] if match[0] == "]" and not in_brackets else "\\" + match[0]

    result = _SPECIAL.sub(escape, text)
    if at_line_start:
        if _BLOCK_START.match(text):
            result = result if result[0] == "\\" else "\\" + result
        else:
            result = _NUMBER.sub(r"\1\\", result, count=1) if _NUMBER.match(text) else result
    return result


class Inline:
    """The text of one block, with its marks."""

    def __init__(self) -> None:
        self._tokens: list[Token] = []
        self._ends_in_space = True  # at the start of a block a browser shows no space

    def __bool__(self) -> bool:
        return any(kind is _Kind.TEXT or kind is _Kind.RAW for kind, _, _ in self._tokens)

    @property
    def ends_in_break(self) -> bool:
        """Whether a line break is the last token."""
        return bool(self._tokens) and self._tokens[-1] == _BREAK

    def text(self, text: str) -> None:
        """Add text of the page; its white space collapses."""
        text = collapsed(text)
        if self._ends_in_space:
            text = text.lstrip(" ")
        if not text:
            return
        self._ends_in_space = text[-1] == " "
        core = text.lstrip()
        if len(core) < len(text) and self._tokens and self._tokens[-1][0] is _Kind.OPEN:
            self._insert_before_marks(text[: len(text) - len(core)])
        elif core != text:
            core = text
        if core:
            self._append_text(core)

    def raw(self, markdown: str) -> None:
        """Add Markdown, such as a code span."""
        if markdown:
            self._tokens.append((_Kind.RAW, markdown, None))
            self._ends_in_space = False

    def line_break(self) -> None:
        """Break the line, except at the start of the block."""
        marks = self._trailing_marks()
        self._strip_end()
        if self._tokens and self._tokens[-1] != _BREAK:
            self._tokens.append(_BREAK)
        self._tokens += marks
        self._ends_in_space = True

    def open(self, mark: Mark, address: str = "") -> None:
        """Begin a part with *mark*; a link has an *address*."""
        if mark is not Mark.LINK and self._tokens and self._tokens[-1] == (_Kind.CLOSE, "", mark):
            self._tokens.pop()  # the part goes on
            return
        self._tokens.append((_Kind.OPEN, address, mark))

    def close(self, mark: Mark) -> None:
        """End the part with *mark*, which is the last one that was opened."""
        spaces: list[Token] = []
        while self._tokens and self._tokens[-1][0] in {_Kind.TEXT, _Kind.BREAK}:
            kind, text, _ = self._tokens.pop()
            core = text.rstrip()
            if core:
                self._append_text(core)
            if core != text or kind is _Kind.BREAK:
                spaces.append((kind, text[len(core) :], None))
            if core:
                break
        if self._tokens and self._tokens[-1][0] is _Kind.OPEN and self._tokens[-1][2] is mark:
            self._tokens.pop()
        else:
            self._tokens.append((_Kind.CLOSE, "", mark))
        self._tokens += reversed(spaces)

    def _append_text(self, text: str) -> None:
        self._tokens.append((_Kind.TEXT, text, None))

    def _trailing_marks(self) -> list[Token]:
        """Remove and return the opened marks at the end."""
        marks: list[Token] = []
        while self._tokens and self._tokens[-1][0] is _Kind.OPEN:
            marks.insert(0, self._tokens.pop())
        return marks

    def _insert_before_marks(self, spaces: str) -> None:
        marks = self._trailing_marks()
        self._append_text(spaces)
        self._tokens += marks

    def _strip_end(self, *, breaks: bool = False) -> None:
        while self._tokens:
            kind, text, _ = self._tokens[-1]
            if kind is not _Kind.TEXT and not (breaks and kind is _Kind.BREAK):
                return
            self._tokens.pop()
            if core := text.rstrip():
                self._append_text(core)
                return

    def markdown(self, line_break: str) -> str:
        """Return the Markdown of the block, with *line_break* for each break."""
        self._strip_end(breaks=True)
        tokens = _joined(_with_working_marks(self._tokens))
        parts: list[str] = []
        addresses: list[str] = []
        at_line_start = True
        for position, (kind, text, mark) in enumerate(tokens):
            if kind is _Kind.TEXT:
                part = escaped(text, at_line_start=at_line_start, in_brackets=bool(addresses))
                if text[-1] == "!" and tokens[position + 1 : position + 2]:
                    part = part[:-1] + "\\!"  # it would make an image of a link
                parts.append(part)
            elif kind is _Kind.RAW:
                parts.append(text)
            elif kind is _Kind.BREAK:
                parts.append(line_break)
                at_line_start = True
                continue
            elif mark is Mark.LINK:
                if kind is _Kind.OPEN:
                    addresses.append(text)
                    parts.append("[")
                else:
                    parts.append(f"]({addresses.pop()})")
            elif mark in _FLANKING:
                parts.append(mark.value)
            elif mark is not None:
                parts.append(f"<{'/' if kind is _Kind.CLOSE else ''}{mark.value}>")
            at_line_start = False
        return "".join(parts).strip()


def _joined(tokens: list[Token]) -> list[Token]:
    """Join neighbouring texts, so that an escape sees characters of several elements."""
    result: list[Token] = []
    texts: list[str] = []
    for token in tokens:
        if token[0] is _Kind.TEXT:
            texts.append(token[1])
            continue
        if texts:
            result.append((_Kind.TEXT, "".join(texts), None))
            texts = []
        result.append(token)
    if texts:
        result.append((_Kind.TEXT, "".join(texts), None))
    return result


def _with_working_marks(tokens: list[Token]) -> list[Token]:
    """Return the tokens with emphasis that CommonMark reads as emphasis.

    A closing mark after punctuation must not stand before a letter, and the reverse. Such
    punctuation moves out of the marks; if only punctuation stands there, the marks go.
    """
    tokens = _joined(tokens)
    opened: list[int] = []
    dropped: set[int] = set()
    for position, (kind, _, mark) in enumerate(tokens):
        if kind is _Kind.OPEN:
            opened.append(position)
        elif kind is _Kind.CLOSE:
            start = opened.pop()
            if mark in _FLANKING and not (
                _fits(tokens, start, position) or _moved(tokens, start, position)
            ):
                dropped |= {start, position}
    return [
        token
        for position, token in enumerate(tokens)
        if position not in dropped and token != (_Kind.TEXT, "", None)
    ]


def _moved(tokens: list[Token], start: int, end: int) -> bool:
    """Move punctuation out of the part between two marks; return whether the marks work then."""
    last = tokens[end - 1]
    saved = tokens[max(start - 1, 0) : end + 2]
    if last[0] is _Kind.TEXT and end + 1 < len(tokens) and tokens[end + 1][0] is _Kind.TEXT:
        text = last[1]
        length = len(text)
        while length and _is_punctuation(text[length - 1]):
            length -= 1
        if length:
            tokens[end - 1] = (_Kind.TEXT, text[:length], None)
            tokens[end + 1] = (_Kind.TEXT, text[length:] + tokens[end + 1][1], None)
    first = tokens[start + 1]
    if first[0] is _Kind.TEXT and start > 0 and tokens[start - 1][0] is _Kind.TEXT:
        text = first[1]
        length = 0
        while length < len(text) and _is_punctuation(text[length]):
            length += 1
        if length < len(text):
            tokens[start + 1] = (_Kind.TEXT, text[length:], None)
            tokens[start - 1] = (_Kind.TEXT, tokens[start - 1][1] + text[:length], None)
    if _fits(tokens, start, end):
        return True
    tokens[max(start - 1, 0) : end + 2] = saved
    return False


def _fits(tokens: list[Token], start: int, end: int) -> bool:
    """Return whether CommonMark reads the marks at *start* and *end* as emphasis."""
    before, first = _edge(tokens, start, -1), _edge(tokens, start, 1)
    last, after = _edge(tokens, end, -1), _edge(tokens, end, 1)
    return not (
        (before == "a" and first == ".")
        or (last == "." and after == "a")
        or first == " "
        or last == " "
    )


def _edge(tokens: list[Token], position: int, step: int) -> str:
    """Return the class of the character beside a mark: "a" letter, "." punctuation, " " space."""
    while True:
        position += step
        if not 0 <= position < len(tokens):
            return " "
        kind, text, mark = tokens[position]
        if kind is _Kind.TEXT and not text:
            continue
        if kind is _Kind.TEXT:
            character = text[0 if step > 0 else -1]
            if character.isspace():
                return " "
            return "." if _is_punctuation(character) else "a"
        if kind is _Kind.BREAK:
            return " "
        if mark in _FLANKING:
            continue  # the marks are one run, or each of them is left out
        return "."


def _is_punctuation(character: str) -> bool:
    """Return whether *character* is punctuation for CommonMark: a Unicode category P or S."""
    return unicodedata.category(character)[0] in "PS"
