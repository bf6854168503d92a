"""`transduce train` on a mixture of corpora."""

import json
from pathlib import Path

import pytest

import transduce
from transduce.cli import main
from transduce.cli.train import command_of
from transduce.data.dataset import open_dataset
from transduce.experiments.run_corpus import dev_languages
from transduce.experiments.run_folder import RunFolder
from transduce.processes import PYTHON

pytestmark = pytest.mark.usefixtures("no_trials")

STEPS = (
    *("--preset", "tiny", "--device", "cpu", "--precision", "fp32", "--set"),
    *("training.steps=12", "training.checkpoint_steps=12"),
    *("batching.source_tokens=2000", "batching.target_tokens=2000"),
)


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """Two corpora of different sizes, and an empty one."""
    for name, number in (("big", 500), ("small", 60), ("empty", 0)):
        for side, word in (("en", "man"), ("de", "Mann")):
            lines = [f"{name} {word} {i} {'x ' * (i % 7)}" for i in range(number)]
            text = "".join(f"{line}\n" for line in lines)
            (tmp_path / f"{name}.{side}").write_text(text)
    return tmp_path


def corpus(folder: Path, name: str, *more: str) -> list[str]:
    return ["--corpus", name, f"{folder}/{name}.en", f"{folder}/{name}.de", *more]


def entries(run: Path, kind: str) -> list[dict]:
    lines = (run / "log.jsonl").read_text().splitlines()
    return [entry for entry in map(json.loads, lines) if entry["kind"] == kind]


def test_a_mixture_has_the_shares_of_its_weights_in_its_log(succeeds, texts, tmp_path):
    run = tmp_path / "run"
    options = [*corpus(texts, "big", "3"), *corpus(texts, "small", "1")]
    output = succeeds("train", *options, *STEPS, "--no-dev", "--out", run)
    assert "Mixture: big 75.0%, small 25.0% of the pairs" in output
    last = entries(run, "step")[-1]
    assert last["epoch"] > 0
    assert last["shares"]["big"] == pytest.approx(0.75, abs=0.01)
    assert last["shares"]["small"] == pytest.approx(0.25, abs=0.01)
    record = json.loads((run / "corpus/preparation.json").read_text())
    assert {n: c["kept"] for n, c in record["corpora"].items()} == {
        "big": 500,
        "small": 60,
    }
    settings = json.loads((run / "config.json").read_text())["settings"]
    assert [each["weight"] for each in settings["corpora"]] == [3.0, 1.0]


def test_a_mixture_is_resumed_with_its_preset_but_without_its_corpora(
    succeeds, texts, tmp_path
):
    options = [*corpus(texts, "big"), *corpus(texts, "small")]
    few = (*STEPS[:-4], "training.steps=2", "--no-dev", "--out", tmp_path / "run")
    succeeds("train", *options, *few)
    assert "Continuing after step 2." in succeeds("train", "--resume", *few)


def test_a_mixture_is_resumed_with_all_of_its_options(
    succeeds, refuses, texts, tmp_path
):
    options = [*corpus(texts, "big"), *corpus(texts, "small")]
    dev = ("--dev", "home", texts / "small.en", texts / "small.de")
    few = (*STEPS[:-4], "training.steps=2", "--out", tmp_path / "run")
    succeeds("train", *options, *dev, *few)
    resumed = succeeds("train", *options, *dev, *few, "--resume")
    assert "Continuing after step 2." in resumed
    dev = ("--dev-source", texts / "big.en", "--dev-target", texts / "big.de")
    message = refuses("train", *options, *dev, *few, "--resume")
    assert "the run to resume was started with other files (dev source: " in message


def test_a_damaged_count_of_corpora_is_named(succeeds, refuses, texts, tmp_path):
    options = [*corpus(texts, "big"), *corpus(texts, "small")]
    few = (*STEPS[:-4], "training.steps=2", "--no-dev", "--out", tmp_path / "run")
    succeeds("train", *options, *few)
    path = tmp_path / "run/corpus/preparation.json"
    record = json.loads(path.read_text())
    big, small = record["corpora"]["big"], record["corpora"]["small"]
    for corpora in (
        {"big": big},
        {"small": small, "big": big},
        {"big": big, "small": {**small, "kept": 0}},
        {"big": big, "small": {**small, "kept": 99}},
        [big, small],
    ):
        path.write_text(json.dumps({**record, "corpora": corpora}))
        message = refuses("train", "--resume", "--out", tmp_path / "run")
        assert message.startswith(f"{path}: must hold the number of pairs of each")


