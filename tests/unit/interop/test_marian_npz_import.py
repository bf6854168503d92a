"""Models of Marian's own become models that compute the same."""

import json
import os
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
from sentencepiece.sentencepiece_model_pb2 import ModelProto

import marian_npz
import transduce
from marian_npz import SHARED, TWO, VARIANTS
from transduce.checkpoint import load_model
from transduce.errors import CheckpointError, RequestError
from transduce.foreign_models import is_marian
from transduce.interop import ctranslate2 as to_ctranslate2
from transduce.interop.marian_npz_import import (
    differing_options,
    import_marian,
    read_options,
)

SENTENCES = ["The dog runs.", "A cat sees the old house.", "the the"]
TARGETS = ["Der Hund rennt.", "Eine Katze sieht das Haus und das Haus.", ""]


@pytest.mark.parametrize("name", VARIANTS)
def test_scores_equal_those_of_marian(name: str, tmp_path: Path) -> None:
    vocabularies, options = VARIANTS[name]
    folder = tmp_path / "marian"
    arrays = marian_npz.write_folder(folder, vocabularies, **options)
    proof = import_marian(folder, tmp_path / "model", SENTENCES)
    assert "pieces of SentencePiece on 3 sentences" in proof
    reference = marian_npz.Reference(arrays, pre_norm="norms" in name)
    processors = [
        sentencepiece.SentencePieceProcessor(model_file=str(folder / each))
        for each in vocabularies
    ]
    translator = transduce.load(tmp_path / "model")
    found = translator.score(SENTENCES, TARGETS)
    for source, target, score in zip(SENTENCES, TARGETS, found, strict=True):
        ids = [
            [*processor.encode(text), 0]
            for processor, text in zip(processors, (source, target), strict=True)
        ]
        expected = reference.log_probs(*ids)
        assert score.num_tokens == len(expected)
        assert score.log_probability == pytest.approx(expected.sum(), abs=2e-4)
    best = translator.translate(SENTENCES, beam_size=2)
    assert all(
        "<unk>" not in token for each in best for token in each.hypotheses[0].tokens
    )


def test_a_word_list_with_two_models_is_read(tmp_path: Path) -> None:
    """The original folders of OPUS-MT have these files."""
    folder = tmp_path / "marian"
    folder.mkdir()
    marian_npz.write_vocabularies(folder, TWO)
    pieces = dict.fromkeys(["</s>", "<unk>"])
    for name in TWO:
        model = sentencepiece.SentencePieceProcessor(model_file=str(folder / name))
        pieces |= dict.fromkeys(map(model.id_to_piece, range(model.vocab_size())))
    lines = [f"{json.dumps(piece)}: {i}\n" for i, piece in enumerate(pieces)]
    (folder / "opus.vocab.yml").write_text("".join(lines), encoding="utf-8")
    options = marian_npz.OPTIONS
    arrays = marian_npz.random_arrays(
        options, [len(pieces)] * 2, np.random.default_rng(1)
    )
    marian_npz.write_npz(folder / "opus.npz.best.npz", arrays, options)
    (folder / "decoder.yml").write_text(
        "models:\n  - opus.npz.best.npz\nvocabs:\n  - opus.vocab.yml\n"
        "  - opus.vocab.yml\nbeam-size: 6\nnormalize: 1\n"
    )
    import_marian(folder, tmp_path / "model", SENTENCES)
    checkpoint = load_model(tmp_path / "model")
    search = checkpoint.search
    assert (search.beam_size, search.penalty, search.length_penalty) == (6, "power", 1)
    assert search.bad_words == ((checkpoint.tokenizer.unknown,),)
    ids = [*map(list(pieces).index, ["\u2581The", "</s>"])]
    expected = marian_npz.Reference(arrays, pre_norm=False).log_probs(ids, [0])
    [score] = transduce.load(tmp_path / "model").score(["The"], [""])
    assert score.log_probability == pytest.approx(expected[0], abs=1e-4)


