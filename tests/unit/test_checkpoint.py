"""Model folders are written whole, read back exactly, and refused if damaged."""

import errno
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from transduce import checkpoint as module
from transduce.architectures.config import ByteNetConfig
from transduce.checkpoint import (
    Checkpoint,
    build,
    load_model,
    load_tensors,
    save_model,
    save_tensors,
)
from transduce.decoding.translator import load
from transduce.errors import CheckpointError, VersionError
from transduce.model.transformer import Transformer
from transduce.model_folder import checkpoints_of, find_model, newest_first, read_json
from transduce.search_config import SearchConfig
from transduce.trees.linearization import SYMBOLS_FILE, SymbolVocabulary

CONFIG, WEIGHTS, TOKENIZER = "config.json", "model.safetensors", "tokenizer.json"
DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "half": lambda content: content[: len(content) // 2],
    "one byte short": lambda content: content[:-2],
    "garbage": lambda content: b"\xff\x00garbage" * 20,
    "head": lambda content: b"\xff" * 8 + content[8:],
}


@pytest.fixture(scope="module")
def make_checkpoint(tiny, tokenizer):
    def make(seed: int = 1, step: int = 7, **changes: object) -> Checkpoint:
        torch.manual_seed(seed)
        config = replace(tiny, vocab_size=tokenizer.vocab_size, **changes)
        return Checkpoint(
            config=config,
            weights=Transformer(config).state_dict(),
            tokenizer=tokenizer,
            step=step,
        )

    return make


@pytest.fixture
def folder(make_checkpoint, tmp_path) -> Path:
    """Sound model folder."""
    save_model(make_checkpoint(), tmp_path / "model")
    return tmp_path / "model"


