import math
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from copy import copy, deepcopy
from dataclasses import replace
from functools import partial
from itertools import count, islice
from pathlib import Path
from threading import Lock
from typing import Any, cast

import numpy as np
import pytest
import torch

from beam_kinds import beam_search
from callers_modes import MODES
from transduce.checkpoint import Checkpoint, save_model
from transduce.decoding import backend, torch_model
from transduce.decoding.native_decoder import DecodingPrecision, PrecisionChoice
from transduce.decoding.translations import Pace, Translation
from transduce.decoding.translator import (
    LONGEST_SCORED,
    VERSION_KEY,
    Translator,
    interdependent_lines,
    load,
    longest_source,
)
from transduce.device import Hardware
from transduce.errors import (
    CheckpointError,
    ConfigError,
    RequestError,
    TransduceWarning,
    VersionError,
)
from transduce.model.transformer import Transformer
from transduce.model_folder import change_search
from transduce.native import api
from transduce.search_config import PARSING_SEARCH, SamplingConfig, SearchConfig
from transduce.text.corpus import WINDOW_LINES, full_windows
from transduce.text.vocabulary import BOS, EOS, PAD

CPU = torch.device("cpu")
SENTENCES = ["one two", "", "three"]
BRIEF = SearchConfig(max_length=2)


def pickled_and_loaded(translator: Translator) -> Translator:
    return cast(Translator, pickle.loads(pickle.dumps(translator)))


@pytest.fixture
def translator(trained_checkpoint: Checkpoint) -> Translator:
    return Translator(trained_checkpoint, CPU)


def test_a_translation_is_the_best_of_its_hypotheses(translator: Translator) -> None:
    [translation] = translator.translate(["one two three"], beam_size=4)
    assert translation.text == translation.hypotheses[0].text
    assert translation.score == translation.hypotheses[0].score


@pytest.mark.usefixtures("is_native")
def test_several_hypotheses_are_sorted_best_first(translator: Translator) -> None:
    several = SearchConfig(beam_size=3, num_best=2)
    [translation] = translator.translate_stream(["one two three"], several)
    scores = [h.score for h in translation.hypotheses]
    assert len(scores) == 2
    assert scores == sorted(scores, reverse=True)
    assert scores[0] == translation.score


@pytest.mark.usefixtures("is_native")
@pytest.mark.parametrize("beam_size", [1, 3])
def test_one_hypothesis_is_returned_by_default(
    translator: Translator, beam_size: int
) -> None:
    [translation] = translator.translate(["one two three"], beam_size=beam_size)
    [only] = translation.hypotheses
    assert (only.text, only.score) == (translation.text, translation.score)


@pytest.mark.parametrize("source", ["", "   ", "\t", "\u2028"])
def test_an_empty_source_has_an_empty_translation(
    translator: Translator, source: str
) -> None:
    [translation] = translator.translate([source])
    assert translation.text == ""
    assert translation.hypotheses == ()


def test_an_empty_list_has_no_translations(translator: Translator) -> None:
    assert translator.translate([]) == []


def test_no_extra_length_keeps_a_translation_as_short_as_its_source(
    trained_checkpoint: Checkpoint,
) -> None:
    translator = Translator(trained_checkpoint, CPU)
    source = "one"
    limit = len(translator.tokenizer.encode(source)) + 1
    [translation] = translator.translate([source], extra_length=0)
    assert len(translator.tokenizer.encode(translation.text)) <= limit


def test_the_search_of_the_run_is_the_default(
    trained_checkpoint: Checkpoint, parsing_checkpoint: Checkpoint
) -> None:
    own = SearchConfig(beam_size=2, length_penalty=1.5)
    translator = Translator(replace(trained_checkpoint, search=own), CPU)
    sources = ["one two three"]
    expected = list(translator.translate_stream(sources, own))
    assert translator.translate(sources) == expected
    assert list(translator.translate_stream(sources)) == expected
    [wider] = translator.translate(sources, beam_size=3)
    given = SearchConfig(beam_size=3, length_penalty=1.5)
    assert [wider] == list(translator.translate_stream(sources, given))
    assert Translator(trained_checkpoint, CPU).search == SearchConfig()
    assert Translator(parsing_checkpoint, CPU).search == PARSING_SEARCH


