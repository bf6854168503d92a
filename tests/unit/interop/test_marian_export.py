"""Imported Marian models against the library `transformers`."""

import json
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import marian_folder as folders
from transduce.checkpoint import load_model
from transduce.decoding.torch_model import available_precisions, prepare_model
from transduce.decoding.translator import Translator
from transduce.grammar.corpus import Grammar
from transduce.interop import ctranslate2 as to_ctranslate2
from transduce.interop import marian_export as exporting
from transduce.interop import marian_import as importing
from transduce.interop.marian_import import read_settings
from transduce.search_config import SearchConfig
from transduce.text.vocabulary import BOS, EOS, PAD

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # raised by the libraries
]
CPU = torch.device("cpu")
SENTENCES = [
    pair.source for pair in islice(Grammar.built_in().training_sentences(seed=9), 8)
]
HARD_TEXTS = [
    "",
    "  \t ",
    "The dog  runs to  the café, ﬁne ½ …!",
    "我们 a中文b 龘靐",
    "👩‍👩‍👧‍👦 🇩🇪 the dog🙂",
    "Z̸̡͎a̶̛͜l̵͓̈́ ﬁ\u0301 A\u030a \u1100\u1161 ｆｕｌｌ",
    "<s> </s> <pad> <unk> ▁ ▁▁the",
    ">>deu<< The dog runs.",
    ">>xyz<<The dog >>deu<<",
    "a\u00a0b\u3000c\u2028d\0\x01\x7f\ufeff",
]


@pytest.fixture(scope="module")
def imported(marian_folder, tmp_path_factory):
    """Imported model folder and its proof."""
    out = tmp_path_factory.mktemp("imported") / "model"
    return out, importing.import_model(marian_folder, out, [*HARD_TEXTS, *SENTENCES])


@pytest.fixture(scope="module")
def checkpoint(imported):
    return load_model(imported[0])


@pytest.fixture(scope="module")
def marian(marian_folder):
    return transformers.MarianMTModel.from_pretrained(marian_folder).eval()


@pytest.fixture(scope="module")
def their_tokenizer(marian_folder):
    return transformers.AutoTokenizer.from_pretrained(marian_folder)


@pytest.fixture(scope="module")
def their_ids(marian):
    """Ids of the Marian tokenizer by ours."""
    special = [marian.config.pad_token_id] * 2 + [marian.config.eos_token_id]
    return [*special, *(i for i in range(marian.config.vocab_size) if i not in special)]


def test_an_imported_model_is_proven(imported):
    _, found = imported
    assert found.num_sentences == len(HARD_TEXTS) + len(SENTENCES)
    assert found.num_tokens > 100
    # Only the order of sums differs.
    assert found.max_difference < 1e-4


def test_an_imported_model_differs_by_rounding_only(checkpoint, marian_folder):
    assert difference(checkpoint, marian_folder) < 1e-9


def test_an_imported_model_has_marians_settings(checkpoint, marian):
    config = checkpoint.config
    assert (config.num_layers, config.decoder_layers) == (2, None)
    assert (config.d_model, config.d_ff, config.num_heads) == (16, 20, 2)
    assert (config.d_k, config.d_v, config.dropout) == (8, 8, 0.1)
    assert (config.activation, config.norm_epsilon) == ("silu", 1e-5)
    assert (config.norm, config.positions, config.output_bias) == (
        "post", "sinusoidal", True,
    )  # fmt: skip
    # The start token has an embedding of its own.
    assert config.vocab_size == marian.config.vocab_size + 1


THEIR_USUAL = {"patience": 1.0, "penalty": "power", "length_penalty": 1.0}
SEARCHES = [
    ({}, SearchConfig(beam_size=4, **THEIR_USUAL)),
    ({"num_beams": 1}, SearchConfig(beam_size=1, **THEIR_USUAL)),
    (
        {"num_beams": 6, "length_penalty": 0.8, "early_stopping": True},
        SearchConfig(beam_size=6, **{**THEIR_USUAL, "length_penalty": 0.8}),
    ),
    (
        {"early_stopping": "never"},
        SearchConfig(beam_size=4, **{**THEIR_USUAL, "patience": None}),
    ),
    ({"num_beams": "left out"}, SearchConfig(beam_size=1, **THEIR_USUAL)),
]


@pytest.mark.parametrize(("changes", "expected"), SEARCHES, ids=str)
def test_an_imported_model_keeps_marians_search(changes, expected, folder):
    folders.change_settings(folder / "generation_config.json", **changes)
    # The library's limit of 96 tokens counts the start token.
    limited = replace(expected, max_length=94)
    assert read_settings(folder).search == limited


