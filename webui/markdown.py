"""Notes of people as HTML: Markdown without raw HTML, images and anything that runs.

Two guards, one behind the other: the renderer writes raw HTML as text and knows no images, and what it made is cleaned
against a list of what may stay. Links say that they vouch for nothing.
"""

import nh3
from django.utils.safestring import SafeString
from markdown_it import MarkdownIt

TAGS = {
    "p", "br", "hr", "strong", "em", "s", "code", "pre", "blockquote", "ul", "ol", "li", "a", "h1", "h2", "h3", "h4",
    "h5", "h6", "table", "thead", "tbody", "tr", "th", "td",
}  # fmt: skip
ATTRIBUTES = {"a": {"href", "title"}}
SCHEMES = {"http", "https", "mailto"}
MOST = 20_000

_RENDERER = MarkdownIt("commonmark", {"html": False, "linkify": False}).enable("table").disable("image")


def rendered(text: str) -> SafeString:
    """Return Markdown as HTML that is safe to show."""
    made = _RENDERER.render(text[:MOST])
    clean = nh3.clean(
        made, tags=TAGS, attributes=ATTRIBUTES, url_schemes=SCHEMES, link_rel="nofollow noopener noreferrer"
    )
    return SafeString(clean)