def test_a_models_own_num_best_is_ignored_with_a_warning(
    trained_checkpoint: Checkpoint,
) -> None:
    own = SearchConfig(num_best=3)
    translator = Translator(replace(trained_checkpoint, search=own), CPU)
    sources = ["one two three"]
    expected = list(translator.translate_stream(sources, SearchConfig()))
    with pytest.warns(TransduceWarning, match=r"own `search\.num_best` of 3 is used"):
        assert list(translator.translate_stream(sources)) == expected
    with pytest.warns(TransduceWarning, match=r"own `search\.num_best` of 3 is used"):
        assert translator.translate(sources) == expected


@pytest.mark.parametrize("beam_size", [1, 4])
@pytest.mark.parametrize("most", [1, 2, 5])
def test_no_translation_exceeds_the_maximum_length(
    translator: Translator, beam_size: int, most: int
) -> None:
    found = translator.translate(
        ["one two three four", "five"], beam_size=beam_size, max_length=most
    )
    hypotheses = [each for translation in found for each in translation.hypotheses]
    lengths = [len(each.token_log_probabilities) for each in hypotheses]
    assert max(lengths) == most


def test_a_prefix_may_exceed_the_maximum_length(
    translator: Translator,
) -> None:
    [found] = translator.translate(["one"], prefixes=["zwei drei"], max_length=1)
    assert found.text.startswith("zwei drei")
    # One token is generated after those of the prefix.
    prefix = translator.tokenizer.encode("zwei drei")
    [best] = found.hypotheses
    assert len(best.token_log_probabilities) == len(prefix) + 1


def test_an_impossible_beam_is_refused(translator: Translator) -> None:
    with pytest.raises(ConfigError, match=r"`search\.beam_size` must be at least 1"):
        translator.translate(["one"], beam_size=0)


@pytest.mark.parametrize("text", ["one two three", "one\ntwo\n\nthree\n", ""])
def test_a_string_is_translated_like_a_list_of_one(
    translator: Translator, text: str
) -> None:
    drawing = SamplingConfig(number=3)
    assert translator.translate(text) == translator.translate([text])[0]
    assert translator.sample(text, drawing) == translator.sample([text], drawing)[0]
    assert translator.score(text, "eins") == translator.score([text], ["eins"])[0]


def test_a_sentence_is_begun_by_its_prefix(translator: Translator) -> None:
    found = translator.translate("one two", prefixes="zwei")
    assert found == translator.translate(["one two"], prefixes=["zwei"])[0]
    assert found.text.startswith("zwei")


def test_lists_return_lists_and_streams_return_iterators(
    translator: Translator,
) -> None:
    drawing = SamplingConfig(number=2)
    assert isinstance(translator.translate(SENTENCES), list)
    assert isinstance(translator.sample(SENTENCES, drawing), list)
    assert isinstance(translator.score(SENTENCES, SENTENCES), list)
    for stream in (
        translator.translate_stream(iter(SENTENCES)),
        translator.sample_stream(iter(SENTENCES), drawing),
    ):
        assert iter(stream) is stream
        assert len(list(stream)) == len(SENTENCES)


def test_a_string_in_place_of_a_list_is_refused(translator: Translator) -> None:
    for call in (
        lambda: translator.translate(["one"], prefixes="eins"),
        lambda: translator.translate_stream("one"),
        lambda: translator.sample_stream("one", SamplingConfig()),
        lambda: translator.score(["one"], "zwo"),
        lambda: translator.source_ids("one"),
        lambda: translator.token_ids("one"),
    ):
        with pytest.raises(RequestError, match="as a list of strings, but one string"):
            call()
    for call in (
        lambda: translator.translate("one", prefixes=["eins"]),
        lambda: translator.score("one", ["eins"]),
    ):
        with pytest.raises(RequestError, match="must be one string, but is list"):
            call()