def test_an_older_folder_has_its_search_in_config_json(folder):
    (folder / "generation_config.json").unlink()
    greedy = SearchConfig(beam_size=1, **THEIR_USUAL)
    assert read_settings(folder).search == greedy
    folders.change_settings(folder / "config.json", num_beams=6)
    assert read_settings(folder).search == SearchConfig(beam_size=6, **THEIR_USUAL)


def test_an_imported_model_uses_its_own_search(checkpoint):
    expected = SearchConfig(beam_size=4, max_length=94, **THEIR_USUAL)
    assert checkpoint.search == expected


@pytest.mark.parametrize("side", ["source", "target"])
def test_ids_equal_those_of_marians_tokenizer(
    side, checkpoint, their_tokenizer, their_ids
):
    name = "text" if side == "source" else "text_target"
    encode = getattr(checkpoint.tokenizer, f"encode_{side}s")
    for text in [*HARD_TEXTS, *SENTENCES]:
        # There an unknown tag is one unknown token, here it is text.
        given = text.replace(">>xyz<<", " >>xyz<<")
        theirs = their_tokenizer(**{name: given}, split_special_tokens=True).input_ids
        [ours] = encode([text])
        assert [their_ids[i] for i in [*ours, EOS]] == theirs


def test_texts_equal_those_of_marians_tokenizer(checkpoint, their_tokenizer, their_ids):
    torch.manual_seed(6)
    size = checkpoint.config.vocab_size
    rows = [torch.randint(size, (length,)).tolist() for length in range(1, 60)]
    for ids in [*rows, *checkpoint.tokenizer.encode_sources(HARD_TEXTS)]:
        theirs = [their_ids[i] for i in ids]
        text = their_tokenizer.decode(theirs, skip_special_tokens=True)
        assert checkpoint.tokenizer.decode(ids) == " ".join(text.split())


def generate(marian, their_tokenizer, text: str, **settings: object):
    inputs = their_tokenizer(text, return_tensors="pt", split_special_tokens=True)
    output = marian.generate(
        **inputs,
        max_length=None,
        max_new_tokens=inputs.input_ids.size(1) + 10,
        forced_eos_token_id=None,
        return_dict_in_generate=True,
        output_scores=True,
        **settings,
    )
    return their_tokenizer.decode(output.sequences[0], skip_special_tokens=True), output


def test_greedy_translations_equal_those_of_transformers(
    checkpoint, marian, their_tokenizer
):
    translator = Translator(checkpoint, CPU)
    ours = translator.translate(SENTENCES, beam_size=1, extra_length=10)
    for text, translation in zip(SENTENCES, ours, strict=True):
        expected, _ = generate(marian, their_tokenizer, text, num_beams=1)
        assert translation.text == " ".join(expected.split())


def test_beam_search_finds_the_translations_of_transformers_or_better_ones(
    checkpoint, marian, their_tokenizer
):
    search = SearchConfig(
        beam_size=4, penalty="power", length_penalty=0.5, extra_length=10
    )
    found = Translator(checkpoint, CPU).translate_stream(SENTENCES, search)
    same = 0
    for text, ours in zip(SENTENCES, found, strict=True):
        expected, output = generate(
            marian, their_tokenizer, text, num_beams=4, length_penalty=0.5
        )
        score = output.sequences_scores.item()
        assert ours.score > score - 1e-4
        # `transformers` discards an end that is not among the first four of its step.
        if ours.score < score + 1e-4:
            assert ours.text == " ".join(expected.split())
            same += 1
    assert same >= 4


@pytest.mark.parametrize("length_penalty", [0.0, 0.5, 1.0])
def test_beam_search_with_patience_equals_that_of_transformers(
    checkpoint, marian, their_tokenizer, length_penalty
):
    search = SearchConfig(
        beam_size=4,
        patience=1,
        penalty="power",
        length_penalty=length_penalty,
        extra_length=10,
    )
    found = Translator(checkpoint, CPU).translate_stream(SENTENCES, search)
    for text, ours in zip(SENTENCES, found, strict=True):
        expected, output = generate(
            marian,
            their_tokenizer,
            text,
            num_beams=4,
            length_penalty=length_penalty,
            early_stopping=True,
        )
        assert ours.text == " ".join(expected.split())
        assert ours.score == pytest.approx(output.sequences_scores.item(), abs=1e-4)


def test_each_part_of_a_long_line_starts_with_its_language_code(checkpoint):
    translator = Translator(checkpoint, CPU)
    clauses = "The dog runs to the hill, and " * 10
    parts = [f"{clauses}a cat is at the house.", f"{clauses}the house is at a hill."]
    [whole] = translator.translate([f">>deu<< {' '.join(parts)}"], beam_size=1)
    alone = translator.translate([f">>deu<<{part}" for part in parts], beam_size=1)
    assert whole.num_parts == 2
    assert whole.score == pytest.approx(sum(part.score for part in alone), abs=1e-4)


