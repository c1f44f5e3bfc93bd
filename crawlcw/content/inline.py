"""Write the text of one block as Markdown: escapes, emphasis, links, code spans.

Text of a page never becomes Markdown or HTML, because each character that could begin a structure
is escaped. Emphasis is written only if CommonMark reads it back (section 6.2, "flanking").
"""

import re
import unicodedata
from enum import Enum, auto
from itertools import groupby

#: White space that browsers collapse (HTML standard, "ASCII whitespace").
_WHITE_SPACE = " \t\n\r\f"
_SPACES = re.compile(r"[ \t\n\r\f]{2,}|[\t\n\r\f]")
#: Controls, soft hyphens, zero-width spaces, marks that change the order of text on screen only,
#: and the invisible copies of ASCII in plane 14. Zero-width joiners stay, because words need them.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b\x0e-\x1f\x7f-\x9f\u00ad\u180e\u200b\u2060-\u2064\u202a-\u202e\ufeff"
    "\U000e0000-\U000e0fff]"
)
_LINE_SEPARATORS = re.compile("[\u2028\u2029]")
_LINE_ENDS = re.compile("\r\n?|[\u2028\u2029]")
_SPECIAL = re.compile(
    r"[\\`\[\]]|(?<! )\*|\*(?! )|(?<![^\W_])_|_(?![^\W_])|(?<! )~|~(?=~|\Z)"
    r"|\$(?=\S(?:[^$]*[^\s$])?\$(?!\d))|&(?=#?\w+;)|<(?=[A-Za-z/!?]|\Z)"
)
#: What begins a block if it stands at the start of a line.
_BLOCK_START = re.compile(r"#{1,6}(?=\s|\Z)|[-+](?=\s|\Z)|>|=++\s*\Z|[|:-][|:\s-]*+\Z")
_NUMBER = re.compile(r"(\d{1,9})(?=[.)](?:\s|\Z))")
_BACKTICKS = re.compile(r"`+")
_IN_ADDRESS = {ord(c): f"%{ord(c):02X}" for c in '()<>\\`"{}^ \t\n\r\f'}
_BRACKETS = {ord("["): "%5B", ord("]"): "%5D"}
_ENTITY = re.compile(r"&(?=#?\w+;)")


class Mark(Enum):
    """Markup around a part of a block's text; the value is its Markdown, or its tag in HTML."""

    EMPHASIS = "*"
    STRONG = "**"
    STRUCK = "~~"
    RAISED = "sup"
    LOWERED = "sub"
    LINK = "["


class _Kind(Enum):
    TEXT = auto()  #: text of the page, unescaped
    CODE = auto()  #: code, not yet a code span
    RAW = auto()  #: Markdown
    OPEN = auto()
    CLOSE = auto()
    BREAK = auto()


#: A token has its kind, its text (of a link: the address), and its mark.
_Token = tuple[_Kind, str, Mark | None]
_BREAK: _Token = (_Kind.BREAK, "", None)
#: Marks that CommonMark reads only beside certain characters.
_STARS = (Mark.EMPHASIS, Mark.STRONG)
_FLANKING = (*_STARS, Mark.STRUCK)


def collapsed(text: str) -> str:
    """Return *text* with the white space of a browser, without invisible characters."""
    if not text.isprintable():
        text = _LINE_SEPARATORS.sub(" ", _INVISIBLE.sub("", text))
    return _SPACES.sub(" ", text)


def preformatted(text: str) -> str:
    """Return the text of code without invisible characters."""
    return text if text.isprintable() else _LINE_ENDS.sub("\n", _INVISIBLE.sub("", text))


def _code_span(text: str) -> str:
    text = text.strip()
    fence = "`" * (1 + max(map(len, _BACKTICKS.findall(text)), default=0))
    pad = " " if "`" in {text[0], text[-1]} else ""
    return f"{fence}{pad}{text}{pad}{fence}"


def link_address(url: str) -> str:
    """Return *url* as the address of a link, without characters that could end the link."""
    host_end = url.find("/", len("https://"))
    if host_end > 0:  # the host may be an IPv6 address in brackets
        url = url[:host_end] + url[host_end:].translate(_BRACKETS)
    url = url.translate(_IN_ADDRESS)
    return _ENTITY.sub(r"\\&", url) if "&" in url else url