def test_a_value_that_is_no_string_is_named(
    translator: Translator, unchecked_types: None
) -> None:
    for sources in (["one", None], ["one", 2]):
        for call in (
            lambda sources=sources: translator.translate(sources),
            lambda sources=sources: translator.score(sources, ["eins", "zwei"]),
            lambda sources=sources: translator.score(["eins", "zwei"], sources),
            lambda sources=sources: translator.translate(["1", "2"], prefixes=sources),
            lambda sources=sources: translator.source_ids(sources),
            lambda sources=sources: translator.token_ids(sources),
        ):
            with pytest.raises(RequestError, match="must be a string, but number 2 is"):
                call()


def test_half_of_a_surrogate_pair_is_refused(translator: Translator) -> None:
    two = ["one", "a\udc80b"]
    for call in (
        lambda: translator.translate(two),
        lambda: translator.translate(two[1]),
        lambda: translator.translate("one", prefixes=two[1]),
        lambda: translator.translate(["1", "2"], prefixes=two),
        lambda: translator.sample(two, SamplingConfig(number=1)),
        lambda: translator.score(two, ["eins", "zwei"]),
        lambda: translator.score(two[0], two[1]),
        lambda: translator.source_ids(two),
        lambda: translator.token_ids(two),
    ):
        with pytest.raises(RequestError, match=r"character 2 of 'a\\udc80b' is"):
            call()


def test_characters_that_show_nothing_are_not_read(translator: Translator) -> None:
    plain, hinted = "one two three", "\ufeffo\u00adne \u200ftw\u200bo\u2060 three"
    assert translator.source_ids([hinted]) == translator.source_ids([plain])
    assert translator.translate(hinted) == translator.translate(plain)
    assert translator.score(hinted, "eins") == translator.score(plain, "eins")
    assert translator.translate("\u00ad\u200b").text == ""
    joined = translator.source_ids(["o\u200cne tw\u200do three"])
    assert joined != translator.source_ids([plain])


def test_bytes_in_place_of_sentences_are_named(
    translator: Translator, unchecked_types: None
) -> None:
    for call in (translator.translate, translator.translate_stream):
        with pytest.raises(RequestError, match="must be a string, but is bytes; dec"):
            call(b"one")


def test_sentences_that_cannot_be_read_one_by_one_are_named(
    translator: Translator, unchecked_types: None
) -> None:
    for sources in (None, 3, Path("one"), np.array("one")):
        kind = type(sources).__name__
        with pytest.raises(RequestError, match=f"but are given as {kind}; give one"):
            translator.translate(sources)


def test_the_sentences_of_a_generator_are_scored(
    translator: Translator, unchecked_types: None
) -> None:
    found = translator.score(iter(["one", "two"]), iter(["eins", "zwei"]))
    assert found == translator.score(["one", "two"], ["eins", "zwei"])


def test_sentences_without_an_order_are_refused(
    translator: Translator, unchecked_types: None
) -> None:
    for sources in ({"one"}, {"one": 1}, frozenset(["one"])):
        kind = type(sources).__name__
        with pytest.raises(RequestError, match=f"but are given as {kind}; put them"):
            translator.translate(sources)
    assert len(translator.translate({"one": 1}.keys())) == 1


def test_a_language_or_tag_that_is_no_string_is_refused(
    translator: Translator, unchecked_types: None
) -> None:
    with pytest.raises(RequestError, match="`language` must be a string, but is None"):
        translator.into(None)
    with pytest.raises(RequestError, match="`tag` must be a string, but is 3"):
        translator.with_tag(3)


def test_a_nul_character_in_the_path_of_another_model_names_others(
    trained_checkpoint: Checkpoint, tmp_path: Path
) -> None:
    save_model(trained_checkpoint, tmp_path / "model")
    with pytest.raises(ConfigError, match="^`others` must be the name of a file"):
        load(tmp_path / "model", "a\0b")


