"""Comparison of decoding with small models; the speeds are not tested."""

import math
import subprocess
import sys
from dataclasses import replace
from itertools import chain, islice
from statistics import mean

import ctranslate2
import pytest
import torch

from transduce.architectures.config import ByteNetConfig
from transduce.benchmark import decoding as decoding_speed
from transduce.benchmark import peers as known_peers
from transduce.benchmark.decoding import (
    DecoderSpeed,
    DecodingOutcome,
    DecodingSpeed,
    SettingSpeed,
    decoding_table,
    measure_decoding,
    random_checkpoint,
    warm_up,
)
from transduce.benchmark.measurement import Machine, Turn, within_quota
from transduce.benchmark.peers import (
    MAX_BATCHES,
    SENTENCES_OF_SEVERAL,
    DecodingTask,
    Setting,
)
from transduce.checkpoint import save_model
from transduce.errors import ConfigError, RequestError
from transduce.experiments.presets import PRESETS
from transduce.interop import marian_program
from transduce.model.transformer import Transformer
from transduce.search_config import SearchConfig
from transduce.text.shortlist import encode_pairs, learn_shortlist

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")
GREEDY = Setting(batch_size=2, beam_size=1)
BEAM = Setting(batch_size=3, beam_size=3)
FORCED = Setting(batch_size=1, beam_size=3, forced_length=5)
FORCED_GREEDY = Setting(batch_size=130, beam_size=1, forced_length=9)


IN_FP32 = {"CTranslate2 float32", "Hugging Face fp32"}


class KnownWorker:
    """Worker that records its environment and takes turns without work."""

    environments: dict[str, dict[str, str]]

    def __init__(self, name, work, _device, environment=None) -> None:
        assert work.func is within_quota
        self.environments[name] = environment or {}

    def __enter__(self) -> "KnownWorker":
        return self

    def __exit__(self, *_) -> None: ...

    def take_turn(self) -> Turn[DecodingOutcome]:
        outcome = DecodingOutcome(
            num_tokens=1,
            num_words=1,
            batch_seconds=(1.0,),
            translations=((5,),),
            load_seconds=1.0,
        )
        return Turn(outcome=outcome, seconds=1.0, peak_bytes=1)


@pytest.fixture(autouse=True)
def _without_marian(monkeypatch):
    monkeypatch.setattr(marian_program.shutil, "which", lambda _: None)


@pytest.fixture
def environments(monkeypatch):
    """Environment of each system's process, by its name; none is started."""
    KnownWorker.environments = {}
    monkeypatch.setattr(decoding_speed, "Worker", KnownWorker)
    return KnownWorker.environments


@pytest.mark.usefixtures("forked_workers")
def test_systems_find_the_same_translations(trained_checkpoint, corpus, monkeypatch):
    monkeypatch.setattr(known_peers, "default_processes", lambda _: 2)
    # Others differ from these by the name of a type alone.
    measured = {
        *("transduce int8", "transduce bf16", "CTranslate2 float32"),
        *("CTranslate2 int8, 2 workers", "Hugging Face fp32"),
    }
    # A turn has one batch of many sentences, or twelve of one.
    greedy = replace(GREEDY, batch_size=130)
    beam = replace(BEAM, batch_size=130)
    turns, settings = [], [greedy, beam, FORCED, FORCED_GREEDY]
    # Restrictions of the model's own search reach no system.
    own = SearchConfig(no_repeat_ngram=1, repetition_penalty=3.0)
    checkpoint = replace(trained_checkpoint, search=own)
    speed = measure_decoding(
        checkpoint, corpus[0], settings, 1, CPU, turns.append, measured
    )
    names = [decoder.name for decoder in speed.decoders]
    assert names[0] == "transduce fp32"
    # A processor may lack instructions for the other types.
    assert IN_FP32 < set(names) <= {names[0], *measured}
    exporting, *loading = turns[: 1 + len(names)]
    assert exporting == "exporting the model"
    assert loading == [f"{name}: loading the model" for name in names]
    assert len(turns) == 1 + len(names) + 2 * len(settings) * len(names)
    by_name = {decoder.name: decoder for decoder in speed.decoders}
    # Equal translations show that all do the same work. Rounding, which depends on the
    # processor, can decide between two tokens of nearly the same score.
    for name in IN_FP32:
        assert by_name[name].greedy_agreement > 0.97
        assert by_name[name].beam_agreement > 0.97
    assert [proof.split(":")[0] for proof in speed.proofs] == [
        "CTranslate2",
        "Hugging Face",
    ]
    for decoder in speed.decoders:
        assert [each.setting for each in decoder.settings] == settings
        assert decoder.peak_bytes > 10**7
        for each in decoder.settings:
            low, middle, high = each.batch_seconds
            assert 0 < low <= middle <= high
            assert each.tokens_per_second > each.sentences_per_second
    best = {
        is_ours: max(
            decoder.settings[0].tokens_per_second
            for decoder in speed.decoders
            if decoder.is_ours == is_ours
        )
        for is_ours in (True, False)
    }
    assert speed.advantage(greedy) == pytest.approx(best[True] / best[False])