def different(checkpoint: Checkpoint, other: Checkpoint) -> list[str]:
    return [
        name
        for name in checkpoint.weights.keys() | other.weights.keys()
        if not torch.equal(checkpoint.weights[name], other.weights[name])
    ]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def edit(path: Path, change: Callable[[dict], None]) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    change(content)
    path.write_text(json.dumps(content), encoding="utf-8")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"norm": "pre", "positions": "learned", "scores": "additive"},
        {"neighbourhood": 3, "num_heads": 3, "d_k": 6, "d_v": 7, "dropout": 0.25},
        {"activation": "silu", "output_bias": True, "decoder_layers": 1},
        {"norm_epsilon": 1e-5},
    ],
    ids=str,
)
def test_a_loaded_model_equals_the_saved_one(make_checkpoint, tmp_path, changes):
    saved = make_checkpoint(**changes)
    save_model(saved, tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    assert loaded.config == saved.config
    assert loaded.step == saved.step
    assert different(loaded, saved) == []
    text = "one two 三"
    assert loaded.tokenizer.encode(text) == saved.tokenizer.encode(text)


@pytest.mark.parametrize("run", [None, "3f"])
def test_a_model_records_its_run(make_checkpoint, tmp_path, run):
    save_model(replace(make_checkpoint(), run=run), tmp_path / "model")
    assert load_model(tmp_path / "model").run == run


def test_a_model_of_an_older_version_has_no_run(folder):
    edit(folder / CONFIG, lambda content: content.pop("run"))
    assert load_model(folder).run is None


def test_a_model_keeps_the_search_of_its_run(make_checkpoint, tmp_path):
    search = SearchConfig(beam_size=5, length_penalty=1.2, max_length=30)
    saved = replace(make_checkpoint(), search=search)
    save_model(saved, tmp_path / "model")
    assert load_model(tmp_path / "model").search == search


def test_an_older_model_folder_has_no_search(folder):
    assert "search" not in json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    assert load_model(folder).search is None


@pytest.mark.parametrize(
    ("search", "message"),
    [
        ([4], r"`search` must be a table, but is \[4\]\. Correct it there"),
        ({"beam_size": 0}, "`search.beam_size` must be at least 1, but is 0"),
    ],
    ids=str,
)
def test_impossible_search_settings_are_refused(folder, search, message):
    edit(folder / CONFIG, lambda content: content.update(search=search))
    with pytest.raises(CheckpointError, match=message):
        load_model(folder)


def test_a_model_folder_holds_three_files(folder):
    assert set(contents(folder)) == {CONFIG, WEIGHTS, TOKENIZER}
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


def test_the_config_file_has_format_step_and_settings(folder):
    content = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    assert (content["format"], content["step"]) == (5, 7)
    assert content["model"]["d_model"] == 16


def test_a_built_model_computes_what_the_saved_one_does(make_checkpoint, tmp_path):
    saved = make_checkpoint(dropout=0.5)
    model = Transformer(saved.config).eval()
    model.load_state_dict(saved.weights)
    save_model(saved, tmp_path / "model")
    built = load_model(tmp_path / "model").build()
    source, target_in = torch.tensor([[5, 6, 2]]), torch.tensor([[1, 7]])
    assert not built.training
    assert torch.equal(built(source, target_in), model(source, target_in))


def test_a_trained_model_is_loaded_unchanged(trained_checkpoint, tmp_path):
    save_model(trained_checkpoint, tmp_path / "model")
    assert different(load_model(tmp_path / "model"), trained_checkpoint) == []


def test_non_contiguous_weights_are_saved(make_checkpoint, tmp_path):
    saved = make_checkpoint()
    scattered = {
        name: w.clone().t().contiguous().t()
        for name, w in saved.weights.items()
        if w.dim() == 2
    }
    assert not scattered["embedding.weight"].is_contiguous()
    save_model(
        replace(saved, weights={**saved.weights, **scattered}), tmp_path / "model"
    )
    assert different(load_model(tmp_path / "model"), saved) == []


def test_missing_parent_folders_are_created(make_checkpoint, tmp_path):
    path = tmp_path / "run" / "checkpoints" / "step-00000001"
    save_model(make_checkpoint(), path)
    assert load_model(path).step == 7


def test_saving_again_replaces_the_old_model(make_checkpoint, folder):
    save_model(make_checkpoint(seed=2, step=8), folder)
    assert load_model(folder).step == 8
    assert different(load_model(folder), make_checkpoint(seed=2)) == []
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


def test_saving_the_same_model_gives_the_same_bytes(make_checkpoint, folder, tmp_path):
    save_model(make_checkpoint(), tmp_path / "again")
    assert contents(tmp_path / "again") == contents(folder)


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_damaged_weights_are_refused(folder, damage):
    path = folder / WEIGHTS
    path.write_bytes(damage(path.read_bytes()))
    message = f"^{path}: the weights are missing or damaged .*use another checkpoint"
    with pytest.raises(CheckpointError, match=message):
        load_model(folder)


@pytest.mark.parametrize("name", ["empty", "half", "one byte short", "garbage"])
def test_a_damaged_config_is_refused(folder, name):
    path = folder / CONFIG
    path.write_bytes(DAMAGE[name](path.read_bytes()))
    message = f"^{path}: the file is missing or damaged .*; restore it, or use another"
    with pytest.raises(CheckpointError, match=message):
        load_model(folder)


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_tokenizer_is_refused(folder, damage):
    path = folder / TOKENIZER
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(CheckpointError, match=f"^{path}: the tokenizer is .* damaged"):
        load_model(folder)


@pytest.mark.parametrize("name", [CONFIG, TOKENIZER])
def test_a_missing_file_is_reported(folder, name):
    (folder / name).unlink()
    with pytest.raises(
        CheckpointError, match=f"^{folder / name}: .* missing or damaged"
    ):
        load_model(folder)


def test_missing_tensors_are_reported(tmp_path):
    path = tmp_path / WEIGHTS
    with pytest.raises(CheckpointError, match=f"^{path}: the weights are missing"):
        load_tensors(path)


def test_a_config_that_is_not_an_object_is_refused(folder):
    (folder / CONFIG).write_text("[1]", encoding="utf-8")
    with pytest.raises(
        CheckpointError, match=f"^{folder / CONFIG}: must hold a JSON obj"
    ):
        load_model(folder)


@pytest.mark.parametrize("value", [0, 7, "1", None, {}, True, 1.0])
def test_another_format_is_refused(folder, value):
    edit(folder / CONFIG, lambda content: content.update(format=value))
    message = (
        f"format must be from 1 to 6, but is {value!r}; .* another version of transduce"
    )
    with pytest.raises(CheckpointError, match=message):
        load_model(folder)


def test_an_unknown_setting_is_of_another_version(folder):
    edit(folder / CONFIG, lambda content: content["model"].update(num_experts=4))
    message = (
        f"^{folder / CONFIG}: `model` must hold the settings of format 5, but has "
        "'num_experts'; the model was saved by another version of transduce.$"
    )
    with pytest.raises(VersionError, match=message):
        load_model(folder)


def test_an_unknown_setting_of_the_search_is_of_another_version(folder):
    edit(folder / CONFIG, lambda content: content.update(search={"beams": 4}))
    message = (
        f"^{folder / CONFIG}: there is no setting `search.beams`; .* The model was "
        "saved by another version of transduce.$"
    )
    with pytest.raises(VersionError, match=message):
        load_model(folder)


@pytest.mark.parametrize(
    "change",
    [lambda content: content.update(model=[]), lambda content: content.pop("model")],
    ids=["no object", "missing"],
)
def test_settings_that_are_no_table_are_refused(folder, change):
    edit(folder / CONFIG, change)
    message = f"^{folder / CONFIG}: `model` must be a table, but is not.$"
    with pytest.raises(CheckpointError, match=message):
        load_model(folder)


NEWER = {
    1: (
        "decoder_layers",
        "activation",
        "norm_epsilon",
        "output_bias",
        "target_vocab_size",
        "attention_dropout",
        "relu_dropout",
    ),
    2: ("target_vocab_size", "attention_dropout", "relu_dropout"),
    3: ("attention_dropout", "relu_dropout"),
    4: (),
}
"""Settings that folders of each older format lack."""


def as_format(number):
    def change(content):
        content["format"] = number
        del content["architecture"]
        for name in NEWER[number]:
            del content["model"][name]

    return change


def as_format_1(content):
    as_format(1)(content)


@pytest.mark.parametrize("number", NEWER)
def test_a_model_of_an_older_format_has_the_default_settings(
    make_checkpoint, folder, number
):
    edit(folder / CONFIG, as_format(number))
    assert load_model(folder).config == make_checkpoint().config


@pytest.mark.parametrize("number", NEWER)
def test_an_older_format_has_another_name_for_cross_attention(
    make_checkpoint, folder, number
):
    edit(folder / CONFIG, as_format(number))
    weights = make_checkpoint().weights
    old = {n.replace("cross_", "memory_"): w for n, w in weights.items()}
    assert set(old) != set(weights)
    save_tensors(old, folder / WEIGHTS)
    found = load_model(folder)
    assert set(found.weights) == set(weights)
    assert all(torch.equal(found.weights[n], weights[n]) for n in weights)
    assert found.build().training is False


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_folder_of_an_older_format_with_a_newer_setting_is_refused(folder, number):
    edit(folder / CONFIG, as_format(number))
    edit(folder / CONFIG, lambda content: content["model"].update(relu_dropout=0.1))
    message = f"settings of format {number}, but has 'relu_dropout'"
    with pytest.raises(VersionError, match=message):
        load_model(folder)


@pytest.mark.parametrize("name", ["d_ff", "norm"])
def test_a_missing_setting_of_the_first_format_is_refused(folder, name):
    edit(folder / CONFIG, as_format_1)
    edit(folder / CONFIG, lambda content: content["model"].pop(name))
    message = f"settings of format 1, but lacks '{name}'"
    with pytest.raises(VersionError, match=message):
        load_model(folder)


def test_a_missing_newer_setting_is_refused_in_a_newer_folder(folder):
    edit(folder / CONFIG, lambda content: content["model"].pop("activation"))
    with pytest.raises(VersionError, match="of format 5, but lacks 'activation'"):
        load_model(folder)


def parser_of(make_checkpoint, num_symbols: int) -> Checkpoint:
    spellings = ("(S", ")S", "XX")
    return replace(
        make_checkpoint(target_vocab_size=num_symbols),
        symbols=SymbolVocabulary("xx", spellings),
    )


def test_the_symbols_of_a_parser_are_loaded(make_checkpoint, tmp_path):
    saved = parser_of(make_checkpoint, 7)
    save_model(saved, tmp_path / "parser")
    loaded = load_model(tmp_path / "parser")
    assert loaded.symbols == saved.symbols
    assert loaded.config == saved.config
    assert not different(saved, loaded)


def test_symbols_of_another_parser_are_refused(make_checkpoint, tmp_path):
    save_model(parser_of(make_checkpoint, 8), tmp_path / "parser")
    message = "the target's vocabulary must have the model's 8 symbols, but has 7"
    with pytest.raises(CheckpointError, match=message):
        load_model(tmp_path / "parser")


@pytest.mark.parametrize(
    "content", [None, "", "[]", '{"style": "xx"}', '{"style": "x", "symbols": []}']
)
def test_damaged_symbols_are_refused(make_checkpoint, tmp_path, content):
    save_model(parser_of(make_checkpoint, 7), tmp_path / "parser")
    path = tmp_path / "parser" / SYMBOLS_FILE
    path.unlink()
    if content is not None:
        path.write_text(content, encoding="utf-8")
    with pytest.raises(CheckpointError, match=f"^{path}: must hold the symbols of"):
        load_model(tmp_path / "parser")


@pytest.mark.usefixtures("unchecked_types")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("d_model", 0),
        ("d_model", "16"),
        ("d_k", None),
        ("norm", 3),
        ("dropout", "high"),
    ],
)
def test_impossible_model_settings_are_refused(folder, name, value):
    edit(folder / CONFIG, lambda content: content["model"].update({name: value}))
    with pytest.raises(CheckpointError, match=str(folder / CONFIG)):
        load_model(folder)


