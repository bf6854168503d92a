"""`transduce train --from` trains a model further, and refuses what does not fit."""

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import transduce
from transduce.checkpoint import load_model
from transduce.decoding.translator import Translator
from transduce.errors import ConfigError
from transduce.experiments.run_folder import RunFolder, settings_of
from transduce.metrics.scores import corpus_bleu

pytestmark = pytest.mark.usefixtures("no_trials")

SHORT = (
    "training.steps=4", "training.checkpoint_steps=2", "training.warmup_steps=1",
    "batching.source_tokens=100", "batching.target_tokens=100",
    "batching.batch_tokens=50",
)  # fmt: skip
CPU = ("--device", "cpu", "--precision", "fp32")


@pytest.fixture
def options(corpus_files: tuple[Path, Path], tmp_path: Path) -> tuple[object, ...]:
    """Options of a short training on the corpus, to the folder `new`."""
    source, target = corpus_files
    files = ("--source", source, "--target", target, "--no-dev")
    return (*files, *CPU, "--set", *SHORT, "--out", tmp_path / "new")


def weights_differ(one: Path, other: Path) -> bool:
    ours, theirs = load_model(one).weights, load_model(other).weights
    return any(not torch.equal(weight, theirs[name]) for name, weight in ours.items())


def test_threads_share_one_arena_before_a_model_to_start_from_is_opened(
    refuses: Callable[..., str], options, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = []

    def opened(*_: object, **__: object) -> None:
        events.append("model")
        raise ConfigError("Enough.")

    monkeypatch.setattr(
        "transduce.cli.train.use_one_arena", lambda: events.append("arena")
    )
    monkeypatch.setattr("transduce.cli.train.open_start", opened)
    assert "Enough." in refuses("train", "--from", "model", *options)
    assert events == ["arena", "model"]


@pytest.mark.parametrize("where", ["", "averaged", "checkpoints/step-00000020"])
def test_a_run_or_a_model_of_it_is_trained_further(
    succeeds: Callable[..., str], run: Path, options, where: str
) -> None:
    printed = succeeds("train", "--from", run / where, *options)
    new = options[-1]
    assert f"Start: {run / where}, with its tokenizer" in " ".join(printed.split())
    assert "Learning rate: 0.001 (training.learning_rate)" in printed
    model, start = load_model(new), load_model(run / where)
    assert model.config == start.config
    assert model.tokenizer == start.tokenizer
    assert (model.source_language, model.target_language) == ("en", "de")
    assert not weights_differ(new / "start", run / where)
    assert weights_differ(new, run / where)
    assert settings_of(new).training.patience is None  # as there is no dev corpus


def test_the_toml_file_of_the_preset_adapt_changes_nothing(
    succeeds: Callable[..., str], run: Path, options, tmp_path: Path
) -> None:
    file = tmp_path / "adapt.toml"
    file.write_text(succeeds("settings", "adapt", "--toml"), encoding="utf-8")
    succeeds("train", "--from", run, *options)
    plain = settings_of(options[-1])
    succeeds("train", "--from", run, "--config", file, "--force", *options)
    assert settings_of(options[-1]) == plain


def test_an_imported_model_is_trained_further(
    succeeds: Callable[..., str], marian_folder: Path, options, tmp_path: Path
) -> None:
    succeeds("import", marian_folder, "--out", tmp_path / "imported")
    succeeds("train", "--from", tmp_path / "imported", *options)
    model, start = load_model(options[-1]), load_model(tmp_path / "imported")
    assert model.config == start.config
    assert model.tokenizer == start.tokenizer
    assert model.search == start.search


def test_an_imported_model_is_exported_and_imported_again_after_training(
    succeeds: Callable[..., str], marian_folder: Path, options, tmp_path: Path
) -> None:
    new = options[-1]
    succeeds("import", marian_folder, "--out", tmp_path / "imported")
    few = ("--set", "training.steps=2")
    succeeds("train", "--from", tmp_path / "imported", *options, *few)
    succeeds("export", new, "--to", "marian", "--out", tmp_path / "exported")
    succeeds("import", tmp_path / "exported", "--out", tmp_path / "again")
    trained, again = load_model(new), load_model(tmp_path / "again")
    assert (again.config, again.tokenizer) == (trained.config, trained.tokenizer)
    never = again.weights["embedding.bias"] < -1_000
    for name, weight in trained.weights.items():
        if name == "embedding.bias":
            weight = torch.where(never, again.weights[name], weight)
        assert torch.equal(weight, again.weights[name])


def test_tokens_that_are_never_generated_do_not_raise_the_loss(
    succeeds: Callable[..., str], marian_folder: Path, options, tmp_path: Path
) -> None:
    succeeds("import", marian_folder, "--out", tmp_path / "imported")
    succeeds("train", "--from", tmp_path / "imported", *options)
    [entry] = RunFolder(options[-1]).log.entries("step")
    # By label smoothing over 150 tokens, a bias of -10,000 would add 6 nats.
    assert entry["loss"] < math.log(entry["perplexity"]) + 0.2


def test_the_default_patience_is_left_out_without_a_dev_corpus(
    succeeds: Callable[..., str], run: Path, options
) -> None:
    printed = " ".join(succeeds("train", "--from", run, *options).split())
    assert (
        "The patience of the preset adapt (`training.patience`) has no effect without "
        "a dev corpus, so the run makes all 4 updates."
    ) in printed


def test_a_chosen_patience_needs_a_dev_corpus(refuses, run, options) -> None:
    chosen = ("--set", "training.patience=3")
    refusal = refuses("train", "--from", run, *options, *chosen)
    assert refusal.startswith("`training.patience` needs a dev corpus, but there is")
    assert not options[-1].exists()


def test_a_run_from_a_model_is_resumed_without_its_preset(
    succeeds, refuses, run, options
) -> None:
    succeeds("train", "--from", run, *options)
    again = ("train", "--resume", "--out", options[-1], "--device", "cpu")
    assert refuses(*again, "--preset", "adapt") == (
        f"{options[-1]}: the run to resume started from a model, from which its "
        "settings follow; leave the preset out."
    )


def test_a_parser_is_trained_further(
    command: Callable[..., Any], parsing_model: Path, tmp_path: Path
) -> None:
    trees = tmp_path / "trees"
    trees.write_text("(S (NP (DT the) (NN dog)) (VP (VBZ runs)))\n" * 9)
    options = ("--trees", trees, "--no-dev", *CPU, "--set", *SHORT)
    new = tmp_path / "new"
    outcome = command("train", "--from", parsing_model, *options, "--out", new)
    assert outcome.code == 0
    assert load_model(new).symbols == load_model(parsing_model).symbols


def test_the_optimizer_of_a_run_is_continued(
    succeeds: Callable[..., str], run: Path, options
) -> None:
    printed = succeeds("train", "--from", run, "--keep-optimizer", *options)
    assert "the optimizer continues" in " ".join(printed.split())
    new = options[-1]
    assert not weights_differ(new / "start", RunFolder(run).checkpoints()[-1])
    progress = json.loads((new / "checkpoints/step-00000004/training.json").read_text())
    assert (progress["step"], progress["earlier_updates"]) == (4, 20)


def test_an_optimizer_that_is_not_there_is_refused(refuses, model, options) -> None:
    refusal = refuses("train", "--from", model, "--keep-optimizer", *options)
    assert refusal.startswith(
        f"{model}: `keep_optimizer` needs a run with a checkpoint"
    )
    assert not options[-1].exists()


@pytest.mark.parametrize(
    ("setting", "fault"),
    [
        ("training.optimizer=muon", "`training.optimizer` is 'adam', but 'muon' is"),
        ("model.learned_start=false", "`model.learned_start` is false; leave one"),
    ],
)
def test_a_setting_that_a_kept_optimizer_does_not_fit_is_refused(
    refuses, run, options, setting: str, fault: str
) -> None:
    kept = ("--from", run, "--keep-optimizer", "--set", setting)
    refusal = refuses("train", *kept, *options)
    assert refusal.startswith(f"{run}: `keep_optimizer` continues the run's optimizer,")
    assert fault in refusal
    assert refusal.endswith("; leave one of them out.")
    assert not options[-1].exists()


def test_the_dropout_of_a_start_may_change(succeeds, run, options) -> None:
    out, settings = options[-1], (*SHORT, "model.dropout=0.3")
    options = (*options[:-9], "--set", *settings, "--out", out)
    succeeds("train", "--from", run, *options)
    assert load_model(out).config.dropout == 0.3


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ("model.d_ff=65", "`model.d_ff` is 65 in place of 64"),
        ("model.num_layers=2", "`model.num_layers` is 2 in place of 1"),
        ("tokenizer.vocab_size=500", "settings of `tokenizer` have no effect"),
    ],
)
def test_other_sizes_or_tokenizers_are_refused(
    refuses, run, options, setting: str, named: str
) -> None:
    refusal = refuses("train", "--from", run, *options, "--set", setting)
    assert named in refusal
    assert not options[-1].exists()