def test_a_pickled_translator_opens_its_folders_again(
    trained_checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        save_model(trained_checkpoint, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    translator = load("one", "two", device="cpu", precision="int8", num_processes=2)
    translator.search = BRIEF
    expected = translator.translate(SENTENCES)
    monkeypatch.chdir("/")
    pickled = pickle.dumps(translator)
    assert len(pickled) < (tmp_path / "one" / "model.safetensors").stat().st_size / 4
    with pickle.loads(pickled) as again:
        assert repr(again) == repr(translator)
        assert (again.search, again.num_processes) == (BRIEF, 2)
        assert again.translate(SENTENCES) == expected
    translator.close()
    shutil.rmtree(tmp_path / "two")
    with pytest.raises(CheckpointError, match="two/model.safetensors: the weights are"):
        pickle.loads(pickled)


def test_a_pickled_translator_is_refused_where_a_model_has_changed(
    trained_checkpoint: Checkpoint, tmp_path: Path
) -> None:
    save_model(trained_checkpoint, tmp_path / "model")
    translator = load(tmp_path / "model", device="cpu")
    search = SearchConfig(beam_size=2)
    change_search(tmp_path / "model", lambda _: search)  # is pickled, so it may change
    pickled = pickle.dumps(translator)
    assert pickle.loads(pickled).search == translator.search != search
    weights = trained_checkpoint.weights
    changed = {n: w + (n == "embedding.weight") for n, w in weights.items()}
    shutil.rmtree(tmp_path / "model")
    save_model(replace(trained_checkpoint, weights=changed), tmp_path / "model")
    for each in (pickled, pickle.dumps(translator)):
        with pytest.raises(CheckpointError, match="but have changed since; load the"):
            pickle.loads(each)


@pytest.mark.parametrize(
    ("version", "made"),
    [({}, "an earlier version"), ({VERSION_KEY: "0.0.7"}, "version 0.0.7")],
)
def test_a_translator_that_another_version_pickled_is_refused(
    translator: Translator, version: dict[str, str], made: str
) -> None:
    state = translator.__getstate__()
    del state[VERSION_KEY]
    again = object.__new__(Translator)
    with pytest.raises(VersionError, match=f"but is of {made}; load the model from"):
        again.__setstate__({**state, **version})


class Polite(Translator):
    """Translator with a constructor and an attribute of its own."""

    def __init__(self, checkpoint: Checkpoint, greeting: str) -> None:
        super().__init__(checkpoint, CPU)
        self.greeting = greeting
        self.version = 3


@pytest.mark.parametrize("again", [copy, deepcopy, pickled_and_loaded])
def test_a_copied_or_pickled_translator_keeps_its_class_and_attributes(
    trained_checkpoint: Checkpoint, again: Callable[[Translator], Translator]
) -> None:
    polite = Polite(trained_checkpoint, "Hello!")
    polite.source_language = "fr"
    found = again(polite)
    assert isinstance(found, Polite)
    assert (found.greeting, found.source_language) == ("Hello!", "fr")
    assert found.version == 3
    assert found.translate(SENTENCES) == polite.translate(SENTENCES)


def test_an_attribute_that_cannot_be_pickled_fails_when_pickling(
    translator: Translator,
) -> None:
    vars(translator)["lock"] = Lock()
    with pytest.raises(TypeError, match="cannot pickle"):
        pickle.dumps(translator)


def test_a_pickled_translator_keeps_its_target_language_and_tag(
    tagged_checkpoint: Checkpoint, tmp_path: Path
) -> None:
    save_model(tagged_checkpoint, tmp_path / "model")
    chosen = load(tmp_path / "model", device="cpu", target_language="fr", tag="law")
    again = pickle.loads(pickle.dumps(chosen))
    assert again.target_language == "fr"
    assert again.source_ids(["one"]) == chosen.source_ids(["one"])


def test_a_source_without_the_tag_of_a_target_language_is_warned_of(
    tagged_checkpoint: Checkpoint,
) -> None:
    translator = Translator(tagged_checkpoint, CPU)
    with pytest.warns(TransduceWarning, match=r"has no tag .* such as >>de<<\."):
        translator.translate(["one two", ">>de<< one"])
    translator.translate([">>de<< one", "", " "])
    translator.into("de").translate("one two")


def test_a_translator_of_no_folder_is_pickled_with_its_weights(
    translator: Translator,
) -> None:
    again = pickle.loads(pickle.dumps(translator))
    assert again.translate(SENTENCES) == translator.translate(SENTENCES)


@pytest.mark.parametrize("copied", [copy, deepcopy])
def test_a_copy_shares_the_weights_but_not_the_settings(
    translator: Translator, copied: Callable[[Translator], Translator]
) -> None:
    own = copied(translator)
    own.search = BRIEF
    assert own.models is translator.models
    assert translator.search != BRIEF


def test_the_end_of_a_block_ends_the_processes_of_a_translator(
    trained_checkpoint: Checkpoint,
) -> None:
    children = Path("/proc/thread-self/children")
    others = set(children.read_text().split())
    with Translator(trained_checkpoint, CPU, num_processes=2) as translator:
        assert len(set(children.read_text().split()) - others) == 2
    assert not set(children.read_text().split()) - others
    assert translator.translate("one").text


def test_settings_of_another_kind_are_refused(
    translator: Translator, unchecked_types: None
) -> None:
    for config in ({"beam_size": 2}, SamplingConfig()):
        with pytest.raises(ConfigError, match="`config` must be a SearchConfig, but"):
            translator.translate_stream(["one"], config)
    for other in ({"number": 2}, SearchConfig()):
        with pytest.raises(ConfigError, match="`config` must be a SamplingConfig, but"):
            translator.sample(["one"], other)
    for pace in (5, ""):
        with pytest.raises(ConfigError, match="`pace` must be a Pace, but"):
            translator.translate_stream(["one"], pace=pace)
        with pytest.raises(ConfigError, match="`pace` must be a Pace, but"):
            translator.sample_stream(["one"], pace=pace)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("search", {"beam_size": 2}, "must be a SearchConfig, but is {'beam_size': 2}"),
        ("search", None, "must be a SearchConfig, but is None"),
        ("glossary", {"one": "eins"}, "must be a Glossary, but is {'one': 'eins'}"),
        ("language_tag", "de", "empty or one of the model's tags, .* by `into`"),
        ("corpus_tag", "law", "empty or one of the model's tags, .* by `with_tag`"),
        ("corpus_tag", None, "empty or one of the model's tags, but is None"),
        ("batch_positions", 0, "must be at least 1, but is 0"),
        ("batch_positions", "9", "must be a number, but is '9'"),
    ],
)
def test_an_attribute_of_another_kind_is_refused_and_the_old_one_stays(
    translator: Translator, name: str, value: Any, message: str
) -> None:
    before = translator.translate("one two").text
    with pytest.raises(ConfigError, match=f"`{name}` .*{message}"):
        setattr(translator, name, value)
    assert translator.translate("one two").text == before


