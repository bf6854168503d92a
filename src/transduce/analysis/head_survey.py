"""Survey of all attention heads of a model over a corpus, as data and as a report."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import get_args

from transduce.analysis.attention_maps import (
    AttentionMaps,
    attention_maps,
    attentions,
    without_head,
)
from transduce.analysis.figures import HeadValues, draw_heads
from transduce.analysis.heads import (
    LEGEND,
    AlignmentError,
    HeadName,
    HeadStatistics,
    Linking,
    LinkSurvey,
    Offset,
    alignment_errors,
    annotate,
    head_statistics,
    preferred_offsets,
    statistics_table,
    survey_links,
)
from transduce.analysis.word_links import have_same_letters
from transduce.data.batches import EncodedPair
from transduce.data.prepared_corpus import PairEncoder
from transduce.data.tensors import pad_rows
from transduce.decoding.torch_model import score_targets
from transduce.decoding.translator import Translator
from transduce.errors import DataError, counted
from transduce.grammar.corpus import Grammar, GrammarSentence
from transduce.model.config import ATTENTION_KINDS
from transduce.model.transformer import Transformer
from transduce.report.report import (
    Part,
    Picture,
    Report,
    Section,
    Table,
    columns,
)
from transduce.text.corpus import SentencePair
from transduce.text.languages import base
from transduce.text.vocabulary import BOS, EOS
from transduce.trees.linearization import SymbolVocabulary
from transduce.trees.trees import Tree, without_brackets

BATCH_PAIRS = 32


def encode_pairs(
    translator: Translator, pairs: Sequence[SentencePair]
) -> list[EncodedPair]:
    """Encode sentence pairs, with the translator's tags before the sources.

    The targets of a parser are lines of symbols.
    """
    written = translator.symbols or translator.tokenizer
    sources = translator.source_ids([pair.source for pair in pairs])
    targets = written.encode_targets([pair.target for pair in pairs])
    return [
        EncodedPair(source=source, target=target)
        for source, target in zip(sources, targets, strict=True)
    ]


def maps_of(
    model: Transformer, pairs: Sequence[EncodedPair]
) -> Iterator[AttentionMaps]:
    """Attention maps of each pair, in order."""
    device = next(model.parameters()).device
    for batch in _batches(pairs):
        source = pad_rows([[*pair.source, EOS] for pair in batch]).to(device)
        target_in = pad_rows([[BOS, *pair.target] for pair in batch]).to(device)
        yield from attention_maps(model, source, target_in)


def loss(model: Transformer, pairs: Sequence[EncodedPair]) -> float:
    """Cross-entropy in nats per target token and end token, without smoothing."""
    device = next(model.parameters()).device
    by_length = sorted(pairs, key=lambda pair: len(pair.source) + len(pair.target))
    total, num_tokens = 0.0, 0
    for batch in _batches(by_length):
        source = pad_rows([[*pair.source, EOS] for pair in batch]).to(device)
        for score in score_targets(model, source, [pair.target for pair in batch]):
            total -= score.log_probability
            num_tokens += score.num_tokens
    return total / num_tokens


def _batches(pairs: Sequence[EncodedPair]) -> Iterator[Sequence[EncodedPair]]:
    for start in range(0, len(pairs), BATCH_PAIRS):
        yield pairs[start : start + BATCH_PAIRS]


MAX_TOKENS = 128
"""Longest source or target: attention maps grow with its square."""
TASK = "A survey of heads"
"""Task in the error about a model that is no Transformer."""
SEED = 20170612
"""Seed of the built-in grammar's sentences, which no training uses."""

OnProgress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrunedHead:
    """Loss of the model with one head masked."""

    head: HeadName
    loss: float
    """Nats per target token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadSurvey:
    """Statistics of all heads over a corpus."""

    num_pairs: int
    loss: float
    """Loss of the whole model, in nats per target token."""
    statistics: tuple[HeadStatistics, ...]
    offsets: tuple[Offset, ...]
    pruned: tuple[PrunedHead, ...]
    """Losses without each head, the highest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnotatedSurvey:
    """Results that need the annotation of the built-in grammar."""

    alignment: tuple[AlignmentError, ...]
    links: tuple[LinkSurvey, ...]


