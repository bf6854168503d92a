"""Model that a run starts from: `transduce train --from`.

The run has the model's tokenizer, sizes, languages and search, and keeps a copy of the
model in its folder `START`. Its optimizer starts anew, unless the model is of a run
whose optimizer is to be continued. `train --resume`, by contrast, continues a run in
its own folder, with its corpus and settings (`pipeline.resume`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from torch import Tensor

from transduce.architectures.config import ArchitectureConfig, num_positions
from transduce.checkpoint import (
    Checkpoint,
    Progress,
    TrainingState,
    build_with_weights,
    load_model,
    load_training_state,
    save_training,
    write_model,
)
from transduce.data.batches import BatchingConfig
from transduce.data.corpus_files import CorpusFiles
from transduce.data.corpus_mixture import CorpusConfig
from transduce.data.dataset import EncodedSide, open_dataset
from transduce.data.prepared_corpus import TRAINING, PairEncoder
from transduce.decoding.translations import max_source_tokens
from transduce.errors import CheckpointError, ConfigError, percent
from transduce.experiments.corpus_check import Advice
from transduce.experiments.presets import (
    ADAPT,
    MOMENT_SETTINGS,
    OPTIMIZER_SETTINGS,
    PRESETS,
    RunConfig,
    preset,
)
from transduce.experiments.run_corpus import RunFiles, known_languages
from transduce.experiments.run_folder import START, is_run, settings_of
from transduce.files import real_path
from transduce.model.config import ModelConfig
from transduce.model_folder import newest_first
from transduce.settings import differences, shown
from transduce.text.alignment import DICTIONARY_FILE
from transduce.text.corpus import read_text
from transduce.text.languages import (
    LanguagesConfig,
    best_match,
    english_name,
    guess,
    guess_all,
)
from transduce.text.sentence_pieces import SentencePieceTokenizer
from transduce.text.tokenizer import (
    SubwordTokenizer,
    Tokenizer,
    WordTokenizer,
    unknown_ids,
)
from transduce.text.vocabulary import (
    BOS,
    NUM_RESERVED,
    SPECIAL_PIECES,
    TokenizerConfig,
    TokenizerKind,
    find_language_tag,
)
from transduce.training.optimizer import require_moments, uses_sgd
from transduce.trees.linearization import UNKNOWN

FREE_MODEL_SETTINGS = {
    "dropout", "attention_dropout", "relu_dropout", "neighbourhood",
    "experts.importance_weight", "experts.load_weight",
}  # fmt: skip
"""Model settings that may differ from those of the start without a warning."""
SETTINGS_OF_INITIAL_WEIGHTS = {"initial_weights", "initial_range", "forget_bias"}
"""Model settings that determine initial weights alone, which the start replaces."""
MAX_UNKNOWN_SHARE = 0.1
"""Share of unknown pieces or bytes above which a corpus may be in another language."""
MAX_IDS = 10_000_000
"""Number of ids of a side that are searched for unknown ones."""
RATES = (2e-5, 1e-3)
"""Lowest and highest learning rate of the preset `adapt`, whatever the width."""
MIN_BIAS = -100.0
"""Smallest output bias in training; it gives a token no probability in fp32."""
OUTPUT_BIASES = {
    "embedding.bias",
    "target_embedding.bias",
    "output.bias",
    "shared_bias",
}
"""Names of the bias of the logits in the architectures."""
Side = Literal["source", "target"]
SIDES: tuple[Side, Side] = ("source", "target")


@dataclass(frozen=True, slots=True, kw_only=True)
class StartModel:
    """Model that a run starts from, and the state of its optimizer, if kept."""

    path: Path
    """Folder that the user named."""
    model: Checkpoint
    state: TrainingState | None = None
    """State of the optimizer to continue; None for a new optimizer."""

    def encoder(self, corpora: Sequence[CorpusConfig]) -> PairEncoder:
        """Return the encoder of pairs of corpora by the model's vocabulary."""
        tokenizer = self.model.tokenizer
        if isinstance(tokenizer, SentencePieceTokenizer):
            tokenizer = tokenizer.trained_with(each.tag for each in corpora if each.tag)
        return PairEncoder(tokenizer=tokenizer, symbols=self.model.symbols)

    def write(self, run: Path) -> None:
        """Write the model into the folder of a run."""
        if self.state is None:
            (run / START).mkdir()
            write_model(self.model, run / START)
        else:
            save_training(self.model, self.state, run / START)
        if self.model.dictionary is not None:
            self.model.dictionary.save(run / DICTIONARY_FILE)

    def record(self) -> dict[str, object]:
        """Origin of the model, for the record of a run."""
        return {
            "path": str(self.path.absolute()),
            "run": self.model.run,
            "step": self.model.step,
            "keeps_optimizer": self.state is not None,
        }