def test_a_word_list_of_each_side_has_a_piece_on_each_line(tmp_path: Path) -> None:
    """Folders of OPUS-MT with two vocabularies have these files."""
    folder, names = tmp_path / "marian", ["o.src.vocab", "o.trg.vocab"]
    folder.mkdir()
    marian_npz.write_vocabularies(folder, TWO, bos_id=1, eos_id=2, unk_id=0)
    models = [
        sentencepiece.SentencePieceProcessor(model_file=str(folder / name))
        for name in TWO
    ]
    lists = [[*map(m.id_to_piece, range(m.vocab_size()))] for m in models]
    lists[0] += [">>deu<<", ">>fra<<"]
    for name, pieces in zip(names, lists, strict=True):
        (folder / name).write_text("\n".join([*pieces, ""]), encoding="utf-8")
    options = {**marian_npz.OPTIONS, **marian_npz.UNTIED, "tied-embeddings": "true"}
    sizes = [*map(len, lists)]
    arrays = marian_npz.random_arrays(options, sizes, np.random.default_rng(1))
    marian_npz.write_npz(folder / "o.npz", arrays, options)
    (folder / "decoder.yml").write_text(f"vocabs: [{', '.join(names)}]\n")
    (folder / "preprocess.sh").write_text("spm_encode --model $1\n")
    import_marian(folder, tmp_path / "model", SENTENCES)
    tokenizer = load_model(tmp_path / "model").tokenizer
    assert tokenizer.language_tags == (">>deu<<", ">>fra<<")
    source, target = (m.encode(SENTENCES[0], out_type=str) for m in models)
    source = [*map(lists[0].index, [">>deu<<", *source, "</s>"])]
    target = [*map(lists[1].index, [*target, "</s>"])]
    expected = marian_npz.Reference(arrays, pre_norm=False).log_probs(source, target)
    [score] = transduce.load(tmp_path / "model").score(
        [f">>deu<< {SENTENCES[0]}"], SENTENCES[:1]
    )
    assert score.log_probability == pytest.approx(sum(expected), abs=1e-4)
    [said] = differing_options(folder)
    assert said.startswith(f"{folder}/preprocess.sh: this program is not run; if it ")


@pytest.mark.filterwarnings("ignore")
def test_an_imported_model_is_exported_to_ctranslate2(tmp_path: Path) -> None:
    marian_npz.write_folder(tmp_path / "marian", SHARED)
    import_marian(tmp_path / "marian", tmp_path / "model", SENTENCES)
    checkpoint = load_model(tmp_path / "model")
    assert to_ctranslate2.export(checkpoint, tmp_path / "out", SENTENCES).num_tokens


REFUSED = [
    ({"type": "amun"}, "`type` must be transformer, but is amun"),
    ({"type": "s2s"}, "`type` must be transformer, but is s2s"),
    (
        {"transformer-decoder-autoreg": "rnn", "dec-cell": "gru"},
        "`dec-cell` must be ssru, but is gru",
    ),
    (
        {**marian_npz.SSRU, "transformer-rnn-projection": "true"},
        "`transformer-rnn-projection` must be false, but is true",
    ),
    (
        {"transformer-decoder-autoreg": "average-attention"},
        "must be self-attention or rnn, but is average-attention",
    ),
    ({"transformer-preprocess": "n"}, r"the norms must be after each sub-layer"),
    ({"transformer-postprocess": "dhn"}, "the norms must be after each sub-layer"),
    ({"transformer-ffn-activation": "gelu"}, "must be relu or swish, but is gelu"),
    ({"transformer-ffn-depth": "3"}, "`transformer-ffn-depth` must be 2, but is 3"),
    ({"transformer-tied-layers": "[1, 1]"}, "`transformer-tied-layers` must be"),
    ({"lemma-dim-emb": "64"}, "`lemma-dim-emb` must be 0, but is 64"),
    ({"input-types": "[sequence, class]"}, "`input-types` must be"),
    ({"right-left": "true"}, "`right-left` must be false, but is true"),
    ({"transformer-decoder-dim-ffn": "48"}, "must be 0 or 24, but is 48"),
    ({"transformer-heads": 16}, "each of the 16 attention heads an even width, but"),
]


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tied")
    marian_npz.write_folder(folder, SHARED)
    return folder


def changed(tied: Path, folder: Path, arrays: dict, **options: object) -> Path:
    """Copy of the folder with other arrays or options."""
    folder.mkdir()
    with np.load(tied / "model.npz") as stored:
        kept = {name: stored[name] for name in stored if "special" not in name}
    every = {**kept, **arrays}
    left = {name: array for name, array in every.items() if array is not None}
    merged = {**marian_npz.OPTIONS, **options}
    marian_npz.write_npz(folder / "model.npz", left, merged)
    (folder / "vocab.spm").write_bytes((tied / "vocab.spm").read_bytes())
    return folder