def survey_heads(
    translator: Translator, corpus: Sequence[SentencePair], on_progress: OnProgress
) -> HeadSurvey:
    """Compute the statistics of every head, and the loss without it.

    A parser needs the pairs of `tree_pairs`. Pairs that are too long are left out;
    raises `DataError` if none is left.
    """
    model = translator.torch_model.transformer(TASK)
    pairs = [
        pair for pair in encode_pairs(translator, corpus) if pair.length <= MAX_TOKENS
    ]
    if not pairs:
        raise DataError(
            f"The corpus must have a pair of at most {MAX_TOKENS} tokens a side, but "
            f"has none among its first {len(corpus):,}."
        )
    on_progress("Computing attention...")
    maps = list(maps_of(model, pairs))
    return HeadSurvey(
        num_pairs=len(pairs),
        loss=loss(model, pairs),
        statistics=tuple(head_statistics(maps)),
        offsets=tuple(preferred_offsets(maps)),
        pruned=tuple(_prune(model, pairs, on_progress)),
    )


def survey_annotated(
    translator: Translator, sentences: Sequence[GrammarSentence]
) -> AnnotatedSurvey:
    """Compare the heads with the annotation of the grammar's sentences.

    Sentences that the tokenizer cannot represent are left out; raises `DataError` if
    none is left.
    """
    model, tokenizer = translator.torch_model.transformer(TASK), translator.tokenizer
    # Without tags, which are no words.
    pairs = PairEncoder(tokenizer=tokenizer).encode(
        [SentencePair(source=each.source, target=each.target) for each in sentences]
    )
    read = [
        (sentence, tokenizer.pieces(pair.source), tokenizer.pieces(pair.target), maps)
        for sentence, pair, maps in zip(
            sentences, pairs, maps_of(model, pairs), strict=True
        )
    ]
    annotated = [
        annotate(sentence, maps, source, target)
        for sentence, source, target, maps in read
        if have_same_letters(sentence.source_words, source)
        and have_same_letters(sentence.target_words, target)
    ]
    if not annotated:
        raise DataError(
            "The model's tokenizer must cover the words of the built-in corpus, but "
            f"covers no sentence of the first {len(sentences):,}; give text of the "
            "model's languages with --source and --target."
        )
    return AnnotatedSurvey(
        alignment=tuple(alignment_errors(annotated)),
        links=tuple(survey_links(annotated)),
    )


def grammar_sentences(count: int, target: str | None) -> list[GrammarSentence]:
    """Distinct sentences with combinations of words that are not in training.

    Their translations are Chinese for a Chinese target language, otherwise German.
    """
    is_chinese = target is not None and base(target) == "zh"
    grammar = Grammar.built_in("en-zh" if is_chinese else "en-de")
    return list(islice(grammar.held_out_sentences(SEED), count))


def tree_pairs(symbols: SymbolVocabulary, trees: Iterable[Tree]) -> list[SentencePair]:
    """Sentences with their linearized trees, as a parser reads and writes them."""
    return [
        SentencePair(
            source=" ".join(map(without_brackets, tree.words)),
            target=symbols.target_line(tree),
        )
        for tree in trees
    ]


def _prune(
    model: Transformer, pairs: Sequence[EncodedPair], on_progress: OnProgress
) -> list[PrunedHead]:
    pruned = []
    for kind, layers in attentions(model).items():
        for layer, attention in enumerate(layers, start=1):
            for head in range(attention.num_heads):
                name = HeadName(kind=kind, layer=layer, head=head + 1)
                on_progress(f"Without head {name}...")
                with without_head(attention, head):
                    pruned.append(PrunedHead(head=name, loss=loss(model, pairs)))
    return sorted(pruned, key=lambda each: each.loss, reverse=True)


def as_report(
    survey: HeadSurvey, annotated: AnnotatedSurvey | None, model: str, corpus: str
) -> Report:
    """Report on all heads; `annotated` is for the built-in grammar only."""
    sections = [
        Section(title="Heads that follow positions", parts=tuple(_positional(survey))),
        Section(title="Statistics of the heads", parts=tuple(_statistics(survey))),
    ]
    if annotated is not None:
        sections += [
            Section(title="Pronouns and syntax", parts=tuple(_links(annotated))),
            Section(title="Alignment", parts=tuple(_alignment(annotated))),
        ]
    sections.append(Section(title="Pruning", parts=tuple(_pruning(survey))))
    pairs = counted(survey.num_pairs, "pair")
    return Report(
        title=f"The heads of {model} on {pairs} of {corpus}",
        sections=tuple(sections),
    )


