"""`transduce distill`: from teachers and text to a student and a report."""

import contextlib
import io
import json
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import transduce
from transduce.checkpoint import Checkpoint, load_model, save_model
from transduce.cli import main
from transduce.cli.distill import DistillationDisplay
from transduce.data.dataset import open_dataset
from transduce.decoding.translator import Translator
from transduce.errors import ConfigError
from transduce.experiments import distillation, distillation_report, run_training
from transduce.experiments.distillation import tags_in
from transduce.experiments.synthetic_text import OutputRules
from transduce.model.transformer import Transformer
from transduce.text.sentence_pieces import SentencePieceTokenizer, UnigramModel
from transduce.text.tokenizer import learn_tokenizer
from transduce.text.vocabulary import SPECIAL_PIECES, TokenizerConfig

pytestmark = pytest.mark.usefixtures("no_trials")

WORDS = {
    "one": "eins", "two": "zwei", "three": "drei", "four": "vier",
    "five": "fünf", "six": "sechs", "seven": "sieben", "eight": "acht",
}  # fmt: skip
SOURCES = [" ".join(list(WORDS)[int(c)] for c in f"{i:o}") for i in range(64, 184)]
REFERENCES = [" ".join(WORDS[word] for word in line.split()) for line in SOURCES]
SETTINGS = ("training.steps=4", "training.checkpoint_steps=2", "training.seed=3")
TINY = ("--preset", "tiny", "--device", "cpu", "--training-precision", "fp32")


