"""Fuzz the text parsers: their time must be linear, and HTML must keep its tags.

    python benchmarks/text_fuzz.py time [--seconds 20] [--longest 1000000]
        [--entries NAME...]
    python benchmarks/text_fuzz.py html [--documents 100000] [--seed 1]

`time` gives hard texts of 10 kB to 1 MB to every function that scans text, and fits the
power of the length by which the time grows, from 100 kB (or from a millisecond) on.
`html` generates malformed documents, splits them, and joins them again with every
sentence as its own translation: an independent parser must find the same elements,
attributes and text in both, apart from white space. With a hostile translation, the
elements and attributes must be the same. Results are printed as Markdown; failures give
exit code 1.
"""

import argparse
import asyncio
import gc
import json
import math
import random
import re
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote

import html5lib
from joining import join_html, join_text
from machine import describe_machine
from starlette.requests import Request

from transduce.errors import TransduceError
from transduce.serving.admission import Admission, AdmissionConfig
from transduce.serving.messages import FORM, JSON, RefusedError, TranslateRequest
from transduce.text.corpus import read_text
from transduce.text.inline_tags import links_by_place
from transduce.text.markup import split_html
from transduce.text.pair_changes import with_typos
from transduce.text.splitting import sentences, split_long, split_text
from transduce.text.tokenizer import learn_tokenizer, normalize
from transduce.text.vocabulary import TokenizerConfig
from transduce.trees.penn_words import penn_words
from transduce.trees.trees import parse_tree

LENGTHS = (10_000, 100_000, 1_000_000)
SHORTEST_S = 1e-3
"""Seconds below which a time is mostly the fixed cost of a call."""
MAX_GROWTH = 1.35
"""Greatest power of the length; caches make it a little more than 1 for linear time."""
HOSTILE = "<script>alert('\"1\"')</script> --> & ]]> \"'/><b onclick=x> &lt; </p> x"
SPACE = re.compile(r"[ \t\n\f\r]+")

TAGS = (
    "p", "div", "span", "b", "i", "a", "em", "strong", "code", "ul", "li", "img",
    "h1", "pre", "table", "tr", "td", "th", "tbody", "br", "wbr", "input", "script",
    "style", "textarea", "title", "svg", "math", "foreignObject", "desc", "mi", "mtext",
    "annotation-xml", "template", "select", "option", "optgroup", "button", "form",
    "label", "font", "nobr", "ruby", "rt", "rp", "q", "sub", "sup", "style-guide",
    "my-card", "x-1", "noscript", "iframe", "xmp", "noembed", "noframes", "plaintext",
    "object", "html", "head", "body", "frameset", "frame", "col", "caption", "dl", "dt",
    "dd", "marquee", "center", "image", "keygen", "var", "kbd", "samp", "link", "meta",
    "base", "video", "source", "details", "summary", "dialog", "u", "s", "small",
    "abbr", "del", "ins",
)  # fmt: skip
"""Names of tags; tame documents use the first ones only."""
NUM_TAME = 12
RARE = {
    "plaintext",
    "frameset",
    "frame",
    "html",
    "head",
    "body",
    "noscript",
    "textarea",
}
ATTRIBUTES = (
    "",
    " class=c",
    " id='x'",
    ' title="a > b"',
    ' href="x>&quot; onmouseover=alert(1) z=" title=it\'s',
    " data-x='<b>'",
    " encoding=text/html",
    " translate=no",
    " translate=yes",
    " class='notranslate'",
    ' alt="Ein &amp; B"',
    " a b c=",
    " x='\n\t'",
    ' "',
    " '",
    " =",
    " /",
    "/",
    "\n",
    " a=1 a=2",
    " href=/a/",
    " type=hidden",
    " encoding=text/html",
    " shadowrootmode=open",
)
TEXTS = (
    "a", "Dog", " The dog runs. ", "It barks!\nLoud. ", "1", "...", " ", "\n", "&amp;",
    "&lt;", "&notit;", "&#x41;", "&nbsp;", "&bogus;", "&", "<", ">", "< b", "</", "<!",
    "<?x?>", "<!-- c -->", "<!-->", "<!--->", "<!-- > --!>", "<!--", "-->", "]]>",
    "<![CDATA[ x <b> ]]>", "<!doctype html>", "</>", "</ x>", '"', "'", "\r\n", "\r",
    "<a href='", "语言。", "Er kam am 3. Mai an. ", "z. B. so", "x<y", "\f", "\x01",
    "<!--[if IE]> A <![endif]-->", "</p>", "</br>", "</script/>", "<a ", "\u00a0",
    "e\u0301", "😀",
    "&#1;", "&#13;", "</noscript>", "<noscript><!--</noscript>", "A. B. C.",
)  # fmt: skip


