"""Weights and shortlists of Marian's decoder become models that compute the same."""

import gzip
import shutil
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece

import marian_npz
import transduce
from marian_npz import FP32, INTGEMM8, INTGEMM16, SSRU, TEXT, TWO, UNTIED
from transduce.checkpoint import load_model
from transduce.errors import CheckpointError, RequestError
from transduce.foreign_models import is_marian
from transduce.interop.marian_binary import read_binary
from transduce.interop.marian_npz_import import (
    differing_options,
    find_files,
    import_marian,
)

SENTENCES = ["The dog runs.", "A cat sees the old house.", "the the"]
TARGETS = ["Der Hund rennt.", "Eine Katze sieht das Haus und das Haus.", ""]
STUDENT: dict[str, object] = {
    **SSRU,
    **UNTIED,
    "tied-embeddings": "true",
    "transformer-ffn-activation": "relu",
}
"""Options of a student with two vocabularies, as of models for browsers."""


@pytest.fixture(scope="module")
def student(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Folder of a student in 8 bits, with the numbers that its weights stand for."""
    folder = tmp_path_factory.mktemp("student")
    arrays = marian_npz.write_folder(folder, TWO, **STUDENT)
    (folder / "model.npz").unlink()
    alphas = {"none_QuantMultA": np.ones((1, 1), np.float32)}
    path = folder / "model.ende.intgemm.alphas.bin"
    options = {**marian_npz.OPTIONS, **STUDENT}
    return folder, marian_npz.write_binary(path, {**arrays, **alphas}, options)


def copied(student: tuple[Path, dict[str, Any]], folder: Path) -> Path:
    shutil.copytree(student[0], folder)
    return folder


@pytest.mark.parametrize("kind", [INTGEMM8, INTGEMM16, FP32])
def test_weights_are_those_that_the_file_stands_for(kind: int, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    arrays = {
        name: random.normal(size=shape).astype(np.float32)
        for name, shape in (
            ("decoder_Wemb", (5, 4)), ("encoder_l1_ffn_W1", (4, 6)),
            ("decoder_l1_rnn_Wf", (4, 4)), ("decoder_ff_logit_out_Wt", (5, 4)),
            ("encoder_l1_ffn_b1", (1, 6)),
        )
    }  # fmt: skip
    path = tmp_path / "model.bin"
    expected = marian_npz.write_binary(path, arrays, {"type": "transformer"}, kind)
    found = read_binary(path)
    assert found.pop("special:model.yml").tobytes() == b"type: transformer\n\0"
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)


def test_a_student_in_8_bits_scores_as_its_numbers_do(
    student: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    folder, arrays = student
    import_marian(folder, tmp_path / "model", SENTENCES)
    processors = [
        sentencepiece.SentencePieceProcessor(model_file=str(folder / name))
        for name in TWO
    ]
    # The reference takes relu for a model with norms first only.
    reference = Relu(arrays, pre_norm=False)
    found = transduce.load(tmp_path / "model").score(SENTENCES, TARGETS)
    for source, target, score in zip(SENTENCES, TARGETS, found, strict=True):
        ids = [
            [*processor.encode(text), 0]
            for processor, text in zip(processors, (source, target), strict=True)
        ]
        expected = reference.log_probs(*ids).sum()
        assert score.log_probability == pytest.approx(expected, abs=2e-4)


class Relu(marian_npz.Reference):
    def _ffn(self, prefix, x) -> np.ndarray:
        inner = np.maximum(self._affine(f"{prefix}_ffn", x, "1"), 0)
        return self._affine(f"{prefix}_ffn", inner, "2")


NUMBERS = {"a_W": (INTGEMM8, (2, 2), bytes(4) + struct.pack("<f", 1))}
ARRAY = b"a_W\0"
DAMAGED: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "another version": (lambda c: b"\2" + c[1:], "does not begin as Marian's"),
    "many arrays": (lambda c: c[:8] + b"\xff" * 8 + c[16:], "at most 100,000 arrays"),
    "more arrays": (lambda c: c[:8] + b"\xff" + c[9:], "must have 8,160 more bytes"),
    "a long name": (lambda c: c[:16] + b"\xff" * 8 + c[24:], "an impossible length"),
    "many axes": (lambda c: c[:32] + b"\xff" + c[33:], "an impossible length"),
    "much content": (lambda c: c[:40] + b"\xff" * 7 + c[47:], "more bytes, but has"),
    "a name without end": (lambda c: c.replace(ARRAY, b"a_Wx"), "a name has no end"),
    "no text as name": (lambda c: c.replace(ARRAY, b"\xff_W\0"), "can't decode"),
    "a negative shape": (
        lambda c: c[:52] + b"\xff" * 4 + c[56:],
        r"the shape of 'a_W' is \(-1, 2\)",
    ),
    "a large shape": (
        lambda c: c[:52] + b"\xff\xff\xff\x7f" + c[56:],
        r"must have 4,294,967,298 bytes by its shape \(2147483647, 2\), but has 256",
    ),
    "no scale": (lambda c: c[:-252] + bytes(252), "the scale of 'a_W' is 0"),
    "an infinite scale": (
        lambda c: c[:-252] + struct.pack("<f", np.inf) + bytes(248),
        "the scale of 'a_W' is inf",
    ),
    "padding beyond the file": (
        lambda c: c[:60] + b"\xff" * 8 + c[68:],
        "more bytes, but has",
    ),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_file_is_reported(damage: str, tmp_path: Path) -> None:
    change, said = DAMAGED[damage]
    path = tmp_path / "model.bin"
    path.write_bytes(change(marian_npz.binary(NUMBERS)))
    with pytest.raises(CheckpointError, match=rf"model.bin: the weights .*{said}"):
        read_binary(path)


def test_every_cut_and_every_changed_byte_is_read_or_reported(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    whole = marian_npz.binary({**NUMBERS, "b": (FP32, (1, 3), bytes(12))})
    for length in range(len(whole) - 256, 0, -7):
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError):
            read_binary(path)
    for place in range(120):
        for byte in (0, 1, 0x7F, 0xFF):
            path.write_bytes(whole[:place] + bytes([byte]) + whole[place + 1 :])
            with suppress(CheckpointError, RequestError):
                read_binary(path)


def test_an_array_that_stands_twice_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    content = marian_npz.binary({**NUMBERS, "b_W": NUMBERS["a_W"]})
    path.write_bytes(content.replace(b"b_W\0", b"a_W\0"))
    with pytest.raises(CheckpointError, match="an array stands in it twice"):
        read_binary(path)


def test_a_huge_file_without_content_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    with path.open("wb") as file:
        file.write(struct.pack("<2Q", 1, 2**34))
        file.truncate(2**40)
    with pytest.raises(CheckpointError, match="at most 100,000 arrays"):
        read_binary(path)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (0x1801, r"packed for one kind of processor \(packed8avx2\)"),
        (0x11001, r"packed for one kind of processor \(intgemm8avx2\)"),
        (0x0108, "of the unknown type 0x108"),
    ],
)
def test_types_that_cannot_be_read_are_refused_by_name(
    kind: int, said: str, tmp_path: Path
) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(marian_npz.binary({"a_W": (kind, (2, 2), bytes(8))}))
    with pytest.raises(RequestError, match=rf"'a_W' must be numbers in .*{said}"):
        read_binary(path)


def test_a_file_without_options_is_reported(
    student: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    folder = copied(student, tmp_path / "marian")
    [path] = folder.glob("*.bin")
    path.write_bytes(marian_npz.binary(NUMBERS))
    with pytest.raises(CheckpointError, match="must hold the model's options"):
        import_marian(folder, tmp_path / "model", SENTENCES)
    path.write_bytes(marian_npz.binary({"special:model.yml": (TEXT, (1,), b"\xff")}))
    with pytest.raises(CheckpointError, match="options must be text in UTF-8"):
        import_marian(folder, tmp_path / "model", SENTENCES)


# ---- Folders ---------------------------------------------------------------------


def test_a_model_is_named_by_its_folder_settings_or_weights(
    student: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    folder = copied(student, tmp_path / "marian")
    [alphas] = folder.glob("*.bin")
    for name, normalize in (("a", 0.25), ("b", 0.5)):
        shutil.copy(alphas, folder / f"model.{name}.bin")
        (folder / f"config.{name}.yml").write_text(
            f"models: [model.{name}.bin]\nvocabs: {TWO}\nnormalize: {normalize}\n"
        )
    origins = {
        folder: 0.25,
        folder / "config.b.yml": 0.5,
        folder / "model.b.bin": 0.5,
        alphas: 0.25,
    }
    for number, (origin, normalize) in enumerate(origins.items()):
        assert is_marian(origin)
        out = tmp_path / f"model{number}"
        import_marian(origin, out, SENTENCES)
        assert load_model(out).search.length_penalty == normalize
    (folder / "config.a.yml").unlink()
    (folder / "config.b.yml").unlink()
    with pytest.raises(RequestError, match=r"model.b.bin, .*; name one of these files"):
        import_marian(folder, tmp_path / "model", SENTENCES)


def test_settings_behind_those_that_name_the_weights_may_be_anything(
    student: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    folder = copied(student, tmp_path / "marian")
    [weights] = folder.glob("*.bin")
    settings = folder / "decoder.yml"
    settings.write_text(f"models: [{weights.name}]\nvocabs: {TWO}\nnormalize: 0.5\n")
    (folder / "config.pipeline.yml").write_text("experiment\n")
    assert find_files(folder).settings_path == settings
    settings.unlink()
    settings.symlink_to(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match="decoder.yml: the file is missing or"):
        find_files(folder)


def test_vocabularies_of_models_for_browsers_are_found(
    student: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    folder = copied(student, tmp_path / "marian")
    for side, name in zip(("src", "trg"), TWO, strict=True):
        (folder / name).rename(folder / f"{side}vocab.ende.spm")
    import_marian(folder, tmp_path / "model", SENTENCES)
    import_marian(student[0], tmp_path / "same", SENTENCES)
    tokenizers = [load_model(tmp_path / each).tokenizer for each in ("model", "same")]
    assert tokenizers[0] == tokenizers[1]


# ---- Shortlists ------------------------------------------------------------------


def rows_of(folder: Path) -> list[dict[str, int]]:
    """Marian's rows of the pieces of both sides."""
    processors = [
        sentencepiece.SentencePieceProcessor(model_file=str(folder / name))
        for name in TWO
    ]
    return [
        {each.id_to_piece(i): i for i in range(each.vocab_size())}
        for each in processors
    ]


def lexicon_of(folder: Path) -> list[list[int]]:
    """Targets of each source row; those of the end token belong to all sentences."""
    source, target = rows_of(folder)
    lists = [
        [(7 * i + 3 * k) % len(target) for k in range(5)] for i in range(len(source))
    ]
    return [sorted({*each}) for each in lists]


def candidates(model: Path, text: str) -> set[str]:
    found = load_model(model)
    assert found.shortlist is not None
    [ids] = found.tokenizer.encode_sources([text])
    return {found.tokenizer.vocabulary[i] for i in found.shortlist.candidates(ids)}


@pytest.mark.parametrize("form", ["binary", "text", "gzip"])
def test_candidates_are_those_of_marian(
    form: str, student: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    folder = copied(student, tmp_path / "marian")
    source, target = (list(rows) for rows in rows_of(folder))
    lists, first = lexicon_of(folder), 4
    path = folder / "lex.s2t"
    lines = [
        f"{target[i]} {source[row]} {0.9 - k / 100}\n"
        for row, targets in enumerate(lists)
        for k, i in enumerate(targets)
    ]
    others = [
        f"{target[9]} {source[5]} 0.01\n",
        "NULL x 0.5\n",
        f"{target[8]} NULL 1\n",
    ]
    # The first line is shorter than the mark of a binary file.
    text = "".join(["a b 0\n", *lines, *others]).encode()
    content = {
        "binary": marian_npz.binary_lexicon(first, lists),
        "text": text,
        "gzip": gzip.compress(text),
    }[form]
    path.write_bytes(content)
    numbers = "false" if form == "binary" else f"{first}, 5, 0.05"
    (folder / "decoder.yml").write_text(
        f"vocabs: {TWO}\nbeam-size: 1\nshortlist: [lex.s2t, {numbers}]\n"
    )
    import_marian(folder, tmp_path / "model", SENTENCES)
    search = load_model(tmp_path / "model").search
    assert search is not None
    assert search.shortlist
    assert differing_options(folder) == []
    processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / TWO[0]))
    for sentence in SENTENCES:
        ids = [*processor.encode(sentence), 0]
        expected = {*range(first), *(i for row in ids for i in lists[row])}
        # Source pieces that targets may have are added here.
        added = {source[i] for i in ids} & {*target}
        assert candidates(tmp_path / "model", sentence) == (
            {target[i] for i in expected} | added
        )


