"""Settings and languages of a run that starts from a model."""

from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from transduce.architectures.config import (
    CONFIGS,
    ArchitectureConfig,
    ExpertsConfig,
    MixtureRecurrentConfig,
    RecurrentConfig,
)
from transduce.checkpoint import Checkpoint, Progress, TrainingState, build
from transduce.data.corpus_files import CorpusFiles
from transduce.data.corpus_mixture import CorpusConfig
from transduce.errors import ConfigError
from transduce.experiments import start_model
from transduce.experiments.presets import FROM_MODEL, PRESETS, RunConfig
from transduce.experiments.start_model import (
    OUTPUT_BIASES,
    StartModel,
    changed_functions,
    initial_weights,
    languages_from,
    new_languages,
    refuse_misfit,
    settings_from,
)
from transduce.model.config import ModelConfig
from transduce.search_config import SearchConfig
from transduce.settings import flattened
from transduce.text.languages import LanguagesConfig
from transduce.text.sentence_pieces import SentencePieceTokenizer, UnigramModel
from transduce.text.tokenizer import learn_tokenizer
from transduce.text.vocabulary import BOS, SPECIAL_PIECES, TokenizerConfig
from transduce.trees.linearization import STYLES, SymbolVocabulary


@pytest.fixture
def start(trained_checkpoint: Checkpoint) -> StartModel:
    model = replace(trained_checkpoint, source_language="en", target_language="pt-BR")
    return StartModel(path=Path("model"), model=model)


def test_a_run_records_its_tags_of_corpora_with_the_pieces(start):
    model = UnigramModel(
        pieces=(("a", -1.0),), character_map=b"", adds_space=True, removes_spaces=True
    )
    vocabulary = (*SPECIAL_PIECES, "<unk>", "<br>", "<bt>", "a")
    pieces = SentencePieceTokenizer(vocabulary=vocabulary, source=model, target=model)
    start = replace(start, model=replace(start.model, tokenizer=pieces))
    corpora = [
        CorpusConfig(name=tag or "plain", source=("a",), target=("b",), tag=tag)
        for tag in (None, "<bt>")
    ]
    assert start.encoder(corpora).tokenizer.corpus_tags == ("<bt>",)
    assert start.encoder(()).tokenizer.corpus_tags == ()


def files(source: str, target: str) -> CorpusFiles:
    return CorpusFiles(source=(Path(source),), target=(Path(target),))


@pytest.mark.parametrize(
    ("width", "rate"), [(16, 1e-3), (128, 4e-4), (512, 1e-4), (1024, 5e-5)]
)
def test_the_learning_rate_of_adaptation_falls_with_the_width(start, width, rate):
    model = replace(start.model, config=ModelConfig(d_model=width))
    start = replace(start, model=model)
    assert settings_from(start).training.learning_rate == rate
    other = settings_from(start, "multi30k").training
    assert other == PRESETS["multi30k"].training


def test_search_and_positions_are_those_of_the_model(start):
    search = SearchConfig(beam_size=7)
    config = ModelConfig(positions="learned", max_positions=60)
    model = replace(start.model, search=search, config=config)
    settings = settings_from(replace(start, model=model))
    assert settings.search == search
    assert settings.batching.max_length == 60


def test_a_run_from_a_greedy_model_drops_its_settings_of_a_beam(start):
    search = SearchConfig(beam_size=1, patience=1.0, length_penalty=0.9)
    model = replace(start.model, search=search)
    settings = settings_from(replace(start, model=model))
    assert settings.search == SearchConfig(beam_size=1, length_penalty=0.9)


def test_sentences_may_have_more_characters_than_sub_words(start):
    text = ["a dog sleeps", "ein Hund schläft"]
    for kind, longest in (("bpe", 256), ("character", 601)):
        tokenizer = learn_tokenizer(text, TokenizerConfig(kind=kind, vocab_size=290))
        model = replace(start.model, tokenizer=tokenizer)
        settings = settings_from(replace(start, model=model))
        assert settings.batching.max_length == longest
        assert settings.tokenizer.kind == kind


def test_all_settings_that_follow_from_the_model_are_listed(start, monkeypatch):
    names = ["optimizer", "momentum", "beta1", "beta2", "epsilon", "weight_decay"]
    kept = dict(zip(names, ["sgd", 0.5, 0.8, 0.7, 1e-6, 0.1], strict=True))
    earlier = replace(PRESETS["adapt"].training, **kept)
    monkeypatch.setattr(
        start_model, "settings_of", lambda _: RunConfig(training=earlier)
    )
    style = next(s for s in STYLES if s != PRESETS["adapt"].treebank.style)
    model = replace(
        start.model,
        config=ModelConfig(d_model=128, positions="learned", max_positions=60),
        search=SearchConfig(beam_size=7),
        symbols=SymbolVocabulary(style, ()),
    )
    state = TrainingState(progress=Progress(), tensors={})
    after = settings_from(replace(start, model=model, state=state))
    before = flattened(asdict(PRESETS["adapt"])).items()
    changed = dict(flattened(asdict(after)).items() - before)
    tables = {name.partition(".")[0] for name in changed} & set(FROM_MODEL)
    single = {name for name in changed if name.partition(".")[0] not in tables}
    assert tables | single == set(FROM_MODEL)