def random_document(draw: random.Random) -> str:
    """Generate malformed HTML; some documents are tame and well nested."""
    parts: list[str] = []
    opened: list[str] = []
    is_tame = draw.random() < 0.4
    for _ in range(draw.randint(1, 24)):
        kind = draw.random()
        if kind < 0.4:
            parts.append(draw.choice(TEXTS[:NUM_TAME] if is_tame else TEXTS))
        elif kind < 0.75 or not opened:
            name = draw.choice(TAGS[:NUM_TAME] if is_tame else TAGS)
            if name in RARE and draw.random() < 0.7:
                name = "b"
            attributes = draw.choice(ATTRIBUTES[:NUM_TAME] if is_tame else ATTRIBUTES)
            if draw.random() < 0.5:
                attributes = ""
            parts.append(f"<{name}{attributes}>")
            opened.append(name)
        elif is_tame or draw.random() < 0.7:
            parts.append(f"</{opened.pop()}>")
        else:
            parts.append(f"</{draw.choice(opened)}>")
    if is_tame:
        parts += [f"</{name}>" for name in reversed(opened)]
    return "".join(parts)


def shape(html: str, *, with_text: bool) -> list[Any]:
    """List elements with ancestors and attributes; with text, in document order.

    White space is left out, as it may differ where a browser shows one space.
    """
    found: list[Any] = []
    tree = html5lib.parse(html, treebuilder="etree", namespaceHTMLElements=True)
    waiting: list[Any] = [(tree, ())]
    while waiting:
        node, path = waiting.pop()
        if isinstance(node, str):
            _add_text(found, SPACE.sub("", node))
            continue
        is_comment = not isinstance(node.tag, str)
        path = (*path, "comment" if is_comment else node.tag)
        if is_comment:
            found.append((path, node.text))
        else:
            found.append((path, sorted(node.attrib.items())))
            waiting.extend(reversed(_children(node, path, with_text=with_text)))
    return found if with_text else sorted(found, key=repr)


def _add_text(found: list[Any], text: str) -> None:
    """Append a text, joined with a text before it."""
    if found and isinstance(found[-1], str):
        text = found.pop() + text
    if text:
        found.append(text)


def _children(node: Any, path: tuple[str, ...], *, with_text: bool) -> list[Any]:
    children: list[Any] = [(node.text, path)] if with_text and node.text else []
    for child in node:
        children.append((child, path))
        if with_text and child.tail:
            children.append((child.tail, path))
    return children


def check_document(html: str) -> str | None:
    """Fault of a document that is split and joined again; None if there is none."""
    segments = split_html(html, "en")
    if "".join(each.text for each in segments) != html:
        return "the segments do not join to the document"
    own = sentences(segments)
    if shape(html, with_text=True) != shape(join_html(segments, own), with_text=True):
        return "joining its own text changes it"
    hostile = [HOSTILE] * len(own)
    links = [links_by_place(each, HOSTILE) for each in own]
    if shape(html, with_text=False) != shape(
        join_html(segments, hostile, links), with_text=False
    ):
        return "a hostile translation changes its tags"
    return None


def fuzz_html(number: int, seed: int) -> list[str]:
    """Check a number of documents, print a summary, and return the failures."""
    started = time.perf_counter()
    failures, num_characters, num_sentences = [], 0, 0
    for i in range(number):
        html = random_document(random.Random(f"{seed}.{i}"))
        num_characters += len(html)
        num_sentences += len(sentences(split_html(html)))
        if wrong := check_document(html):
            failures.append(f"{wrong}: {html!r}")
    print(
        f"{number:,} documents of {num_characters:,} characters with {num_sentences:,} "
        f"sentences, seed {seed}: {len(failures)} changed "
        f"({time.perf_counter() - started:,.0f} s)."
    )
    return failures