@pytest.fixture(scope="module")
def teacher(
    trained_checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    folder = tmp_path_factory.mktemp("teacher") / "model"
    tagged = replace(trained_checkpoint, source_language="en", target_language="de")
    save_model(tagged, folder)
    return folder


@pytest.fixture(scope="module")
def second_teacher(
    trained_checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    folder = tmp_path_factory.mktemp("second") / "model"
    noise = torch.Generator().manual_seed(1)
    weights = {
        name: each + 0.02 * torch.randn(each.shape, generator=noise)
        for name, each in trained_checkpoint.weights.items()
    }
    save_model(replace(trained_checkpoint, weights=weights), folder)
    return folder


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(distillation_report, "NUM_TIMED", 4)
    write_files()


@pytest.fixture(scope="module")
def finished(teacher: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of an uninterrupted distillation. Copy it before changing it."""
    folder = tmp_path_factory.mktemp("finished")
    with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()):
        write_files()
        main([str(each) for each in arguments(teacher)])
    return folder / "out"


def write_files() -> None:
    for name, lines in (
        ("mono.en", SOURCES),
        ("mono.de", REFERENCES),
        ("dev.en", SOURCES[:9]),
        ("dev.de", REFERENCES[:9]),
    ):
        Path(name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def arguments(teacher: Path, out: str = "out", *options: object) -> tuple[object, ...]:
    return several((teacher,), out, *options)


def several(
    teachers: tuple[Path, ...], out: str, *options: object
) -> tuple[object, ...]:
    return (
        *("distill", *teachers, "--source", "mono.en", "--out", out, *TINY),
        *("--dev-source", "dev.en", "--dev-target", "dev.de", *options),
        *("--set", *SETTINGS),
    )


def report(out: str = "out") -> dict[str, dict]:
    content = json.loads(Path(out, "report/distillation.json").read_text())
    return {f"{each['name']} {each['precision']}": each for each in content["models"]}


def weights(out: str | Path) -> dict[str, torch.Tensor]:
    return dict(load_model(Path(out, "student")).weights)


def test_threads_share_one_arena_before_the_teacher_is_opened(
    refuses: Callable[..., str], teacher, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = []

    def opened(*_: object) -> None:
        events.append("teacher")
        raise ConfigError("Enough.")

    monkeypatch.setattr(
        "transduce.cli.distill.use_one_arena", lambda: events.append("arena")
    )
    monkeypatch.setattr("transduce.cli.distill.student_settings", opened)
    assert "Enough." in refuses(*arguments(teacher, "early"))
    assert events == ["arena", "teacher"]


def assert_same_results(one: str | Path, other: str | Path) -> None:
    for name in ("translations.jsonl", "distilled.en", "distilled.de", "pairs.json"):
        assert Path(one, name).read_bytes() == Path(other, name).read_bytes()
    ours, theirs = weights(one), weights(other)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_a_student_learns_the_teachers_translations(
    succeeds: Callable[..., str], teacher: Path
) -> None:
    printed = succeeds(*arguments(teacher, "out", "--test", "mono.en", "mono.de"))
    sources = Path("out/distilled.en").read_text().splitlines()
    targets = Path("out/distilled.de").read_text().splitlines()
    stdin = "\n".join(sources).encode()
    assert targets == succeeds("translate", teacher, stdin=stdin).splitlines()
    assert f"{len(sources)} of {len(SOURCES)} kept" in printed
    models = report()
    assert set(models) == {
        "teacher fp32", "teacher int8", "student fp32", "student int8"
    }  # fmt: skip
    assert models["student fp32"]["parameters"] > 10_000
    assert models["teacher fp32"]["scores"][0]["text"] == "mono"
    assert all(each["words_per_second"] > 0 for each in models.values())
    for name in ("teacher", "student"):
        whole, small = models[f"{name} fp32"], models[f"{name} int8"]
        assert 0 < small["megabytes"] < whole["megabytes"]
    lines = Path("out/report/teacher.mono.txt").read_text().splitlines()
    assert len(lines) == len(SOURCES)
    student = load_model(Path("out/student"))
    assert student.tokenizer == load_model(teacher).tokenizer
    assert (student.source_language, student.target_language) == ("en", "de")
    assert (Path("out/report/distillation.md")).read_text().startswith("# Distillation")


def test_a_new_vocabulary_is_learned_from_the_pairs(
    succeeds: Callable[..., str], teacher: Path
) -> None:
    settings = "tokenizer.vocab_size=300"
    succeeds(*arguments(teacher, "out", "--vocabulary", "new"), settings)
    assert load_model(Path("out/student")).config.vocab_size == 300


def test_with_references_the_student_learns_the_closest_hypothesis(
    succeeds: Callable[..., str],
    refuses: Callable[..., str],
    teacher: Path,
    finished: Path,
) -> None:
    options = ("--reference", "mono.de", "--num-best", 6)
    succeeds(*arguments(teacher, "closest", *options))
    # The size of the beam follows from the number of hypotheses, which is given.
    other = refuses(*arguments(teacher, "closest", *options[:2], "--num-best", 5))
    assert other.startswith("closest: was begun with translation.search.num_best 6, ")
    references = dict(zip(SOURCES, REFERENCES, strict=True))

    def right(out: str | Path) -> list[str]:
        text = Path(out, "translations.jsonl").read_text().splitlines()
        records = list(map(json.loads, text))
        return [r["input"] for r in records if r["output"] == references[r["input"]]]

    assert set(right(finished)) < set(right("closest"))


def test_true_pairs_are_held_out_if_there_are_references(
    succeeds: Callable[..., str], teacher: Path
) -> None:
    many = [f"{a} {b}" for a in SOURCES for b in ("one", "two", "three", "four")]
    english = {" ".join(WORDS[word] for word in line.split()): line for line in many}
    Path("mono.en").write_text("".join(f"{line}\n" for line in english.values()))
    Path("mono.de").write_text("".join(f"{line}\n" for line in english))
    succeeds(
        *("distill", teacher, "--source", "mono.en", "--reference", "mono.de"),
        *("--out", "out", *TINY, "--beam-size", 1, "--num-best", 1),
        *("--set", *SETTINGS),
    )
    held_out = Path("out/student/corpus/dev/target.txt").read_text().splitlines()
    sources = Path("out/student/corpus/dev/source.txt").read_text().splitlines()
    assert len(held_out) == 200
    assert [english[line] for line in held_out] == sources
    translated = Path("out/translations.jsonl").read_text().splitlines()
    learned = {json.loads(line)["input"] for line in translated}
    assert learned == set(many) - set(sources)
    assert report()["student fp32"]["scores"][0]["text"] == "dev"


def test_an_ensemble_teaches(
    succeeds: Callable[..., str], teacher: Path, second_teacher: Path
) -> None:
    succeeds(*several((teacher, second_teacher), "out"))
    translated = Path("out/distilled.de").read_text()
    expected = succeeds(
        *("translate", teacher, "--ensemble", second_teacher),
        stdin=Path("out/distilled.en").read_bytes(),
    )
    assert translated == expected
    assert (
        report()["teacher fp32"]["parameters"]
        == 2 * load_model(teacher).build().num_parameters()
    )
    page = Path("out/report/distillation.md").read_text()
    assert "an ensemble of 2 models" in page


def test_a_quantized_model_teaches(succeeds: Callable[..., str], teacher: Path) -> None:
    succeeds("quantize", teacher, "--out", "quantized")
    succeeds(*arguments(Path("quantized")))
    models = report()
    assert list(models) == ["teacher int8", "student fp32", "student int8"]
    assert all(each["scores"] for each in models.values())
    settings = json.loads(Path("out/settings.json").read_text())
    assert settings["translation"]["precision"] == "int8"


def test_an_interrupted_translation_goes_on(
    refuses, succeeds, teacher, finished, monkeypatch
) -> None:
    whole = Translator.translate_stream

    def stopped(self, *given, **named):
        for count, each in enumerate(whole(self, *given, **named)):
            if count == 50:
                raise KeyboardInterrupt
            yield each

    with monkeypatch.context() as patch:
        patch.setattr(Translator, "translate_stream", stopped)
        message = refuses(*arguments(teacher, "cut"))
    assert message == (
        "Interrupted. What is done is kept in cut: the same command continues."
    )
    assert Path("cut/translations.jsonl").read_bytes().count(b"\n") == 50
    assert not Path("cut/student").exists()
    succeeds(*arguments(teacher, "cut"))
    assert_same_results("cut", finished)


def test_a_stopped_training_names_the_same_command(
    refuses, succeeds, teacher, finished, monkeypatch
) -> None:
    def stopped(path: Path, *others: object) -> None:
        signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(DistillationDisplay, "scored", stopped)
        message = refuses(*arguments(teacher, "cut"))
    assert message == (
        "Training was stopped after step 3 of 4, and is saved. The same command "
        "continues."
    )
    succeeds(*arguments(teacher, "cut"))
    assert_same_results("cut", finished)


def killed(module: object, name: str, count: int, *given: object) -> int:
    """Kill the command in a child as it calls a function for the count-th time."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    whole, calls = getattr(module, name), []

    def kill(*arguments, **named):
        calls.append(0)
        if len(calls) == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return whole(*arguments, **named)

    setattr(module, name, kill)
    main([str(each) for each in given])
    os._exit(0)


@pytest.mark.parametrize(
    ("module", "name", "count"),
    [
        (distillation, "write_kept", 1),
        (distillation, "train_run", 1),
        (run_training, "save_training", 2),
        (distillation, "measure_models", 1),
        (distillation_report, "write_markdown", 1),
    ],
)
def test_a_killed_command_goes_on_with_each_step(
    succeeds, teacher, finished, module, name, count
) -> None:
    status = killed(module, name, count, *arguments(teacher, "killed"))
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGKILL
    assert not Path("killed/report").exists()
    translated = Path("killed/translations.jsonl").stat()
    succeeds(*arguments(teacher, "killed"))
    assert_same_results("killed", finished)
    again = Path("killed/translations.jsonl").stat()
    assert (again.st_ino, again.st_mtime_ns) == (
        translated.st_ino,
        translated.st_mtime_ns,
    )


def test_a_finished_command_trains_nothing_again(
    succeeds, teacher, finished, monkeypatch
) -> None:
    shutil.copytree(finished, "out")
    before = Path("out/student/averaged/model.safetensors").stat()
    for name in ("train_run", "resume", "write_kept"):
        monkeypatch.setattr(distillation, name, None)
    printed = succeeds(*arguments(teacher, "out", "--test", "mono.en", "mono.de"))
    assert "student" in printed
    after = Path("out/student/averaged/model.safetensors").stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    assert report()["student fp32"]["scores"][0]["text"] == "mono"


@pytest.mark.parametrize("damaged", ["{", "{}", '{"kept": "x"}', "[]"])
def test_damaged_counts_of_the_pairs_are_written_anew(
    succeeds, teacher, finished, damaged
) -> None:
    shutil.copytree(finished, "out")
    Path("out/pairs.json").write_text(damaged, encoding="utf-8")
    succeeds(*arguments(teacher))
    assert_same_results("out", finished)


@pytest.mark.parametrize("name", ["config.json", "corpus"])
def test_a_student_without_its_record_or_corpus_is_named(
    refuses, teacher, finished, name
) -> None:
    shutil.copytree(finished, "out")
    Path("out/student", name).rename("lost")
    message = refuses(*arguments(teacher))
    assert message.startswith("out/student: must hold the student's run, but lacks")


def test_a_student_is_trained_into_an_empty_folder(succeeds, teacher, finished) -> None:
    shutil.copytree(finished, "out")
    shutil.rmtree("out/student")
    Path("out/student").mkdir()
    succeeds(*arguments(teacher))
    assert_same_results("out", finished)


def test_changed_settings_are_refused_and_by_force_repeat_only_their_steps(
    succeeds, refuses, teacher, finished
) -> None:
    shutil.copytree(finished, "out")
    kept = weights("out")
    others = [each for each in arguments(teacher) if each != SETTINGS[0]]
    message = refuses(*others, "training.steps=6")
    assert message.startswith(
        "out: was begun with student.training.steps 4, but now it is 6; give the same"
    )
    message = refuses(*arguments(teacher, "out", "--beam-size", 2))
    assert message.startswith("out: was begun with translation.search.beam_size 4, but")
    message = refuses(*arguments(teacher, "out", "--drop-worst", 0.2))
    assert message.startswith("out: was begun with pairs.drop_worst 0.0, but now it is")
    assert all(torch.equal(each, kept[name]) for name, each in weights("out").items())
    translated = Path("out/translations.jsonl").stat()
    succeeds(*arguments(teacher, "out", "--drop-worst", 0.5, "--force"))
    assert Path("out/translations.jsonl").stat().st_ino == translated.st_ino
    pairs = json.loads(Path("out/pairs.json").read_text())
    assert pairs["low-score"] > 0


def test_a_setting_that_an_older_version_lacked_had_its_default(
    succeeds, refuses, teacher, finished
) -> None:
    shutil.copytree(finished, "out")
    record = json.loads(Path("out/settings.json").read_text())
    del record["student"]["training.cooldown_share"]
    del record["student"]["training.steps"]
    del record["translation"]["search"]["no_repeat_ngram"]
    Path("out/settings.json").write_text(json.dumps(record))
    message = refuses(*arguments(teacher))  # whose steps are not the default
    assert message.startswith("out: was begun with student.training.steps 100000, but")
    record["student"]["training.steps"] = 4
    Path("out/settings.json").write_text(json.dumps(record))
    succeeds(*arguments(teacher))
    assert_same_results("out", finished)
    message = refuses(*arguments(teacher), "training.cooldown_share=0.5")
    assert message.startswith("out: was begun with student.training.cooldown_share ")


def test_files_that_a_person_put_there_are_kept(
    succeeds, refuses, teacher, finished
) -> None:
    shutil.copytree(finished, "out")
    notes = [Path("out", name, "notes.md") for name in ("report", "text", "student")]
    for path in notes:
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    succeeds(*arguments(teacher))
    changed = (*arguments(teacher, "out", "--force"), "training.label_smoothing=0.05")
    assert refuses(*changed) == (
        "out/student: only the files of a run can be overwritten by another, but the "
        "folder also holds notes.md; move it, or choose another folder."
    )
    assert weights("out").keys() == weights(finished).keys()
    notes.pop().unlink()
    succeeds(*changed)
    assert [path.read_text() for path in notes] == ["mine", "mine"]
    assert Path("out/report/distillation.json").is_file()


def test_pairs_are_written_anew_for_another_language(
    succeeds, teacher, finished
) -> None:
    shutil.copytree(finished, "out")
    language = ("languages.target=de-AT",)
    own = {"distilled.en.gz", "distilled.clean.en", "distilled.fr"}  # the user's
    for name in own:
        Path("out", name).touch()
    succeeds(*arguments(teacher, "out", "--force"), *language)
    names = {each.name for each in Path("out").glob("distilled.*")}
    assert names == {"distilled.en", "distilled.de-AT", *own}
    written = Path("out/distilled.de-AT").read_bytes()
    assert written == (finished / "distilled.de").read_bytes()
    assert load_model(Path("out/student")).target_language == "de-AT"


def test_a_teacher_within_one_language_has_a_student(
    succeeds: Callable[..., str], trained_checkpoint: Checkpoint, tmp_path: Path
) -> None:
    simplified = replace(trained_checkpoint, source_language="en", target_language="en")
    save_model(simplified, tmp_path / "simplified")
    options = ("--source", "mono.en", "--out", "out", *TINY, "--set", *SETTINGS)
    succeeds("distill", "simplified", *options)
    source, target = (Path("out", f"distilled.{each}") for each in ("source", "target"))
    assert set(source.read_text().splitlines()) <= set(SOURCES)
    assert len(target.read_text().splitlines()) == len(source.read_text().splitlines())


def test_teachers_with_different_vocabularies_are_refused(
    refuses, teacher, trained_checkpoint, corpus
) -> None:
    other = learn_tokenizer(corpus[0], TokenizerConfig(vocab_size=300))
    config = replace(trained_checkpoint.config, vocab_size=other.vocab_size)
    stranger = replace(
        trained_checkpoint,
        config=config,
        tokenizer=other,
        weights=Transformer(config).state_dict(),
    )
    save_model(stranger, Path("stranger"))
    message = refuses(*several((teacher, Path("stranger")), "out"))
    assert message.startswith("Models of an ensemble must have one tokenizer")
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--num-best", 2), "`num_best` hypotheses are compared with a reference, but"),
        (("--drop-worst", 1.5), "`drop_worst` must be from 0 to less than 1, but is"),
        (("--preset", "parsing-small"), "The preset parsing-small is for trees"),
        (("--preset", "adapt"), "a student is trained from the start; choose"),
        (("--preset", "student-tny"), "did you mean `student-tiny`?"),
        (
            ("--set", "tokenizer.vocab_size=999"),
            'vocabulary; leave them out, or give "new" as `vocabulary`.',
        ),
        (("--set", "training.best_by=f1"), "`training.best_by` must be one of"),
        (("--set", "model.d_model=65536"), "Training must fit in the"),
        (("--target-language", "fr"), "fr"),
        (("--set", "model.depth=9"), "there is no setting `model.depth`"),
        (("--test", "mono.en", "dev.de"), "dev.de:10: source and target must have"),
        (
            ("--test", "mono.en", "mono.de", "mono.en", "mono.de"),
            "Test texts must have different names, but two are named mono",
        ),
        (("--dev-source", "dev.en"), "Both sides of a corpus must be given, but only"),
        (("--test", "blank", "blank"), "blank: at least one line must have text, but"),
        (
            ("--dev-source", "blank", "--dev-target", "blank"),
            "blank: at least one line must have text, but none has.",
        ),
        (("--vocabulary", "old"), 'Invalid value "old" for --vocabulary'),
    ],
)
def test_impossible_options_are_refused_before_any_work(
    refuses, teacher, options, said
) -> None:
    Path("blank").write_text("\n \n")
    message = refuses(
        "distill", teacher, "--source", "mono.en", "--out", "out", *options
    )
    assert said in message
    assert not Path("out").exists()


def test_a_distillation_needs_a_teacher(refuses) -> None:
    message = refuses("distill", "--source", "mono.en", "--out", "out")
    assert message == "A teacher must be given; name a model or run folder."


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "mono.en: at least one line must have text, but none has."),
        (b"one\0two\n", "mono.en:1: a line must be text, but this one holds a NUL"),
        (b"x" * 1_000_001, "mono.en:1: a line must be at most 1,000,000 bytes long"),
    ],
)
def test_an_unusable_source_is_refused(refuses, teacher, content, said) -> None:
    Path("mono.en").write_bytes(content)
    assert refuses(*arguments(teacher)).startswith(said)
    assert not Path("out").exists()


