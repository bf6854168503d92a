"""Named corpora (section 5.1): locations and contents of their archives.

Sizes and checksums are those that other projects publish for the same files:
TensorFlow Datasets (training parts of WMT), sacreBLEU (its test sets), torchtext
(Multi30k). Where none was found, the size that the server announces is checked instead.
"""

from dataclasses import dataclass
from difflib import get_close_matches

from transduce.data.download import RemoteFile
from transduce.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """Lines of one language: a gzip file, or a member of a tar."""

    file: RemoteFile
    member: str | None = None


Part = tuple[Text, ...]
"""Texts that are translations of each other, one per language."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Parts that make up one file per language."""

    name: str
    parts: tuple[Part, ...]
    num_pairs: int | None = None
    """Number of pairs; None if not known exactly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedCorpus:
    """Corpus that can be downloaded."""

    name: str
    languages: tuple[str, ...]
    """Languages: source, target, then others."""
    train: Split
    dev: Split
    tests: tuple[Split, ...]
    preset: str
    """Suggested preset."""
    terms: str
    """Terms of use."""

    @property
    def splits(self) -> tuple[Split, ...]:
        return (self.train, self.dev, *self.tests)

    @property
    def files(self) -> tuple[RemoteFile, ...]:
        """Files to download, each once."""
        parts = (part for split in self.splits for part in split.parts)
        return tuple(dict.fromkeys(text.file for part in parts for text in part))


def named_corpus(name: str) -> NamedCorpus:
    """Return the corpus of that name; `ConfigError` suggests the nearest name."""
    if name not in NAMED_CORPORA:
        # Swapped languages are the likeliest mistake.
        known = {_in_order(each): each for each in NAMED_CORPORA}
        nearest = known[get_close_matches(_in_order(name), known, n=1, cutoff=0.0)[0]]
        raise ConfigError(
            f"The corpus must be one of {', '.join(NAMED_CORPORA)}, but is {name!r}; "
            f"did you mean {nearest!r}?"
        )
    return NAMED_CORPORA[name]


def _in_order(name: str) -> str:
    return "-".join(sorted(name.split("-")))


def _members(file: RemoteFile, *members: str) -> Part:
    return tuple(Text(file=file, member=member) for member in members)


def _caption(name: str, **md5: str) -> tuple[Part, ...]:
    folder = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw"
    part = (
        Text(
            file=RemoteFile(
                url=f"{folder}/{name}.{language}.gz", checksum=f"md5:{digest}"
            )
        )
        for language, digest in md5.items()
    )
    return (tuple(part),)


EUROPARL = RemoteFile(
    url="https://www.statmt.org/wmt13/training-parallel-europarl-v7.tgz",
    size_bytes=657_632_379,
    checksum="sha256:0224c7c710c8a063dfd893b0cc0830202d61f4c75c17eb8e31836103d27d96e7",
)
COMMON_CRAWL = RemoteFile(
    url="https://www.statmt.org/wmt13/training-parallel-commoncrawl.tgz",
    size_bytes=918_311_367,
    checksum="sha256:c7a74e2ea01ac6c920123108627e35278d4ccb5701e15428ffa34de86fa3a9e5",
)
UNITED_NATIONS = RemoteFile(
    url="https://www.statmt.org/wmt13/training-parallel-un.tgz",
    size_bytes=2_365_634_246,
    checksum="sha256:29141b5c1eba149a94f7a59d3b1a834b2e47fe0f8758d68dcd77a3d3f497ee47",
)
NEWS_COMMENTARY = RemoteFile(
    url="https://www.statmt.org/wmt14/training-parallel-nc-v9.tgz",
    size_bytes=80_418_416,
    checksum="sha256:cb8953f292298e6877ae433c98912b927cb0766b303f4540512ddd286c748485",
)
GIGA_FREN = RemoteFile(
    url="https://www.statmt.org/wmt10/training-giga-fren.tar",
    size_bytes=2_595_102_720,
    checksum="sha256:3ff8319f6919393520559bfbc7ad6a747ec81b3abc7be9993b338d4b017b4d9a",
)
NEWSTEST_2013 = RemoteFile(
    url="https://www.statmt.org/wmt13/test.tgz",
    checksum="md5:48eca5d02f637af44e85186847141f67",
)
NEWSTEST_2014 = RemoteFile(
    url="https://www.statmt.org/wmt14/test-full.tgz",
    checksum="md5:a8cd784e006feb32ac6f3d9ec7eb389a",
)
WMT14_TERMS = (
    "released for research; each part has terms of its own, see "
    "https://www.statmt.org/wmt14/translation-task.html"
)

NAMED_CORPORA = {
    # About 4.5 million pairs.
    "wmt14-en-de": NamedCorpus(
        name="wmt14-en-de",
        languages=("en", "de"),
        train=Split(
            name="train",
            parts=(
                _members(
                    EUROPARL,
                    "training/europarl-v7.de-en.en",
                    "training/europarl-v7.de-en.de",
                ),
                _members(COMMON_CRAWL, "commoncrawl.de-en.en", "commoncrawl.de-en.de"),
                _members(
                    NEWS_COMMENTARY,
                    "training/news-commentary-v9.de-en.en",
                    "training/news-commentary-v9.de-en.de",
                ),
            ),
        ),
        dev=Split(
            name="newstest2013",
            parts=(
                _members(
                    NEWSTEST_2013,
                    "test/newstest2013-src.en.sgm",
                    "test/newstest2013-src.de.sgm",
                ),
            ),
            num_pairs=3_000,
        ),
        tests=(
            Split(
                name="newstest2014",
                parts=(
                    _members(
                        NEWSTEST_2014,
                        "test-full/newstest2014-deen-src.en.sgm",
                        "test-full/newstest2014-deen-ref.de.sgm",
                    ),
                ),
                num_pairs=3_003,
            ),
        ),
        preset="base",
        terms=WMT14_TERMS,
    ),
    # Unlike the paper: nearly 41 million pairs; the paper has 36 million and does not
    # say which it omits.
    "wmt14-en-fr": NamedCorpus(
        name="wmt14-en-fr",
        languages=("en", "fr"),
        train=Split(
            name="train",
            parts=(
                _members(
                    EUROPARL,
                    "training/europarl-v7.fr-en.en",
                    "training/europarl-v7.fr-en.fr",
                ),
                _members(COMMON_CRAWL, "commoncrawl.fr-en.en", "commoncrawl.fr-en.fr"),
                _members(
                    UNITED_NATIONS,
                    "un/undoc.2000.fr-en.en",
                    "un/undoc.2000.fr-en.fr",
                ),
                _members(
                    NEWS_COMMENTARY,
                    "training/news-commentary-v9.fr-en.en",
                    "training/news-commentary-v9.fr-en.fr",
                ),
                _members(
                    GIGA_FREN,
                    "giga-fren.release2.fixed.en.gz",
                    "giga-fren.release2.fixed.fr.gz",
                ),
            ),
        ),
        dev=Split(
            name="newstest2013",
            parts=(
                _members(
                    NEWSTEST_2013,
                    "test/newstest2013-src.en.sgm",
                    "test/newstest2013-src.fr.sgm",
                ),
            ),
            num_pairs=3_000,
        ),
        tests=(
            Split(
                name="newstest2014",
                parts=(
                    _members(
                        NEWSTEST_2014,
                        "test-full/newstest2014-fren-src.en.sgm",
                        "test-full/newstest2014-fren-ref.fr.sgm",
                    ),
                ),
                num_pairs=3_003,
            ),
        ),
        preset="base-en-fr",
        terms=WMT14_TERMS,
    ),
    # Elliott et al., 2016 and 2017.
    "multi30k": NamedCorpus(
        name="multi30k",
        languages=("en", "de", "fr"),
        train=Split(
            name="train",
            parts=_caption(
                "train",
                en="0065d13af80720a55ca8153d126e6627",
                de="81ff90b99829c0cd4b1b587d394afd39",
                fr="6cb767741dcad3931f966fefbc05203f",
            ),
            num_pairs=29_000,
        ),
        dev=Split(
            name="val",
            parts=_caption(
                "val",
                en="2b69aa9253948ac9f67e94917272dd40",
                de="6e0e229eb049e3fc99a1ef02fb2d5f91",
                fr="93fc564584b7e5ba410c761ea5a1c682",
            ),
            num_pairs=1_014,
        ),
        tests=(
            Split(
                name="test_2016_flickr",
                parts=_caption(
                    "test_2016_flickr",
                    en="ff2c0fcb4893a13bd73414306bc250ae",
                    de="efd67d314d98489b716b145475101932",
                    fr="08dc7cd4a662f31718412de95ca9bfe3",
                ),
                num_pairs=1_000,
            ),
            Split(
                name="test_2017_flickr",
                parts=_caption(
                    "test_2017_flickr",
                    en="005396bac545d880abe6f00bbb7dbbb4",
                    de="6a8d5c87f6ae19e3d35681aa6fd16571",
                    fr="cb09af7d2b501f9112f2d6a59fa1360d",
                ),
                num_pairs=1_000,
            ),
            Split(
                name="test_2017_mscoco",
                parts=_caption(
                    "test_2017_mscoco",
                    en="a7b684e0edbef1d4a23660c8e8e743fd",
                    de="e8cd6ec2bc8a11fc846fa48a46e3d0bb",
                    fr="4995d10954a804d3cdfd907b9fd093e8",
                ),
                num_pairs=461,
            ),
        ),
        preset="multi30k",
        terms="for research and education, not for commerce, as Flickr30k",
    ),
}
