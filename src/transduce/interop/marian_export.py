"""Export to Hugging Face: a folder of `MarianMTModel` with settings and tokenizer.

    model = MarianMTModel.from_pretrained("DIR")
    tokenizer = AutoTokenizer.from_pretrained("DIR")

Marian's sinusoids have all sines before all cosines, where the paper's alternate. The
order of a model's dimensions is free, so the export permutes every matrix as wide as
the model, which leaves the function unchanged. Only the layer norm's epsilon is fixed
at 1e-5, which changes logits by about 1e-4 where the model's is smaller. Sources have
at most 1,024 tokens.

Search settings follow the model's as closely as possible. Marian divides
log-probabilities by length^alpha, this package by ((5 + length) / 6)^alpha (Wu et al.,
2016). Near 25 tokens both grow alike if Marian's alpha is 0.5 for 0.6 here.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    MarianConfig,
    MarianMTModel,
    PreTrainedTokenizerFast,
)
from transformers.utils import logging

from transduce.checkpoint import Checkpoint
from transduce.errors import warn_caller
from transduce.files import atomic_directory
from transduce.interop.export import (
    GreedyOutput,
    Proof,
    differences,
    embedding_names,
    prove,
    require,
    require_plain_attention,
    require_short,
    require_text,
    warn_of_lost_shortlist,
    weights_for_scaled_scores,
)
from transduce.interop.marian_conventions import (
    LEARNED_START,
    halved,
    layer_weights,
    power_penalty,
    reordered,
    require_small_epsilon,
)
from transduce.interop.portable_tokenizer import (
    HuggingFaceTokenizer,
    portable_tokenizer,
    write_files,
)
from transduce.model.config import ModelConfig
from transduce.search_config import SearchConfig
from transduce.text.sentence_pieces import SentencePieceTokenizer
from transduce.text.tokenizer import (
    SubwordTokenizer,
    Tokenizer,
    require_possible_bad_words,
)
from transduce.text.vocabulary import BOS, EOS, PAD, SPECIAL_PIECES

TARGET = "Hugging Face Marian"
MAX_POSITIONS = 1_024
DEFAULT_TARGET = "default_target_lang"
"""Setting of the tokenizer, of this package: the target language of a model of several
target languages."""
CORPUS_TAGS = "corpus_tags"
"""The same for the tags of corpora with which this package has trained the model."""
WITHOUT_COUNTERPART = ("final_logits_bias", "lm_head.weight")
"""Its weights without a counterpart here: a zero bias, and the tied embedding."""
MODULES = {
    "self_attention.project_query": ("self_attn.q_proj",),
    "self_attention.project_key_value": ("self_attn.k_proj", "self_attn.v_proj"),
    "self_attention.project_output": ("self_attn.out_proj",),
    "after_self_attention.norm": ("self_attn_layer_norm",),
    "cross_attention.project_query": ("encoder_attn.q_proj",),
    "cross_attention.project_key_value": (
        "encoder_attn.k_proj",
        "encoder_attn.v_proj",
    ),
    "cross_attention.project_output": ("encoder_attn.out_proj",),
    "after_cross_attention.norm": ("encoder_attn_layer_norm",),
    "feed_forward.inner": ("fc1",),
    "feed_forward.outer": ("fc2",),
    "after_feed_forward.norm": ("final_layer_norm",),
}
"""Modules of a layer here, each with those of Marian whose outputs it concatenates."""


def export(
    checkpoint: Checkpoint,
    folder: Path,
    sentences: Sequence[str],
    *,
    overwrite: bool = False,
) -> Proof:
    """Write the folder once the proof on the sentences succeeds.

    Raises `RequestError` if the format cannot hold the model, `ConfigError` if its bad
    words do not fit the vocabulary, `ProofError` if the proof fails.
    """
    logging.disable_progress_bar()
    require_text(TARGET, checkpoint)
    require(
        TARGET,
        checkpoint.transformer_config,
        norm="post",
        positions="sinusoidal",
        position_base=10_000.0,
        decoder_self_attention="attention",
    )
    require_plain_attention(TARGET, checkpoint.transformer_config)
    require_small_epsilon(TARGET, checkpoint.transformer_config)
    require_possible_bad_words(
        checkpoint.search or SearchConfig(), checkpoint.tokenizer
    )
    require_short(sentences, checkpoint.tokenizer, MAX_POSITIONS)
    ids = range(checkpoint.transformer_config.vocab_size)
    target_ids = ids[: checkpoint.transformer_config.target_vocab_size]

    with atomic_directory(folder, "export --to marian", overwrite=overwrite) as new:
        _write_tokenizer(checkpoint.tokenizer, new)
        _write_languages(checkpoint, new / "tokenizer_config.json")
        _model(checkpoint).save_pretrained(new)
        model = HuggingFaceModel(new, ids, target_ids)
        tokenizer = HuggingFaceTokenizer(new, ids, target_ids)
        _warn_of_lacking(checkpoint.search or SearchConfig())
        warn_of_lost_shortlist(TARGET, checkpoint)
        return prove(model, tokenizer, checkpoint, sentences)


def _warn_of_lacking(search: SearchConfig) -> None:
    # Kinds of the length penalty differ less than these settings, and are converted.
    written = SearchConfig(
        beam_size=search.beam_size,
        patience=None if search.patience is None else 1.0,
        penalty=search.penalty,
        length_penalty=search.length_penalty,
        min_length=search.min_length,
        max_length=search.max_length,
        no_repeat_ngram=search.no_repeat_ngram,
        # Its greedy search applies the penalty to logits.
        repetition_penalty=search.repetition_penalty if search.beam_size > 1 else 1.0,
        bad_words=search.bad_words,
    )
    if names := differences(search, written):
        warn_caller(
            f"{TARGET} searches differently from these settings of the model, which it "
            f"lacks: {', '.join(f'`search.{name}`' for name in names)}."
        )


def _model(checkpoint: Checkpoint) -> MarianMTModel:
    model = MarianMTModel(marian_config(checkpoint.transformer_config, MAX_POSITIONS))
    search = checkpoint.search or SearchConfig()
    model.generation_config = GenerationConfig(
        num_beams=search.beam_size,
        **_beam_settings(search),
        **_restrictions(search),
        max_length=_max_length(search),
        bad_words_ids=[[PAD], [BOS], *map(list, search.bad_words)],
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
        decoder_start_token_id=BOS,
    )
    weights = dict(_weights(checkpoint))
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected
    # Missing weights are computed, or tied to the embedding.
    assert all("embed" in name or name in WITHOUT_COUNTERPART for name in missing), (
        missing
    )
    model.tie_weights()
    return model


def _beam_settings(search: SearchConfig) -> dict[str, float | bool]:
    """Return beam search settings, which the library rejects for greedy search."""
    if search.beam_size == 1:
        return {}
    # True ends search as a patience of 1 does here. "never" would continue while
    # something better is possible, sometimes to the last position.
    stops_early = search.patience is not None
    return {"length_penalty": power_penalty(search), "early_stopping": stops_early}


def _restrictions(search: SearchConfig) -> dict[str, float | int]:
    """Return restrictions of the next token that the search has."""
    found: dict[str, float | int] = {}
    if search.no_repeat_ngram:
        found["no_repeat_ngram_size"] = search.no_repeat_ngram
    if search.min_length:
        found["min_new_tokens"] = search.min_length
    if search.repetition_penalty != 1:
        found["repetition_penalty"] = search.repetition_penalty
    return found


def _max_length(search: SearchConfig) -> int:
    """Return the maximum length of a target, its start token included."""
    if search.max_length is None:
        return MAX_POSITIONS
    return min(search.max_length + 1, MAX_POSITIONS)


def marian_config(config: ModelConfig, max_positions: int) -> MarianConfig:
    """Return the settings of a post-norm model with sinusoids and these sizes."""
    start = {} if config.learned_start else {LEARNED_START: False}
    return MarianConfig(
        vocab_size=config.vocab_size,
        decoder_vocab_size=config.target_vocab_size or config.vocab_size,
        # The library ties the output to both embeddings, or ties nothing.
        share_encoder_decoder_embeddings=_is_shared(config),
        tie_word_embeddings=config.tied_output,
        d_model=config.d_model,
        encoder_layers=config.num_layers,
        decoder_layers=config.num_decoder_layers,
        encoder_attention_heads=config.num_heads,
        decoder_attention_heads=config.num_heads,
        encoder_ffn_dim=config.d_ff,
        decoder_ffn_dim=config.d_ff,
        dropout=config.dropout,
        attention_dropout=config.attention_dropout,
        activation_dropout=config.relu_dropout,
        activation_function=config.activation,
        scale_embedding=True,
        static_position_embeddings=True,
        max_position_embeddings=max_positions,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
        forced_eos_token_id=None,
        decoder_start_token_id=BOS,
        **start,
    )


def _is_shared(config: ModelConfig) -> bool:
    return config.target_vocab_size is None and config.tied_output


def _weights(checkpoint: Checkpoint) -> Iterator[tuple[str, Tensor]]:
    config, names = checkpoint.transformer_config, embedding_names(checkpoint)
    order, weights = halved(config.d_model), weights_for_scaled_scores(checkpoint)
    source, target, output = (weights[f"{name}.weight"][:, order] for name in names)
    if _is_shared(config):
        yield "model.shared.weight", source
    else:
        yield "model.encoder.embed_tokens.weight", source
        yield "model.decoder.embed_tokens.weight", target
    if not config.tied_output:
        yield "lm_head.weight", output
    if config.output_bias:
        yield "final_logits_bias", weights[f"{names[-1]}.bias"][None]
    for name, theirs in parts_of_layers(config):
        parts = reordered(name, weights[name], order).chunk(len(theirs))
        yield from zip(theirs, parts, strict=True)


def parts_of_layers(config: ModelConfig) -> Iterator[tuple[str, list[str]]]:
    """Yield the name of each weight of the layers, and Marian's names of its parts."""
    for each in layer_weights(config):
        layer = f"model.{each.stack}.layers.{each.layer}"
        yield each.name, [f"{layer}.{n}.{each.kind}" for n in MODULES[each.module]]