def open_start(path: Path, *, keep_optimizer: bool = False) -> StartModel:
    """Load a model to start from: of a run, a model folder or an imported model.

    With `keep_optimizer` it is the newest checkpoint of a run, with the moments of its
    optimizer. Raises `CheckpointError` if the model is missing or damaged, and
    `ConfigError` if there is no optimizer to keep.
    """
    if not keep_optimizer:
        return StartModel(path=path, model=load_model(path))
    saved = newest_first(path) if is_run(path) else []
    if not saved:
        raise ConfigError(
            f"{path}: `keep_optimizer` needs a run with a checkpoint, as only that has "
            "the moments of an optimizer; leave it out, or start from a run."
        )
    model, state = load_model(saved[0]), load_training_state(saved[0])
    earlier = state.progress.step + state.progress.earlier_updates
    state = replace(state, progress=Progress(earlier_updates=earlier))
    return StartModel(path=path, model=model, state=state)


def initial_weights(model: Checkpoint, config: ArchitectureConfig) -> dict[str, Tensor]:
    """Weights that training with a model's settings starts from.

    The start token's embedding is zero if the settings have no learned one, and output
    biases are at least `MIN_BIAS`.

    Imported models have output biases of -10,000 for tokens that are never generated.
    Label smoothing gives each token a share of the probability, so such a bias would
    raise the loss by several nats. In fp32 a bias of -100 excludes a token as well.
    """
    weights = {
        name: weight.clamp(min=MIN_BIAS) if name in OUTPUT_BIASES else weight
        for name, weight in model.weights.items()
    }
    if isinstance(config, ModelConfig) and not config.learned_start:
        side = "embedding" if config.target_vocab_size is None else "target_embedding"
        weights[f"{side}.weight"] = weights[f"{side}.weight"].clone()
        weights[f"{side}.weight"][BOS] = 0
    return weights


def settings_from(start: StartModel, name: str = ADAPT) -> RunConfig:
    """Settings of a preset, with those that follow from the model of the start.

    The learning rate of the preset `adapt` is in inverse proportion to the width. Adam
    changes each weight by about the rate, and an output of a layer sums the changes of
    as many weights as the layer has inputs (Yang et al., 2021).
    """
    config = preset(name)
    model, training = start.model.config, config.training
    batching = batching_for(start.model.tokenizer, config)
    if name == ADAPT:
        training = replace(training, learning_rate=_adaptation_rate(model.d_model))
    if (max_positions := num_positions(start.model.config)) is not None:
        batching = replace(batching, max_length=min(batching.max_length, max_positions))
    if start.state is not None:
        earlier = settings_of(start.path).training
        kept = {name: getattr(earlier, name) for name in OPTIMIZER_SETTINGS}
        training = replace(training, **kept)
    treebank = config.treebank
    if start.model.symbols is not None:
        treebank = replace(treebank, style=start.model.symbols.style_name)
    search = start.model.search or config.search
    if search.beam_size == 1:  # the model may have settings for a beam
        search = search.greedy()
    # The run's own models have no shortlist until one is counted for them.
    search = replace(search, shortlist=False)
    return replace(
        config,
        tokenizer=tokenizer_settings(start.model.tokenizer),
        model=model,
        batching=batching,
        training=training,
        search=search,
        treebank=treebank,
    )


def batching_for(tokenizer: Tokenizer, config: RunConfig) -> BatchingConfig:
    """Return the batching of a preset, with lengths that fit a model's tokenizer.

    A sentence has several times as many characters as sub-words, whose number most
    presets limit.
    """
    batching, kind = config.batching, tokenizer_settings(tokenizer).kind
    if kind != "character" or config.tokenizer.kind == kind:
        return batching
    longest = max_source_tokens(tokenizer) + 1  # the end counts
    return replace(batching, max_length=max(batching.max_length, longest))


def _adaptation_rate(d_model: int) -> float:
    """Learning rate of the preset `adapt` for a width, to one digit."""
    rate = PRESETS[ADAPT].training.learning_rate
    assert rate is not None
    scaled = rate * ModelConfig().d_model / d_model
    return float(f"{min(max(scaled, RATES[0]), RATES[1]):.0e}")


def tokenizer_settings(tokenizer: Tokenizer) -> TokenizerConfig:
    """Settings that describe the model's tokenizer in the record of the run."""
    kind: TokenizerKind = "bpe"
    if isinstance(tokenizer, WordTokenizer):
        kind = "word"
    elif isinstance(tokenizer, SubwordTokenizer) and tokenizer.is_of_characters:
        kind = "character"
    smallest = TokenizerConfig(kind=kind).num_reserved + 1
    return TokenizerConfig(kind=kind, vocab_size=max(tokenizer.vocab_size, smallest))


