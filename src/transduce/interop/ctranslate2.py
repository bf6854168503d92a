"""Export to CTranslate2: a folder that `ctranslate2.Translator` loads, and a tokenizer.

    pieces = tokenizers.Tokenizer.from_file("DIR/tokenizer.json")
    translator = ctranslate2.Translator("DIR")
    source = pieces.encode(text, add_special_tokens=False).tokens
    never = [["<pad>"], ["<s>"]]
    result = translator.translate_batch([source], beam_size=4, suppress_sequences=never)

An imported model has source.spm, target.spm and vocab.json in place of tokenizer.json;
`transformers.AutoTokenizer.from_pretrained("DIR")` reads them.

Spaces in pieces are written as U+2581, as in SentencePiece. If the model has a
shortlist, vmap.txt holds it: `translate_batch(..., use_vmap=True)` then chooses among
the candidates of all sentences of a batch.

It has 2,048 positions, and truncates sources to 1,024 tokens by default. By default it
ranks by the mean log-probability (a power penalty of 1).
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np
import torch
from ctranslate2.specs import TransformerSpec
from ctranslate2.specs.common_spec import Activation
from jaxtyping import Float
from torch import Tensor

from transduce.checkpoint import Checkpoint
from transduce.files import atomic_directory
from transduce.interop.export import (
    MAX_LENGTH,
    GreedyOutput,
    Proof,
    embedding_names,
    prove,
    prove_choices,
    require,
    require_plain_attention,
    require_short,
    require_text,
    weights_for_scaled_scores,
)
from transduce.interop.portable_tokenizer import portable_pieces, write_portable
from transduce.model.embedding import sinusoids
from transduce.text.sentence_pieces import SPACE
from transduce.text.shortlist import Shortlist
from transduce.text.vocabulary import BOS, EOS, PAD, SPECIAL_PIECES

MAX_POSITIONS = 2_048
"""Number of positions in the table. The sinusoids are stored, since CTranslate2's own
differ from the paper's."""
TARGET = "CTranslate2"
CANDIDATES = "vmap.txt"
WHITE = re.compile(r"[ \t\r\n]")
"""Pattern of the characters that separate pieces and lines of `CANDIDATES`."""
ACTIVATIONS = {"relu": Activation.RELU, "silu": Activation.SWISH}


def export(
    checkpoint: Checkpoint,
    folder: Path,
    sentences: Sequence[str],
    *,
    overwrite: bool = False,
) -> Proof:
    """Write the folder once the proof on the sentences succeeds.

    Raises `RequestError` if the format cannot hold the model, `ProofError` if the proof
    fails.
    """
    require_text(TARGET, checkpoint)
    require(TARGET, checkpoint.transformer_config, decoder_self_attention="attention")
    require_plain_attention(TARGET, checkpoint.transformer_config)
    require_short(sentences, checkpoint.tokenizer, MAX_POSITIONS)
    pieces = portable_pieces(checkpoint.tokenizer, SPACE)

    with atomic_directory(
        folder, "export --to ctranslate2", overwrite=overwrite
    ) as new:
        tokenizer = write_portable(checkpoint.tokenizer, new, SPACE)
        _spec(checkpoint, pieces).save(str(new))
        if (shortlist := checkpoint.shortlist) is not None:
            (new / CANDIDATES).write_text(
                vocabulary_map(shortlist, pieces), encoding="utf-8"
            )
        exported = _Exported(new, pieces)
        proof = prove(exported, tokenizer, checkpoint, sentences)
        if shortlist is not None:
            chosen = partial(exported.greedy_ids, max_length=MAX_LENGTH)
            among = partial(shortlist.candidates, base=shortlist.base())
            prove_choices(chosen, checkpoint, sentences, among)
        return proof


def vocabulary_map(shortlist: Shortlist, pieces: Sequence[str]) -> str:
    """Return candidates line by line: a source piece, a tab, and its target pieces.

    The line without a source piece has the candidates of all sentences.
    """
    for_all_sentences = [*shortlist.frequent.tolist(), *shortlist.always.tolist()]
    starts = [0, *shortlist.ends.tolist()]
    # A piece without text, such as a control symbol, would begin a second line for all
    # sentences, and spaces separate the candidates. No text has such a piece.
    can_be_written = [bool(piece) and not WHITE.search(piece) for piece in pieces]

    def listed(targets: Iterable[int]) -> str:
        return " ".join(pieces[i] for i in targets if can_be_written[i])

    lines = ["\t" + listed(for_all_sentences)]
    for piece in range(EOS + 1, shortlist.vocab_size):
        if not can_be_written[piece]:
            continue
        targets = shortlist.targets[starts[piece] : starts[piece + 1]].tolist()
        own = [piece] if piece < shortlist.target_vocab_size else []
        lines.append(f"{pieces[piece]}\t{listed(dict.fromkeys([*own, *targets]))}")
    return "\n".join(lines) + "\n"