@pytest.mark.usefixtures("forked_workers")
def test_systems_with_a_shortlist_are_compared_with_each_other(
    trained_checkpoint, corpus
):
    # Few candidates, learned on pairs of other sentences: translations change.
    sources, targets = corpus
    wrong = zip(sources, [*targets[1:], targets[0]], strict=True)
    pairs = encode_pairs(wrong, trained_checkpoint.tokenizer)
    shortlist = learn_shortlist(
        pairs, trained_checkpoint.tokenizer, frequent=1, per_piece=1
    )
    checkpoint = replace(trained_checkpoint, shortlist=shortlist)
    names = {
        "transduce fp32, shortlist",
        "CTranslate2 float32",
        "CTranslate2 float32, vmap",
    }
    speed = measure_decoding(
        checkpoint, corpus[0], [GREEDY], 1, CPU, lambda _: None, names
    )
    texts = [corpus[0][i % len(corpus[0])] for i in range(GREEDY.num_sentences)]
    mean_words = mean(len(text.split()) for text in texts)
    rates = {d.name: d.settings[0].tokens_per_second for d in speed.decoders}
    assert rates.keys() == {"transduce fp32", *names}
    kinds = {d.name: (d.library, d.is_ours, d.has_shortlist) for d in speed.decoders}
    assert kinds == {
        "transduce fp32": ("transduce", True, False),
        "transduce fp32, shortlist": ("transduce", True, True),
        "CTranslate2 float32": ("CTranslate2", False, False),
        "CTranslate2 float32, vmap": ("CTranslate2", False, True),
    }
    for decoder in speed.decoders:
        assert (decoder.greedy_agreement == 1) != decoder.has_shortlist
        [each] = decoder.settings
        words = each.words_per_second / each.sentences_per_second
        assert words == pytest.approx(mean_words)
    for ending, ours in (
        ("", "transduce fp32"),
        (", vmap", "transduce fp32, shortlist"),
    ):
        has_shortlist = bool(ending)
        best = rates[ours] / rates[f"CTranslate2 float32{ending}"]
        assert speed.advantage(GREEDY, has_shortlist=has_shortlist) == best
        assert best == speed.advantage(
            GREEDY, library="CTranslate2", has_shortlist=has_shortlist
        )
    assert math.isnan(speed.advantage(GREEDY, library="Hugging Face"))
    lines = list(decoding_table(speed))
    assert "Our best over the best of each, with a shortlist" in lines
    [ratio] = [line for line in lines if line.startswith(f"{GREEDY}: ")]
    assert ratio.endswith(f" x the best other system, with shortlists {best:.2f} x")


@pytest.mark.usefixtures("environments")
def test_columns_of_large_figures_have_a_space_between_them():
    speeds = tuple(
        SettingSpeed(
            setting=setting,
            tokens_per_second=123_456.7,
            sentences_per_second=1.0,
            words_per_second=1.0,
            batch_seconds=(0.1, 0.2, 0.3),
        )
        for setting in (GREEDY, BEAM)
    )
    ours = DecoderSpeed(
        name="transduce fp32",
        library="transduce",
        has_shortlist=False,
        is_ours=True,
        load_seconds=1.5,
        peak_bytes=12_345_000_000,
        settings=speeds,
        greedy_agreement=1.0,
        beam_agreement=None,
    )
    theirs = replace(
        ours,
        name="theirs",
        library="theirs",
        is_ours=False,
        has_shortlist=True,
        beam_agreement=0.9998,
    )
    speed = DecodingSpeed(
        machine=Machine(
            processor="Abacus", accelerator=None, num_threads=1, versions={}
        ),
        num_parameters=1,
        vocab_size=1,
        rounds=1,
        proofs=(),
        left_out=(),
        decoders=(ours, theirs),
        load=0.0,
    )
    lines = [line.split() for line in decoding_table(speed)]
    assert ["transduce", "fp32", "123,456.7", "123,456.7"] in lines
    costs = "transduce fp32 1.50 s 12,345 MB 100 200 300 100.0% -"
    assert costs.split() in lines
    # One translation in 5,000 differs.
    costs = "theirs 1.50 s 12,345 MB 100 200 300 100.0% 99.98%"
    assert costs.split() in lines
    # None of ours has a shortlist, so there is no ratio.
    assert ["theirs", "-", "-"] in lines


