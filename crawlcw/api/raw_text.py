"""Remove a page's raw text: scripts, styles and comments, which HTML parsers read as text.

A hostile page may imitate raw text. For example it opens a script in an attribute, or in an SVG, in
which a script may contain tags. So `without_raw_text` reads the page tag by tag from its start. The
grammar of this module is stricter than the grammars of lexbor (HTML 5) and of all versions of
libxml2. `without_raw_text` stops at the first text that different parsers could read differently.

Every repetition in a pattern is possessive, so that the time is linear. `COMMENT` and
`TEXT_ELEMENT` follow browsers instead, for uses in which a mistake does no harm.
"""

import re

#: The attributes of a tag by the HTML standard: a quoted value may contain a `>`.
ATTRIBUTES = rb"(?:[^>=]++|=[ \t\r\n\f]*+(?:\"[^\"]*+\"?+|'[^']*+'?+)?+)*+"
#: Two patterns: one matches a comment up to its `-->`, the other a text element up to its end tag.
#: An unclosed comment or element extends to the end of the page.
COMMENT = rb"<!--(?:(?=-?>)|(?:[^-]++|-(?!->))*+)"
TEXT_ELEMENT = b"|".join(
    rb"<%b(?=[\s/>])" % name + ATTRIBUTES + rb">?+(?:[^<]++|<(?!/%b[\s/>]))*+" % name
    for name in (
        *(b"script", b"style", b"title", b"textarea"),
        *(b"xmp", b"iframe", b"noembed", b"noframes"),
    )
)

_SPACE = rb"[ \t\r\n]"
#: Attributes as old versions of libxml2 read them. A name such as `@click` does not match, because
#: after it libxml2 continues at the next space, even inside of quotes.
_ATTRIBUTES = (
    rb"(?:" + _SPACE + rb"++[a-z_:][a-z0-9_:.-]{0,60}+(?:" + _SPACE + rb"*+=" + _SPACE + rb"*+"
    rb"(?:\"[^\"]*+\"|'[^']*+'|[^ \t\r\n\f\"'`<>=]++))?+)*+" + _SPACE + rb"*+"
)
_NAME = rb"[a-z][a-z0-9:-]{0,39}+"
_END = _SPACE + rb"*+>"
#: The part of a start tag after its name. `/>` does not match: parsers differ about `<script/>`.
_OPEN = _ATTRIBUTES + rb"(?<!/)>"
#: Elements whose content only some parsers read as text. `_FOLLOWED` allows no `<` in the content.
_HOLDING_TEXT = (
    *(b"script", b"style", b"title", b"textarea"),
    *(b"iframe", b"noembed", b"noframes", b"xmp"),
)
#: Tags that change how a parser reads the tags after them. Each special tag has its own rule in
#: `_FOLLOWED`, or stops the scan. `col` is special because parsers ignore every tag after
#: <template><col>, even <script>.
_SPECIAL = rb"(?:select|svg|math|frameset|plaintext|col|" + b"|".join(_HOLDING_TEXT) + rb")"
#: A comment that contains no `--!>`, because only some parsers end a comment there.
_COMMENT = rb"<!--(?!-?>)(?:[^-%b]++|-(?!->|-!>))*+-->"
_COMMENT_WITHOUT_TAGS = _COMMENT % b"<"
#: Tags of shapes in an SVG. The list has no HTML tag, because it would end the SVG, and no `desc`,
#: because it may contain HTML.
_SHAPE = (
    rb"(?:g|path|circle|rect|line|polyline|polygon|ellipse|use|defs|symbol|clippath|mask|stop|"
    rb"lineargradient|radialgradient|pattern|text|tspan|filter|fe[a-z]{1,20}+|animate)"
)


def _holding_text(*names: bytes) -> bytes:
    return b"|".join(b"<%b%b[^<]*+</%b%b" % (name, _OPEN, name, _END) for name in names)


#: Patterns. Only `without_raw_text` compiles the patterns, because this takes 3 ms and few crawls
#: need it.
_FOLLOWED = (
    rb"(?:[^<]++"
    rb"|</"
    + _NAME
    + _END
    + rb"|<(?!"
    + _SPECIAL
    + rb"[ \t\r\n/>])"
    + _NAME
    + _ATTRIBUTES
    + rb"/?+>"
    rb"|" + _holding_text(*_HOLDING_TEXT) + rb"|" + _COMMENT_WITHOUT_TAGS + rb""
    rb"|<select" + _OPEN + rb"(?:[^<]++|<opt(?:ion|group)" + _ATTRIBUTES + rb">"
    rb"|</opt(?:ion|group)" + _END + rb"|" + _COMMENT_WITHOUT_TAGS + rb")*+</select" + _END + rb""
    rb"|<svg" + _OPEN + rb"(?:[^<]++|<" + _SHAPE + _ATTRIBUTES + rb"/?+>|</" + _SHAPE + _END + rb""
    rb"|" + _holding_text(b"title", b"desc", b"style") + rb"|" + _COMMENT_WITHOUT_TAGS + rb""
    rb")*+</svg" + _END + rb""
    rb"|<!doctype(?:[^<>\"'\[]++|\"[^\"<>]*+\"|'[^'<>]*+')*+>"
    rb"|<\?xml[^<>]*+>)*+"
)
#: Elements with raw text. The content of a raw-text element must not begin with `<`, because
#: libxml2 before 2.14 reads a tag there. A script must not contain both `<!--` and `<script`,
#: because such a script may not end at its first `</script>`.
_RAW_TEXT = (
    rb"(?P<script><script" + _OPEN + rb")(?!<)(?:"
    rb"(?:[^<]++|<(?!/script|!--))*+</script" + _END + rb""
    rb"|(?:[^<]++|<(?!/?script))*+</script" + _END + rb")"
    rb"|(?P<style><style" + _OPEN + rb")(?!<)(?:[^<]++|<(?!/style))*+</style" + _END + rb""
    rb"|" + _COMMENT % b""
)


def without_raw_text(body: bytes) -> bytes:
    """Return a page in UTF-8 without raw text (text in which no HTML parser finds tags).

    Some raw text may remain, but nothing else is removed. Takes linear time.
    """
    if b"\0" in body:
        return body  # a tag's name may contain NULs
    chunks = []
    position = start = 0
    following, raw_text = (re.compile(pattern, re.IGNORECASE) for pattern in (_FOLLOWED, _RAW_TEXT))
    while True:
        followed = following.match(body, position)
        position = followed.end() if followed is not None else position
        match = raw_text.match(body, position)
        if match is None:
            break
        # Keep the start tag, because `markup` counts its attributes.
        chunks.append(body[start : max(match.end("script"), match.end("style"), position)])
        position = start = match.end()
    return b"".join((*chunks, body[start:])) if chunks else body