@pytest.mark.parametrize("value", ["seven", None, []])
def test_a_step_that_is_not_a_number_is_refused(folder, value):
    edit(folder / CONFIG, lambda content: content.update(step=value))
    with pytest.raises(CheckpointError, match=str(folder / CONFIG)):
        load_model(folder)


def test_a_tokenizer_of_another_model_is_refused(make_checkpoint, folder):
    edit(folder / CONFIG, lambda content: content["model"].update(vocab_size=300))
    size = make_checkpoint().tokenizer.vocab_size
    message = (
        f"the model's 300 pieces, but has {size}; the files are of different models"
    )
    with pytest.raises(CheckpointError, match=message):
        load_model(folder)


@pytest.mark.parametrize(
    "change",
    [
        lambda weights: weights.pop("encoder_layers.1.feed_forward.inner.bias"),
        lambda weights: weights.update(another=torch.zeros(2)),
        lambda weights: weights.update({"embedding.weight": torch.zeros(5, 16)}),
        lambda weights: weights.clear(),
    ],
    ids=["one missing", "one more", "another shape", "none"],
)
def test_weights_that_do_not_fit_the_settings_are_refused(folder, change):
    weights = load_file(folder / WEIGHTS)
    change(weights)
    save_file(weights, folder / WEIGHTS)
    message = f"^{folder / WEIGHTS}: the weights must fit the settings beside them"
    with pytest.raises(CheckpointError, match=message):
        load_model(folder)