@pytest.mark.usefixtures("environments")
def test_only_named_decoders_are_measured_beside_the_reference(trained_checkpoint):
    speed = measure_decoding(
        trained_checkpoint, ["one"], [GREEDY], 1, CPU, print, {"CTranslate2 float32"}
    )
    names = [decoder.name for decoder in speed.decoders]
    assert names == ["transduce fp32", "CTranslate2 float32"]


def test_a_process_of_a_system_loads_no_library_of_another():
    """Each would start seconds later, and its peak memory would include the library."""
    program = (
        "import sys, transduce.benchmark.decoding\n"
        "print({'ctranslate2', 'transformers'} & sys.modules.keys())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "set()\n"


def test_a_turn_has_the_sentences_that_fit(trained_checkpoint, tmp_path):
    save_model(trained_checkpoint, tmp_path / "ours")
    task = DecodingTask(
        models=tmp_path,
        sentences=("one two three four five six", "two", "six"),
        settings=(GREEDY, FORCED),
        rounds=2,
        device=CPU,
    )
    assert list(task.jobs()) == [GREEDY, FORCED] * 2
    batches = task.batches(GREEDY)
    assert batches[:2] == [
        ["one two three four five six", "two"],
        ["six", "one two three four five six"],
    ]
    assert len(batches) == MAX_BATCHES
    large = Setting(batch_size=128, beam_size=1)
    assert large.num_sentences == SENTENCES_OF_SEVERAL
    assert Setting(batch_size=300, beam_size=1).num_sentences == 300
    # A forced length leaves out longer sentences.
    forced = task.batches(FORCED)
    assert forced[:3] == [["two"], ["six"], ["two"]]
    assert len(forced) == FORCED.num_sentences


@pytest.mark.parametrize(
    ("batch_size", "sizes"), [(1, [1] * 12), (8, [8] * 4), (32, [32]), (128, [32])]
)
def test_a_turn_warms_up_by_its_first_sentences(batch_size, sizes):
    texts = iter(map(str, range(12 * batch_size)))
    batches = [list(islice(texts, batch_size)) for _ in range(12)]
    first = warm_up(batches)
    assert list(map(len, first)) == sizes
    assert list(chain.from_iterable(first)) == list(map(str, range(sum(sizes))))


def test_random_weights_have_the_presets_sizes():
    checkpoint = random_checkpoint(PRESETS["tiny"], ["one two three"] * 3)
    assert checkpoint.config.d_model == 32
    assert checkpoint.config.vocab_size == checkpoint.tokenizer.vocab_size
    assert math.isfinite(checkpoint.build().output_weight.detach().sum())


@pytest.mark.parametrize(("num_cores", "forms"), [(1, [""]), (3, ["", ", 3 workers"])])
def test_ctranslate2_is_measured_in_all_types_and_forms(
    trained_checkpoint, environments, num_cores, forms, monkeypatch
):
    known = {"float32", "int8_float16", "int8_bfloat16", "int16"}
    monkeypatch.setattr(ctranslate2, "get_supported_compute_types", lambda _: known)
    monkeypatch.setattr(known_peers, "default_processes", lambda _: num_cores)
    measure_decoding(trained_checkpoint, ["one"], [GREEDY], 1, CPU, print)
    names = [name for name in environments if name.startswith("CTranslate2")]
    assert names == [
        f"CTranslate2 {kind}{several}"
        for kind in ("float32", "int8_bfloat16", "int8_float16")
        for several in forms
    ]


def test_peers_decode_with_openmps_own_settings(
    trained_checkpoint, environments, monkeypatch
):
    monkeypatch.setattr("transduce.SHORTENS_SPINS", True)
    measure_decoding(trained_checkpoint, ["one"], [GREEDY], 1, CPU, print, IN_FP32)
    own = {"GOMP_SPINCOUNT": "300000"}
    assert environments == {"transduce fp32": {}, **dict.fromkeys(IN_FP32, own)}


def test_missing_peers_are_named(trained_checkpoint, monkeypatch):
    monkeypatch.setattr(known_peers, "find_spec", lambda name: None)
    with pytest.raises(RequestError) as refusal:
        measure_decoding(trained_checkpoint, ["one"], [GREEDY], 1, CPU, print)
    for package in ("ctranslate2", "transformers"):
        assert f"needs the package `{package}`, which is not" in str(refusal.value)
    assert str(refusal.value).endswith(marian_program.ABSENT)


@pytest.mark.usefixtures("environments")
def test_a_missing_peer_is_left_out(trained_checkpoint, monkeypatch):
    find = known_peers.find_spec
    monkeypatch.setattr(
        known_peers,
        "find_spec",
        lambda name: None if name == "ctranslate2" else find(name),
    )
    speed = measure_decoding(trained_checkpoint, ["one"], [GREEDY], 1, CPU, print)
    names = [decoder.name for decoder in speed.decoders]
    assert not any(name.startswith("CTranslate2") for name in names)
    assert any(name.startswith("Hugging Face") for name in names)
    reason, of_marian = speed.left_out
    assert reason.startswith("CTranslate2 needs the package `ctranslate2`")
    assert of_marian == marian_program.ABSENT


def test_at_least_one_round_is_measured(trained_checkpoint):
    with pytest.raises(ConfigError, match="`rounds` must be at least 1, but is 0"):
        measure_decoding(trained_checkpoint, ["one"], [GREEDY], 0, CPU, print)


@pytest.mark.parametrize(
    ("setting", "text"),
    [(GREEDY, "batch 2, beam 1"), (FORCED, "batch 1, beam 3, 5 tokens")],
)
def test_a_setting_is_shown_in_words(setting, text):
    assert str(setting) == text


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"batch_size": 10**12}, "`batch_size` must be at most 100,000, but is"),
        ({"forced_length": 10**12}, "`length` must be at most 100,000, but is"),
        ({"batch_size": 0}, "`batch_size` must be at least 1, but is 0"),
        ({"beam_size": -1}, "`beam_size` must be at least 1, but is -1"),
        ({"forced_length": 1}, "`length` must be at least 2, but is 1"),
        ({"forced_length": 0}, "`length` must be at least 2, but is 0"),
    ],
)
def test_an_impossible_setting_is_refused(wrong, message):
    with pytest.raises(ConfigError, match=message):
        replace(GREEDY, **wrong)