def test_tables_in_a_file_and_python_train_the_same_as_options(
    succeeds, texts, tmp_path
):
    options = [*corpus(texts, "big", "3"), *corpus(texts, "small", "1")]
    succeeds("train", *options, *STEPS, "--no-dev", "--out", tmp_path / "a")
    config = tmp_path / "mix.toml"
    tables = [
        f'[[corpora]]\nname = "{name}"\nsource = "{texts}/{name}.en"\n'
        f'target = ["{texts}/{name}.de"]\nweight = {weight}\n'
        for name, weight in (("big", 3), ("small", 1))
    ]
    config.write_text("".join(tables))
    succeeds("train", "--config", config, *STEPS, "--no-dev", "--out", tmp_path / "b")
    corpora = [
        {
            "name": name,
            "source": str(texts / f"{name}.en"),
            "target": str(texts / f"{name}.de"),
            "weight": weight,
        }
        for name, weight in (("big", 3), ("small", 1))
    ]
    transduce.train(
        out=tmp_path / "c",
        preset="tiny",
        settings={
            "corpora": corpora,
            "training.steps": 12,
            "training.checkpoint_steps": 12,
            "evaluation.hold_out": False,
            "batching.source_tokens": 2_000,
            "batching.target_tokens": 2_000,
        },
        device="cpu",
        precision="fp32",
    )
    weights = [
        (tmp_path / run / "averaged/model.safetensors").read_bytes() for run in "abc"
    ]
    assert weights[0] == weights[1] == weights[2]


def test_the_dev_corpus_is_held_out_of_the_first_corpus(succeeds, texts, tmp_path):
    options = [*corpus(texts, "big"), *corpus(texts, "small")]
    extra = texts / "small.en"
    extra.write_text((texts / "big.en").read_text().split("\n", 60)[0] + "\n")
    lines = (texts / "big.en").read_text().splitlines()[:60]
    extra.write_text("".join(f"{line}\n" for line in lines))
    succeeds("train", *options, *STEPS, "--out", tmp_path / "run")
    dev = (tmp_path / "run/corpus/dev/source.txt").read_text().splitlines()
    assert len(dev) == 200
    record = json.loads((tmp_path / "run/corpus/preparation.json").read_text())
    held_out = len(set(dev) & set(lines))
    assert 0 < held_out < 60
    assert record["corpora"]["big"]["kept"] == 300
    assert record["corpora"]["small"]["kept"] == 60 - held_out


def test_stages_follow_one_another_and_a_run_resumes_within_one(
    succeeds, texts, tmp_path
):
    options = [*corpus(texts, "big", "3"), *corpus(texts, "small", "1"), *STEPS]
    stages = "stages=[{steps=7, weights={big=1}}, {weights={small=1}}]"
    options += ["--set", stages]
    output = succeeds("train", *options, "--no-dev", "--out", tmp_path / "whole")
    assert "Stage 1, to update 7: big 100.0% of the pairs" in output
    assert "step 8: stage 2 begins." in output
    log = entries(tmp_path / "whole", "step")
    assert [each["stage"] for each in log] == [2, 2]
    assert [each["shares"] for each in log] == [{"big": 0.0, "small": 1.0}] * 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["big 0", "small 1"], "The weight of corpus big must be above 0, but is 0"),
        (["big -1", "small 1"], "weight of corpus big must be above 0, but is -1"),
        (["big 1", "small"], "must have a weight, or none, but small has none"),
        (["big", "big"], "must have a name of its own, but 2 are named big"),
        (["big", "empty"], "empty.en: at least one pair must be left to train on"),
        (["big", "small wait=1"], "there is no setting `corpora[1].wait`"),
        (["big 1", "small source=x"], "--corpus small: `source` must be given once"),
        (["big", "small tag=1"], "and no other special token, but is <1>"),
        (["big 1 2020"], "big: `weight` must be given once, but `2020` gives it again"),
        (["big", "small weight=x"], "`corpora[1].weight` must be a number or none"),
    ],
)
def test_a_mistake_in_a_mixture_is_one_sentence(
    refuses, texts, tmp_path, options, message
):
    given = [word for each in options for word in corpus(texts, *each.split())]
    found = refuses("train", *given, *STEPS, "--out", tmp_path / "run")
    assert message in found
    assert not (tmp_path / "run").exists()


