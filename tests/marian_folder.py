"""Folder in OPUS-MT's format, with a small random model and small tokenizers."""

import json
from collections.abc import Mapping
from itertools import islice
from pathlib import Path

import sentencepiece
import torch
from transformers import GenerationConfig, MarianConfig, MarianMTModel, MarianTokenizer

from transduce.grammar.corpus import Grammar

NUM_SENTENCES = 300
VOCAB_SIZE = 150
LANGUAGES = (">>deu<<", ">>fra<<")
END_BIAS = 2.0
"""Bias of the end token, so large that some translations end."""
FORMS = "naïve café Straße ﬁne ½ … „ “ — ™"
"""Characters that the built-in grammar does not have."""


BYTES: dict[str, object] = {"byte_fallback": True, "vocab_size": 420}
"""Settings of a SentencePiece model that spells unknown characters by bytes."""


def write_marian_folder(
    folder: Path, trainer: Mapping[str, object] | None = None, **changes: object
) -> Path:
    """Write the folder, with changed settings of SentencePiece and `MarianConfig`."""
    folder.mkdir(parents=True)
    pairs = list(islice(Grammar.built_in().training_sentences(seed=3), NUM_SENTENCES))
    for side in ("source", "target"):
        sentences = [getattr(pair, side) for pair in pairs]
        write_sentencepiece(sentences, folder / f"{side}.spm", **(trainer or {}))
    vocab_size = write_vocabulary(folder)
    save_tokenizer(folder)
    settings: dict[str, object] = {
        "vocab_size": vocab_size, "d_model": 16, "encoder_layers": 2,
        "decoder_layers": 2, "encoder_attention_heads": 2,
        "decoder_attention_heads": 2, "encoder_ffn_dim": 20, "decoder_ffn_dim": 20,
        "activation_function": "swish", "scale_embedding": True,
        "static_position_embeddings": True, "max_position_embeddings": 96,
        "pad_token_id": vocab_size - 1, "decoder_start_token_id": vocab_size - 1,
        "eos_token_id": 0, "bos_token_id": 0, "forced_eos_token_id": None,
    }  # fmt: skip
    model = random_model(MarianConfig(**{**settings, **changes}))
    model.save_pretrained(folder)
    return folder


def write_sentencepiece(sentences: list[str], path: Path, **changes: object) -> None:
    with path.open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter([*sentences, FORMS]),
            model_writer=file,
            minloglevel=2,
            **{"vocab_size": VOCAB_SIZE, "hard_vocab_limit": False, **changes},
        )


def write_vocabulary(folder: Path) -> int:
    """Write the pieces of both languages; return their number."""
    pieces = dict.fromkeys(["</s>", "<unk>", *LANGUAGES])
    for name in ("source.spm", "target.spm"):
        model = sentencepiece.SentencePieceProcessor(model_file=str(folder / name))
        ordinary = range(3, model.get_piece_size())
        # Some pieces are missing, as is allowed.
        pieces |= dict.fromkeys(model.id_to_piece(i) for i in ordinary if i % 17)
    names = [*pieces, "<pad>"]
    ids = {piece: i for i, piece in enumerate(names)}
    (folder / "vocab.json").write_text(json.dumps(ids), encoding="utf-8")
    return len(ids)


def save_tokenizer(folder: Path) -> None:
    files = ("source.spm", "target.spm", "vocab.json")
    MarianTokenizer(*(str(folder / name) for name in files)).save_pretrained(folder)


def random_model(config: MarianConfig) -> MarianMTModel:
    """Model with random biases and gains too, so that a missing one is noticed."""
    torch.manual_seed(4)
    model = MarianMTModel(config)
    for name, weight in model.named_parameters():
        if "embed_positions" not in name:
            mean = 1.0 if "norm.weight" in name else 0.0
            torch.nn.init.normal_(weight, mean, std=0.5)
    if config.share_encoder_decoder_embeddings:
        model.model.shared.weight.data[config.pad_token_id] = 0
    torch.nn.init.normal_(model.final_logits_bias)
    model.final_logits_bias[:, config.pad_token_id] = 0
    model.final_logits_bias[:, config.eos_token_id] = END_BIAS
    model.tie_weights()
    model.generation_config = GenerationConfig(
        num_beams=4,
        max_length=96,
        bad_words_ids=[[config.pad_token_id]],
        renormalize_logits=True,
        pad_token_id=config.pad_token_id,
        eos_token_id=config.eos_token_id,
        decoder_start_token_id=config.decoder_start_token_id,
        forced_eos_token_id=config.eos_token_id,
    )
    return model


def change_settings(path: Path, **settings: object) -> None:
    """Change settings of a JSON file; the value "left out" removes one."""
    content = {**json.loads(path.read_text(encoding="utf-8")), **settings}
    left = {name: value for name, value in content.items() if value != "left out"}
    path.write_text(json.dumps(left), encoding="utf-8")


UNTIED: dict[str, dict[str, object]] = {
    "two vocabularies": {"share_encoder_decoder_embeddings": False},
    "two vocabularies, nothing tied": {
        "share_encoder_decoder_embeddings": False, "tie_word_embeddings": False,
    },
    "two embeddings": {"share_encoder_decoder_embeddings": False},
    "nothing tied": {
        "share_encoder_decoder_embeddings": False, "tie_word_embeddings": False,
    },
    "nothing tied, a shared matrix without use": {"tie_word_embeddings": False},
}  # fmt: skip
"""Settings of folders with several matrices of embeddings, by a description."""


def write_untied_folder(folder: Path, name: str) -> Path:
    """Write a folder with the settings of `UNTIED`."""
    has_two = name.startswith("two vocabularies")
    first = write_marian_folder(folder)
    settings = json.loads((first / "config.json").read_text(encoding="utf-8"))
    target_vocab_size = vocab_size = settings["vocab_size"]
    if has_two:
        vocab_size, target_vocab_size = split_vocabulary(folder)
    (folder / "model.safetensors").unlink()
    # Hugging Face needs padding with one id in both.
    start = 99 if has_two else target_vocab_size - 1
    config = MarianConfig(
        **{
            **settings, **UNTIED[name], "vocab_size": vocab_size,
            "decoder_vocab_size": target_vocab_size, "pad_token_id": start,
            "decoder_start_token_id": start,
        }
    )  # fmt: skip
    random_model(config).save_pretrained(folder)
    return folder


def split_vocabulary(folder: Path) -> tuple[int, int]:
    """Give each language a vocabulary of its own, of different sizes."""
    sizes = []
    for side, language, name in (
        ("source", LANGUAGES[:1], "vocab.json"),
        ("target", (), "target_vocab.json"),
    ):
        model = sentencepiece.SentencePieceProcessor(
            model_file=str(folder / f"{side}.spm")
        )
        ordinary = map(model.id_to_piece, range(3, model.get_piece_size()))
        pieces = ["</s>", "<unk>", *language, *ordinary]
        # Of sources, some pieces are missing, as is allowed.
        pieces = [*pieces[:99], "<pad>", *pieces[99 : 140 if side == "source" else 149]]
        ids = {piece: i for i, piece in enumerate(pieces)}
        (folder / name).write_text(json.dumps(ids), encoding="utf-8")
        sizes.append(len(ids))
    MarianTokenizer(
        *(str(folder / name) for name in ("source.spm", "target.spm", "vocab.json")),
        target_vocab_file=str(folder / "target_vocab.json"),
        separate_vocabs=True,
    ).save_pretrained(folder)
    return sizes[0], sizes[1]