@pytest.mark.parametrize("sentences", [[], [""], ["one two three four five six"]])
def test_sentences_that_do_not_fit_are_refused(sentences, trained_checkpoint):
    setting = replace(FORCED, forced_length=3)
    with pytest.raises(ConfigError, match="must have at most 2 tokens, but none has"):
        measure_decoding(trained_checkpoint, sentences, [setting], 1, CPU, print)


def test_an_empty_list_of_settings_is_refused(trained_checkpoint):
    with pytest.raises(ConfigError, match="at least one batch size and one beam size"):
        measure_decoding(trained_checkpoint, ["one"], [], 1, CPU, print)


@pytest.mark.usefixtures("environments")
def test_a_peer_that_lacks_the_models_features_is_left_out(trained_checkpoint):
    config = replace(trained_checkpoint.config, norm="pre")
    weights = Transformer(config).state_dict()
    checkpoint = replace(trained_checkpoint, config=config, weights=weights)
    speed = measure_decoding(checkpoint, ["one two"], [FORCED], 1, CPU, print)
    assert not [d.name for d in speed.decoders if d.name.startswith("Hugging Face")]
    reason, _ = speed.left_out
    assert reason.startswith("Hugging Face is left out: A model for Hugging Face")
    # The only setting is neither greedy nor without a forced length.
    assert speed.decoders[0].greedy_agreement is None
    assert speed.decoders[0].beam_agreement is None


def test_another_architecture_is_refused(trained_checkpoint):
    config = ByteNetConfig(vocab_size=trained_checkpoint.config.vocab_size)
    checkpoint = replace(trained_checkpoint, config=config)
    with pytest.raises(RequestError) as refusal:
        measure_decoding(checkpoint, ["one"], [GREEDY], 1, CPU, print)
    assert str(refusal.value) == (
        "The benchmark of decoding must have a Transformer, but the architecture of "
        'the model is "bytenet"; choose another model.'
    )


def test_a_parser_is_refused(parsing_checkpoint):
    with pytest.raises(RequestError, match=r"CTranslate2 is left out.* one parses"):
        measure_decoding(parsing_checkpoint, ["one"], [GREEDY], 1, CPU, print)


def test_a_model_that_fits_no_peer_is_refused(trained_checkpoint):
    config = replace(trained_checkpoint.config, neighbourhood=2)
    checkpoint = replace(trained_checkpoint, config=config)
    with pytest.raises(RequestError, match=r"CTranslate2 is left out.*Hugging Face is"):
        measure_decoding(checkpoint, ["one"], [GREEDY], 1, CPU, print)
