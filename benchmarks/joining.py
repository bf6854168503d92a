"""Translated segments of a text or of HTML, joined.

The server joins segments one by one, as their translations come. The other benchmarks
and the tests have all translations of a text at once.
"""

from collections.abc import Sequence

from transduce.text.inline_tags import WordLinks
from transduce.text.markup import written_html
from transduce.text.splitting import Segment, Spacing


def join_text(segments: Sequence[Segment], translations: Sequence[str]) -> str:
    """Join the segments, each sentence replaced by its translation."""
    found = iter(translations)
    return "".join(
        space + (next(found) if each.is_sentence else each.copied)
        for each, space in zip(
            segments, spaces_before(segments, translations), strict=True
        )
    )


def join_html(
    segments: Sequence[Segment],
    translations: Sequence[str],
    links: Sequence[WordLinks | None] | None = None,
) -> str:
    """Join segments to HTML with each sentence's translation and links, if known."""
    found = iter(zip(translations, links or [None] * len(translations), strict=True))
    return "".join(
        space + (written_html(each, *next(found)) if each.is_sentence else each.copied)
        for each, space in zip(
            segments, spaces_before(segments, translations), strict=True
        )
    )


def spaces_before(
    segments: Sequence[Segment], translations: Sequence[str]
) -> list[str]:
    """Return the space to write before each segment, or instead of it if it is one."""
    found, spacing = iter(translations), Spacing()
    spaces, after = [], next(found, "")
    for each in segments:
        spaces.append(spacing.space_before(each, after))
        if each.is_sentence:
            after = next(found, "")
    return spaces