def _write_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    match tokenizer:
        case SubwordTokenizer():
            _fast_tokenizer(tokenizer).save_pretrained(folder)
        case SentencePieceTokenizer():
            write_files(tokenizer, folder)


def _write_languages(checkpoint: Checkpoint, path: Path) -> None:
    """Write languages in the place that OPUS-MT's folders use, and tags of corpora."""
    content = json.loads(path.read_text(encoding="utf-8"))
    content["source_lang"] = checkpoint.source_language
    content["target_lang"] = checkpoint.target_language
    if checkpoint.tokenizer.language_tags:
        # In OPUS-MT's folders of several target languages, the setting above may name
        # any of the languages.
        content[DEFAULT_TARGET] = checkpoint.target_language
    if checkpoint.tokenizer.corpus_tags:
        content[CORPUS_TAGS] = checkpoint.tokenizer.corpus_tags
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _fast_tokenizer(tokenizer: SubwordTokenizer) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=portable_tokenizer(tokenizer),
        pad_token=SPECIAL_PIECES[PAD],
        bos_token=SPECIAL_PIECES[BOS],
        eos_token=SPECIAL_PIECES[EOS],
        model_max_length=MAX_POSITIONS,
        # A user's "</s>" is text.
        split_special_tokens=True,
        clean_up_tokenization_spaces=False,
    )