@pytest.mark.usefixtures("unchecked_types")
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("windows", 3, "of type Windows"),
        ("on_line", None, "a function"),
        ("on_step", "print", "a function or none"),
        ("first_line", "2", "a whole number"),
        ("first_line", -1, "at least 0"),
    ],
)
def test_a_pace_of_other_values_is_refused(name: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=f"`{name}` must be {message}, but is "):
        Pace(**{name: value})


def test_one_sample_is_drawn_by_default(translator: Translator) -> None:
    assert translator.sample("one") == translator.sample("one", SamplingConfig())


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.filterwarnings("ignore:The processor has no instructions for bf16")
def test_modes_of_the_caller_do_not_change_translations_by_pytorch(
    trained_checkpoint: Checkpoint,
    monkeypatch: pytest.MonkeyPatch,
    mode: Callable[[], AbstractContextManager[object]],
    precision: PrecisionChoice,
) -> None:
    monkeypatch.setattr(backend, "api", lambda: None)
    monkeypatch.setattr(torch_model, "api", lambda: None)

    def results() -> list[object]:
        translator = Translator(trained_checkpoint, CPU, precision=precision)
        config = SearchConfig(beam_size=2, coverage_penalty=0.1, max_length=4)
        samples = SamplingConfig(number=2, extra_length=2)
        assert translator.cross_attention is not None
        [attention] = translator.cross_attention([[5, 6, EOS]], [[7, 8]])
        return [
            [*translator.translate_stream(["one two", "three"], config)],
            translator.translate("one", beam_size=1, max_length=4),
            translator.score("one two", "eins zwei"),
            translator.sample("one two", samples),
            attention.tolist(),
        ]

    expected = results()
    with mode():
        assert results() == expected