@pytest.mark.parametrize(("options", "said"), REFUSED, ids=str)
def test_other_architectures_are_refused_by_name(
    tied: Path, tmp_path: Path, options: dict, said: str
) -> None:
    folder = changed(tied, tmp_path / "marian", {}, **options)
    with pytest.raises(RequestError, match=said):
        import_marian(folder, tmp_path / "model", SENTENCES)
    assert not (tmp_path / "model").exists()


ZERO = np.zeros((1, 3), dtype=np.float32)
DAMAGED = [
    ({"Wemb": ZERO}, {}, r"`Wemb` must be \(\d+, 16\) by the options"),
    ({"decoder_l1_ffn_W1": None}, {}, "but is missing"),
    ({"decoder_l1_self_bq": ZERO}, {}, r"`decoder_l1_self_bq` must be \(1, 16\)"),
    ({"Wemb": np.array([None])}, {}, "the weights are missing or damaged"),
    ({"Wemb": np.full((3, 3), np.nan, FLOAT := np.float32)}, {}, "finite numbers"),
    ({}, {"dim-emb": "many"}, "`dim-emb` must be a whole number"),
    ({}, {"dim-emb": "9" * 30}, "`dim-emb` must be from 1 to"),
    ({}, {"dim-emb": 18, "transformer-heads": 4}, "multiple of the 4 attention heads"),
    ({}, {"enc-depth": 3}, "`encoder_l3_self_Wq` must be"),
    ({}, {"enc-depth": 2_000}, "`model.num_layers` must be at most 1,000"),
    ({}, marian_npz.UNTIED, r"`encoder_Wemb` must be \(\d+, 16\) .* is missing"),
    (
        {},
        {**marian_npz.UNTIED, "tied-embeddings-src": "true"},
        r"`decoder_ff_logit_out_Wt` must be \(\d+, 16\) .* is missing",
    ),
]


@pytest.mark.parametrize(("arrays", "options", "said"), DAMAGED, ids=str)
def test_damaged_weights_are_reported(
    tied: Path, tmp_path: Path, arrays: dict, options: dict, said: str
) -> None:
    folder = changed(tied, tmp_path / "marian", arrays, **options)
    with pytest.raises(CheckpointError, match=said):
        import_marian(folder, tmp_path / "model", SENTENCES)
    assert not (tmp_path / "model").exists()


def test_weights_beyond_the_options_are_reported(tied: Path, tmp_path: Path) -> None:
    folder = changed(tied, tmp_path / "marian", {"decoder_l1_rnn_W": ZERO})
    with pytest.raises(RequestError, match=r"there are others \(decoder_l1_rnn_W\)"):
        import_marian(folder, tmp_path / "model", SENTENCES)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("decoder_ff_logit_out_Wt", {}),
        ("decoder_ff_logit_out_W", {}),
        ("encoder_Wemb", {}),
        ("decoder_ff_logit_out_b", {"output-omit-bias": "true"}),
    ],
    ids=str,
)
def test_matrices_that_the_options_tie_or_omit_are_reported(
    tied: Path, tmp_path: Path, name: str, options: dict
) -> None:
    """Marian does not read them, so the model does not compute with them."""
    folder = changed(tied, tmp_path / "marian", {name: ZERO}, **options)
    with pytest.raises(RequestError, match=rf"there are others \({name}\)"):
        import_marian(folder, tmp_path / "model", SENTENCES)


def test_quantized_weights_are_reported(tied: Path, tmp_path: Path) -> None:
    arrays = {"Wemb": np.zeros((3, 3), dtype=np.int8)}
    folder = changed(tied, tmp_path / "marian", arrays)
    with pytest.raises(RequestError, match="in fp32 or fp16, but is int8"):
        import_marian(folder, tmp_path / "model", SENTENCES)


