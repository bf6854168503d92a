"""Word links between a sentence and its translation.

The links follow the decoder's attention to the source (Bahdanau et al., 2015). The best
layer differs between models; for each pair it is the one in which most words of both
sides choose each other, as in Chen et al. (2020).
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from transduce.analysis.attention_maps import cross_attention_maps
from transduce.analysis.words import are_spelt, between_words, groups_of_words
from transduce.data.tensors import pad_rows
from transduce.decoding.scoring import similar_lengths
from transduce.decoding.translator import Translator
from transduce.special_ids import BOS, EOS
from transduce.text.documents.inline_tags import Span, WordLinks, units

MOST_POSITIONS = 2_048
"""Positions of a batch at most, padding included."""
MAX_TOKENS = 256
"""Tokens of a sentence at most: maps grow with its square, and longer sentences are
translated in parts."""


def attended_links(
    translator: Translator, pairs: Sequence[tuple[str, str]]
) -> list[WordLinks | None]:
    """Word links of sentences and their translations by the first model.

    None for a pair with a side that is too long, or that its tokens do not spell.
    """
    tokenizer = translator.tokenizer
    sources = tokenizer.encode_sources([source for source, _ in pairs])
    targets = tokenizer.encode_targets([target for _, target in pairs])
    lengths = [
        max(len(source), len(target)) + 1
        for source, target in zip(sources, targets, strict=True)
    ]
    short = [i for i, length in enumerate(lengths) if length <= MAX_TOKENS]
    found: list[WordLinks | None] = [None] * len(pairs)
    model = translator.models[0].operators.model
    for batch in similar_lengths([lengths[i] for i in short], MOST_POSITIONS):
        chosen = [short[i] for i in batch]
        maps = cross_attention_maps(
            model,
            pad_rows([[*sources[i], EOS] for i in chosen]).to(translator.device),
            pad_rows([[BOS, *targets[i]] for i in chosen]).to(translator.device),
        )
        for i, weights in zip(chosen, maps, strict=True):
            pieces = tokenizer.pieces(sources[i]), tokenizer.pieces(targets[i])
            found[i] = _links(pairs[i], pieces, weights)
    return found


def _links(
    pair: tuple[str, str],
    pieces: tuple[list[str], list[str]],
    weights: Float[Tensor, "layers heads target source"],
) -> WordLinks | None:
    source, target = units(pair[0]), units(pair[1])
    words = _words(pair[0], source), _words(pair[1], target)
    if not (source and target and all(map(are_spelt, words, pieces))):
        return None
    groups = [
        groups_of_words(of, spelt) for of, spelt in zip(pieces, words, strict=True)
    ]
    if any(bool((each.sum(dim=0) == 0).any()) for each in groups):
        return None
    means = weights.mean(dim=1)[..., :-1]  # without the end token of the source
    written, read = means[:, :-1], means[:, 1:]
    by_word = between_words(torch.cat([written, read]), groups[1], groups[0])
    best = by_word[_agreement(by_word).argmax()]
    return WordLinks(
        source=source, target=target, source_of=tuple(best.argmax(dim=-1).tolist())
    )


def _words(text: str, spans: Sequence[Span]) -> list[str]:
    return [text[start:end] for start, end in spans]


def _agreement(
    weights: Float[Tensor, "maps target source"],
) -> Float[Tensor, " maps"]:
    """Number of target words that are chosen by the source word they choose."""
    chosen = weights.argmax(dim=-1)
    choosing = weights.argmax(dim=-2)
    back = choosing.gather(-1, chosen)
    return (back == torch.arange(weights.size(-2))).float().sum(dim=-1)