def test_hostile_lines_are_dropped_and_the_rest_is_learned(succeeds, teacher) -> None:
    hostile = ["", "one \r\n\t", "你好，世界。", "three\u2028four", "one " * 9_000]
    Path("mono.en").write_text("\r\n".join([*SOURCES, *hostile]) + "\r\n", newline="")
    succeeds(*arguments(teacher))
    reasons = json.loads(Path("out/pairs.json").read_text())
    assert reasons["too-long"] == 1
    assert reasons["kept"] >= len(SOURCES) // 2
    learned = [
        Path("out", name).read_bytes() for name in ("distilled.en", "distilled.de")
    ]
    assert learned[0].count(b"\n") == learned[1].count(b"\n") == reasons["kept"]


def test_a_folder_of_something_else_is_refused(refuses, teacher, run) -> None:
    shutil.copytree(run, "out")
    message = refuses(*arguments(teacher, "out", "--force"))
    assert message.startswith("out: the output folder must be new, empty, or one that")
    assert Path("out/log.jsonl").is_file()


def test_the_function_gives_the_same_student_as_the_command(teacher, finished) -> None:
    seen: list[object] = []

    class Watch:
        def translated(self, done: int, total: int) -> None:
            seen.append((done, total))

        def selected(self, figures, pairs) -> None:
            seen.append(pairs["kept"])

        def measuring(self, what: str) -> None:
            seen.append(what)

    result = transduce.distill(
        teacher,
        "mono.en",
        "function",
        dev_source="dev.en",
        dev_target="dev.de",
        preset="tiny",
        settings={
            "training.steps": 4, "training.checkpoint_steps": 2, "training.seed": 3,
        },
        device="cpu",
        training_precision="fp32",
        observer=Watch(),
    )  # fmt: skip
    assert_same_results("function", finished)
    assert (len(SOURCES), len(SOURCES)) in seen
    assert "teacher translates dev" in seen
    assert [each.name for each in result.report.models] == ["teacher"] * 2 + [
        "student"
    ] * 2
    assert transduce.load(result.student).translate("one two").text is not None