def test_a_translator_and_its_translations_have_a_repr_of_one_line(
    translator: Translator,
) -> None:
    assert repr(translator) == (
        f"<Translator: translates, 1 layer, d_model 32, "
        f"{translator.tokenizer.vocab_size} pieces, on cpu (fp32)>"
    )
    found = translator.translate("one two", beam_size=4)
    assert repr(found) == f"Translation(text={found.text!r}, score={found.score:.3f})"
    [several] = translator.translate_stream(
        ["one two"], SearchConfig(beam_size=4, num_best=4)
    )
    assert repr(several).endswith(f", hypotheses={len(several.hypotheses)})")
    best = several.hypotheses[0]
    assert repr(best) == (
        f"TranslationHypothesis(text={best.text!r}, score={best.score:.3f}, "
        f"tokens={len(best.tokens)})"
    )
    long = Translation(text="x" * 500, score=-1.0, hypotheses=(), num_parts=3)
    assert len(repr(long)) < 150
    assert repr(long).endswith("x…', score=-1.000, num_parts=3)")


def test_sources_without_as_many_targets_are_refused(translator: Translator) -> None:
    with pytest.raises(RequestError, match="must be equally many, but are 2 and 1"):
        translator.score(["one", "two"], ["eins"])


def test_a_missing_prefix_is_counted_from_the_first_line_of_a_resumed_stream(
    translator: Translator,
) -> None:
    pace = Pace(first_line=1_000)
    for prefixes, fault in (
        (["eins"], "prefixes end before number 1,002"),
        (["eins", "", "drei"], "sources end before number 1,003"),
    ):
        found = translator.translate_stream(["one", "two"], BRIEF, prefixes, pace)
        with pytest.raises(RequestError, match=fault):
            list(found)


def test_targets_are_scored_in_their_order(translator: Translator) -> None:
    sources = ["one", "one two three four five six", "", "two"]
    targets = ["eins", "eins zwei drei vier fünf sechs", "acht", ""]
    together = translator.score(sources, targets)
    alone = [
        translator.score([source], [target])[0]
        for source, target in zip(sources, targets, strict=True)
    ]
    assert [s.num_tokens for s in together] == [s.num_tokens for s in alone]
    assert [s.log_probability for s in together] == pytest.approx(
        [s.log_probability for s in alone], abs=1e-4
    )


@pytest.mark.parametrize("side", [0, 1])
def test_a_pair_that_would_take_hours_is_not_scored(
    translator: Translator, side: int
) -> None:
    pair = ["one two", "eins zwei"]
    pair[side] = "one " * (LONGEST_SCORED + 1)
    message = r"must have at most 4,000 tokens to be scored, but 'one one .*…' has \d"
    with pytest.raises(RequestError, match=message):
        translator.score(["one", pair[0]], ["eins", pair[1]])


def test_a_stream_without_end_is_translated_a_window_at_a_time(
    translator: Translator,
) -> None:
    endless = ("one" if number % 2 else "" for number in count())
    pace = Pace(windows=partial(full_windows, size=3))
    found = translator.translate_stream(endless, SearchConfig(beam_size=1), pace=pace)
    texts = [each.text for each in islice(found, 7)]
    assert texts == ["", texts[1], "", texts[1], "", texts[1], ""]


def test_a_line_is_returned_as_soon_as_it_and_all_before_it_are_done(
    translator: Translator,
) -> None:
    translator.batch_positions = 1
    sources = ["", "one two three four", "", "three", "four five"]
    done: list[str] = []
    found = translator.translate_stream(
        sources, SearchConfig(beam_size=1), pace=Pace(on_line=lambda: done.append("."))
    )
    # Empty lines are done at once, and then the longest of the rest.
    assert [len(done) for _ in found] == [1, 3, 3, 5, 5]