def test_a_shortlist_without_settings_is_kept_for_those_who_ask(
    student: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    folder = copied(student, tmp_path / "marian")
    content = marian_npz.binary_lexicon(50, lexicon_of(folder))
    (folder / "lex.50.50.ende.s2t.bin").write_bytes(content)
    (folder / "lex.s2t.gz").write_bytes(b"")  # what it was made of
    import_marian(folder, tmp_path / "model", SENTENCES)
    model = load_model(tmp_path / "model")
    assert model.shortlist is not None
    assert model.search is not None
    assert not model.search.shortlist
    assert differing_options(folder) == []


def test_a_shortlist_that_is_not_there_is_left_out_with_a_warning(
    student: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    folder = copied(student, tmp_path / "marian")
    (folder / "decoder.yml").write_text(
        f"vocabs: {TWO}\nbeam-size: 1\nshortlist: [away/lex.s2t.bin, false]\n"
    )
    import_marian(folder, tmp_path / "model", SENTENCES)
    assert load_model(tmp_path / "model").shortlist is None
    [said] = differing_options(folder)
    assert "the shortlist lex.s2t.bin is not in the folder, and the model is" in said
    (folder / "lex.s2t.bin").write_bytes(b"")
    (folder / "decoder.yml").write_text(f"vocabs: {TWO}\nbeam-size: 1\n")
    [said] = differing_options(folder)
    assert "imported without a shortlist, since the settings name none of lex" in said


def changed(content: bytes, place: int, value: bytes) -> bytes:
    return content[:place] + value + content[place + len(value) :]


BAD_LEXICONS: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "cut short": (lambda c: c[:-4], "cut short by 4 bytes"),
    "cut in its header": (lambda c: c[:20], "cut short by 28 bytes"),
    "longer": (lambda c: c + b"\0", "longer than its header says"),
    "changed": (lambda c: changed(c, 60, b"\1"), "its checksum is another"),
    "of another vocabulary": (lambda c: changed(c, 32, b"\xff"), "source rows, as the"),
    "much too long": (lambda c: changed(c, 40, b"\xff" * 7), "at most 67,108,864"),
    "a target beyond": (
        lambda c: marian_npz.binary_lexicon(1, [[9_999], *lists_like(c)]),
        "a target is outside the vocabulary",
    ),
    "an unfinished line": (lambda _: b"Haus house", "line 1 must have a target piece"),
    "no probability": (lambda _: b"Haus house x\n", "must have a target piece, a sou"),
    "not a text": (lambda _: b"\0" * 30_000, "line 1 must have a target piece"),
    "half of gzip": (lambda c: gzip.compress(c)[:-20], "Compressed file ended before"),
}


def lists_like(content: bytes) -> list[list[int]]:
    """Empty lists of all source rows of a binary lexicon but the first."""
    return [[] for _ in range(struct.unpack_from("<Q", content, 32)[0] - 2)]


@pytest.mark.parametrize("name", BAD_LEXICONS)
def test_a_damaged_shortlist_is_reported(
    name: str, student: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    folder = copied(student, tmp_path / "marian")
    change, said = BAD_LEXICONS[name]
    content = change(marian_npz.binary_lexicon(50, lexicon_of(folder)))
    (folder / "lex.s2t.bin").write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"lex.s2t.bin: the shortlist .*{said}"):
        import_marian(folder, tmp_path / "model", SENTENCES)
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("numbers", ["x", "50, -1", "nan", "1e30"])
def test_impossible_limits_of_a_shortlist_are_reported(
    numbers: str, student: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    folder = copied(student, tmp_path / "marian")
    (folder / "lex.s2t").write_text("a b 1\n")
    (folder / "decoder.yml").write_text(f"shortlist: [lex.s2t, {numbers}]\n")
    with pytest.raises(CheckpointError, match="decoder.yml: the option `shortlist` mu"):
        import_marian(folder, tmp_path / "model", SENTENCES)
