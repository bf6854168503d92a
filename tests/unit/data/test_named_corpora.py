"""The definitions of the named corpora are complete."""

import hashlib
import re

import pytest

from transduce.data.named_corpora import NAMED_CORPORA, named_corpus
from transduce.errors import ConfigError
from transduce.experiments.presets import PRESETS

CORPORA = list(NAMED_CORPORA.values())
WMT = ["wmt14-en-de", "wmt14-en-fr"]


def names(corpora):
    return [corpus.name for corpus in corpora]


@pytest.mark.parametrize("corpus", CORPORA, ids=names(CORPORA))
def test_a_corpus_definition_is_consistent(corpus):
    assert NAMED_CORPORA[corpus.name] is corpus
    parts = [part for split in corpus.splits for part in split.parts]
    assert {len(part) for part in parts} == {len(corpus.languages)}
    for part in parts:
        for text, language in zip(part, corpus.languages, strict=True):
            name = text.member or text.file.name
            assert re.search(rf"\.{language}(\.sgm|\.gz)?$", name)
            assert (text.member is None) != (text.file.name.endswith(("tgz", "tar")))
    assert corpus.preset in PRESETS
    assert len({split.name for split in corpus.splits}) == len(corpus.splits)


@pytest.mark.parametrize("corpus", CORPORA, ids=names(CORPORA))
def test_every_file_has_a_name_of_its_own_and_a_checksum(corpus):
    assert len({file.name for file in corpus.files}) == len(corpus.files)
    for file in corpus.files:
        assert file.url.startswith("https://")
        assert file.checksum is not None
        algorithm, _, digest = file.checksum.partition(":")
        length = hashlib.new(algorithm).digest_size * 2
        assert re.fullmatch(rf"[0-9a-f]{{{length}}}", digest)


@pytest.mark.parametrize("name", WMT)
def test_wmt_is_held_out_as_in_the_paper(name):
    corpus = named_corpus(name)
    assert corpus.dev.name == "newstest2013"
    assert [split.name for split in corpus.tests] == ["newstest2014"]
    assert corpus.dev.num_pairs == 3_000
    assert corpus.tests[0].num_pairs == 3_003


@pytest.mark.parametrize(("name", "gigabytes"), [(WMT[0], 1.66), (WMT[1], 6.62)])
def test_the_size_of_the_training_archives_is_known(name, gigabytes):
    parts = named_corpus(name).train.parts
    sizes = {text.file.size_bytes for part in parts for text in part}
    assert sum(sizes) == pytest.approx(gigabytes * 1e9, rel=0.005)


def test_multi30k_is_held_out_by_year():
    corpus = named_corpus("multi30k")
    assert {split.name: split.num_pairs for split in corpus.splits} == {
        "train": 29_000,
        "val": 1_014,
        "test_2016_flickr": 1_000,
        "test_2017_flickr": 1_000,
        "test_2017_mscoco": 461,
    }


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("wmt14-de-en", "wmt14-en-de"),
        ("multi30", "multi30k"),
        ("wmt14-enfr", "wmt14-en-fr"),
    ],
)
def test_an_unknown_name_suggests_the_nearest(name, nearest):
    with pytest.raises(ConfigError) as raised:
        named_corpus(name)
    assert str(raised.value) == (
        "The corpus must be one of wmt14-en-de, wmt14-en-fr, multi30k, but is "
        f"{name!r}; did you mean {nearest!r}?"
    )