def test_a_line_in_parts_is_reported_once(translator: Translator) -> None:
    done: list[str] = []
    long = " ".join(f"{'one two ' * 60}{end}" for end in ("four.", "six!", "eight."))
    [found, _] = translator.translate_stream(
        [long, "two"], BRIEF, pace=Pace(on_line=lambda: done.append("."))
    )
    assert found.num_parts == 3
    assert len(done) == 2


@pytest.mark.parametrize(("language", "num_parts"), [("de-AT", 2), ("en", 3)])
def test_a_long_line_is_cut_by_the_source_language_of_the_model(
    translator: Translator, language: str, num_parts: int
) -> None:
    translator.source_language = language
    long = f"{'one ' * 60}3. Mai {'two ' * 60}three. {'Four ' * 60}five"
    [found] = translator.translate_stream([long], BRIEF)
    assert found.num_parts == num_parts


def test_a_model_folder_is_loaded_to_translate(
    trained_checkpoint: Checkpoint, tmp_path: Path
) -> None:
    save_model(trained_checkpoint, tmp_path / "model")
    loaded = load(str(tmp_path / "model"), device="cpu")
    expected = Translator(trained_checkpoint, CPU).translate(["two three"])
    assert loaded.translate(["two three"]) == expected


@pytest.mark.skipif(api() is None, reason="no native library")
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_the_native_library_translates_without_pytorch(
    trained_checkpoint: Checkpoint, tmp_path: Path, precision: DecodingPrecision
) -> None:
    """Importing PyTorch would take most of the time of a short translation."""
    save_model(trained_checkpoint, tmp_path / "model")
    sources = ["one two three", "four"] * 10 + ["", "x" * 2000]
    prefixes = ["eins"] * len(sources)
    program = f"""
import sys
import transduce
translator = transduce.load(
    {str(tmp_path / "model")!r}, device="cpu", precision={precision!r}, num_processes=2
)
config = transduce.SearchConfig(beam_size=3, num_best=2)
for translation in translator.translate_stream({sources}, config, {prefixes}):
    print(translation.text)
assert translator.translate(["one two"], beam_size=1)[0].text
assert "torch" not in sys.modules
assert "rich.console" not in sys.modules
"""
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    here = Translator(trained_checkpoint, CPU, precision=precision)
    config = SearchConfig(beam_size=3, num_best=2)
    expected = here.translate_stream(sources, config, prefixes)
    assert done.stdout.splitlines() == [each.text for each in expected]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_search_can_restart_from_encoded_sources(
    trained_checkpoint: Checkpoint, precision: DecodingPrecision
) -> None:
    translator = Translator(trained_checkpoint, CPU, precision=precision)
    sources, [model] = ["one two", "three"], translator.models
    ids = [[*each, EOS] for each in translator.tokenizer.encode_sources(sources)]
    memory, config = model.encode(ids), SearchConfig()
    expected = translator.translate_stream(sources, config)
    texts = [[h.text for h in each.hypotheses] for each in expected]
    for _ in range(2):
        found = beam_search(
            model.start(memory),
            [config.limit(len(each)) for each in ids],
            config,
            bos=BOS,
            eos=EOS,
            excluded=(PAD, BOS),
        )
        decoded = [[translator.tokenizer.decode(h.ids) for h in each] for each in found]
        assert [each[0] for each in decoded] == [each[0] for each in texts]


@pytest.mark.parametrize("may_have_gpu", [False, True])
def test_pytorch_chooses_the_device_where_there_may_be_a_gpu(
    trained_checkpoint: Checkpoint,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    may_have_gpu: bool,
) -> None:
    save_model(trained_checkpoint, tmp_path / "model")
    asked: list[str] = []

    def choose(device: str) -> Hardware:
        asked.append(device)
        return Hardware(device=CPU, dtype=torch.float32)

    monkeypatch.setattr(backend, "may_have_gpu", lambda: may_have_gpu)
    monkeypatch.setattr("transduce.device.choose_hardware", choose)
    assert load(tmp_path / "model", device="cpu").device == "cpu"
    assert not asked
    assert load(tmp_path / "model").device == "cpu"
    assert asked == ["auto"] * may_have_gpu