def test_the_languages_of_a_text_are_those_of_the_vocabulary(tmp_path) -> None:
    """A SentencePiece vocabulary cuts every tag off, also an unknown one."""
    model = UnigramModel(
        pieces=(("a", -1.0),), character_map=b"", adds_space=True, removes_spaces=True
    )
    tokenizer = SentencePieceTokenizer(
        vocabulary=(*SPECIAL_PIECES, "<unk>", ">>de<<", ">>fr<<", "a"),
        source=model,
        target=model,
    )
    (tmp_path / "text").write_text(">>xx<< a\n>>fr<< a\na\n")
    assert tags_in([tmp_path / "text"], tokenizer) == {">>fr<<"}


@pytest.fixture
def multilingual(trained_checkpoint, monkeypatch) -> Path:
    """An untrained teacher of two target languages, with the tag of a corpus."""
    # Its translations do not end.
    monkeypatch.setattr(OutputRules, "broken", lambda *_: None)
    texts = [*SOURCES, *REFERENCES]
    tags = ("<bt>", ">>de<<", ">>fr<<")
    tokenizer = learn_tokenizer(texts, TokenizerConfig(vocab_size=300), tags)
    config = replace(trained_checkpoint.config, vocab_size=tokenizer.vocab_size)
    torch.manual_seed(2)
    teacher = replace(
        trained_checkpoint,
        config=config,
        tokenizer=tokenizer,
        weights=Transformer(config).state_dict(),
        source_language="en",
        target_language="de",
    )
    save_model(teacher, Path("several"))
    Path("dev.fr").write_bytes(Path("dev.de").read_bytes())
    return Path("several")