REPEATED = (
    "<a ", "<a>", "<b>", "<p>", "<div>", "<b><p>", "<a><div>", "<table><tr><td>",
    "</b>", "<svg>", "<svg><b>", "<i><table>", "<font><p>x", "<nobr>",
    "<select><option>", "<template>", "<title>", "<textarea>", "<script>",
    "<style></style>", "<noscript>", "<noscript><p></noscript>", "<!--", "<!-- -->",
    "-->", "<![CDATA[", "<svg><![CDATA[", "<a b='", '<a b="', "<a b=",
    "<a href=x>y</a>", "<b>a</b> ", "</>", "</", "<", ">", "&", "&a", "&amp;", "&#",
    "&#x", "<code>", "<code>a</code> ", "<i>a", "a</i>", "<b><i>x</b>y</i>",
    "<p translate=no>", "<p translate=yes>", "<br>", "<?", "<!", "a", "A", " ", "\n",
    "\t", "a ", "A ", ".", "! ", "...", ". ", "a. ", "A. ", "A.", "1. ", "1", "Dr. ",
    "Z. B. ", "etc. ", "word. Word ", "Word.Word", "U.S. ", '"', "'", '"a. ', "'a. ",
    "(", ")", "(a. ", "“", "“x", "„a. B", "»", ". » ", "[", "{", "-", "--", "，", "。",
    "。”", "语", "语。", "「", "」", "ा", "।", "e\u0301", "\u0301", "😀", "\u00a0",
    "\u2028", "\r", "\r\n", "\0", "(S ", "(S (NN a)", "(NN a) ", "()", "( ", "'s",
    "n't ",
    "a'", "``", "a@b.c ", "http://a.b/c ", "1,", "1:1", "a/", "$1", ":", "www.a.",
)  # fmt: skip
"""Parts of hard texts, which repeat one of them."""


HALVES = (
    ("<b>", "<p>"), ("<b>", "</i>"), ("<b>", "</b>"), ("<div>", "</p>"), ("(", ")"),
    ("<svg>", "</b>"), ("<i>", "<table>"), ("<p>", "</div>"), ("“", "a. "),
    ("<b>a ", "</b>a "), ("a ", ". "), ("<code>", "</code>"), (" ", "."),
)  # fmt: skip
TAILS = (")", "]", "' ", '"', "’”", " ", "!", "」", "»", "\t", "--")
"""Characters that may follow a full stop; hard texts repeat one before an `x`."""
Recipe = Callable[[int], str]
"""Function that makes a hard text of a length."""