@pytest.mark.parametrize("device", ["cpu", "cpu:0", CPU, torch.device("cpu", 0)])
def test_a_numbered_cpu_is_the_cpu(
    trained_checkpoint: Checkpoint, device: str | torch.device
) -> None:
    assert Translator(trained_checkpoint, device, num_processes=1).device == "cpu"


@pytest.mark.skipif(api() is None, reason="no native library")
def test_the_torch_model_is_not_built_unless_needed(
    trained_checkpoint: Checkpoint,
) -> None:
    translator = Translator(trained_checkpoint, CPU)
    assert "models" not in vars(translator)
    translator.get_ready()
    assert "models" in vars(translator)
    translator.translate(["one"])
    translator.sample(["one"], SamplingConfig())
    translator.score(["one"], ["eins"])
    assert "torch_model" not in vars(translator)


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="must be a model or a run, but holds no"):
        load(tmp_path)


@pytest.mark.skipif(api() is None, reason="there is no native library")
def test_lines_are_independent_only_where_the_native_library_decodes(
    trained_checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(precision: PrecisionChoice) -> list[int]:
        translator = Translator(trained_checkpoint, CPU, precision=precision)
        with_term = translator.with_glossary({"two": "paar"})
        return [
            interdependent_lines(translator, with_scores=False),
            interdependent_lines(translator, with_scores=True),
            interdependent_lines(with_term, with_scores=False),
        ]

    assert found("fp32") == [1, 1, 1]
    assert found("int8") == [1, WINDOW_LINES, WINDOW_LINES]
    assert found("bf16") == [WINDOW_LINES] * 3
    monkeypatch.setattr("transduce.decoding.backend.api", lambda: None)
    assert found("fp32") == [WINDOW_LINES] * 3


@pytest.mark.parametrize("beam_size", [1, 4])
def test_a_model_that_outputs_nan_is_refused(
    trained_checkpoint: Checkpoint, beam_size: int
) -> None:
    weights = {name: w * math.nan for name, w in trained_checkpoint.weights.items()}
    translator = Translator(replace(trained_checkpoint, weights=weights), CPU)
    with pytest.raises(CheckpointError, match="must output numbers, but outputs NaN"):
        translator.translate(["one"], beam_size=beam_size)
    with pytest.raises(CheckpointError, match="must output numbers, but outputs NaN"):
        translator.score(["one"], ["eins"])


@pytest.mark.parametrize("beam_size", [1, 4])
def test_bad_words_must_leave_some_tokens(
    trained_checkpoint: Checkpoint, beam_size: int
) -> None:
    translator = Translator(trained_checkpoint, "cpu")
    words = tuple((i,) for i in range(EOS + 1, translator.tokenizer.vocab_size))
    config = SearchConfig(beam_size=beam_size, bad_words=words)
    assert [each.text for each in translator.translate_stream(["one"], config)] == [""]
    for changes in ({"min_length": 1}, {"bad_words": ((EOS,), *words)}):
        with pytest.raises(ConfigError, match="must leave some tokens to choose from"):
            translator.translate_stream(["one"], replace(config, **changes))


@pytest.mark.parametrize(
    ("positions", "longest"), [("learned", 11), ("sinusoidal", 250)]
)
def test_a_source_with_its_end_has_learned_positions(
    trained_checkpoint: Checkpoint, positions: str, longest: int
) -> None:
    config = replace(trained_checkpoint.config, positions=positions, max_positions=12)
    weights = Transformer(config).state_dict() | dict(trained_checkpoint.weights)
    checkpoint = replace(trained_checkpoint, config=config, weights=weights)
    translator = Translator(checkpoint, "cpu")
    assert longest_source(translator) == longest
    number = longest // len(translator.tokenizer.encode("one"))
    for words, num_parts in ((number, 1), (number + 1, 2)):
        assert translator.translate("one " * words).num_parts == num_parts
    ensemble = Translator(trained_checkpoint, "cpu", checkpoint)
    assert longest_source(ensemble) == longest
