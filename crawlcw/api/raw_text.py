"""Patterns of the parts that browsers read as text: comments, contents of scripts and styles.

They follow browsers, for uses in which a mistake does no harm. Every repetition is possessive, so
that no part is read twice and the time is linear.
"""

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