def test_a_file_that_grows_when_it_is_unpacked_is_refused(
    tied: Path, tmp_path: Path
) -> None:
    folder = changed(tied, tmp_path / "marian", {})
    with zipfile.ZipFile(folder / "model.npz", "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb.npy", b"\0" * 50_000_000)
    with pytest.raises(CheckpointError, match="about as large as the file"):
        import_marian(folder, tmp_path / "model", SENTENCES)


@pytest.mark.parametrize("content", [b"", b"PK\3\4", b"\x80\4K\1."])
def test_a_file_that_is_no_archive_is_refused(
    tied: Path, tmp_path: Path, content: bytes
) -> None:
    folder = changed(tied, tmp_path / "marian", {})
    (folder / "model.npz").write_bytes(content)
    with pytest.raises(CheckpointError, match="missing or damaged"):
        import_marian(folder, tmp_path / "model", SENTENCES)


@pytest.mark.parametrize(
    ("local", "central", "value", "said"),
    [
        (6, 8, b"\1\0", "is encrypted"),
        (8, 10, b"\x61\0", "compression method is not supported"),
    ],
)
def test_entries_that_zipfile_cannot_unpack_are_reported(
    tied: Path, tmp_path: Path, local: int, central: int, value: bytes, said: str
) -> None:
    """Flags and method stand in the header of an entry, and in the central one."""
    folder = changed(tied, tmp_path / "marian", {})
    content = (folder / "model.npz").read_bytes()
    for header, place in ((b"PK\3\4", local), (b"PK\1\2", central)):
        first, *entries = content.split(header)
        entries = [e[: place - 4] + value + e[place - 2 :] for e in entries]
        content = header.join([first, *entries])
    (folder / "model.npz").write_bytes(content)
    with pytest.raises(CheckpointError, match=f"cannot be read .*{said}"):
        import_marian(folder, tmp_path / "model", SENTENCES)


@pytest.mark.parametrize(
    ("settings", "beam_size", "penalty", "alpha"),
    [
        ("normalize: 1\n", 12, "power", 1.0),
        ("beam-size: 3\n", 3, "power", 0.0),
        ("mini-batch: 8\n", 12, "power", 0.0),
        (None, 4, "gnmt", 0.6),
    ],
)
def test_options_of_search_that_are_missing_have_marians_defaults(
    tied: Path,
    tmp_path: Path,
    settings: str | None,
    beam_size: int,
    penalty: str,
    alpha: float,
) -> None:
    folder = changed(tied, tmp_path / "marian", {})
    if settings is not None:
        (folder / "decoder.yml").write_text(settings)
    import_marian(folder, tmp_path / "model", SENTENCES)
    search = load_model(tmp_path / "model").search
    found = (search.beam_size, search.penalty, search.length_penalty)
    assert found == (beam_size, penalty, alpha)


def test_weights_in_no_format_of_marian_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "model.intgemm.alphas.bin").write_bytes(b"x")
    (tmp_path / "decoder.yml").write_text("beam-size: 1\n")
    assert is_marian(tmp_path)
    with pytest.raises(RequestError, match=r"has only model.intgemm.alphas.bin; fetch"):
        import_marian(tmp_path, tmp_path / "model", SENTENCES)


def test_binary_weights_without_known_settings_are_marians(tmp_path: Path) -> None:
    """The students of Bergamot have settings under other names than decoder.yml."""
    packed = tmp_path / "model.intgemm.alphas.bin"
    packed.write_bytes(bytes([1, 0, 0, 0, 0, 0, 0, 0, 9]))
    assert is_marian(tmp_path)
    packed.write_bytes(b"PK\3\4")
    assert not is_marian(tmp_path)


def test_several_models_must_be_named(tied: Path, tmp_path: Path) -> None:
    folder = changed(tied, tmp_path / "marian", {})
    (folder / "model.iter1.npz").write_bytes((folder / "model.npz").read_bytes())
    with pytest.raises(RequestError, match="but has model.iter1.npz, model.npz; name"):
        import_marian(folder, tmp_path / "model", SENTENCES)
    (folder / "decoder.yml").write_text("models: [elsewhere/model.npz]\n")
    import_marian(folder, tmp_path / "model", SENTENCES)


