"""What every head of a model does over a corpus, and what is lost without it."""

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
from transduce.analysis.head_annotation import (
    AlignmentError,
    Linking,
    LinkSurvey,
    alignment_errors,
    annotate,
    survey_links,
)
from transduce.analysis.head_statistics import (
    LEGEND,
    HeadName,
    HeadStatistics,
    Offset,
    favourite_offsets,
    head_statistics,
    statistics_table,
)
from transduce.analysis.word_links import are_spelt
from transduce.data.tensors import pad_rows
from transduce.decoding.torch_model import score_targets
from transduce.decoding.translator import Translator
from transduce.errors import DataError, counted
from transduce.grammar.corpus import Grammar, GrammarSentence
from transduce.model.config import ATTENTION_KINDS
from transduce.model.transformer import Transformer
from transduce.report.content import (
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
from transduce.trees.trees import Tree, without_brackets
from transduce.trees.vocabulary import SymbolVocabulary

BATCH_PAIRS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPair:
    """A pair as a model reads it, without its special tokens."""

    source: list[int]
    target: list[int]

    @property
    def num_tokens(self) -> int:
        """Of the longer side."""
        return max(len(self.source), len(self.target))


def read_pairs(
    translator: Translator, sources: Sequence[str], targets: Sequence[str]
) -> list[ReadPair]:
    """The ids of pairs; the targets of a model that parses are lines of symbols."""
    written = translator.symbols or translator.tokenizer
    ids = zip(
        translator.tokenizer.encode_sources(sources),
        written.encode_targets(targets),
        strict=True,
    )
    return [ReadPair(source=source, target=target) for source, target in ids]


def maps_of(model: Transformer, pairs: Sequence[ReadPair]) -> Iterator[AttentionMaps]:
    """The maps of each pair, in order."""
    device = next(model.parameters()).device
    for batch in _batches(pairs):
        source = pad_rows([[*pair.source, EOS] for pair in batch]).to(device)
        target_in = pad_rows([[BOS, *pair.target] for pair in batch]).to(device)
        yield from attention_maps(model, source, target_in)


def loss(model: Transformer, pairs: Sequence[ReadPair]) -> float:
    """Nats per target token, the end counted, without label smoothing."""
    device = next(model.parameters()).device
    by_length = sorted(pairs, key=lambda pair: len(pair.source) + len(pair.target))
    total, num_tokens = 0.0, 0
    for batch in _batches(by_length):
        source = pad_rows([[*pair.source, EOS] for pair in batch]).to(device)
        for score in score_targets(model, source, [pair.target for pair in batch]):
            total -= score.log_probability
            num_tokens += score.num_tokens
    return total / num_tokens


def _batches(pairs: Sequence[ReadPair]) -> Iterator[Sequence[ReadPair]]:
    for start in range(0, len(pairs), BATCH_PAIRS):
        yield pairs[start : start + BATCH_PAIRS]


MAX_TOKENS = 128
"""Of either side: maps grow with its square."""
SEED = 20170612
"""Of the sentences of the built-in grammar, which no training has had."""

OnProgress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrunedHead:
    """The loss without one head."""

    head: HeadName
    loss: float
    """Nats per target token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadSurvey:
    """What is known of all heads by any corpus."""

    num_pairs: int
    loss: float
    """Of the whole model, in nats per target token."""
    statistics: tuple[HeadStatistics, ...]
    offsets: tuple[Offset, ...]
    pruned: tuple[PrunedHead, ...]
    """The one that is missed most first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnotatedSurvey:
    """What is known besides by the built-in grammar."""

    alignment: tuple[AlignmentError, ...]
    links: tuple[LinkSurvey, ...]


def survey_heads(
    translator: Translator, corpus: Sequence[SentencePair], on_progress: OnProgress
) -> HeadSurvey:
    """Look at every head over sentence pairs, and then without it.

    Those of a model that parses are as `tree_pairs` gives them. Pairs that are too long
    are left out; `DataError` if there is no other.
    """
    model = translator.models[0].operators.model
    pairs = read_pairs(
        translator, [pair.source for pair in corpus], [pair.target for pair in corpus]
    )
    pairs = [pair for pair in pairs if pair.num_tokens <= MAX_TOKENS]
    if not pairs:
        raise DataError(
            f"The corpus must have a pair of at most {MAX_TOKENS} tokens a side, but "
            f"has none among its first {len(corpus):,}."
        )
    on_progress("Looking at the attention...")
    maps = list(maps_of(model, pairs))
    return HeadSurvey(
        num_pairs=len(pairs),
        loss=loss(model, pairs),
        statistics=tuple(head_statistics(maps)),
        offsets=tuple(favourite_offsets(maps)),
        pruned=tuple(_prune(model, pairs, on_progress)),
    )


def survey_annotated(
    translator: Translator, sentences: Sequence[GrammarSentence]
) -> AnnotatedSurvey:
    """Hold the heads against what the grammar knows of its sentences.

    Those that the tokenizer cannot spell are left out; `DataError` if these are all.
    """
    model, tokenizer = translator.models[0].operators.model, translator.tokenizer
    pairs = read_pairs(
        translator, [s.source for s in sentences], [s.target for s in sentences]
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
        if are_spelt(sentence.source_words, source)
        and are_spelt(sentence.target_words, target)
    ]
    if not annotated:
        raise DataError(
            "The model's tokenizer must be able to spell the built-in corpus, but "
            f"cannot in its first {len(sentences):,} sentences; give text of the "
            "model's languages with --source and --target."
        )
    return AnnotatedSurvey(
        alignment=tuple(alignment_errors(annotated)),
        links=tuple(survey_links(annotated)),
    )


def grammar_sentences(count: int, target: str | None) -> list[GrammarSentence]:
    """Different sentences with combinations of words that are not in training.

    Their translations are Chinese if that is the target language, otherwise German.
    """
    is_chinese = target is not None and base(target) == "zh"
    grammar = Grammar.built_in("en-zh" if is_chinese else "en-de")
    return list(islice(grammar.held_out_sentences(SEED), count))


def tree_pairs(symbols: SymbolVocabulary, trees: Iterable[Tree]) -> list[SentencePair]:
    """Sentences and their trees as a model that parses reads and writes them."""
    return [
        SentencePair(
            source=" ".join(map(without_brackets, tree.words)),
            target=symbols.target_line(tree),
        )
        for tree in trees
    ]


def _prune(
    model: Transformer, pairs: Sequence[ReadPair], on_progress: OnProgress
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
    """All that was found; some of it only of the built-in grammar."""
    sections = [
        Section(title="Heads that follow positions", parts=tuple(_positional(survey))),
        Section(title="What each head does", parts=tuple(_statistics(survey))),
    ]
    if annotated is not None:
        sections += [
            Section(title="Pronouns and syntax", parts=tuple(_links(annotated))),
            Section(title="Alignment", parts=tuple(_alignment(annotated))),
        ]
    sections.append(Section(title="Without a head", parts=tuple(_pruning(survey))))
    pairs = counted(survey.num_pairs, "pair")
    return Report(
        title=f"The heads of {model} on {pairs} of {corpus}",
        sections=tuple(sections),
    )


def _positional(survey: HeadSurvey) -> Iterator[Part]:
    yield (
        "The relative position around which a head has most weight: the share of the "
        "weight on it and the two beside it, and what would be there if each token "
        "attended alike to all that it may. 0 is a token itself, -1 the one before."
    )
    ranked = sorted(survey.offsets, key=lambda each: each.share, reverse=True)
    yield Table(
        columns=columns("head", "around", "share", "if even"),
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
    yield _picture("positions", "Share of the weight around one position", values)


def _statistics(survey: HeadSurvey) -> Iterator[Part]:
    yield f"Means over all tokens. {LEGEND}"
    yield statistics_table(survey.statistics)
    yield _picture(
        "sharpness",
        "Sharpness: the greatest weight of a token",
        [(each.head, each.sharpness) for each in survey.statistics],
    )


def _links(annotated: AnnotatedSurvey) -> Iterator[Part]:
    yield (
        "How often the most accurate heads attend to the right word most of all, "
        "themselves and the end left out; how much of their weight is on it; and how "
        "often a look at a fixed distance would find it. A translation looks from "
        "where the decoder writes it into the source."
    )
    heads = ("links", "best head", "right", "weight", "second", "right")
    yield Table(
        columns=columns("link", *heads, "distance", "right"),
        rows=tuple(map(_link_row, annotated.links)),
    )
    for survey in annotated.links:
        if survey.kind.startswith("it "):
            values = [(each.head, each.accuracy) for each in survey.heads]
            yield _picture("antecedents", f"{survey.kind}: how often right", values)


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
        "Alignment error rate (Och and Ney, 2003) of the encoder-decoder attention, "
        "between words, against the grammar's own alignment: 0 % if all links are "
        "there and right. A target word attends where the decoder writes it, or where "
        "it reads it, a step later. It is linked to the source word that it attends to "
        "most (by target), a source word to the target word that attends most to it "
        "(by source), or either."
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
        f"The loss of the whole model is {survey.loss:.4f} nats per target token. One "
        "head at a time is masked, so that it adds nothing to what its layer puts out "
        "(Michel et al., 2019)."
    )
    yield Table(
        columns=columns("head", "loss", "more by"),
        rows=tuple(
            (str(each.head), f"{each.loss:.4f}", f"{each.loss - survey.loss:+.4f}")
            for each in survey.pruned
        ),
    )
    values = [(each.head, each.loss - survey.loss) for each in survey.pruned]
    yield _picture("pruning", "Loss without each head: nats per target token", values)


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