def refuse_replacing(start: StartModel, out: Path) -> None:
    """Raise `ConfigError` if a new run in a folder would replace its own start."""
    if real_path(start.path).is_relative_to(real_path(out)):
        raise ConfigError(
            f"{out}: the new run must be in another folder than the model that it "
            "starts from, which it would replace; choose another folder."
        )


def refuse_misfit(start: StartModel, config: RunConfig, files: RunFiles) -> None:
    """Raise `ConfigError` if settings or files cannot go with the model."""
    if (start.model.symbols is not None) != (files.task == "parsing"):
        kind, corpus = ("a translator", "text")
        if start.model.symbols is not None:
            kind, corpus = ("a parser", "trees")
        raise ConfigError(
            f"{start.path}: the model is {kind}, so its training needs {corpus}, but "
            "the corpus is of the other kind; give another model or another corpus."
        )
    if config.tokenizer != tokenizer_settings(start.model.tokenizer):
        raise ConfigError(
            f"{start.path}: the tokenizer is the model's, so that settings of "
            "`tokenizer` have no effect; leave them out."
        )
    symbols = start.model.symbols
    if symbols is not None and config.treebank.style != symbols.style_name:
        raise ConfigError(
            f"{start.path}: `treebank.style` must be the model's \"{symbols.style_name}"
            f'", but is "{config.treebank.style}"; leave it out.'
        )
    changes = list(_changed_sizes(start, config))
    if changes:
        raise ConfigError(
            f"{start.path}: the sizes must be the model's, but {changes[0]}; leave the "
            "setting out."
        )
    if start.state is not None:
        _require_same_optimizer(start, config)


def _changed_sizes(start: StartModel, config: RunConfig) -> Iterator[str]:
    """Describe the changed model settings, if the weights no longer fit."""
    if type(config.model) is not type(start.model.config):
        yield "the settings are of another architecture"
        return
    try:
        build_with_weights(config.model, start.model.weights)
    except CheckpointError:
        changed = differences(start.model.config, config.model)
        for name, (before, now) in changed.items():
            if name not in FREE_MODEL_SETTINGS | SETTINGS_OF_INITIAL_WEIGHTS:
                yield f"`model.{name}` is {shown(now)} in place of {shown(before)}"


def _require_same_optimizer(start: StartModel, config: RunConfig) -> None:
    """Raise `ConfigError` if the run cannot continue the optimizer of its start."""
    assert start.state is not None
    earlier = settings_of(start.path).training
    if uses_sgd(start.model.step, earlier):
        raise ConfigError(
            f"{start.path}: `keep_optimizer` continues the moments of the run's "
            "optimizer, but its last updates are by plain SGD "
            "(`training.sgd_from_step`), which has none; leave it out."
        )
    for name in MOMENT_SETTINGS:
        before = getattr(earlier, name)
        if (now := getattr(config.training, name)) != before:
            raise ConfigError(
                f"{start.path}: `keep_optimizer` continues the run's optimizer, whose "
                f"`training.{name}` is {shown(before)}, but {shown(now)} is requested; "
                "leave one of them out."
            )
    changed = differences(start.model.config, config.model)
    if changed.get("learned_start") == (True, False):
        raise ConfigError(
            f"{start.path}: `keep_optimizer` continues the run's optimizer, whose "
            "moments would change the embedding of the start token, but "
            "`model.learned_start` is false; leave one of them out."
        )
    model = build_with_weights(config.model, start.model.weights)
    require_moments(model, config.training, start.state.tensors)


def changed_functions(start: StartModel, config: RunConfig) -> list[str]:
    """Warnings about settings that differ from the start model's, but not its weights.

    With some, the same weights give other results. Settings of initial weights have no
    effect.
    """
    messages = []
    for name, (before, now) in differences(start.model.config, config.model).items():
        if name in SETTINGS_OF_INITIAL_WEIGHTS:
            messages.append(
                f"`model.{name}` has no effect, as the initial weights are those of "
                f"{start.path}."
            )
        elif name not in FREE_MODEL_SETTINGS:
            messages.append(
                f"`model.{name}` is {shown(now)}, but the model was trained with "
                f"{shown(before)}; its translations will be worse until it has adapted."
            )
    return messages