def test_missing_vocabularies_are_reported(tied: Path, tmp_path: Path) -> None:
    folder = changed(tied, tmp_path / "marian", {})
    (folder / "vocab.spm").unlink()
    with pytest.raises(RequestError, match="must hold its vocabularies"):
        import_marian(folder, tmp_path / "model", SENTENCES)
    (folder / "vocab.yml").write_text('"</s>": 0\n"<unk>": 1\n')
    with pytest.raises(RequestError, match="must hold source.spm beside its word list"):
        import_marian(folder, tmp_path / "model", SENTENCES)


def test_a_folder_with_hugging_faces_settings_is_theirs(
    tied: Path, tmp_path: Path
) -> None:
    folder = changed(tied, tmp_path / "marian", {})
    assert is_marian(folder)
    (folder / "config.json").write_text("{}")
    assert not is_marian(folder)


HEADERS = {
    "unclosed": "{'descr': '<f4', 'shape': ",
    "truth values as a shape": "{'descr': '<f4', 'fortran_order': False, "
    "'shape': (True, 2)}",
    "a shape of petabytes": "{'descr': '<f4', 'fortran_order': False, "
    "'shape': (10000000000, 100000)}",
    "objects": "{'descr': '|O', 'fortran_order': False, 'shape': (2,)}",
}


@pytest.mark.parametrize("name", HEADERS)
def test_an_array_with_a_damaged_header_is_reported(
    tied: Path, tmp_path: Path, name: str
) -> None:
    folder = changed(tied, tmp_path / "marian", {"Wemb": None})
    header = HEADERS[name].encode().ljust(117) + b"\n"
    content = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
    with zipfile.ZipFile(folder / "model.npz", "a") as archive:
        archive.writestr("Wemb.npy", content + b"\0" * 8)
    with pytest.raises(CheckpointError, match=r"model.npz: the weights .*again\.$"):
        import_marian(folder, tmp_path / "model", SENTENCES)


@pytest.mark.parametrize("damage", ["score", "double", "map"])
def test_a_damaged_model_of_sentencepiece_is_reported(
    tied: Path, tmp_path: Path, damage: str
) -> None:
    folder = changed(tied, tmp_path / "marian", {})
    proto = ModelProto()
    proto.ParseFromString((folder / "vocab.spm").read_bytes())
    if damage == "score":
        proto.pieces[20].score = float("nan")
    elif damage == "double":
        proto.pieces[20].piece = proto.pieces[21].piece
    else:
        proto.normalizer_spec.precompiled_charsmap = b"\xff" * 20
    (folder / "vocab.spm").write_bytes(proto.SerializeToString())
    with pytest.raises(CheckpointError, match="SentencePiece is missing or damaged"):
        import_marian(folder, tmp_path / "model", SENTENCES)


@pytest.mark.parametrize("name", ["vocab.spm", "model.npz"])
@pytest.mark.parametrize("kind", ["pipe", "endless device", "folder", "huge"])
def test_a_file_that_has_no_end_is_reported(
    tied: Path, tmp_path: Path, name: str, kind: str
) -> None:
    path = changed(tied, tmp_path / "marian", {}) / name
    path.unlink()
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "endless device":
            path.symlink_to("/dev/zero")
        case "folder":
            path.mkdir()
        case _:
            with path.open("wb") as file:
                file.truncate(2**40)
    with pytest.raises(
        (CheckpointError, RequestError), match=r"marian.*(;|, but has) "
    ):
        import_marian(path.parent, tmp_path / "model", SENTENCES)
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('"</s>": 0\n<unk>: ' + "9" * 5_000, "must give the ids from 0 on"),
        ('{"</s>": [0], "<unk>": 1}', "must give the ids from 0 on"),
        ('"</s>": 0\n<unk>: 1\n"\\ud800": 2', "all pieces must be text"),
    ],
)
def test_a_damaged_word_list_is_reported(
    tied: Path, tmp_path: Path, line: str, said: str
) -> None:
    folder = changed(tied, tmp_path / "marian", {})
    for name in TWO:
        (folder / name).write_bytes((tied / "vocab.spm").read_bytes())
    (folder / "vocab.spm").unlink()
    (folder / "vocab.yml").write_text(line)
    with pytest.raises(CheckpointError, match=said):
        import_marian(folder, tmp_path / "model", SENTENCES)


