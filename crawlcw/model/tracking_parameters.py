"""Remove from a URL the query parameters by which advertising and statistics track visitors.

The names are those that the makers of these services document. Names that some sites use for
content, such as `ref`, `source` and `campaign`, are not among them.
"""

import re

#: Names of tracking parameters in lower case. A name with a final `*` stands for all names that
#: begin with the text before it.
TRACKING_PARAMETERS = (
    # Google Analytics, Google Ads and the merchant centre
    *("utm_*", "_ga", "_gl", "gclid", "gclsrc", "dclid", "gbraid", "wbraid", "srsltid"),
    # Meta, Microsoft, X, TikTok, LinkedIn, Pinterest, Snapchat, Yandex
    *("fbclid", "igsh", "igshid", "msclkid", "twclid", "ttclid", "li_fat_id", "epik", "sccid"),
    *("yclid", "ysclid", "_openstat"),
    # Matomo and Piwik
    *("mtm_*", "matomo_*", "pk_*", "piwik_*"),
    # Mail and campaigns: Mailchimp, HubSpot, Marketo, Vero, Omeda, Klaviyo, Adobe, Impact, Branch
    *(
        "mc_cid",
        "mc_eid",
        "hsa_*",
        "_hsenc",
        "_hsmi",
        "__hssc",
        "__hstc",
        "__hsfp",
        "hsctatracking",
    ),
    *("mkt_tok", "vero_conv", "vero_id", "oly_anon_id", "oly_enc_id", "_kx", "s_kwcid", "ef_id"),
    *("irclickid", "_branch_match_id", "rb_clickid", "wickedid", "itm_*"),
)
_TRACKING = re.compile(
    "|".join(re.escape(name).replace(r"\*", "[^=]*") for name in TRACKING_PARAMETERS),
    re.IGNORECASE,
)


def without_tracking(url: str) -> str:
    """Return *url* without its tracking parameters; all other characters stay as they are."""
    address, mark, fragment = url.partition("#")
    path, question_mark, query = address.partition("?")
    if not query:
        return url
    parameters = query.split("&")
    other_parameters = [
        text for text in parameters if not _TRACKING.fullmatch(text.partition("=")[0])
    ]
    if len(other_parameters) == len(parameters):
        return url
    new_query = "&".join(other_parameters)
    # Without parameters, the address is the same as that of a link without a query.
    return f"{path}{question_mark if new_query else ''}{new_query}{mark}{fragment}"