def escaped(text: str, *, at_line_start: bool = False, in_brackets: bool = False) -> str:
    """Return *text* so that Markdown reads it as text.

    A `]` is escaped only *in_brackets*, because each `[` is escaped, and `]` alone means nothing.
    """

    def escape(match: re.Match[str]) -> str:
        return match[0] if match[0] == "]" and not in_brackets else "\\" + match[0]

    result = _SPECIAL.sub(escape, text)
    if at_line_start:
        if _NUMBER.match(text):
            return _NUMBER.sub(r"\1\\", result, count=1)
        if _BLOCK_START.match(text) and result[0] != "\\":
            return "\\" + result
    return result


class Inline:
    """The text of one block, with its marks.

    Spaces and breaks at the edges of a mark move out of the mark when they are added, so that each
    mark stands beside a text.
    """

    def __init__(self) -> None:
        self._tokens: list[_Token] = []
        self._ends_in_space = True  # at the start of a block a browser shows no space

    def __bool__(self) -> bool:
        return any(mark is None and kind is not _Kind.BREAK for kind, _, mark in self._tokens)

    @property
    def ends_in_break(self) -> bool:
        """Whether a line break is the last token."""
        return self._tokens[-1:] == [_BREAK]

    def text(self, text: str) -> None:
        """Add text of the page; its white space collapses."""
        if self._ends_in_space:
            text = text.lstrip(_WHITE_SPACE)
            if not text:
                return  # most texts of a page are white space between blocks
        text = collapsed(text)
        if self._ends_in_space:  # behind an invisible character
            text = text.lstrip(" ")
        if not text:
            return
        self._ends_in_space = text[-1] == " "
        core = text.lstrip()
        if core != text and self._tokens and self._tokens[-1][0] is _Kind.OPEN:
            self._add_before_marks((_Kind.TEXT, text[: len(text) - len(core)], None))
            text = core
        if text:
            self._tokens.append((_Kind.TEXT, text, None))

    def code(self, text: str) -> None:
        """Add code, which becomes a code span."""
        text = collapsed(text)
        if text.strip():
            self._tokens.append((_Kind.CODE, text, None))
            self._ends_in_space = False

    def raw(self, markdown: str) -> None:
        """Add Markdown, such as an image."""
        if markdown:
            self._tokens.append((_Kind.RAW, markdown, None))
            self._ends_in_space = False

    def line_break(self) -> None:
        """Break the line, except at the start of the block or of another line."""
        if self:
            self._strip()
            self._add_before_marks(_BREAK)
        self._ends_in_space = True

    def open(self, mark: Mark, address: str = "") -> None:
        """Begin a part with *mark*; a link has an *address*."""
        if mark is not Mark.LINK and self._tokens[-1:] == [(_Kind.CLOSE, "", mark)]:
            self._tokens.pop()  # the part goes on
        else:
            self._tokens.append((_Kind.OPEN, address, mark))

    def close(self, mark: Mark) -> None:
        """End the part with *mark*, which is the last one that was opened."""
        spaces = self._strip()
        if self._tokens[-1][0] is _Kind.OPEN:
            self._tokens.pop()  # the part is empty
        else:
            self._tokens.append((_Kind.CLOSE, "", mark))
        self._tokens += reversed(spaces)

    def _add_before_marks(self, token: _Token) -> None:
        position = len(self._tokens)
        while position and self._tokens[position - 1][0] is _Kind.OPEN:
            position -= 1
        self._tokens.insert(position, token)

    def _strip(self) -> list[_Token]:
        """Remove the spaces and breaks at the end, and return them, the last one first."""
        spaces: list[_Token] = []
        while self._tokens:
            kind, text, _ = self._tokens[-1]
            if kind is not _Kind.TEXT and kind is not _Kind.BREAK:
                break
            self._tokens.pop()
            core = text.rstrip()
            if core != text or kind is _Kind.BREAK:
                spaces.append((kind, text[len(core) :], None))
            if core:
                self._tokens.append((_Kind.TEXT, core, None))
                break
        return spaces

    def markdown(self, line_break: str) -> str:
        """Return the Markdown of the block, with *line_break* for each break."""
        self._strip()
        tokens = _with_working_marks(_joined(self._tokens))
        parts: list[str] = []
        addresses: list[str] = []
        # Only a paragraph can begin a block; the text of a heading or a cell stands in one line.
        has_lines = "\n" in line_break
        at_line_start = has_lines
        for position, (kind, text, mark) in enumerate(tokens):
            part = text
            if kind is _Kind.TEXT:
                part = escaped(text, at_line_start=at_line_start, in_brackets=bool(addresses))
                if text[-1] == "!" and position + 1 < len(tokens):
                    part = f"{part[:-1]}\\!"  # it could make an image of a link
            elif kind is _Kind.CODE:
                # A link that begins with code such as `]:` could be the definition of a link.
                is_safe = not addresses or "]:" not in text
                part = _code_span(text) if is_safe else escaped(text, in_brackets=True)
            elif kind is _Kind.BREAK:
                part = line_break
            elif mark is Mark.LINK and kind is _Kind.OPEN:
                addresses.append(text)
                part = "["
            elif mark is Mark.LINK:
                part = f"]({addresses.pop()})"
            elif mark in _FLANKING:
                part = mark.value
            elif mark is not None:
                part = f"<{mark.value}>" if kind is _Kind.OPEN else f"</{mark.value}>"
            parts.append(part)
            at_line_start = has_lines and kind is _Kind.BREAK
        return "".join(parts).strip()


