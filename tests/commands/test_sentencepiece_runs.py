"""Runs with a model of SentencePiece in place of a vocabulary that they learn."""

import json
from pathlib import Path

import jaxtyping
import pytest
import sentencepiece

import transduce
from transduce.cli import main
from transduce.model_folder import open_model
from transduce.text.sentence_pieces import SentencePieceTokenizer

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # raised by the libraries
    pytest.mark.usefixtures("no_trials"),
]
KINDS = ("bpe", "unigram")
LIKE_MARIAN = (
    "model.learned_start=false", f"model.position_base={10_000 ** (8 / 6):.10g}",
)  # fmt: skip
SETTINGS = (
    "model.d_model=8", "model.d_ff=8", "model.num_layers=1", "model.num_heads=2",
    "model.d_k=4", "model.d_v=4", "training.steps=2", "training.warmup_steps=1",
    "training.checkpoint_steps=1", "training.keep_checkpoints=2",
    "batching.source_tokens=200", "batching.target_tokens=200",
    "evaluation.hold_out=false",
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with text and models of SentencePiece. Do not change it."""
    path = tmp_path_factory.mktemp("sentencepiece")
    sources = ["the dog sleeps", "a cat sees the <x> dog", "the cats sleep"] * 8
    targets = ["der Hund schläft", "eine Katze sieht den <x>", "Katzen schlafen"] * 8
    for name, lines in (("my.en", sources), ("my.de", targets)):
        (path / name).write_text("".join(f"{each}\n" for each in lines), "utf-8")
    for kind in KINDS:
        with (path / f"{kind}.model").open("wb") as file:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(sources + targets), model_writer=file,
                model_type=kind, vocab_size=50, hard_vocab_limit=False,
                user_defined_symbols=["<x>"], minloglevel=2,
            )  # fmt: skip
    return path


def train(folder: Path, out: Path, *settings: str) -> int:
    files = ("--source", folder / "my.en", "--target", folder / "my.de")
    options = ("--preset", "multi30k", "--device", "cpu", "--out", out)
    words = ("train", *files, *options, "--set", *SETTINGS, *settings)
    try:
        main([*map(str, words)])
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@pytest.fixture(scope="module", params=KINDS)
def run(request: pytest.FixtureRequest, folder: Path) -> tuple[Path, Path]:
    """Model of SentencePiece, and a run with it. Do not change them."""
    model, out = folder / f"{request.param}.model", folder / "runs" / request.param
    assert train(folder, out, f"tokenizer.model={model}") == 0
    return model, out


def test_a_run_cuts_text_as_its_model_of_sentencepiece(run) -> None:
    model, out = run
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(model))
    tokenizer = open_model(out).tokenizer
    assert isinstance(tokenizer, SentencePieceTokenizer)
    for text in ("the dogs sleep<x> a", "Der Hund sieht Katzen."):
        pieces = theirs.encode(text, out_type=str)
        known = [
            p if theirs.piece_to_id(p) != theirs.unk_id() else "<unk>" for p in pieces
        ]
        assert [tokenizer.vocabulary[i] for i in tokenizer.encode(text)] == known
    # <s> and </s> are special tokens of both; <pad> is one of ours alone.
    assert tokenizer.vocab_size == theirs.get_piece_size() + 1
    assert isinstance(transduce.load(out, device="cpu").translate("the dog").text, str)


@pytest.mark.parametrize("target", ["ctranslate2", "marian", "onnx"])
def test_a_run_with_a_model_of_sentencepiece_is_exported(
    run: tuple[Path, Path], target: str, tmp_path: Path
) -> None:
    _, out = run
    # While PyTorch exports, sizes are symbols, which are no integers to jaxtyping.
    jaxtyping.config.update("jaxtyping_disable", target == "onnx")
    try:
        main(["export", str(out), "--to", target, "--out", str(tmp_path / "out")])
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_with_marians_settings_is_exported_there(
    folder: Path, kind: str, tmp_path: Path
) -> None:
    model = f"tokenizer.model={folder / kind}.model"
    assert train(folder, tmp_path / "run", model, *LIKE_MARIAN) == 0
    folders = [str(tmp_path / name) for name in ("run", "out", "again")]
    main(["export", folders[0], "--to", "marian-npz", "--out", folders[1]])
    assert (tmp_path / "out" / "vocab.spm").is_file()
    main(["import", folders[1], "--out", folders[2]])
    texts = ["the dogs sleep<x> a", "龘 Katzen"]
    ours, again = (open_model(tmp_path / each).tokenizer for each in ("run", "again"))
    assert again.encode_sources(texts) == ours.encode_sources(texts)


def test_a_run_is_recorded_and_continued_without_the_file(folder, tmp_path) -> None:
    model = tmp_path / "my.model"
    model.write_bytes((folder / "bpe.model").read_bytes())
    out = tmp_path / "run"
    assert train(folder, out, f"tokenizer.model={model}") == 0
    record = json.loads((out / "config.json").read_text("utf-8"))
    assert record["settings"]["tokenizer"]["model"] == str(model)
    model.unlink()
    main(["train", "--out", str(out), "--resume", "--set", "training.steps=3"])
    assert list(out.glob("checkpoints/*3"))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("none.model", "the model of SentencePiece is missing or damaged"),
        ("my.en", "the model of SentencePiece is missing or damaged"),
    ],
)
def test_a_file_that_is_no_model_is_reported(folder, name, said, tmp_path, capsys):
    path = folder / name
    assert train(folder, tmp_path / "run", f"tokenizer.model={path}") == 2
    error = capsys.readouterr().err
    assert f"{path}: {said}" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_byte_pairs_of_sentencepiece_allow_no_sampling(folder, tmp_path, capsys):
    for name in ("subword_alpha", "subword_dropout"):
        settings = (
            f"tokenizer.model={folder / 'bpe.model'}",
            f"augmentation.{name}=0.1",
        )
        assert train(folder, tmp_path / "run", *settings) == 2
        assert f"`augmentation.{name}`" in capsys.readouterr().err
    settings = (
        f"tokenizer.model={folder / 'unigram.model'}",
        "augmentation.subword_alpha=0.1",
    )
    assert train(folder, tmp_path / "run", *settings) == 0


def test_check_takes_the_model_of_sentencepiece(folder, capsys) -> None:
    files = ("--source", folder / "my.en", "--target", folder / "my.de")
    model = f"tokenizer.model={folder / 'bpe.model'}"
    words = (
        "check",
        *files,
        "--preset",
        "multi30k",
        "--set",
        model,
        "evaluation.hold_out=false",
    )
    main([*map(str, words)])
    shown = capsys.readouterr().out
    assert "pieces of `tokenizer.vocab_size`" not in shown
    assert "Training would start" in shown


def test_a_parser_has_no_model_of_sentencepiece(tmp_path, capsys) -> None:
    (tmp_path / "my.mrg").write_text("(S (NP (DT the) (NN dog)) (VP (VBZ runs)))\n" * 9)
    words = ("train", "--trees", tmp_path / "my.mrg", "--out", tmp_path / "run")
    words += ("--set", "tokenizer.model=any.model", "evaluation.hold_out=false")
    with pytest.raises(SystemExit) as end:
        main([*map(str, words)])
    assert end.value.code == 2
    assert "`tokenizer.model` is a setting of translators" in capsys.readouterr().err