class HuggingFaceModel:
    """`MarianMTModel` of a folder, for proofs.

    The ids of sources and of targets map this package's ids to its own.
    """

    def __init__(
        self, folder: Path, source_ids: Sequence[int], target_ids: Sequence[int]
    ) -> None:
        logging.disable_progress_bar()
        logging.set_verbosity_error()  # interrupted, it reports sinusoids as missing
        config = MarianConfig.from_pretrained(folder, local_files_only=True)
        # Settings may name another file of weights, also a pickled one, and attention
        # that the library would download as a program, or compile for minutes.
        config.transformers_weights = None
        self._model = MarianMTModel.from_pretrained(
            folder,
            config=config,
            attn_implementation="eager",
            dtype=torch.float32,
            use_safetensors=True,
            local_files_only=True,
        ).eval()
        self._model.config.return_dict = True  # old settings may have tuples
        self._source_ids = torch.tensor(source_ids)
        self._target_ids = torch.tensor(target_ids)
        # Some rows of the embeddings have no id here.
        unused = set(range(self._model.lm_head.out_features)) - set(target_ids)
        never = {target_ids[PAD], target_ids[BOS], *unused} - {target_ids[EOS]}
        self._model.generation_config = GenerationConfig(
            pad_token_id=target_ids[PAD],
            eos_token_id=target_ids[EOS],
            decoder_start_token_id=target_ids[BOS],
            bad_words_ids=[[i] for i in sorted(never)],
        )

    def greedy(self, source: list[int], max_length: int) -> GreedyOutput:
        output = self._model.generate(
            self._source_ids[[*source, EOS]][None],
            # No id is padding, even if a piece has the library's id of padding.
            attention_mask=torch.ones(1, len(source) + 1, dtype=torch.long),
            max_new_tokens=min(max_length, self._model.config.max_position_embeddings),
            return_dict_in_generate=True,
            output_logits=True,
        )
        ours = {theirs: i for i, theirs in enumerate(self._target_ids.tolist())}
        return GreedyOutput(
            ids=[ours[i] for i in output.sequences[0, 1:].tolist()],
            logits=torch.cat(output.logits)[:, self._target_ids],
        )