def recipes() -> dict[str, Recipe]:
    """Recipes of hard texts, by their parts."""

    def repeated(part: str, length: int) -> str:
        return (part * (length // len(part) + 1))[:length]

    def halves(first: str, second: str, length: int) -> str:
        return repeated(first, length // 2) + repeated(second, length // 2)

    def mixed(length: int) -> str:
        draw = random.Random(length)
        return "".join(draw.choices(TEXTS + REPEATED, k=length))[:length]

    def cut_short(begin: str, part: str, length: int) -> str:
        return begin + repeated(part, length - len(begin) - 1) + "x"

    made: dict[str, Recipe] = {part: partial(repeated, part) for part in REPEATED}
    for part in TAILS:
        made[f"a.{part}...x"] = partial(cut_short, "a.", part)
    for first, second in HALVES:
        made[f"{first} then {second}"] = partial(halves, first, second)
    return made | {"all together": mixed}


def entries() -> dict[str, Callable[[str], object]]:
    """Functions that scan text, by name."""
    corpus = ["A dog runs.", "Ein Hund läuft.", "我们的邻居。"] * 50
    tokenizers = {
        kind: learn_tokenizer(corpus, TokenizerConfig(kind=kind, vocab_size=400))
        for kind in ("bpe", "word-piece")
    }

    def count(texts: Sequence[str]) -> list[int]:
        return [len(ids) for ids in tokenizers["bpe"].encode_sources(texts)]

    def html(text: str) -> str:
        segments = split_html(text, "en")
        return join_html(segments, sentences(segments))

    def running(text: str, language: str | None) -> str:
        segments = split_text(text, language)
        return join_text(segments, sentences(segments))

    def lines(text: str) -> list[str]:
        with TemporaryDirectory() as folder:
            path = Path(folder) / "text"
            path.write_bytes(text.encode())
            return list(read_text([path]))

    return {
        "HTML": html,
        "running text, no language": lambda text: running(text, None),
        "running text, en": lambda text: running(text, "en"),
        "running text, de": lambda text: running(text, "de"),
        "running text, zh": lambda text: running(text, "zh"),
        "overlong line": lambda text: split_long(text, 250, count),
        "normalization": normalize,
        "typos": lambda text: with_typos(text, random.Random(1)),
        "byte-pair tokenizer": tokenizers["bpe"].encode,
        "word-piece tokenizer": tokenizers["word-piece"].encode,
        "Penn words": penn_words,
        "tree": parse_tree,
        "corpus": lines,
        "JSON request": lambda text: _request(json.dumps({"q": text}).encode(), JSON),
        "form request": lambda text: _request(b"q=" + quote(text).encode(), FORM),
        "raw form": lambda text: _request(text.encode(), FORM),
    }


def _request(body: bytes, kind: str) -> object:
    """Parsed request of a body, or its refusal."""
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/translate",
        "query_string": b"",
        "headers": [(b"content-type", kind.encode())],
        "client": None,
    }

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    admission = Admission(AdmissionConfig(max_characters=10 * LENGTHS[-1]))
    try:
        return asyncio.run(admission.admit(Request(scope, receive), TranslateRequest))
    except RefusedError as error:
        return error


def seconds(entry: Callable[[str], object], text: str) -> float:
    """Processor time of one call, which may refuse the text.

    The garbage collector is off, as it would scan all older objects.
    """
    gc.disable()
    started = time.process_time()
    with suppress(TransduceError):
        entry(text)
    taken = time.process_time() - started
    gc.enable()
    return taken


def growth(
    entry: Callable[[str], object],
    recipe: Recipe,
    lengths: Sequence[int],
    most_s: float,
) -> list[float]:
    """Seconds that a hard text takes at each length, up to the first above `most_s`."""
    taken: list[float] = []
    for length in lengths:
        taken.append(seconds(entry, recipe(length)))
        if taken[-1] > most_s:
            break
    return taken


def exponent(taken: Sequence[float]) -> float:
    """Greatest power of the length between two neighbouring lengths."""
    times = pairwise(max(each, SHORTEST_S) for each in taken)
    return max(
        (
            math.log(after / before) / math.log(longer / shorter)
            for (shorter, longer), (before, after) in zip(
                pairwise(LENGTHS), times, strict=False
            )
        ),
        default=0.0,
    )


def code(text: str) -> str:
    """Text as code in a cell of a Markdown table."""
    fence = "``" if "`" in text else "`"
    return f"{fence}{text!r}{fence}".replace("|", r"\|")


def fuzz_time(most_s: float, longest: int, names: Sequence[str]) -> list[str]:
    """Measure functions, all by default, and return those whose time grows too fast."""
    lengths = [length for length in LENGTHS if length <= longest]
    print(f"Texts of {', '.join(f'{each:,}' for each in lengths)} characters.\n")
    print("| function | longest time | made of | greatest power | made of |")
    print("|---|---|---|---|---|")
    failures = []
    for name, entry in entries().items():
        if names and name not in names:
            continue
        taken, powers = {}, {}
        for part, recipe in recipes().items():
            taken[part] = growth(entry, recipe, lengths, most_s)
            powers[part] = exponent(taken[part])
            if powers[part] > MAX_GROWTH:  # repeat: other processes disturb times
                again = exponent(growth(entry, recipe, lengths, most_s))
                powers[part] = min(powers[part], again)
            if powers[part] > MAX_GROWTH or len(taken[part]) < len(lengths):
                times = ", ".join(f"{each:.3f}" for each in taken[part])
                failures.append(f"{name}, {part!r}: {times} s")
        slowest = max(taken, key=lambda part: taken[part][-1])
        steepest = max(powers, key=powers.__getitem__)
        print(
            f"| {name} | {taken[slowest][-1]:.2f} s | {code(slowest)} | "
            f"{powers[steepest]:.2f} | {code(steepest)} |",
            flush=True,
        )
    return failures


def main() -> None:
    """Run the chosen fuzz; exit code 1 if anything fails."""
    parser = argparse.ArgumentParser(description="Fuzz the text parsers.")
    kinds = parser.add_subparsers(dest="kind", required=True)
    of_time = kinds.add_parser("time")
    of_time.add_argument("--seconds", type=float, default=20.0)
    of_time.add_argument("--longest", type=int, default=LENGTHS[-1])
    of_time.add_argument("--entries", nargs="*", default=[])
    of_html = kinds.add_parser("html")
    of_html.add_argument("--documents", type=int, default=100_000)
    of_html.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    libraries = ", ".join(
        f"{name} {version(name)}" for name in ("turbohtml", "sentencex", "html5lib")
    )
    print(f"{describe_machine()}- {libraries}\n")
    if options.kind == "time":
        failures = fuzz_time(options.seconds, options.longest, options.entries)
    else:
        failures = fuzz_html(options.documents, options.seed)
    for failure in failures[:50]:
        print(f"- {failure}")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