def _positional(survey: HeadSurvey) -> Iterator[Part]:
    yield (
        "The relative position around which each head has the most weight. The share "
        "is the weight on this position and its two neighbours; the last column is the "
        "same for uniform attention over all unmasked tokens. Position 0 is the token "
        "itself, -1 the previous one."
    )
    ranked = sorted(survey.offsets, key=lambda each: each.share, reverse=True)
    yield Table(
        columns=columns("head", "position", "share", "if uniform"),
        rows=tuple(
            (
                str(each.head),
                f"{each.offset:+d}" if each.offset else "0",
                f"{each.share:.2f}",
                f"{each.even_share:.2f}",
            )
            for each in ranked
        ),
    )
    values = [(each.head, each.share) for each in survey.offsets]
    yield _picture("positions", "Weight around the preferred position", values)


def _statistics(survey: HeadSurvey) -> Iterator[Part]:
    yield f"Means over all tokens. {LEGEND}"
    yield statistics_table(survey.statistics)
    yield _picture(
        "sharpness",
        "Sharpness: greatest weight of a query",
        [(each.head, each.sharpness) for each in survey.statistics],
    )


def _links(annotated: AnnotatedSurvey) -> Iterator[Part]:
    yield (
        "Accuracy of the two best heads for each kind of link: how often the linked "
        "word has the greatest weight, apart from the word itself and the end token. "
        "Weight is the best head's mean weight on the linked word. For "
        "comparison, the last columns are the most frequent distance of the linked "
        "word and the accuracy of always choosing that distance. Translations of "
        "pronouns attend to the source at the step that outputs them."
    )
    heads = ("links", "best head", "accuracy", "weight", "second", "accuracy")
    yield Table(
        columns=columns("link", *heads, "distance", "accuracy"),
        rows=tuple(map(_link_row, annotated.links)),
    )
    for survey in annotated.links:
        if survey.kind.startswith("it "):
            values = [(each.head, each.accuracy) for each in survey.heads]
            yield _picture("antecedents", f"{survey.kind}: accuracy", values)


def _link_row(survey: LinkSurvey) -> tuple[str, ...]:
    best, second = survey.heads[0], survey.heads[min(1, len(survey.heads) - 1)]
    return (
        survey.kind,
        f"{survey.num_links:,}",
        str(best.head),
        f"{best.accuracy:.0%}",
        f"{best.weight:.2f}",
        str(second.head),
        f"{second.accuracy:.0%}",
        f"{survey.offset:+d}",
        f"{survey.offset_accuracy:.0%}",
    )


def _alignment(annotated: AnnotatedSurvey) -> Iterator[Part]:
    yield (
        "Alignment error rate (Och and Ney, 2003) of cross-attention between "
        "words, against the grammar's alignment; 0 % means that all links are found "
        "and right. The attention of a target word is taken at the step that outputs "
        "it (written), or at the next step, whose input it is (read). By target, each "
        "target word is linked to the source word of the greatest weight; by source, "
        "each source word to the target word of the greatest weight; by either, both."
    )
    heads = [f"{p}, by {b}" for p in ("written", "read") for b in get_args(Linking)]
    by_head: dict[tuple[int, bool, int], list[AlignmentError]] = {}
    for each in annotated.alignment:
        # The mean of a layer's heads comes after them.
        place = (each.layer, each.head is None, each.head or 0)
        by_head.setdefault(place, []).append(each)
    yield Table(
        columns=columns("encoder-decoder", *heads),
        rows=tuple(_error_row(by_head[key]) for key in sorted(by_head)),
    )


def _error_row(errors: Sequence[AlignmentError]) -> tuple[str, ...]:
    first = errors[0]
    name = f"head {first.head}" if first.head else "mean of heads"
    return (
        f"layer {first.layer}, {name}",
        *(f"{each.error_rate:.1%}" for each in errors),
    )


def _pruning(survey: HeadSurvey) -> Iterator[Part]:
    yield (
        f"The loss of the whole model is {survey.loss:.4f} nats per target token. The "
        "table has the loss with one head masked, so that its output is 0 (Michel et "
        "al., 2019)."
    )
    yield Table(
        columns=columns("head", "loss", "increase"),
        rows=tuple(
            (str(each.head), f"{each.loss:.4f}", f"{each.loss - survey.loss:+.4f}")
            for each in survey.pruned
        ),
    )
    values = [(each.head, each.loss - survey.loss) for each in survey.pruned]
    title = "Increase of the loss without each head, in nats per target token"
    yield _picture("pruning", title, values)


def _picture(name: str, title: str, values: list[tuple[HeadName, float]]) -> Picture:
    present = {head.kind for head, _ in values}
    kinds = [kind for kind in ATTENTION_KINDS if kind in present]
    grids = [
        HeadValues(
            kind=kind,
            values={(h.layer, h.head): v for h, v in values if h.kind == kind},
        )
        for kind in kinds
    ]
    return draw_heads(name, title, grids)