TO_FRENCH = (
    *("--target-language", "fr", "--max-ratio", 99, "--beam-size", 1),
    *("--dev-source", "dev.en", "--dev-target", "dev.fr", "--set", *SETTINGS),
)


def test_a_student_of_one_of_several_languages_has_no_tags(
    succeeds, multilingual
) -> None:
    call = ("distill", multilingual, "--source", "mono.en", "--out", "out", *TINY)
    succeeds(*call, *TO_FRENCH)
    student = transduce.load("out/student", device="cpu")
    teacher = transduce.load(multilingual, device="cpu")
    assert student.target_language == "fr"
    assert not student.tokenizer.language_tags
    assert not student.tokenizer.corpus_tags
    assert student.tokenizer.vocab_size == teacher.tokenizer.vocab_size - 3
    [source, *_] = open_dataset(Path("out/student/corpus/training")).source
    line = next(iter(Path("out/distilled.en").read_text().splitlines()))
    assert source.tolist() == teacher.tokenizer.encode(line)
    lines = Path("out/report/student.dev.txt").read_text().splitlines()
    dev = SOURCES[:9]
    assert lines == [each.text for each in student.translate(dev)]
    # The option stays: it names the only language.
    assert student.into("fr") is student


@pytest.mark.parametrize("vocabulary", ["teacher", "new"])
def test_a_student_learns_the_languages_that_its_text_names(
    succeeds, multilingual, vocabulary
) -> None:
    text = Path("mono.en").read_text().splitlines()
    tagged = [f">>de<< {line}" if i % 2 else line for i, line in enumerate(text)]
    Path("tagged.en").write_text("\n".join(tagged) + "\n")
    call = ("distill", multilingual, "--source", "tagged.en", "--out", "out", *TINY)
    succeeds(*call, "--vocabulary", vocabulary, *TO_FRENCH)
    student = transduce.load("out/student", device="cpu")
    assert student.tokenizer.language_tags == (">>de<<", ">>fr<<")
    assert not student.tokenizer.corpus_tags
    sources = open_dataset(Path("out/student/corpus/training")).source
    tags = {student.tokenizer.tag_id(tag) for tag in (">>de<<", ">>fr<<")}
    assert {ids[0] for ids in sources} == tags
    pieces = student.tokenizer.pieces(range(student.tokenizer.vocab_size))
    assert sum(">>" in piece for piece in pieces) == len(tags)
    read = student.tokenizer.encode_sources([">>de<< one two", "one two"])
    assert read[0][1:] == read[1]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--source", "mono.de"), "its source is en and here de"),
        (("--source", "mono.en", "--reference", "mono.en"), "its target is de and"),
        (
            ("--source", "mono.en", "--dev-source", "dev.de", "--dev-target", "dev.en"),
            "its source is en and here de",
        ),
        (("--source", "mono.en", "--test", "dev.en", "dev.en"), "its target is de and"),
    ],
)
def test_files_of_another_language_are_refused(refuses, teacher, options, said) -> None:
    message = refuses("distill", teacher, "--out", "out", *options)
    assert said in message
    assert not Path("out").exists()


def test_teachers_of_both_directions_are_refused(
    refuses, teacher, trained_checkpoint
) -> None:
    opposite = replace(trained_checkpoint, source_language="de", target_language="en")
    save_model(opposite, Path("opposite"))
    message = refuses(*several((teacher, Path("opposite")), "out"))
    assert message.startswith("Models of an ensemble must have the same lang")
    assert not Path("out").exists()