@pytest.mark.parametrize(
    "change",
    [
        lambda weights: weights.pop("output.bias"),
        lambda weights: weights.update(another=torch.zeros(2)),
        lambda weights: weights.update({"output.weight": torch.zeros(5, 8)}),
    ],
    ids=["one missing", "one more", "another shape"],
)
def test_weights_that_do_not_fit_another_architecture_are_refused(
    make_checkpoint, tmp_path, change
):
    checkpoint = make_checkpoint()
    size = checkpoint.tokenizer.vocab_size
    config = ByteNetConfig(vocab_size=size, num_blocks=1, d_hidden=4)
    weights = build(config).state_dict()
    change(weights)
    folder = tmp_path / "rival"
    save_model(replace(checkpoint, config=config, weights=weights), folder)
    message = f"^{folder / WEIGHTS}: the weights must fit the settings beside them"
    with pytest.raises(CheckpointError, match=message):
        load_model(folder)
    with pytest.raises(CheckpointError, match=message):
        load(folder, device="cpu").translate("one")


class Trap:
    """Object whose unpickling would run code."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_a_pickle_is_not_opened(folder, tmp_path):
    (folder / WEIGHTS).write_bytes(pickle.dumps(Trap(tmp_path / "sprung")))
    with pytest.raises(CheckpointError, match="the weights are missing or damaged"):
        load_model(folder)
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    ("there", "expected"),
    [
        (["averaged", "best", "checkpoints/step-00000002"], "averaged"),
        (["best", "checkpoints/step-00000002"], "best"),
        (["checkpoints/step-00000002", "checkpoints/step-00000010"], "step-00000010"),
        (
            ["checkpoints/step-00000002", "checkpoints/step-00000010.new"],
            "step-00000002",
        ),
        ([".", "averaged"], "run"),
    ],
    ids=str,
)
def test_the_model_of_a_run_is_its_averaged_best_or_newest_one(
    tmp_path, there, expected
):
    run = tmp_path / "run"
    for name in there:
        (run / name).mkdir(parents=True, exist_ok=True)
        (run / name / WEIGHTS).touch()
    assert find_model(run).name == expected


def test_a_checkpoint_without_weights_is_skipped(tmp_path):
    whole, cut = (tmp_path / "checkpoints" / f"step-0000000{n}" for n in (1, 2))
    whole.mkdir(parents=True)
    cut.mkdir()
    (whole / WEIGHTS).touch()
    assert find_model(tmp_path) == whole


def test_the_model_of_a_run_is_loaded(make_checkpoint, tmp_path):
    save_model(make_checkpoint(step=3), tmp_path / "checkpoints" / "step-00000003")
    save_model(make_checkpoint(step=4), tmp_path / "averaged")
    assert load_model(tmp_path).step == 4


@pytest.mark.parametrize("is_there", [True, False])
def test_a_folder_without_a_model_is_reported(tmp_path, is_there):
    path = tmp_path / "run"
    if is_there:
        (path / "checkpoints" / "step-00000001").mkdir(parents=True)
    reason = "holds no model.safetensors" if is_there else "is not there"
    with pytest.raises(
        CheckpointError, match=f"^{path}: must be a model or a run, but {reason}"
    ):
        load_model(path)


def test_checkpoints_are_listed_oldest_first(tmp_path):
    steps = [f"step-{number:08}" for number in (10, 9, 100_000_000, 99_999_999)]
    for name in (*steps, "step-00000009.new", "other"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    names = [path.name for path in checkpoints_of(tmp_path)]
    assert names == [steps[1], steps[0], steps[3], steps[2]]


@pytest.mark.parametrize(
    "name", ["step-00000009 2", "step-00000009-old1", "step-9", "step-000000009"]
)
def test_a_copy_of_a_checkpoint_under_another_name_is_no_checkpoint(tmp_path, name):
    for each in ("step-00000009", name):
        (tmp_path / "checkpoints" / each).mkdir(parents=True)
    assert [path.name for path in checkpoints_of(tmp_path)] == ["step-00000009"]


def test_a_run_without_checkpoints_has_none(tmp_path):
    assert checkpoints_of(tmp_path) == []


def test_checkpoints_that_cannot_be_listed_do_not_count_as_missing(tmp_path):
    (tmp_path / "checkpoints").symlink_to("checkpoints")  # as root, too, is refused
    with pytest.raises(OSError, match="symbolic links") as caught:
        newest_first(tmp_path)
    assert Path(caught.value.filename) == tmp_path / "checkpoints"


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ('{"step": 12}', ["step-00000020", "stopped", "step-00000010"]),
        ('{"step": 20}', ["stopped", "step-00000020", "step-00000010"]),
        ('{"step": "no', ["stopped", "step-00000020", "step-00000010"]),
        ('{"step": []}', ["stopped", "step-00000020", "step-00000010"]),
        ("{}", ["stopped", "step-00000020", "step-00000010"]),
        ('{"step": 1000000000}', ["stopped", "step-00000020", "step-00000010"]),
    ],
    ids=["older", "as old", "damaged", "no step", "none", "far newer"],
)
def test_the_stopped_state_is_sorted_among_the_checkpoints(tmp_path, config, expected):
    for name in ("checkpoints/step-00000010", "checkpoints/step-00000020", "stopped"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "stopped" / CONFIG).write_text(config)
    assert [path.name for path in newest_first(tmp_path)] == expected


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("I/O error: No space left on device (os error 28)", errno.ENOSPC),
        ("I/O error: Input/output error (os error 5)", errno.EIO),
    ],
)
def test_a_failed_write_of_tensors_is_an_os_error(tmp_path, monkeypatch, text, number):
    def refuse(*_: object) -> None:
        raise SafetensorError(text)

    monkeypatch.setattr(module, "save_file", refuse)
    with pytest.raises(OSError, match=os.strerror(number)) as caught:
        save_tensors({"x": torch.zeros(1)}, tmp_path / WEIGHTS)
    assert caught.value.errno == number


def test_a_full_disk_is_reported_in_one_sentence(make_checkpoint, folder, monkeypatch):
    def refuse(*_: object) -> None:
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(module, "save_file", refuse)
    before = contents(folder)
    with pytest.raises(CheckpointError, match="No space left on device.; free some"):
        save_model(make_checkpoint(seed=2), folder)
    assert contents(folder) == before


def test_writing_tensors_to_a_missing_folder_is_an_os_error(tmp_path):
    with pytest.raises(OSError, match=r"."):
        save_tensors({"x": torch.zeros(1)}, tmp_path / "absent" / WEIGHTS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8], ids=str)
def test_loaded_tensors_equal_the_saved_ones(tmp_path, dtype):
    tensors = {"x": torch.arange(6).view(2, 3).to(dtype), "empty": torch.empty(0)}
    save_tensors(tensors, tmp_path / WEIGHTS)
    torch.testing.assert_close(
        load_tensors(tmp_path / WEIGHTS), tensors, atol=0, rtol=0
    )


def test_a_json_object_is_read(tmp_path):
    (tmp_path / "x.json").write_text('{"ä": [1]}', encoding="utf-8")
    assert read_json(tmp_path / "x.json") == {"ä": [1]}


@pytest.mark.parametrize("isa", [None, "none"], ids=["native", "torch"])
def test_building_a_model_does_not_load_the_compiler(
    trained_checkpoint, tmp_path, monkeypatch, isa
):
    """Loading the compiler would take most of the time of a short run."""
    if isa is not None:
        monkeypatch.setenv("TRANSDUCE_ISA", isa)
    save_model(trained_checkpoint, tmp_path / "model")
    program = (
        "import sys, transduce\n"
        f"transduce.load({str(tmp_path / 'model')!r}).score(['one two'], ['eins'])\n"
        "assert 'torch._dynamo' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_building_a_model_draws_no_random_numbers(trained_checkpoint):
    before = torch.get_rng_state()
    trained_checkpoint.build()
    assert torch.equal(torch.get_rng_state(), before)


def test_loaded_weights_do_not_depend_on_their_file(trained_checkpoint, tmp_path):
    save_model(trained_checkpoint, tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    with (tmp_path / "model" / "model.safetensors").open("r+b") as file:
        file.truncate(0)
    for name, weight in trained_checkpoint.weights.items():
        assert torch.equal(loaded.weights[name], weight)


@pytest.mark.skipif(sys.platform != "linux", reason="Names are Unicode elsewhere")
def test_tensors_are_read_from_a_folder_whose_name_is_not_utf8(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    tensors = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor([1, 2])}
    save_file(tensors, folder / WEIGHTS)
    torch.testing.assert_close(load_tensors(folder / WEIGHTS), tensors, atol=0, rtol=0)