def test_options_are_read_as_yaml_writes_them() -> None:
    text = (
        "\r\n# a comment\nbeam-size: 6 # hypotheses\n"
        r'separator: "#1\\\x41\U0001f642"'
        "\nvocabs: [a.spm, 'it''s.spm']\nmodels:\n  - a # first\n  - b\n"
    )
    assert read_options(text, Path("decoder.yml")) == {
        "beam-size": "6", "separator": "#1\\A🙂", "vocabs": ["a.spm", "it's.spm"],
        "models": ["a", "b"],
    }  # fmt: skip


@pytest.mark.parametrize("value", ["true", "True", "YES", "on"])
def test_truth_values_are_read_as_yaml_has_them(
    tied: Path, tmp_path: Path, value: str
) -> None:
    text = f'"allow-unk": {value}\nn-best: No\ntransformer-preprocess: n\n'
    assert read_options(text, tmp_path) == {
        "allow-unk": "true", "n-best": "false", "transformer-preprocess": "n",
    }  # fmt: skip
    folder = changed(tied, tmp_path / "marian", {})
    (folder / "decoder.yml").write_text(text)
    assert differing_options(folder) == []


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("# Don't edit: made by train.sh", {}),
        ('  # made by "train.sh": v2', {}),
        ("beam-size: 6  # it's \"the\" best: 'b'", {"beam-size": "6"}),
        ("vocabs: [ 'a.spm' ]  # it's", {"vocabs": ["a.spm"]}),
        ('vocabs: [\'a #1.spm\', "b \\" #2"] # c', {"vocabs": ["a #1.spm", 'b " #2']}),
        ("separator: 'it''s #1' # one", {"separator": "it's #1"}),
        ("model: it's#1 # one's", {"model": "it's#1"}),
        ("model: 'open # one", {"model": "'open"}),
        ("models:\n  - 'a #1' # one\n  # it's: b\n  - b", {"models": ["a #1", "b"]}),
    ],
)
def test_comments_are_left_out(line: str, expected: dict[str, object]) -> None:
    assert read_options(line, Path("decoder.yml")) == expected


@pytest.mark.parametrize(
    "line", ["{beam-size: 3}", "vocabs: [a.spm,", "two words: 3", ": 3"]
)
def test_yaml_of_another_form_is_refused(line: str) -> None:
    with pytest.raises(CheckpointError) as refused:
        read_options(f"normalize: 1\n{line}\n", Path("decoder.yml"))
    assert str(refused.value) == (
        "decoder.yml: must hold each option on one line as `name: value`, such as "
        f"`beam-size: 6`, but has the line '{line}'; write it in this form, or fetch "
        "the file again if it is damaged."
    )


@pytest.mark.parametrize(
    "text",
    [
        "models:\n" + "- a\n" * 200_000,
        "models: " + " #" * 200_000 + "'",
        "models: " + " '" * 200_001,
        'models: "' + ' \\"' * 200_000,
        "models: '" + " ''" * 200_000,
    ],
    ids=["items", "signs of comments", "quotes", "escaped quotes", "double quotes"],
)
def test_long_options_are_read_in_linear_time(text: str) -> None:
    start = time.process_time()
    read_options(text, Path("decoder.yml"))
    assert time.process_time() - start < 10


def test_options_of_decoding_that_are_not_obeyed_are_reported(
    tied: Path, tmp_path: Path
) -> None:
    folder = changed(tied, tmp_path / "marian", {})
    (folder / "decoder.yml").write_text(
        "\ufeffword-penalty: 0.5\nshortlist:\n  - lex.gz\n  - 50\nn-best: false\n",
        encoding="utf-8",
    )
    penalty, shortlist = differing_options(folder)
    assert "the option `word-penalty` = 0.5 is not applied as in Marian" in penalty
    assert "the shortlist lex.gz is not in the folder" in shortlist


@pytest.mark.parametrize("name", ["decoder.yml", "config.yml", "model.npz.yml"])
def test_options_that_are_no_file_are_reported(
    tied: Path, put_no_file: Callable[[Path], None], tmp_path: Path, name: str
) -> None:
    """Without them the model would be imported with another search."""
    path = changed(tied, tmp_path / "marian", {}) / name
    put_no_file(path)
    with pytest.raises(CheckpointError, match=rf"{name}: the file is missing or damag"):
        import_marian(path.parent, tmp_path / "model", SENTENCES)
    assert not (tmp_path / "model").exists()