def test_scores_equal_the_log_probabilities_of_transformers(
    checkpoint, marian, their_tokenizer, their_ids
):
    source, target = SENTENCES[:2]
    [score] = Translator(checkpoint, CPU).score([source], [target])
    labels = their_tokenizer(text_target=target, return_tensors="pt").input_ids
    inputs = their_tokenizer(source, return_tensors="pt")
    with torch.no_grad():
        logits = marian(**inputs, labels=labels).logits[0]
    # Padding is never generated, and so has no probability.
    logits[:, marian.config.pad_token_id] = -torch.inf
    expected = logits.log_softmax(-1).gather(-1, labels[0, :, None]).sum()
    assert score.log_probability == pytest.approx(expected.item(), abs=1e-3)
    assert score.num_tokens == labels.numel()


@pytest.mark.parametrize("precision", available_precisions(CPU))
def test_every_precision_computes_activation_and_output_bias(checkpoint, precision):
    source, target = torch.tensor([[9, 10, 11, EOS]]), torch.tensor([[BOS, 12, 13]])
    with torch.no_grad():
        exact = checkpoint.build()(source, target)
        rough = (
            prepare_model(checkpoint.build(), precision, CPU)
            .model(source, target)
            .float()
        )
    spread = float((exact[..., EOS:] - exact[..., EOS:].mean()).std())
    assert float((rough - exact)[..., EOS:].abs().mean()) < 0.1 * spread
    assert float(rough[..., [PAD, BOS]].max()) < -9_000
    bias = checkpoint.weights["embedding.bias"][EOS:]
    assert float(bias.std()) > 0.3 * spread


OTHERS = {
    "a shallow decoder": {"decoder_layers": 1},
    "a deep decoder": {"encoder_layers": 1, "decoder_layers": 2},
    "rectified": {"activation_function": "relu"},
    "a start of its own": {"decoder_start_token_id": 3},
    "a start that is the end": {"decoder_start_token_id": 0},
    "outputs as tuples": {"return_dict": False},
    "other dropouts": {
        "dropout": 0.25,
        "attention_dropout": 0.15,
        "activation_dropout": 0.05,
    },
}


@torch.no_grad()
def difference(checkpoint, folder: Path) -> float:
    """Largest difference of log-probabilities and logits, in double precision."""
    theirs = transformers.MarianMTModel.from_pretrained(folder).double().eval()
    config = theirs.config
    config.return_dict = True
    special = [config.pad_token_id, config.decoder_start_token_id, config.eos_token_id]
    others = [i for i in range(config.vocab_size) if i not in special]
    ids = torch.tensor([*special, *others])
    source = torch.randint(3, len(ids), (1, 20))
    target = torch.cat([torch.tensor([[BOS]]), torch.randint(3, len(ids), (1, 30))], 1)
    ours = checkpoint.build().double()(source, target)
    logits = theirs(input_ids=ids[source], decoder_input_ids=ids[target]).logits
    if config.decoder_start_token_id in (config.pad_token_id, config.eos_token_id):
        logits[..., config.pad_token_id] = -torch.inf  # is never generated
    pairs = ((logits, ours), (logits.log_softmax(-1), ours.log_softmax(-1)))
    return max(
        float((theirs[..., ids] - ours)[..., EOS:].abs().max())
        for theirs, ours in pairs
    )


@pytest.mark.parametrize("changes", OTHERS.values(), ids=OTHERS.keys())
def test_models_of_other_settings_are_proven(changes, folder, tmp_path):
    content = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    folders.random_model(
        transformers.MarianConfig(**{**content, **changes})
    ).save_pretrained(folder)
    importing.import_model(folder, tmp_path / "out", SENTENCES[:3])
    checkpoint = load_model(tmp_path / "out")
    config = checkpoint.config
    rates = (config.dropout, config.attention_dropout, config.relu_dropout)
    assert rates == (
        changes.get("dropout", 0.1),
        changes.get("attention_dropout", 0.0),
        changes.get("activation_dropout", 0.0),
    )
    assert difference(checkpoint, folder) < 1e-9


def test_half_precision_weights_are_proven(folder, tmp_path):
    path = folder / "model.safetensors"
    halves = {name: weight.half() for name, weight in load_file(path).items()}
    save_file(halves, path, metadata={"format": "pt"})
    folders.change_settings(folder / "config.json", dtype="float16")
    assert (
        importing.import_model(folder, tmp_path / "out", SENTENCES[:2]).max_difference
        < 1e-4
    )
    weights = load_model(tmp_path / "out").weights.values()
    assert {weight.dtype for weight in weights} == {torch.float32}