class _Exported:
    def __init__(self, folder: Path, pieces: Sequence[str]) -> None:
        self._translator = ctranslate2.Translator(str(folder), compute_type="float32")
        self._pieces = pieces
        self._ids = {piece: i for i, piece in enumerate(pieces)}

    def greedy(self, source: list[int], max_length: int) -> GreedyOutput:
        result = self._translate(source, max_length, return_logits_vocab=True)
        ids = self._ids_of(result)
        logits = [
            torch.from_numpy(np.array(step)).flatten() for step in result.logits[0]
        ]
        return GreedyOutput(ids=ids, logits=torch.stack(logits[: len(ids)]))

    def greedy_ids(self, source: list[int], max_length: int) -> list[int]:
        """Translate with the candidates of `CANDIDATES`."""
        return self._ids_of(self._translate(source, max_length, use_vmap=True))

    def _translate(self, source: list[int], max_length: int, **options: bool) -> Any:
        (result,) = self._translator.translate_batch(
            [[self._pieces[i] for i in source]],
            beam_size=1,
            max_input_length=0,
            min_decoding_length=0,
            max_decoding_length=max_length,
            return_end_token=True,
            suppress_sequences=[[SPECIAL_PIECES[PAD]], [SPECIAL_PIECES[BOS]]],
            **options,
        )
        return result

    def _ids_of(self, result: Any) -> list[int]:
        return [self._ids[piece] for piece in result.hypotheses[0]]


def _spec(checkpoint: Checkpoint, pieces: list[str]) -> TransformerSpec:
    config = checkpoint.transformer_config
    spec = TransformerSpec.from_config(
        (config.num_layers, config.num_decoder_layers),
        config.num_heads,
        pre_norm=config.norm == "pre",
        activation=ACTIVATIONS[config.activation],
    )
    spec.register_source_vocabulary(pieces)
    spec.register_target_vocabulary(pieces[: config.target_vocab_size])
    spec.config.bos_token = spec.config.decoder_start_token = SPECIAL_PIECES[BOS]
    spec.config.eos_token = SPECIAL_PIECES[EOS]
    spec.config.unk_token = SPECIAL_PIECES[PAD]  # required by the library; never used
    spec.config.add_source_eos = True
    spec.config.layer_norm_epsilon = config.norm_epsilon
    for side in ("source_language", "target_language"):
        spec.config.add_attribute(side, getattr(checkpoint, side))
    weights = weights_for_scaled_scores(checkpoint)
    _fill_stack(spec.encoder, weights, "encoder")
    _fill_stack(spec.decoder, weights, "decoder")
    source, target, output = embedding_names(checkpoint)
    spec.encoder.embeddings[0].weight = weights[f"{source}.weight"].numpy()
    spec.decoder.embeddings.weight = weights[f"{target}.weight"].numpy()
    spec.decoder.projection.weight = weights[f"{output}.weight"].numpy()
    if config.output_bias:
        spec.decoder.projection.bias = weights[f"{output}.bias"].numpy()
    positions = _positions(checkpoint).numpy()
    spec.encoder.position_encodings.encodings = positions
    spec.decoder.position_encodings.encodings = positions
    spec.validate()
    spec.optimize()
    return spec


def _positions(checkpoint: Checkpoint) -> Float[Tensor, "positions d_model"]:
    config = checkpoint.transformer_config
    if config.positions == "sinusoidal":
        return sinusoids(MAX_POSITIONS, config.d_model, config.position_base)
    table = checkpoint.weights["positions.weight"] * math.sqrt(config.d_model)
    # Positions beyond the table use its last entry, as in this package.
    beyond = table[-1:].expand(max(MAX_POSITIONS - len(table), 0), -1)
    return torch.cat([table, beyond])


def _fill_stack(spec: Any, weights: Mapping[str, Tensor], stack: str) -> None:
    for i, layer in enumerate(spec.layer):
        prefix = f"{stack}_layers.{i}"
        _fill_attention(layer.self_attention, weights, prefix, "self_attention")
        if stack == "decoder":
            _fill_attention(layer.attention, weights, prefix, "cross_attention")
        _fill(layer.ffn.linear_0, weights, f"{prefix}.feed_forward.inner")
        _fill(layer.ffn.linear_1, weights, f"{prefix}.feed_forward.outer")
        _fill_norm(layer.ffn.layer_norm, weights, f"{prefix}.after_feed_forward.norm")
    if f"{stack}_norm.weight" in weights:
        _fill_norm(spec.layer_norm, weights, f"{stack}_norm")


def _fill_attention(
    spec: Any, weights: Mapping[str, Tensor], layer: str, kind: str
) -> None:
    query, key_value, output = (
        f"{layer}.{kind}.project_{part}" for part in ("query", "key_value", "output")
    )
    # CTranslate2 computes the projections of self-attention by one product.
    inputs = (
        [(query, key_value)] if kind == "self_attention" else [(query,), (key_value,)]
    )
    for linear, names in zip(spec.linear, [*inputs, (output,)], strict=True):
        _fill(linear, weights, *names)
    _fill_norm(spec.layer_norm, weights, f"{layer}.after_{kind}.norm")


def _fill(spec: Any, weights: Mapping[str, Tensor], *names: str) -> None:
    """Fill a linear layer with one of ours, sharing its memory, or several joined."""
    for part in ("weight", "bias"):
        first, *others = (weights[f"{name}.{part}"] for name in names)
        whole = torch.cat([first, *others]) if others else first
        setattr(spec, part, whole.numpy())


def _fill_norm(spec: Any, weights: Mapping[str, Tensor], name: str) -> None:
    spec.gamma = weights[f"{name}.weight"].numpy()
    spec.beta = weights[f"{name}.bias"].numpy()