def test_another_activation_is_reported(command, run, options) -> None:
    options = (*options, "--set", "model.activation=silu")
    outcome = command("train", "--from", run, *options)
    assert outcome.code == 0
    told = " ".join(outcome.out.split())
    assert "`model.activation` is 'silu', but the model was trained with 'relu'" in told


def test_files_of_another_language_are_refused(refuses, run, options, tmp_path) -> None:
    french = tmp_path / "train.fr"
    shutil.copy(options[3], french)
    options = (*options[:3], french, *options[4:])
    assert refuses("train", "--from", run, *options) == (
        f"{run}: the target language of the model is German, but the files' endings "
        "name French (fr); give files of the model's language, or set "
        "`languages.target` to the files' language."
    )
    assert not options[-1].exists()


def test_another_language_can_be_confirmed(command, run, options) -> None:
    outcome = command("train", "--from", run, *options, "--target-language", "nl")
    told = " ".join(outcome.out.split())
    assert "it will learn Dutch from this corpus alone" in told
    assert load_model(options[-1]).target_language == "nl"


def test_unknown_text_is_reported(command, run, options, tmp_path) -> None:
    greek = tmp_path / "train.en"
    lines = len(Path(options[1]).read_text().splitlines())
    greek.write_text("Ένας σκύλος τρέχει.\n" * lines, encoding="utf-8")
    outcome = command("train", "--from", run, "--source", greek, *options[2:])
    assert outcome.code == 0
    assert "of the training source's pieces are bytes" in " ".join(outcome.out.split())