def languages_from(
    start: StartModel, given: LanguagesConfig, files: RunFiles
) -> LanguagesConfig:
    """Languages of a run: those given, or else the model's, or else the files'.

    Raises `ConfigError` if the files' endings name another language than the model's.
    """
    guessed = known_languages(LanguagesConfig(), files)
    tags = {}
    for side in SIDES:
        chosen, known = getattr(given, side), _language(start, side)
        found = getattr(guessed, side)
        tags[side] = chosen or known or found
        if chosen is None and known and found and not best_match(found, [known]):
            raise ConfigError(
                f"{start.path}: the {side} language of the model is "
                f"{english_name(known)}, but the files' endings name "
                f"{english_name(found)} ({found}); give files of the model's language, "
                f"or set `languages.{side}` to the files' language."
            )
    return LanguagesConfig(**tags)


def refuse_unknown_targets(
    start: StartModel, config: RunConfig, files: RunFiles
) -> None:
    """Raise an error if the model has no tag of a target language that a run needs.

    It is a `RequestError` for another language than the model's, and a `ConfigError`
    for an unknown one, unless each source begins with a tag.
    """
    if not isinstance(files, CorpusFiles):
        return
    tags = start.model.tokenizer.language_tags
    targets = {
        corpus.name: corpus.target_language
        for corpus in config.corpora
        if corpus.target_language is not None
    }
    if targets and not tags:
        raise ConfigError(
            f"{start.path}: the model has one target language and no tags of "
            "languages, but the corpora have tags of "
            f"{', '.join(sorted(set(targets.values())))}; "
            "train on corpora of its language, without `target_language`."
        )
    for name, language in targets.items():
        what = f"{start.path}: the target language of corpus {name}"
        find_language_tag(language, tags, what)
    if (main := config.languages.target) is not None and tags:
        find_language_tag(main, tags, f"{start.path}: the target language")
    elif tags and not targets:
        _require_tagged(start, files)


def _require_tagged(start: StartModel, files: CorpusFiles) -> None:
    """Raise `ConfigError` if a source does not begin with a tag of a language."""
    tokenizer = start.model.tokenizer
    dev = files.dev_source if guess_all(files.dev_target) is None else ()
    further = (each.source for each in files.dev_sets if guess(each.target) is None)
    for path in (*files.source, *dev, *further):
        for line in read_text([path]):
            if line.strip() and tokenizer.tag_id(tokenizer.language(line)) is None:
                tag = tokenizer.language_tags[0]
                raise ConfigError(
                    f"{start.path}: the model has several target languages, but that "
                    f"of {path} is unknown; set `languages.target`, or put a tag such "
                    f"as {tag} before each source."
                )


def new_languages(start: StartModel, languages: LanguagesConfig) -> list[str]:
    """Warnings about languages of a run that are not the model's."""
    messages = []
    for side in SIDES:
        chosen, known = getattr(languages, side), _language(start, side)
        if chosen and known and not best_match(chosen, [known]):
            messages.append(
                f"The {side} language of the model is {english_name(known)}; it will "
                f"learn {english_name(chosen)} from this corpus alone."
            )
    return messages


def _language(start: StartModel, side: Side) -> str | None:
    model = start.model
    if side == "target" and model.tokenizer.language_tags:
        return None  # it has several, which corpora choose
    return model.source_language if side == "source" else model.target_language


def coverage_advice(encoder: PairEncoder, run: Path) -> Iterator[Advice]:
    """Advice about a prepared corpus that the model's vocabulary does not cover."""
    ids, name = _unknown_ids(encoder.tokenizer)
    dataset = open_dataset(run / TRAINING)
    shares = {"source": _share(dataset.source, ids)}
    if encoder.symbols is None:
        shares["target"] = _share(dataset.target, ids)
    elif share := _share(dataset.target, [UNKNOWN]):
        yield Advice(
            problem=f"{percent(share, 1)} of the symbols of the training trees are "
            "unknown to the model",
            remedy="use the labels of the model's treebank, or train a new parser",
        )
    for side, share in shares.items():
        if share > MAX_UNKNOWN_SHARE:
            yield Advice(
                problem=f"{percent(share)} of the training {side}'s pieces are {name} "
                "in the vocabulary of the model",
                remedy="check that the text is of the model's language and script",
            )


def _share(side: EncodedSide, ids: Sequence[int]) -> float:
    """Share of some ids among those of a side."""
    first = np.asarray(side.ids[:MAX_IDS])
    return float(np.isin(first, ids).mean()) if len(first) else 0.0


def _unknown_ids(tokenizer: Tokenizer) -> tuple[list[int], str]:
    """Ids that stand for unknown text, and words that describe them after "are"."""
    if found := unknown_ids(tokenizer):
        return found, "unknown"
    first = len(SPECIAL_PIECES)
    return list(range(first, NUM_RESERVED)), "bytes of characters that are not"
