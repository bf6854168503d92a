"""Commands without extras work, or name the extra that they need."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from urllib.request import Request

import pytest
import torch

from fork_server import ForkServer, fork_server
from serving_client import Answer, fetch
from transduce.architectures.config import ArchitectureConfig, RecurrentConfig
from transduce.checkpoint import Checkpoint, build, save_model
from transduce.decoding.alignment import attended_links
from transduce.decoding.native_decoder import NativeModel
from transduce.decoding.translator import Translator, load
from transduce.model.config import ModelConfig
from transduce.model_folder import quantize
from transduce.search_config import SearchConfig
from transduce.text.alignment import WordDictionary
from transduce.text.markup import split_html, written_html
from transduce.text.shortlist import encode_pairs, learn_shortlist
from transduce.text.tokenizer import Tokenizer, learn_tokenizer
from transduce.text.vocabulary import UNKNOWN_IDS, TokenizerConfig

HIDING = """
import sys
from importlib.machinery import PathFinder

HIDDEN = {names}


class HidingFinder(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.partition(".")[0] in HIDDEN:
            return None
        return super().find_spec(name, path, target)


sys.meta_path = [HidingFinder if f is PathFinder else f for f in sys.meta_path]
"""
OF_TRAINING = {"matplotlib", "sacrebleu", "sacremoses", "torch"}
OF_PEERS = {"ctranslate2", "google", "sentencepiece", "transformers"}
OF_SERVING = {"fastapi", "h11", "prometheus_client", "starlette", "uvicorn"}
TREES = "(TOP (S (NP (DT the) (NN dog)) (VP (VBZ runs))))\n"
SENTENCES = "one two\n\nthree four five\n"
SAMPLE = ("sample", "{model}", "--number", "3", "--seed", "4")
IN_FP32 = ("--precision", "fp32", "--device", "cpu")
INT8 = ("translate", "{model}", "--precision", "int8", "--device", "cpu")
WORKING = {
    "translate": ("translate", "{model}"),
    "translate to a file": ("translate", "{model}", "--output", "{tmp}/translations"),
    "translate by greedy search": ("translate", "{model}", "--beam-size", "1"),
    "translate to several": ("translate", "{model}", "--nbest", "3", "--jsonl"),
    "translate with coverage": ("translate", "{model}", "--coverage-penalty", "0.2"),
    "translate in processes": ("translate", "{model}", "--processes", "2"),
    "translate after prefixes": ("translate", "{model}", "--prefixes", "{sentences}"),
    "translate in int8": INT8,
    "translate a quantized model": ("translate", "{quantized}", "--device", "cpu"),
    "translate a quantized model in fp32": ("translate", "{quantized}", *IN_FP32),
    "back-translate": (
        *("back-translate", "{model}", "--input", "{sentences}"),
        *("--out", "{tmp}/back-translated", "--device", "cpu"),
    ),
    "translate with a shortlist": ("translate", "{model}", "--shortlist", *IN_FP32),
    "translate with a shortlist in int8": (*INT8, "--shortlist"),
    "translate without repeats": ("translate", "{model}", "--no-repeat-ngram", "1"),
    "translate with a repetition penalty": (
        *("translate", "{model}", "--repetition-penalty", "1.5"),
    ),
    "translate without bad words": (
        "translate",
        "{model}",
        "--bad-words",
        "{bad_words}",
    ),
    "translate with the tag of a corpus": (
        *("translate", "{tagged}", "--tag", "law", "--jsonl"),
    ),
    "translate into a language": (
        *("translate", "{tagged}", "--target-language", "fr", "--jsonl"),
    ),
    "translate by a recurrent decoder": ("translate", "{ssru}", "--nbest", "2"),
    "translate by a recurrent decoder in int8": ("translate", "{ssru}", *INT8[2:]),
    "translate by a recurrent decoder with coverage": (
        *("translate", "{ssru}", "--coverage-penalty", "0.2"),
    ),
    "sample from a recurrent decoder": ("sample", "{ssru}", "--seed", "4"),
    "score by a recurrent decoder": (
        *("score", "{ssru}", "--source", "{sentences}", "--target", "{sentences}"),
    ),
    "translate unknown words": ("translate", "{words}", "--max-length", "3"),
    "make a shortlist": (
        *("shortlist", "{model}", "--source", "{source}", "--target", "{target}"),
    ),
    "clean by a model": (
        *("clean", "--source", "{source}", "--target", "{target}", "--device", "cpu"),
        *("--model", "{model}", "--out", "{tmp}/cleaned", "--force"),
    ),
    "quantize": ("quantize", "{model}", "--out", "{tmp}/quantized", "--force"),
    "translate by several": ("translate", "{model}", "--ensemble", "{model}"),
    "sample": SAMPLE,
    "sample the likeliest": (*SAMPLE, "--top-k", "5", "--top-p", "0.8"),
    "score": ("score", "{model}", "--source", "{sentences}", "--target", "{sentences}"),
    "align": ("align", "{model}", "--source", "{sentences}", "--target", "{sentences}"),
    "parse": ("parse", "{parser}", "--device", "cpu"),
    "parse constrained": ("parse", "{parser}", "--constrained"),
    "evaluate parses": ("evaluate-parses", "{trees}", "{trees}"),
    "evaluate a parser": ("evaluate-parses", "{trees}", "--model", "{parser}"),
    "check": ("check", "--source", "{source}", "--target", "{target}", "--json"),
    "check trees": ("check", "--trees", "{trees}", "--json"),
    "presets": ("presets",),
    "settings": ("settings", "base"),
    "help": ("--help",),
    "help on training": ("train", "--help"),
    "version": ("--version",),
}
"""Command lines that need no extra and read `SENTENCES` from standard input."""
EXTRA_OF = {
    "train": "train",
    "quickstart": "train",
    "average": "train",
    "tune": "train",
    "distill": "train",
    "evaluate {model} --source {source} --reference {source}": "train",
    "compare": "train",
    "reproduce table1": "train",
    "reproduce table2": "train",
    "reproduce table3": "train",
    "reproduce table4": "train",
    "reproduce scaling": "train",
    "attention": "train",
    "heads": "train",
    "benchmark training": "benchmark",
    "benchmark decoding": "benchmark",
    "export": "export",
    "import {model} --out {tmp}/imported": "export",
    "serve {model}": "serve",
    "translate {model} --device cuda": "train",
    "translate {model} --precision bf16": "train",
    "translate {recurrent}": "train",
}
"""Extra that each command needs."""


def untrained(config: ArchitectureConfig, tokenizer: Tokenizer) -> Checkpoint:
    torch.manual_seed(2)
    search = SearchConfig(beam_size=3, extra_length=3)
    weights = build(config).state_dict()
    return Checkpoint(
        config=config, weights=weights, tokenizer=tokenizer, step=1, search=search
    )


def of_words(corpus: tuple[list[str], list[str]]) -> Checkpoint:
    """Model of words whose every token is unknown, with a dictionary."""
    vocabulary = TokenizerConfig(kind="word", vocab_size=12)
    tokenizer = learn_tokenizer([*corpus[0], *corpus[1]], vocabulary)
    config = ModelConfig(
        vocab_size=tokenizer.vocab_size, num_layers=2, d_model=16, d_ff=16,
        num_heads=2, d_k=8, d_v=8, output_bias=True,
    )  # fmt: skip
    made = untrained(config, tokenizer)
    bias = torch.full((tokenizer.vocab_size,), -50.0)
    bias[UNKNOWN_IDS[0]] = 50.0
    dictionary = WordDictionary(translations={"one": "eins", "four": "vier"})
    weights = {**made.weights, "embedding.bias": bias}
    return replace(made, weights=weights, dictionary=dictionary)


@pytest.fixture(scope="module")
def places(
    trained_checkpoint: Checkpoint,
    tagged_checkpoint: Checkpoint,
    tokenizer: Tokenizer,
    corpus: tuple[list[str], list[str]],
    parsing_model: Path,
    corpus_files: tuple[Path, Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("without_torch")
    trees, sentences = folder / "trees", folder / "sentences"
    trees.write_text(TREES)
    sentences.write_text(SENTENCES)
    (folder / "bad_words").write_text("zwei\ndrei eins\n")
    pairs = encode_pairs(zip(*corpus, strict=True), tokenizer)
    shortlist = learn_shortlist(pairs, tokenizer, frequent=20, per_piece=10)
    ssru = replace(trained_checkpoint.config, decoder_self_attention="ssru")
    rnnsearch = RecurrentConfig(
        vocab_size=tokenizer.vocab_size, encoder_layers=2, decoder_layers=2, d_model=12
    )
    models = {
        "model": replace(trained_checkpoint, shortlist=shortlist),
        "tagged": tagged_checkpoint,
        "ssru": untrained(ssru, tokenizer),
        "recurrent": untrained(rnnsearch, tokenizer),
        "words": of_words(corpus),
    }
    for name, checkpoint in models.items():
        save_model(checkpoint, folder / name)
    quantize(folder / "model", folder / "int8")
    return {
        **{name: folder / name for name in models},
        "bad_words": folder / "bad_words",
        "quantized": folder / "int8",
        "parser": parsing_model,
        "source": corpus_files[0],
        "target": corpus_files[1],
        "trees": trees,
        "sentences": sentences,
        "tmp": folder,
    }


def environment(folder: Path, hidden: set[str]) -> dict[str, str]:
    """Environment of a process in which some packages seem not to be installed."""
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(HIDING.format(names=hidden))
    paths = [str(folder), os.environ.get("PYTHONPATH", "")]
    return os.environ | {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }


@pytest.fixture(scope="module")
def without_extras(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ForkServer]:
    """Process that runs commands where no extra is installed."""
    folder = tmp_path_factory.mktemp("hiding")
    with fork_server(environment(folder, OF_TRAINING)) as server:
        yield server


@pytest.fixture(scope="module")
def without_serving(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ForkServer]:
    """Process that runs commands where the extra of servers is missing, too."""
    folder = tmp_path_factory.mktemp("hiding")
    with fork_server(environment(folder, OF_TRAINING | OF_SERVING)) as server:
        yield server


@pytest.fixture
def native(model: Path) -> None:
    """Skip a test where decoding needs PyTorch."""
    if not isinstance(load(model, device="cpu").models[0], NativeModel):
        pytest.skip("the native library is not built here")


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("name", WORKING)
def test_a_command_outputs_the_same_without_extras(
    succeeds: Callable[..., str],
    without_extras: ForkServer,
    places: dict[str, Path],
    name: str,
) -> None:
    arguments = [part.format(**places) for part in WORKING[name]]
    done = without_extras.command(*arguments, stdin=SENTENCES)
    assert (done.returncode, done.stderr) == (0, "")
    if "--output" in arguments:
        assert (places["tmp"] / "translations").read_text().count("\n") == 3
        return
    if "help" not in name:
        assert done.stdout == succeeds(*arguments, stdin=SENTENCES.encode())
    assert done.stdout


def test_a_corpus_is_split_without_extras(
    without_extras: ForkServer, places: dict[str, Path], tmp_path: Path
) -> None:
    files = ("--source", str(places["source"]), "--target", str(places["target"]))
    out = tmp_path / "split"
    done = without_extras.command("split", *files, "--dev", "3", "--out", str(out))
    assert (done.returncode, done.stderr) == (0, "")
    assert any(path.read_text().count("\n") == 3 for path in out.iterdir())


@pytest.mark.parametrize("line", EXTRA_OF)
def test_a_command_names_the_extra_that_it_needs(
    without_extras: ForkServer,
    without_serving: ForkServer,
    places: dict[str, Path],
    line: str,
) -> None:
    arguments = [part.format(**places) for part in line.split()]
    server = without_serving if arguments[0] == "serve" else without_extras
    done = server.command(*arguments, stdin=SENTENCES)
    assert done.returncode == 2
    assert done.stdout == ""
    assert re.fullmatch(
        r"transduce: [^\n]* needs the package `\w+`, which is not installed; install "
        rf"it by pip install '\.\[{EXTRA_OF[line]}\]' in the folder of [^\n]+\.\n",
        done.stderr,
    ), done.stderr


def without_peers(tmp_path: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command without the packages of other libraries."""
    return subprocess.run(
        [sys.executable, "-m", "transduce", *command, "--device", "cpu"],
        env=environment(tmp_path / "hiding", OF_PEERS),
        capture_output=True,
        text=True,
        check=False,
    )


def test_training_is_measured_beside_pytorch_alone(tmp_path: Path) -> None:
    command = ("benchmark", "training", "--preset", "tiny", "--rounds", "1")
    done = without_peers(tmp_path, *command, "--precision", "fp32")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("Machine: ")
    assert "GFLOP/s on cpu (fp32)" in lines[1]
    assert "34,176 parameters; an update is about" in lines[2]
    assert lines[3].startswith("Hugging Face Marian is left out. It needs the package")
    head, ours, theirs, *_ = lines[5:]  # a warning follows on a busy machine
    heads = "Rounds: 1 target tokens/s ours / this of matrix rate peak memory"
    assert " ".join(head.split()) == heads
    assert ours.split()[0] == "transduce"
    assert ours.split()[2:4] == ["1.00", "x"]
    assert theirs.split()[0] == "torch.nn.Transformer"
    assert theirs.endswith(" MB")


def test_decoding_is_measured_with_the_packages_of_peers(tmp_path: Path) -> None:
    done = without_peers(tmp_path, "benchmark", "decoding", "--length", "9")
    assert done.returncode == 2
    assert "install it by pip install '.[benchmark]'" in done.stderr


@pytest.fixture
def served_without_torch(
    places: dict[str, Path], tmp_path: Path
) -> Iterator[Callable[..., Answer]]:
    """Run a server of a model and a parser; yield a function that posts JSON to it."""
    names = (f"en-de={places['model']}", f"trees={places['parser']}")
    with subprocess.Popen(
        [sys.executable, "-m", "transduce", "serve", *names, "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
        env=environment(tmp_path / "hiding", OF_TRAINING),
    ) as process:
        assert process.stdout is not None
        address = process.stdout.readline().split()[-1]

        def post(path: str, **content: object) -> Answer:
            headers = {"content-type": "application/json"}
            body = json.dumps(content).encode()
            return fetch(Request(address + path, body, headers))

        yield post
        process.kill()


def linked_html(translator: Translator) -> tuple[str, str]:
    """HTML in which attention decides the place of a tag, and its translation."""
    words = ("one", "two", "three", "four", "five", "six")
    for count, place in ((n, k) for n in range(2, 7) for k in range(n)):
        text = " ".join(words[:count])
        marked = text.replace(words[place], f"<b>{words[place]}</b>")
        best = translator.translate(text).text
        [links] = attended_links(translator, [(text, best)])
        [segment] = split_html(marked)
        expected = written_html(segment, best, links)
        if expected != written_html(segment, best, None):
            return marked, expected
    raise AssertionError("Links must change a place.")


@pytest.mark.usefixtures("native")
def test_a_server_without_torch_answers(
    served_without_torch: Callable[..., Answer], places: dict[str, Path]
) -> None:
    post = served_without_torch
    translator = load(places["model"], device="cpu")
    best = translator.translate("one two").text
    asked = {"q": "one two", "source": "en", "target": "de"}
    assert post("/translate", **asked).json == {"translatedText": best}
    marked, expected_html = linked_html(translator)
    answer = post("/translate", **{**asked, "q": marked}, format="html")
    assert answer.json == {"translatedText": expected_html}
    streamed = post("/v1/translate", q="one two", model="en-de")
    assert json.loads(streamed.body.splitlines()[0])["translation"] == best
    parsed = post("/v1/parse", q="one two", model="trees")
    assert json.loads(parsed.body.splitlines()[0])["tree"].startswith("(TOP")
    pair = {"source": ["one two"], "target": [best]}
    [score] = post("/v1/score", **pair, model="en-de").json
    expected = translator.score("one two", best).log_probability
    assert score["log_probability"] == pytest.approx(expected, abs=1e-4)
    refused = post("/v1/attention", source="one", target="eins", model="en-de")
    assert refused.status == 400
    assert refused.json["error"].startswith("/v1/attention needs the package `torch`")


def test_without_a_native_library_torch_is_needed(
    places: dict[str, Path], tmp_path: Path
) -> None:
    program = (
        "from transduce import native\n"
        "native.api = lambda: None\n"
        "from transduce.cli import main\n"
        "main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "translate", str(places["model"])],
        input=SENTENCES,
        capture_output=True,
        text=True,
        env=environment(tmp_path / "hiding", OF_TRAINING),
        check=False,
    )
    assert done.returncode == 2
    assert re.fullmatch(
        r"transduce: Decoding without the native library[^\n]* needs the package "
        r"`torch`[^\n]*'\.\[train\]'[^\n]*\.\n",
        done.stderr,
    ), done.stderr