def _joined(tokens: list[_Token]) -> list[_Token]:
    """Join neighbouring texts, and neighbouring code.

    An escape must see the characters of several elements, and two code spans cannot touch.
    """
    result: list[_Token] = []
    for kind, group in groupby(tokens, key=lambda token: token[0]):
        if kind is _Kind.TEXT or kind is _Kind.CODE:
            result.append((kind, "".join(text for _, text, _ in group), None))
        else:
            result += group
    return result


def _with_working_marks(tokens: list[_Token]) -> list[_Token]:
    """Return the tokens with emphasis that CommonMark reads as emphasis.

    The other marks are left out, or the punctuation at the edges of a text moves out of its marks.
    """
    for _ in _FLANKING:  # a mark that is left out changes the neighbours of the marks inside of it
        replaced = _replacements(tokens)
        if not replaced:
            break
        tokens = _joined(
            [
                result
                for position, token in enumerate(tokens)
                for result in replaced.get(position, [token])
            ]
        )
    return tokens


def _replacements(tokens: list[_Token]) -> dict[int, list[_Token]]:
    """Return the tokens that replace each mark that does not work, and its text, by position.

    A mark between a letter and punctuation works in one direction only. A mark between punctuation
    works in both, so it could end a part around it that began with two marks. A mark that touches
    the mark of the part before would be one mark with it.
    """
    opened: list[int] = []
    replaced: dict[int, list[_Token]] = {}
    for end, (kind, _, mark) in enumerate(tokens):
        if kind is _Kind.OPEN:
            opened.append(end)
        elif kind is _Kind.CLOSE:
            start = opened.pop()
            if mark not in _FLANKING:
                continue
            opening = _neighbour(tokens, start, -1) + _neighbour(tokens, start, 1)
            closing = _neighbour(tokens, end, -1) + _neighbour(tokens, end, 1)
            is_ambiguous = opening == ".." and any(
                tokens[outer][2] in _FLANKING and tokens[outer + 1][0] is _Kind.OPEN
                for outer in opened
            )
            previous_kind, _, previous_mark = tokens[max(start - 1, 0)]
            touches = mark in _STARS and previous_kind is _Kind.CLOSE and previous_mark in _STARS
            if opening == "a." or closing == ".a" or is_ambiguous or touches:
                replaced[start] = replaced[end] = []
                if end == start + 2 and tokens[start + 1][0] is _Kind.TEXT and not touches:
                    replaced[start + 1] = _without_edges(tokens[start : end + 1])
    return replaced


def _without_edges(tokens: list[_Token]) -> list[_Token]:
    """Return a marked text with the punctuation at its edges outside of its marks."""
    begin, (_, text, _), end = tokens
    is_letter = [not (_is_punctuation(c) or c.isspace()) for c in text]
    if not any(is_letter):
        return [tokens[1]]
    first, last = is_letter.index(True), len(text) - is_letter[::-1].index(True)
    parts = [text[:first], text[first:last], text[last:]]
    prefix, core, suffix = ((_Kind.TEXT, part, None) for part in parts)
    return [token for token in (prefix, begin, core, end, suffix) if token[1] or token[2]]


def _neighbour(tokens: list[_Token], position: int, step: int) -> str:
    """Return the kind of character beside a mark: "a" letter, "." punctuation, " " space."""
    run = _STARS if tokens[position][2] in _STARS else ()
    position += step
    while 0 <= position < len(tokens) and tokens[position][2] in run:
        position += step  # CommonMark reads neighbouring stars as one run
    if not 0 <= position < len(tokens):
        return " "
    if tokens[position][0] is not _Kind.TEXT:
        return "."
    character = tokens[position][1][0 if step > 0 else -1]
    return " " if character.isspace() else "." if _is_punctuation(character) else "a"


def _is_punctuation(character: str) -> bool:
    """Return whether *character* is punctuation for CommonMark: a Unicode category P or S."""
    return unicodedata.category(character)[0] in "PS"
