import gzip
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from transduce.checkpoint import load_model
from transduce.cli.training_display import TrainingDisplay
from transduce.native import api
from transduce.training.trainer import StepReport

TINY = ("train", "--preset", "tiny", "--precision", "fp32", "--device", "cpu")
MODEL_FILES = {"config.json", "model.safetensors", "tokenizer.json"}
STATE_FILES = {"training.json", "training.safetensors"}


@pytest.fixture
def corpus_options(corpus_files: tuple[Path, Path]) -> tuple[object, ...]:
    source, target = corpus_files
    return ("--source", source, "--target", target)


def test_impossible_bad_words_are_refused_before_the_training(
    refuses, corpus_options, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    setting = "search.bad_words=[[100000]]"
    message = refuses(*TINY, *corpus_options, "--out", out, "--set", setting)
    assert message.startswith("`search.bad_words` must hold token ids below the voc")
    assert not out.exists()


def test_a_wrong_instruction_set_is_refused_before_the_corpus_is_read(
    corpus_options, tmp_path: Path
) -> None:
    if api() is None:
        pytest.skip("there is no native library")
    out, program = tmp_path / "run", (sys.executable, "-m", "transduce")
    line = [str(each) for each in (*program, *TINY, *corpus_options, "--out", out)]
    environment = {**os.environ, "TRANSDUCE_ISA": "avx3"}
    ended = subprocess.run(line, env=environment, capture_output=True, text=True)
    assert ended.returncode == 2
    assert ended.stderr.startswith("transduce: TRANSDUCE_ISA is avx3, but this proc")
    assert not out.exists()


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def log(run: Path) -> list[dict[str, object]]:
    lines = (run / "log.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_a_run_folder_has_the_documented_files(run: Path) -> None:
    assert names(run) == {
        *("config.json", "tokenizer.json", "corpus", "checkpoints", "averaged"),
        *("best", "log.jsonl", "learning_curve.png"),
    }
    assert names(run / "averaged") == MODEL_FILES
    assert names(run / "best") == MODEL_FILES
    assert names(run / "checkpoints") == {"step-00000010", "step-00000020"}
    assert names(run / "checkpoints" / "step-00000020") == MODEL_FILES | STATE_FILES


def test_training_does_not_load_the_compiler(
    corpus_options: tuple[object, ...], tmp_path: Path
) -> None:
    """Loading the compiler would take as long as all other imports together."""
    settings = (
        *("training.optimizer=muon", "training.schedule=constant"),
        *("training.learning_rate=0.01", "training.sgd_from_step=2"),
        *("training.sgd_learning_rate=0.1", "training.steps=2"),
    )
    command = (*TINY, *corpus_options, "--out", tmp_path, "--set", *settings)
    program = (
        "import sys; from transduce.cli import main\n"
        f"main({[*map(str, command)]})\n"
        "assert 'torch' in sys.modules\n"
        "assert 'torch._dynamo' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)


def test_the_log_is_json_lines(run: Path) -> None:
    found = [(entry["kind"], entry["step"]) for entry in log(run)]
    assert found == [
        ("start", 0),
        ("step", 10),
        ("saved", 10),
        ("dev", 10),
        ("step", 20),
        ("saved", 20),
        ("dev", 20),
        ("final", 20),
    ]


def test_training_reports_its_progress(
    succeeds: Callable[..., str], corpus_options: tuple[object, ...], tmp_path: Path
) -> None:
    out = succeeds(*TINY, *corpus_options, "--out", tmp_path / "run")
    assert "Training pairs: 40 of 40 pairs kept" in out
    assert "parameters, vocabulary of" in out
    assert f"The average of the last 2 checkpoints is in {tmp_path}/run/avera" in out


def test_training_reports_that_updates_by_reward_begin(
    succeeds: Callable[..., str], corpus_files: tuple[Path, Path], tmp_path: Path
) -> None:
    source, target = corpus_files
    files = ("--source", source, "--target", target)
    dev = ("--dev-source", source, "--dev-target", target)
    settings = (
        "training.reward=gleu",
        "training.reward_steps=3",
        "training.reward_samples=2",
        "training.clip_norm=5",
    )
    run = tmp_path / "run"
    out = succeeds(*TINY, *files, *dev, "--out", run, "--set", *settings)
    assert out.count("updates raise the expected reward of samples") == 1
    assert "step 18: from here on" in out
    assert ", GLEU " in out
    steps = [entry for entry in log(run) if entry["kind"] == "step"]
    assert ["reward" in entry for entry in steps] == [False, True]
    assert all(entry["gradient_norm"] > 0 for entry in steps)
    [*_, last] = [entry for entry in log(run) if entry["kind"] == "dev"]
    assert 0 <= last["gleu"] <= 100


def test_settings_come_from_preset_file_and_command_line_in_that_order(
    succeeds: Callable[..., str], corpus_options: tuple[object, ...], tmp_path: Path
) -> None:
    (tmp_path / "a.toml").write_text("[model]\nd_ff = 48\n[training]\nsteps = 3\n")
    settings = ("--set", "training.steps=2", "training.seed=5")
    files = ("--config", tmp_path / "a.toml")
    succeeds(*TINY, *corpus_options, *files, *settings, "--out", tmp_path / "run")
    record = json.loads((tmp_path / "run" / "config.json").read_text())["settings"]
    assert record["model"]["d_ff"] == 48
    assert record["model"]["d_model"] == 32
    assert record["training"]["steps"] == 2
    assert record["training"]["seed"] == 5
    assert load_model(tmp_path / "run").step == 2


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace(b"\n", b"\r\n"),
        lambda text: b"\xef\xbb\xbf" + text,
        gzip.compress,
        lambda text: text.removesuffix(b"\n"),
    ],
    ids=["CRLF", "byte order mark", "gzip", "no last line end"],
)
def test_the_format_of_a_text_file_changes_nothing(
    succeeds: Callable[..., str],
    corpus_files: tuple[Path, Path],
    tmp_path: Path,
    change: Callable[[bytes], bytes],
) -> None:
    source, target = corpus_files
    (tmp_path / "source").write_bytes(change(source.read_bytes()))
    few = ("--set", "training.steps=2")
    for name, path in (("one", source), ("other", tmp_path / "source")):
        out = (
            tmp_path / name / "run"
        )  # alone in its folder, so that no corpus is shared
        succeeds(*TINY, "--source", path, "--target", target, *few, "--out", out)
    weights = [load_model(tmp_path / name / "run").weights for name in ("one", "other")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_several_files_are_read_as_one(
    succeeds: Callable[..., str], corpus_files: tuple[Path, Path], tmp_path: Path
) -> None:
    source, target = corpus_files
    both = ("--source", source, source, "--target", target, target)
    few = ("--set", "training.steps=1")
    out = succeeds(*TINY, *both, *few, "--out", tmp_path / "run")
    assert "80 of 80 pairs kept" in out


def test_neighbouring_runs_share_their_prepared_corpus(
    succeeds: Callable[..., str], corpus_files: tuple[Path, Path], tmp_path: Path
) -> None:
    source, target = corpus_files
    files = ("--source", source, "--target", target)
    few = ("--set", "training.steps=1", "training.seed=2")
    one, other = tmp_path / "one", tmp_path / "other"
    assert "shared" not in succeeds(*TINY, *files, *few, "--out", one)
    said = succeeds(*TINY, *files, *few, "model.dropout=0.3", "--out", other)
    assert f"Prepared corpus, shared with other runs: {one}\n" in said
    ids = "corpus/training/source.ids"
    assert (one / ids).samefile(other / ids)


class TestStopping:
    @pytest.fixture
    def stop_at_step_3(self, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
        def stepped(self: TrainingDisplay, report: StepReport) -> None:
            if report.step == 3:
                os.kill(os.getpid(), signal.SIGINT)

        monkeypatch.setattr(TrainingDisplay, "stepped", stepped)
        return monkeypatch

    def test_a_run_that_is_stopped_says_how_to_go_on(
        self,
        stop_at_step_3: pytest.MonkeyPatch,
        refuses: Callable[..., str],
        succeeds: Callable[..., str],
        corpus_options: tuple[object, ...],
        tmp_path: Path,
    ) -> None:
        out = tmp_path / "my run"
        message = refuses(*TINY, *corpus_options, "--out", out, "--tensorboard")
        assert message == (
            "Training was stopped after step 3 of 20, and is saved. Continue with: "
            f"transduce train --out '{out}' --resume --device cpu --tensorboard"
        )
        stop_at_step_3.undo()
        text = succeeds(*shlex.split(message.partition("transduce ")[2]))
        assert "Continuing after step 3." in text
        assert load_model(out).step == 20

    @pytest.mark.parametrize(
        ("precision", "other"), [("fp32", "bf16"), ("bf16", "fp32")]
    )
    def test_a_run_goes_on_in_the_precision_it_was_begun_in(
        self,
        stop_at_step_3: pytest.MonkeyPatch,
        refuses: Callable[..., str],
        succeeds: Callable[..., str],
        corpus_options: tuple[object, ...],
        tmp_path: Path,
        precision: str,
        other: str,
    ) -> None:
        out = tmp_path / "run"
        few = ("--precision", precision, "--set", "training.steps=5")
        stopped = refuses(
            "train", "--preset", "tiny", *corpus_options, *few, "--out", out
        )
        assert stopped.startswith(
            "Training was stopped after step 3 of 5, and is saved."
        )
        stop_at_step_3.undo()
        resume = ("train", "--out", out, "--resume", "--device", "cpu")
        assert refuses(*resume, "--precision", other) == (
            f"{out}: the precision of the run to resume is {precision}, but {other} is "
            "requested; leave the precision out, or start another run."
        )
        assert f"on cpu ({precision})" in succeeds(*resume)

    def test_a_run_is_resumed_with_the_options_it_was_begun_with(
        self,
        stop_at_step_3: pytest.MonkeyPatch,
        refuses: Callable[..., str],
        succeeds: Callable[..., str],
        corpus_options: tuple[object, ...],
        tmp_path: Path,
    ) -> None:
        options = (*TINY, *corpus_options, "--set", "training.steps=5")
        stopped = refuses(*options, "--out", tmp_path / "run")
        assert stopped.startswith(
            "Training was stopped after step 3 of 5, and is saved."
        )
        stop_at_step_3.undo()
        succeeds(*options, "--out", tmp_path / "run", "--resume")
        assert load_model(tmp_path / "run").step == 5


def test_a_damaged_checkpoint_is_warned_of(
    command: Callable[..., object], run: Path, tmp_path: Path
) -> None:
    # Rich would interpret the brackets as its markup.
    copy = tmp_path / "run[red] [/b]"
    shutil.copytree(run, copy)
    (copy / "checkpoints" / "step-00000020" / "model.safetensors").write_bytes(b"x")
    outcome = command("train", "--out", copy, "--resume", "--precision", "fp32")
    assert outcome.code == 0
    assert f"Warning: {copy}/checkpoints/step-00000020/model.safetensors" in outcome.out
    assert f"is in {copy}/averaged" in outcome.out


def test_another_corpus_is_not_resumed(
    refuses: Callable[..., str],
    run: Path,
    tmp_path: Path,
    corpus_files: tuple[Path, Path],
) -> None:
    shutil.copytree(run, tmp_path / "run")
    source, target = corpus_files
    other = ("--source", target, "--target", source, "--dev-source", source)
    other = (*other, "--dev-target", source, "--dev", "news", source, target)
    message = refuses("train", "--out", tmp_path / "run", "--resume", *other)
    assert message == (
        f"{tmp_path}/run: the run to resume was started with other files (source: "
        f"{source}; target: {target}; dev target: {target}; dev names: none; dev sets: "
        "none); leave the files out, or start another run."
    )


@pytest.fixture
def trees(tmp_path: Path) -> Path:
    path = tmp_path / "my.trees"
    path.write_text("(TOP (S (NP (DT the) (NN dog)) (VP (VBZ barks))))\n" * 3)
    return path


def test_a_fitting_preset_is_proposed_if_none_is_given(
    refuses: Callable[..., str],
    corpus_options: tuple[object, ...],
    trees: Path,
    tmp_path: Path,
) -> None:
    out = ("--out", tmp_path / "run", "--device", "cpu")
    message = refuses("train", *corpus_options, *out)
    proposed = "multi30k with `training.steps` set to 3000 fits it: `transduce train "
    assert (
        f"of 40 pairs; the preset {proposed}--preset multi30k --set training" in message
    )
    message = refuses("train", "--trees", trees, *out)
    proposed = "parsing-small with `training.steps` set to 1200 fits it: `transduce "
    assert (
        f"of 3 trees; the preset {proposed}train --preset parsing-small --set"
        in message
    )
    assert list(tmp_path.iterdir()) == [trees]


def test_fitting_settings_are_trained_without_a_preset(
    succeeds: Callable[..., str], corpus_options: tuple[object, ...], tmp_path: Path
) -> None:
    sizes = ("model.d_model=32", "model.d_ff=32", "model.num_layers=1")
    small = ("--set", *sizes, "training.steps=2", "tokenizer.vocab_size=400")
    out = ("--out", tmp_path / "run", "--device", "cpu", "--precision", "fp32")
    said = succeeds("train", *corpus_options, *small, *out)
    assert "Updates: 2 of about " in said
    settings = json.loads((tmp_path / "run" / "config.json").read_text())["settings"]
    batching = settings["batching"]
    assert (batching["source_tokens"], batching["target_tokens"]) == (25_000, 25_000)


@pytest.mark.parametrize("name", ["train", "check"])
def test_text_and_trees_are_refused_by_presets_for_the_other(
    refuses: Callable[..., str],
    corpus_options: tuple[object, ...],
    trees: Path,
    tmp_path: Path,
    name: str,
) -> None:
    out = ("--out", tmp_path / "run") if name == "train" else ()
    text = refuses(name, *corpus_options, *out, "--preset", "parsing-wsj")
    assert text.startswith("The preset parsing-wsj is for trees, but")
    bank = refuses(name, "--trees", trees, *out, "--preset", "big")
    assert bank.startswith("The preset big is for text, but")
    assert list(tmp_path.iterdir()) == [trees]


def test_warnings_about_a_corpus_come_before_the_first_step(
    succeeds: Callable[..., str], corpus_files: tuple[Path, Path], tmp_path: Path
) -> None:
    source, target = corpus_files
    files = ("--source", source, "--target", source)
    dev = ("--dev-source", target, "--dev-target", target)
    said = succeeds(*TINY, *files, *dev, "--out", tmp_path / "run")
    warning = (
        "pairs with the same text on both sides: 40 (100.0%); drop these pairs by "
        "`transduce clean`."
    )
    assert f"Warning: {warning}" in said
    assert "`transduce check` shows the details and the lines." in said