@pytest.mark.parametrize(
    ("arguments", "refusal"),
    [
        (("--preset", "adapt"), "The preset adapt trains a trained model further"),
        (("--keep-optimizer",), "--keep-optimizer needs the run"),
        (("--from", "run", "--resume"), "Either --from, to start a run from a model"),
        (("--keep-optimizer", "--resume"), "--keep-optimizer is for a new run"),
        (("--from", "nowhere"), "nowhere: must be a model or a run, but"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    refuses, options, arguments: tuple[str, ...], refusal: str
) -> None:
    assert refuses("train", *arguments, *options).startswith(refusal)
    assert not options[-1].exists()


def test_the_start_is_not_replaced_by_its_run(refuses, run, options, tmp_path) -> None:
    old = tmp_path / "new"
    shutil.copytree(run, old)
    for start in (old, old / "averaged"):
        refusal = refuses("train", "--from", start, *options, "--force")
        assert refusal.startswith(f"{old}: the new run must be in another folder")
    assert not weights_differ(old, run)


def test_a_parser_needs_trees_and_a_translator_text(
    refuses, parsing_model, options
) -> None:
    refusal = refuses("train", "--from", parsing_model, *options)
    assert refusal.startswith(f"{parsing_model}: the model is a parser, so its")


def test_a_damaged_model_is_refused(refuses, run, options, tmp_path) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(run / "averaged", damaged)
    (damaged / "model.safetensors").write_bytes(b"nothing")
    refusal = refuses("train", "--from", damaged, *options)
    assert refusal.startswith(f"{damaged}/model.safetensors: the weights are")
    assert not options[-1].exists()


def test_python_trains_as_the_command_does(succeeds, run, options, tmp_path) -> None:
    succeeds("train", "--from", run, *options)
    settings: dict[str, Any] = {
        name: int(value) for name, value in (each.split("=") for each in SHORT)
    }
    settings["evaluation.hold_out"] = False
    result = transduce.train(
        options[1], options[3], tmp_path / "other", start=run, settings=settings,
        device="cpu", precision="fp32",
    )  # fmt: skip
    assert not weights_differ(result.model, options[-1])


def test_adaptation_raises_the_scores(
    corpus_files, model: Path, tmp_path: Path
) -> None:
    source, target = ([path, *[path] * 4] for path in corpus_files)
    result = transduce.train(
        source, target, tmp_path / "new", start=model, device="cpu",
        dev_sets={"home": corpus_files},
        settings={"training.steps": 40, "training.warmup_steps": 10,
                  "training.checkpoint_steps": 20},
    )  # fmt: skip
    assert result.dev is not None
    [before] = result.before
    assert result.dev.loss < before.loss - 0.05
    assert result.dev.quality.score >= before.quality.score


@pytest.mark.filterwarnings("ignore:`search.shortlist` is set, but the model has no")
@pytest.mark.parametrize("asked", [{}, {"search.shortlist": True}])
def test_a_start_with_a_shortlist_is_compared_without_it(
    succeeds: Callable[..., str], corpus_files, model: Path, tmp_path: Path, asked
) -> None:
    source, target = corpus_files
    model = shutil.copytree(model, tmp_path / "model")
    few = ("--frequent", 1, "--per-piece", 1, "--make-default")
    succeeds("shortlist", model, "--source", source, "--target", target, *few)
    result = transduce.train(
        source, target, tmp_path / "new", start=model, device="cpu",
        precision="fp32", dev_sets={"home": corpus_files},
        settings={"training.steps": 2, "training.checkpoint_steps": 2,
                  "training.learning_rate": 1e-9, **asked},
    )  # fmt: skip
    assert result.dev is not None
    [before] = result.before
    assert before.quality.score == result.dev.quality.score


def test_the_start_is_scored_with_the_settings_of_the_run(
    corpus_files, model: Path, tmp_path: Path
) -> None:
    source, target = ([path, *[path] * 4] for path in corpus_files)
    result = transduce.train(
        source, target, tmp_path / "new", start=model, device="cpu",
        dev_sets={"home": corpus_files},
        settings={"training.steps": 2, "training.checkpoint_steps": 2,
                  "model.neighbourhood": 1},
    )  # fmt: skip
    [before] = result.before
    start = load_model(model)
    narrow = replace(start, config=replace(start.config, neighbourhood=1))
    lines, references = (path.read_text().splitlines() for path in corpus_files)
    scores = [
        corpus_bleu(
            [
                each.text
                for each in Translator(checkpoint, "cpu").translate_stream(lines)
            ],
            references,
        ).score
        for checkpoint in (start, narrow)
    ]
    assert before.quality.score == pytest.approx(scores[1])
    assert before.quality.score < scores[0] - 1
