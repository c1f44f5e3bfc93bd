"""Raw text of a page: scripts, styles and comments, which every HTML parser reads as text.

A hostile page imitates them: it opens a script in an attribute, or in SVG, where a script
may contain tags. So a page is scanned from its start, tag by tag, as long as lexbor and
libxml2 (its HTML 5 tokenizer, and the one before 2.14) agree on it: by a grammar that is
stricter than theirs. The scan ends at the first oddity.

Every repetition is possessive, so that no part is read twice and the time is linear.
`COMMENT` and `TEXT_ELEMENT` follow browsers instead, for uses where a mistake does no harm.
"""

import re

#: The attributes of a tag as the HTML standard has them: a quoted value may hold a `>`.
ATTRIBUTES = rb"(?:[^>=]++|=[ \t\r\n\f]*+(?:\"[^\"]*+\"?+|'[^']*+'?+)?+)*+"
#: A comment, and an element whose content is text, without its end tag. Every repetition is
#: possessive, and one that is not closed is so until the end of the page: the time is linear.
COMMENT = rb"<!--(?:(?=-?>)|(?:[^-]++|-(?!->))*+)"
TEXT_ELEMENT = b"|".join(
    rb"<%b(?=[\s/>])" % name + ATTRIBUTES + rb">?+(?:[^<]++|<(?!/%b[\s/>]))*+" % name
    for name in (
        *(b"script", b"style", b"title", b"textarea"),
        *(b"xmp", b"iframe", b"noembed", b"noframes"),
    )
)

_SPACE = rb"[ \t\r\n]"
#: As libxml2 had them: at other names (`@click`) it goes on where the next space is, quoted or not.
_ATTRIBUTES = (
    rb"(?:" + _SPACE + rb"++[a-z_:][a-z0-9_:.-]{0,60}+(?:" + _SPACE + rb"*+=" + _SPACE + rb"*+"
    rb"(?:\"[^\"]*+\"|'[^']*+'|[^ \t\r\n\f\"'`<>=]++))?+)*+" + _SPACE + rb"*+"
)
_NAME = rb"[a-z][a-z0-9:-]{0,39}+"
_END = _SPACE + rb"*+>"
#: Not closed as `<script/>` is, which some parsers take for its end.
_OPEN = _ATTRIBUTES + rb"(?<!/)>"
#: Their content is text to some parser or in some place, and tags to others: it may be either.
_HOLDING_TEXT = (
    *(b"script", b"style", b"title", b"textarea"),
    *(b"iframe", b"noembed", b"noframes", b"xmp"),
)
#: Tags after which the next ones are read in another way, each of which has its own rule, or none.
#: (After <template><col> every tag is ignored, that of a script as well.)
_SPECIAL = rb"(?:select|svg|math|frameset|plaintext|col|" + b"|".join(_HOLDING_TEXT) + rb")"
#: It ends at the first `-->`, and has none of the ends that only some parsers know.
_COMMENT = rb"<!--(?!-?>)(?:[^-%b]++|-(?!->|-!>))*+-->"
_COMMENT_WITHOUT_TAGS = _COMMENT % b"<"
#: Shapes alone: an HTML tag among them would end the picture, and `desc` may hold a page.
_SHAPE = (
    rb"(?:g|path|circle|rect|line|polyline|polygon|ellipse|use|defs|symbol|clippath|mask|stop|"
    rb"lineargradient|radialgradient|pattern|text|tspan|filter|fe[a-z]{1,20}+|animate)"
)


def _holding_text(*names: bytes) -> bytes:
    return b"|".join(b"<%b%b[^<]*+</%b%b" % (name, _OPEN, name, _END) for name in names)


#: Patterns; compiled at their first use, by few crawls: that takes 3 ms.
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
#: One that begins with a tag, or a comment, has that in libxml2 before 2.14; and a script that
#: has both `<!--` and `<script` ends at its second `</script>`, or later.
_RAW_TEXT = (
    rb"(?P<script><script" + _OPEN + rb")(?!<)(?:"
    rb"(?:[^<]++|<(?!/script|!--))*+</script" + _END + rb""
    rb"|(?:[^<]++|<(?!/?script))*+</script" + _END + rb")"
    rb"|(?P<style><style" + _OPEN + rb")(?!<)(?:[^<]++|<(?!/style))*+</style" + _END + rb""
    rb"|" + _COMMENT % b""
)


def without_raw_text(body: bytes) -> bytes:
    """Return a page, in UTF-8, without the text that is text to every HTML parser.

    Not all of it is left out, and nothing else is. Takes linear time.
    """
    if b"\0" in body:
        return body  # parsel drops it, so that it may lie within a name
    kept = []
    at = start = 0
    following, raw_text = (re.compile(each, re.IGNORECASE) for each in (_FOLLOWED, _RAW_TEXT))
    while True:
        followed = following.match(body, at)
        at = followed.end() if followed is not None else at
        found = raw_text.match(body, at)
        if found is None:
            break
        # With the start tag, for its attributes count.
        kept.append(body[start : max(found.end("script"), found.end("style"), at)])
        at = start = found.end()
    return b"".join((*kept, body[start:])) if kept else body