def test_an_optimizer_without_moments_after_a_change_to_sgd_is_not_continued(
    start, monkeypatch
):
    config = settings_from(start)
    ended = replace(config.training, sgd_from_step=2, sgd_learning_rate=0.5)
    monkeypatch.setattr(start_model, "settings_of", lambda _: RunConfig(training=ended))
    state = TrainingState(progress=Progress(earlier_updates=2), tensors={})
    start = replace(start, model=replace(start.model, step=2), state=state)
    with pytest.raises(ConfigError, match=r"by plain SGD .* which has none; leave it"):
        refuse_misfit(start, config, files("new.en", "new.pt"))


def test_a_shortlist_of_the_model_is_no_default_of_the_run(start):
    model = replace(start.model, search=SearchConfig(beam_size=7, shortlist=True))
    settings = settings_from(replace(start, model=model))
    assert settings.search == SearchConfig(beam_size=7)


@pytest.mark.parametrize("target", ["new.pt", "new.pt-PT", "new.txt"])
def test_languages_are_the_models(start, target):
    found = languages_from(start, LanguagesConfig(), files("new.en", target))
    assert found == LanguagesConfig(source="en", target="pt-BR")


def test_files_name_a_language_that_the_model_does_not(start):
    unknown = replace(start, model=replace(start.model, source_language=None))
    found = languages_from(unknown, LanguagesConfig(), files("new.en", "new.pt"))
    assert found == LanguagesConfig(source="en", target="pt-BR")


def test_another_language_must_be_confirmed(start):
    spanish = files("new.en", "new.es")
    with pytest.raises(ConfigError, match=r"Portuguese \(Brazil\), .* Spanish \(es\)"):
        languages_from(start, LanguagesConfig(), spanish)
    confirmed = languages_from(start, LanguagesConfig(target="es"), spanish)
    assert confirmed == LanguagesConfig(source="en", target="es")
    [message] = new_languages(start, confirmed)
    assert message.startswith("The target language of the model is Portuguese (Brazil)")


def test_biases_that_exclude_a_token_are_raised(start):
    weights = {"embedding.bias": torch.tensor([-1e4, 2.0]), "w": torch.tensor([-1e4])}
    weights["encoder.layers.0.attention.output.bias"] = weights["w"]
    model = replace(start.model, weights=weights)
    found = initial_weights(model, model.config)
    assert found["embedding.bias"].tolist() == [-100.0, 2.0]
    assert found["w"].tolist() == [-1e4]
    assert found["encoder.layers.0.attention.output.bias"].tolist() == [-1e4]


@pytest.mark.parametrize("target_vocab_size", [None, 9])
def test_a_start_that_is_not_to_be_learned_becomes_zero(start, target_vocab_size):
    config = ModelConfig(target_vocab_size=target_vocab_size)
    side = "embedding" if target_vocab_size is None else "target_embedding"
    names = ["embedding.weight", "target_embedding.weight"]
    model = replace(start.model, weights={name: torch.ones(9, 2) for name in names})
    assert all(weight.all() for weight in initial_weights(model, config).values())
    found = initial_weights(model, replace(config, learned_start=False))
    expected = torch.ones(9, 2)
    expected[BOS] = 0
    other = {name: torch.ones(9, 2) for name in names if name != f"{side}.weight"}
    for name, weight in {**other, f"{side}.weight": expected}.items():
        assert torch.equal(found[name], weight)
    assert model.weights[f"{side}.weight"].all()


@pytest.mark.parametrize(
    "config",
    [
        ModelConfig(output_bias=True),
        ModelConfig(output_bias=True, tied_output=False),
        ModelConfig(output_bias=True, target_vocab_size=30),
        *(config() for config in CONFIGS.values()),
    ],
)
def test_the_output_bias_of_each_architecture_is_known_by_its_name(config):
    with torch.device("meta"):
        model = build(replace(config, vocab_size=20))
    bias = model.output_bias
    names = {name for name, weight in model.named_parameters() if weight is bias}
    assert (bias is None) == (not names)
    assert names <= OUTPUT_BIASES


def warnings_of(
    start: StartModel, before: ArchitectureConfig, after: ArchitectureConfig
) -> list[str]:
    start = replace(start, model=replace(start.model, config=before))
    return changed_functions(start, replace(PRESETS["tiny"], model=after))


def test_settings_of_initial_weights_have_no_effect_on_a_run_from_a_model(start):
    config = RecurrentConfig(d_model=8)
    [warning] = warnings_of(start, config, replace(config, forget_bias=1.0))
    assert warning == (
        "`model.forget_bias` has no effect, as the initial weights are those of model."
    )


def test_changed_settings_of_experts_are_named_one_by_one(start):
    config = MixtureRecurrentConfig(d_model=8, cells=12)
    experts = ExpertsConfig(gating="batchwise", importance_weight=0.1, top_k=2)
    [warning] = warnings_of(start, config, replace(config, experts=experts))
    assert warning.startswith("`model.experts.top_k` is 2, but the model was trained ")