def test_the_shared_matrix_may_be_stored_under_all_its_names(
    folder, imported, tmp_path
):
    path = folder / "model.safetensors"
    weights = load_file(path)
    shared = weights["model.shared.weight"]
    for stack in ("encoder", "decoder"):
        weights[f"model.{stack}.embed_tokens.weight"] = shared.clone()
    weights["lm_head.weight"] = shared.clone()
    save_file(weights, path, metadata={"format": "pt"})
    importing.import_model(folder, tmp_path / "out", SENTENCES[:1])
    assert_same(load_model(tmp_path / "out"), load_model(imported[0]))


def assert_same(one, other) -> None:
    assert one.config == other.config
    assert one.tokenizer == other.tokenizer
    assert one.weights.keys() == other.weights.keys()
    for name, weight in one.weights.items():
        assert torch.equal(weight, other.weights[name]), name


def test_an_exported_model_can_be_imported(trained_checkpoint, tmp_path):
    exporting.export(trained_checkpoint, tmp_path / "exported", ["one two"])
    importing.import_model(
        tmp_path / "exported", tmp_path / "model", ["one two", "five 中"]
    )
    back = load_model(tmp_path / "model")
    # `transformers` has a fixed epsilon.
    config = replace(trained_checkpoint.config, norm_epsilon=1e-5)
    assert_same(back, replace(trained_checkpoint, config=config))


def test_a_start_that_is_not_learned_comes_back_unless_it_was_trained(
    trained_checkpoint, tmp_path
):
    weights = {name: each.clone() for name, each in trained_checkpoint.weights.items()}
    weights["embedding.weight"][BOS] = 0
    config = replace(trained_checkpoint.config, learned_start=False)
    zero = replace(trained_checkpoint, config=config, weights=weights)
    exporting.export(zero, tmp_path / "exported", ["one two"])
    importing.import_model(tmp_path / "exported", tmp_path / "model", ["one two"])
    assert not load_model(tmp_path / "model").config.learned_start
    path = tmp_path / "exported" / "model.safetensors"
    theirs = load_file(path)
    theirs["model.shared.weight"][BOS] = 0.1
    save_file(theirs, path, metadata={"format": "pt"})
    importing.import_model(tmp_path / "exported", tmp_path / "other", ["one two"])
    assert load_model(tmp_path / "other").config.learned_start


def test_an_imported_model_can_be_exported_and_imported_again(checkpoint, tmp_path):
    exporting.export(checkpoint, tmp_path / "exported", [*HARD_TEXTS, *SENTENCES])
    importing.import_model(tmp_path / "exported", tmp_path / "model", SENTENCES[:2])
    assert_same(load_model(tmp_path / "model"), checkpoint)


def test_an_imported_model_can_be_exported_to_ctranslate2(checkpoint, tmp_path):
    found = to_ctranslate2.export(checkpoint, tmp_path / "out", SENTENCES[:3])
    assert found.num_tokens > 2
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"source.spm", "target.spm", "vocab.json"} <= names


def test_control_symbols_do_not_appear_in_text(folder, tmp_path):
    path = folder / "vocab.json"
    ids = json.loads(path.read_text(encoding="utf-8"))
    ids = {"<s>" if piece == ">>fra<<" else piece: i for piece, i in ids.items()}
    path.write_text(json.dumps(ids), encoding="utf-8")
    folders.save_tokenizer(folder)
    importing.import_model(folder, tmp_path / "out", [*HARD_TEXTS, SENTENCES[0]])
    tokenizer = load_model(tmp_path / "out").tokenizer
    control = tokenizer.vocabulary.index("")
    assert tokenizer.decode([control, *tokenizer.encode("the dog")]) == "the dog"
    assert control not in tokenizer.encode("<s>")


def test_a_folder_is_imported_without_network_access(tmp_path, monkeypatch):
    monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("a network"))
    folder = folders.write_marian_folder(tmp_path / "marian", encoder_layers=1)
    importing.import_model(folder, tmp_path / "out", SENTENCES[:1])


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_a_model_with_bytes_and_symbols_is_imported_and_exported(kind, tmp_path):
    symbols = {"model_type": kind, "user_defined_symbols": ["<x>", "dog"]}
    folders.write_marian_folder(tmp_path / "marian", {**folders.BYTES, **symbols})
    sentences = [*filter(str.strip, HARD_TEXTS), "The<x> dogs <x><x>"]
    importing.import_model(tmp_path / "marian", tmp_path / "model", sentences)
    checkpoint = load_model(tmp_path / "model")
    assert checkpoint.tokenizer.source.spells_bytes
    assert checkpoint.tokenizer.source.symbols == ("<x>", "dog")
    exporting.export(checkpoint, tmp_path / "out", sentences)
    importing.import_model(tmp_path / "out", tmp_path / "again", sentences)
    again = load_model(tmp_path / "again")
    assert again.tokenizer == checkpoint.tokenizer
    assert torch.equal(
        again.weights["embedding.weight"], checkpoint.weights["embedding.weight"]
    )