def test_an_empty_corpus_is_refused_beside_a_dev_corpus(refuses, texts, tmp_path):
    given = [*corpus(texts, "big"), *corpus(texts, "empty")]
    dev = ["--dev-source", texts / "small.en", "--dev-target", texts / "small.de"]
    message = refuses("train", *given, *dev, *STEPS, "--out", tmp_path / "run")
    assert "empty.en: a corpus must have at least one line" in message


def test_a_mixture_beside_one_corpus_or_trees_is_refused(refuses, texts, tmp_path):
    given = corpus(texts, "big")
    more = ["--source", texts / "small.en", "--target", texts / "small.de"]
    message = refuses("train", *given, *more, *STEPS, "--out", tmp_path / "run")
    assert "Either a mixture of corpora" in message
    trees = tmp_path / "trees"
    trees.write_text("(S (NP (NN dog)) (VP (VBZ runs)))\n")
    message = refuses(
        "train", *given, "--trees", trees, *STEPS, "--out", tmp_path / "run"
    )
    assert "Either a mixture of corpora" in message


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run of a model into two languages, with back-translations of one."""
    folder = tmp_path_factory.mktemp("several")
    for name, target in (("de", "Mann"), ("fr", "homme"), ("back", "Mann")):
        texts = {"en": "man", "fr" if name == "fr" else "de": target}
        for side, word in texts.items():
            lines = [f"{word} {i} {'x ' * (i % 5)}" for i in range(60)]
            text = "".join(f"{line}\n" for line in lines)
            (folder / f"{name}.{side}").write_text(text)
    given = []
    for name, side, *more in (("de", "de"), ("fr", "fr"), ("back", "de", "tag=bt")):
        given += ["--corpus", name, f"{folder}/{name}.en", f"{folder}/{name}.{side}"]
        given += more
    main(["train", *given, *STEPS, "--out", f"{folder}/run"])
    return folder


def test_the_sources_have_the_tags_of_corpus_and_language(several):
    run = several / "run"
    tokenizer = transduce.load(run, device="cpu").tokenizer
    bt, de, fr = map(tokenizer.tag_id, ("<bt>", ">>de<<", ">>fr<<"))
    dataset = open_dataset(run / "corpus/training")
    [plain] = tokenizer.encode_sources(["man 0"])
    assert dataset.source[0].tolist() == [de, *plain]
    assert dataset.source[60].tolist() == [fr, *plain]
    assert dataset.source[120].tolist() == [bt, de, *plain]
    assert not {bt, de, fr} & set(dataset.target.ids.tolist())


def test_the_target_language_is_chosen_by_option(several, succeeds, refuses):
    run = several / "run"
    translator = transduce.load(run, device="cpu")
    assert translator.target_languages == ["de", "fr"]
    lines = ["man 1", ">>de<< man 2", ""]
    stdin = "".join(f"{line}\n" for line in lines).encode()
    tagged = b">>fr<< man 1\n>>de<< man 2\n\n"
    for command in ("translate", "sample"):
        options = (command, run, "--device", "cpu", "--jsonl")
        given = succeeds(*options, "--target-language", "fr", stdin=stdin)
        assert given == succeeds(*options, stdin=tagged)
        assert given != succeeds(*options, stdin=stdin)
        message = refuses(*options, "--target-language", "nl", stdin=stdin)
        assert message.endswith("'nl'; it has de (German), fr (French).")
    into = translator.into("fra")
    assert into.target_language == "fr"
    assert into.translate("man 1") == translator.translate(">>fr<< man 1")


def test_the_target_language_is_by_default_the_models_own(
    several, command, succeeds, tmp_path
):
    run = several / "run"
    translator = transduce.load(run, device="cpu")
    assert translator.target_language == "de"
    [ids] = translator.source_ids(["man 1"])
    assert ids[0] == translator.tokenizer.tag_id(">>de<<")
    assert translator.translate("man 1") == translator.into("de").translate("man 1")
    for name in ("translate", "sample"):
        options = (name, run, "--device", "cpu", "--jsonl")
        found = succeeds(*options, stdin=b"man 1\n>>fr<< man 2\n")
        assert found == succeeds(*options, stdin=b">>de<< man 1\n>>fr<< man 2\n")
    (tmp_path / "mono.en").write_text("man 1\nman 2\n")
    given = ("--source", "man 1", "--device", "cpu", "--json")
    attention = json.loads(succeeds("attention", run, *given))["attention"]
    assert attention["encoder-decoder"]["keys"][0] == ">>de<<"
    mono = ("--input", tmp_path / "mono.en", "--device", "cpu")
    options = ("back-translate", run, *mono)
    lines = []
    for name, more in (("one", ()), ("other", ("--target-language", "de"))):
        command(*options, *more, "--out", tmp_path / name)  # all may be useless
        lines.append((tmp_path / name / "translations.jsonl").read_text())
    assert lines[0] == lines[1] != ""


def test_scores_are_of_the_chosen_language(several, succeeds):
    files = ("--source", several / "fr.en", "--target", several / "fr.fr")
    options = ("score", several / "run", *files, "--device", "cpu")
    tagged = several / "tagged"
    lines = (several / "fr.en").read_text().splitlines()
    tagged.write_text("".join(f">>fr<< {line}\n" for line in lines))
    found = succeeds(*options, "--target-language", "fr")
    same = ("--source", tagged, "--target", several / "fr.fr", "--device", "cpu")
    assert found == succeeds("score", several / "run", *same)
    # The file's ending names the language, too; without either it is the model's own.
    assert found == succeeds(*options)
    unnamed = several / "unnamed"
    unnamed.write_text((several / "fr.fr").read_text())
    files = ("--source", several / "fr.en", "--target", unnamed)
    assert found != succeeds("score", several / "run", *files, "--device", "cpu")


def test_a_dev_corpus_has_the_tag_of_its_language(several, succeeds, tmp_path):
    given = []
    for name in ("de", "fr"):
        files = (f"{several}/{name}.en", f"{several}/{name}.{name}")
        given += ["--corpus", name, *files]
    dev = ("--dev-source", several / "fr.en", "--dev-target", several / "fr.fr")
    succeeds("train", *given, *dev, *STEPS, "--out", tmp_path / "run")
    tokenizer = transduce.load(tmp_path / "run", device="cpu").tokenizer
    dataset = open_dataset(tmp_path / "run/corpus/dev")
    assert dataset.source[0][0] == tokenizer.tag_id(">>fr<<")
    config = json.loads((tmp_path / "run/averaged/config.json").read_text())
    assert config["target_language"] == "fr"


def test_a_dev_corpus_keeps_its_language_beside_another_default(
    several, succeeds, tmp_path
):
    lines = "".join(f"man {i}\n" for i in range(400))
    (tmp_path / "de.en").write_text(lines)
    (tmp_path / "de.de").write_text(lines.replace("man", "Mann"))
    given = ["--corpus", "de", tmp_path / "de.en", tmp_path / "de.de", "--corpus"]
    given += ["fr", several / "fr.en", several / "fr.fr", "--target-language", "fr"]
    named = ("--dev", "home", several / "de.en", several / "de.de")
    for run, dev in (("held-out", ()), ("named", named)):
        few = (*STEPS[:-4], "training.steps=1", "--out", tmp_path / run)
        succeeds("train", *given, *dev, *few)
        translator = transduce.load(tmp_path / run, device="cpu")
        assert translator.target_language == "fr"
        dataset = open_dataset(tmp_path / run / "corpus/dev")
        assert dataset.source[0][0] == translator.tokenizer.tag_id(">>de<<")
        folder, config = RunFolder.open(tmp_path / run)
        assert dev_languages(config, folder.files(), has_tags=True) == ["de"]


def test_languages_that_no_corpus_has_are_refused_before_any_work(
    several, refuses, tmp_path
):
    given = []
    for name in ("de", "fr"):
        files = (f"{several}/{name}.en", f"{several}/{name}.{name}")
        given += ["--corpus", name, *files]
    options = (*given, *STEPS, "--out", tmp_path / "run")
    message = refuses("train", *options, "--target-language", "es", "--no-dev")
    assert "must be one of the model's, but is 'es'; it has de" in message
    (tmp_path / "dev.es").write_text((several / "de.de").read_text())
    dev = ("--dev", "es", several / "de.en", tmp_path / "dev.es")
    for sets in (dev, ("--dev", "de", several / "de.en", several / "de.de", *dev)):
        message = refuses("train", *options, "--target-language", "de", *sets)
        assert f"{tmp_path}/dev.es: the target language of a dev set must" in message


def test_a_dev_set_is_scored_by_the_tokens_of_its_own_language(
    several, succeeds, tmp_path
):
    source, target = f"{several}/de.en", tmp_path / "zh.zh"
    target.write_text("".join(f"男人 {i}\n" for i in range(60)))
    given = ["--corpus", "de", source, f"{several}/de.de"]
    given += ["--corpus", "zh", source, target]
    given += ["--dev", "german", source, f"{several}/de.de"]
    given += ["--dev", "chinese", source, target]
    succeeds("train", *given, *STEPS, "--out", tmp_path / "run")
    lines = map(json.loads, (tmp_path / "run/log.jsonl").read_text().splitlines())
    found = {each["name"]: each["signature"] for each in lines if "signature" in each}
    assert "tok:13a" in found["german"]
    assert "tok:zh" in found["chinese"]


def test_a_corpus_of_unknown_language_beside_others_is_refused(
    several, refuses, tmp_path
):
    given = []
    for name in ("de", "fr"):
        files = (f"{several}/{name}.en", f"{several}/{name}.{name}")
        given += ["--corpus", name, *files]
    given += ["--corpus", "x", several / "de.en", several / "de.en", "tag=x y"]
    message = refuses("train", *given, *STEPS, "--out", tmp_path / "run")
    assert "tag of a corpus must be letters" in message
    (several / "other").write_text((several / "de.de").read_text())
    given[-3:] = [several / "de.en", several / "other"]
    message = refuses("train", *given, *STEPS, "--out", tmp_path / "run")
    assert "there are several (de, fr), but x has none" in message


def test_a_tag_that_the_model_to_start_from_lacks_is_refused(
    several, refuses, succeeds, tmp_path
):
    files = (f"{several}/de.en", f"{several}/de.de")
    start = ("train", "--from", several / "run", "--out", tmp_path / "run")
    small = ("--set", "training.steps=2", "--device", "cpu", "--no-dev")
    message = refuses(*start, "--corpus", "x", *files, "tag=new", *small)
    assert "The tag <new> of corpus x must be a token of the model" in message
    message = refuses(*start, "--corpus", "x", *files, "target_language=nl", *small)
    assert f"{several / 'run'}: the target language of corpus x must be" in message
    assert message.endswith("it has de (German), fr (French).")
    assert not (tmp_path / "run").exists()
    succeeds(*start, "--source", files[0], "--target", files[1], *small)
    dataset = open_dataset(tmp_path / "run/corpus/training")
    tokenizer = transduce.load(several / "run", device="cpu").tokenizer
    assert dataset.source[0][0] == tokenizer.tag_id(">>de<<")


def test_a_mixture_for_a_model_of_several_languages_has_the_tag_of_its_own(
    several, succeeds, tmp_path
):
    given = []
    for name in ("de", "back"):
        given += ["--corpus", name, f"{several}/{name}.en", f"{several}/{name}.de"]
    start = ("train", "--from", several / "run", "--out", tmp_path / "run")
    succeeds(*start, *given, "--set", "training.steps=2", "--device", "cpu", "--no-dev")
    tokenizer = transduce.load(several / "run", device="cpu").tokenizer
    dataset = open_dataset(tmp_path / "run/corpus/training")
    firsts = {int(dataset.source[i][0]) for i in range(len(dataset))}
    assert firsts == {tokenizer.tag_id(">>de<<")}


def test_sources_without_a_tag_need_a_language_that_is_known(
    several, refuses, succeeds, tmp_path
):
    source, target = tmp_path / "source", tmp_path / "target"
    lines = (several / "fr.en").read_text().splitlines(keepends=True)
    target.write_text((several / "fr.fr").read_text())
    start = ("train", "--from", several / "run", "--out", tmp_path / "run")
    small = ("--set", "training.steps=2", "--device", "cpu", "--no-dev")
    text = (*start, "--source", source, "--target", target, *small)
    source.write_text("".join([*(f">>fr<< {line}" for line in lines[1:]), lines[0]]))
    message = refuses(*text)
    assert message.endswith(
        f"{several / 'run'}: the model has several target languages, but that of "
        f"{source} is unknown; set `languages.target`, or put a tag such as "
        ">>de<< before each source."
    )
    source.write_text("".join(f">>fr<< {line}" for line in lines))
    succeeds(*text)
    dataset = open_dataset(tmp_path / "run/corpus/training")
    tokenizer = transduce.load(several / "run", device="cpu").tokenizer
    firsts = {int(dataset.source[i][0]) for i in range(len(dataset))}
    assert firsts == {tokenizer.tag_id(">>fr<<")}


def test_corpora_of_several_languages_do_not_suit_a_model_of_one(
    several, refuses, succeeds, tmp_path
):
    files = (f"{several}/de.en", f"{several}/de.de")
    one = tmp_path / "one"
    succeeds(
        *("train", "--source", files[0], "--target", files[1], *STEPS, "--no-dev"),
        *("--out", one),
    )
    given = ["--corpus", "a", *files, "--corpus", "b", f"{several}/fr.en"]
    given += [f"{several}/fr.fr", "--target-language", "de"]
    message = refuses("train", "--from", one, *given, "--out", tmp_path / "run")
    assert message.endswith(
        f"{one}: the model has one target language and no tags of languages, but the "
        "corpora have tags of de, fr; train on corpora of its language, without "
        "`target_language`."
    )


def test_replayed_text_is_a_corpus_with_a_share(several, succeeds, refuses, tmp_path):
    new, old = (
        [f"{several}/{name}.en", f"{several}/{name}.de"] for name in ("de", "back")
    )
    text = ("--source", new[0], "--target", new[1])
    start = ("train", "--from", several / "run", "--out", tmp_path / "run")
    small = ("--set", "training.steps=9", "--device", "cpu", "--no-dev")
    options = (*text, "--replay", *old, "--replay-share", "0.4")
    output = succeeds(*start, *options, *small)
    assert "Mixture: text 60.0%, replay 40.0% of the pairs" in output
    settings = json.loads((tmp_path / "run/config.json").read_text())["settings"]
    assert [(each["name"], each["weight"]) for each in settings["corpora"]] == [
        ("text", 0.6),
        ("replay", 0.4),
    ]
    again = ("train", "--out", tmp_path / "run", "--resume", "--device", "cpu")
    succeeds(*again, *options)
    other = (*text, "--replay", *old, "--replay-share", "0.3")
    said = refuses(*again, *other)
    assert (
        "the corpora (`corpora`) of the run to resume differ from those requested; "
        in said
    )
    for given, message in (
        ((*text, "--replay-share", "0.3"), "--replay-share needs the text"),
        ((*text, "--replay", *old, "--replay-share", "1"), "below 1, but is 1"),
        ((*text, "--replay", *old, "--replay-share", "0"), "above 0 and below 1"),
        (("--replay", *old), "--replay adds general text to that of --source"),
        ((*options, "--corpus", "a", *old), "Either --replay, or corpora"),
    ):
        found = refuses("train", *given, *STEPS, "--out", tmp_path / "other")
        assert message in found


def test_each_of_several_processes_has_the_given_options():
    options = {
        "out": Path("--new"),
        "from_": Path("old"),
        "replay_share": 0.0,
        "devices": 2,
        "force": False,
        "resume": True,
        "preset": None,
        "corpus": (),
        "settings": ("a=1", "b=2"),
    }
    assert command_of(options) == [
        *(*PYTHON, "-m", "transduce", "train"),
        *("--out=--new", "--from=old", "--replay-share=0.0", "--devices=2"),
        *("--resume", "--set", "a=1", "b=2"),
    ]


def test_the_report_on_a_corpus_takes_all_corpora_of_a_mixture(texts, succeeds):
    given = [*corpus(texts, "big", "3"), *corpus(texts, "small", "1")]
    report = json.loads(succeeds("check", *given, "--preset", "tiny", "--json"))
    assert report["training"]["pairs"]["kept"] == 560
    assert report["epoch"]["is_weighted"]
    assert report["useless_corpora"] == []
