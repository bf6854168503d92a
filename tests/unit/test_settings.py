import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from fractions import Fraction
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import numpy as np
import pytest

from transduce.architectures.config import CONFIGS, ExpertsConfig
from transduce.data.corpus_mixture import CorpusConfig
from transduce.data.treebank import TreeAugmentationConfig
from transduce.errors import ConfigError
from transduce.experiments.presets import BASE, PRESETS, RunConfig
from transduce.settings import (
    Bounds,
    apply_assignments,
    apply_file,
    apply_mapping,
    convert_and_check,
    differences,
    nested,
    require_between,
)


def value(config: RunConfig, key: str) -> object:
    part, name = key.split(".")
    return getattr(getattr(config, part), name)


@pytest.mark.parametrize(
    ("assignment", "key", "expected"),
    [
        ("model.dropout=0.25", "model.dropout", 0.25),
        ("model.dropout=0", "model.dropout", 0.0),
        ("model.dropout=.25", "model.dropout", 0.25),
        ("training.learning_rate_scale=2.", "training.learning_rate_scale", 2.0),
        ("training.epsilon=1.e-8", "training.epsilon", 1e-8),
        ("model.output_bias=True", "model.output_bias", True),
        ("model.num_layers=3", "model.num_layers", 3),
        ("batching.source_tokens=1_000", "batching.source_tokens", 1000),
        ("model.positions=learned", "model.positions", "learned"),
        ('model.positions="learned"', "model.positions", "learned"),
        (" model.norm = pre ", "model.norm", "pre"),
        ("training.checkpoint_steps=7", "training.checkpoint_steps", 7),
        ("training.epsilon=1e-8", "training.epsilon", 1e-8),
        ("model.neighbourhood=none", "model.neighbourhood", None),
    ],
)
def test_an_assignment_changes_a_setting(
    assignment: str, key: str, expected: object
) -> None:
    changed = value(apply_assignments(BASE, [assignment]), key)
    assert changed == expected
    assert type(changed) is type(expected)


def test_an_assignment_changes_nothing_else() -> None:
    changed = apply_assignments(BASE, ["model.dropout=0.25"])
    assert apply_assignments(changed, ["model.dropout=0.1"]) == BASE


@pytest.mark.parametrize(
    "assignments",
    [
        ["model.d_ff=64", "model.d_ff=128"],
        ["model={d_ff=64}", "model.d_ff=128"],
        ["model.d_ff=64", "model={d_ff=128}"],
        ["model=5", "model.d_ff=128"],
    ],
)
def test_the_last_assignment_of_a_setting_is_used(assignments: list[str]) -> None:
    assert apply_assignments(BASE, assignments).model.d_ff == 128


def test_assignments_of_one_table_are_joined() -> None:
    changed = apply_assignments(BASE, ["model={d_ff=64}", "model.norm=pre"])
    assert (changed.model.d_ff, changed.model.norm) == (64, "pre")


def test_a_setting_is_not_another_that_begins_like_it() -> None:
    assignments = ["training.learning_rate=0.3", "training.learning_rate_scale=2"]
    changed = apply_assignments(BASE, assignments).training
    assert (changed.learning_rate, changed.learning_rate_scale) == (0.3, 2)


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("model.dropout", r"must be `key=value`, but is 'model\.dropout'"),
        (
            "model.dropuot=0.2",
            r"no setting `model\.dropuot`; did you mean `model\.drop",
        ),
        ("modle.dropout=0.2", "no setting `modle`; did you mean `model`"),
        ("dropout=0.2", r"no setting `dropout`; did you mean `model\.dropout`"),
        ("steps=4", r"no setting `steps`; did you mean `training\.steps`"),
        ("zzz=1", "no setting `zzz`; known are tokenizer, model, batching, training"),
        ("=1", "no setting ``; known are tokenizer"),
        ("model=3", "`model` must be a table, but is 3"),
        ("model.d_ff=2.5", r"`model\.d_ff` must be a whole number, but is 2\.5"),
        ("model.d_ff=true", r"`model\.d_ff` must be a whole number, but is True"),
        ("model.d_ff=", r"`model\.d_ff` must be a whole number, but is ''"),
        ("model.d_ff=[", r"`model\.d_ff` must be a whole number, but is '\['"),
        ("model.d_ff=none", r"`model\.d_ff` must be a whole number, but is None"),
        ("model.dropout=high", r"`model\.dropout` must be a number, but is 'high'"),
        (
            "model.output_bias=1",
            r"`model\.output_bias` must be true or false, but is 1",
        ),
        ("model.norm=mid", r'`model\.norm` must be "post" or "pre", but is "mid"'),
        (
            "training.checkpoint_steps=x",
            r"`training\.checkpoint_steps` must be a whole number or none, but is 'x'",
        ),
        (
            "model.d_ff=64\nseed = 2",
            r"`model\.d_ff` must be a whole number, but is '64\\nseed = 2'",
        ),
        ("model.d_ff.x=1", r"`model\.d_ff` must be a whole number, but is {'x': 1}"),
        ("model.d_ff={}", r"`model\.d_ff` must be a whole number, but is {}"),
        ("model={d_ff={}}", r"`model\.d_ff` must be a whole number, but is {}"),
        ("modle={}", "no setting `modle`; did you mean `model`"),
    ],
)
def test_a_faulty_assignment_is_refused(assignment: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        apply_assignments(BASE, [assignment])


@pytest.mark.parametrize(
    "assignment",
    [
        "training.beta1=2.0",
        "training.beta2=1.0",
        "training.epsilon=-1.0",
        "training.seed=-1",
        "training.seed=99999999999999999999999",
        "training.learning_rate_scale=-1.0",
        "training.learning_rate_scale=nan",
        "training.checkpoint_minutes=-1.0",
        "search.length_penalty=nan",
    ],
)
def test_a_value_that_no_run_can_use_is_refused(assignment: str) -> None:
    name = assignment.partition("=")[0].replace(".", r"\.")
    with pytest.raises(ConfigError, match=f"`{name}` must be"):
        apply_assignments(BASE, [assignment])


def test_a_file_changes_the_settings_it_names(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('[model]\ndropout = 0.3\nnorm = "pre"\n[training]\nsteps = 5\n')
    changed = apply_file(BASE, path)
    expected = ["model.dropout=0.3", "model.norm=pre", "training.steps=5"]
    assert changed == apply_assignments(BASE, expected)


def test_an_empty_file_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "run.toml").touch()
    assert apply_file(BASE, tmp_path / "run.toml") == BASE


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[model\n", "must be TOML, but: Expected"),
        (b"\xff\n", "must be TOML, but: 'utf-8' codec"),
        (b"[model]\nd_modl = 3\n", "no setting `model.d_modl`; did you mean"),
        (b"[model]\nd_model = 'x'\n", "`model.d_model` must be a whole number"),
        (b"model = [1]\n", r"`model` must be a table, but is \[1\]"),
        (b"[moddel]\na = 1\n", "no setting `moddel`; did you mean `model`"),
        (b"[model]\nd_ff = 1\nd_ff = 2\n", "must be TOML, but: Cannot overwrite"),
    ],
)
def test_a_faulty_file_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "run.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=rf"run\.toml: .*{message}"):
        apply_file(BASE, path)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read .Is a directory"):
        apply_file(BASE, tmp_path)


@pytest.mark.parametrize("name", PRESETS)
def test_written_settings_are_read_back(name: str) -> None:
    written: dict[str, Any] = asdict(PRESETS[name])
    # The preset of a run decides its architecture.
    usual = RunConfig(model=type(PRESETS[name].model)())
    assert apply_mapping(usual, written, where="") == PRESETS[name]


def numbers(config: Any, prefix: str = "") -> Iterator[str]:
    """Numeric settings by their full names."""
    for name, kind in get_type_hints(type(config)).items():
        value = getattr(config, name)
        if is_dataclass(value):
            yield from numbers(value, f"{prefix}{name}.")
        elif {int, float} & {kind, *get_args(kind)}:
            yield f"{prefix}{name}"


# The bounds of search have tests of their own.
NUMBERS = [each for each in numbers(BASE) if not each.startswith("search.")]


@pytest.mark.parametrize("key", NUMBERS)
@pytest.mark.parametrize(
    "number", ["-1", "9_223_372_036_854_775_808", "1" + 400 * "0", "0x" + 9_000 * "f"]
)
def test_a_number_outside_its_bounds_is_refused(key: str, number: str) -> None:
    with pytest.raises(ConfigError, match=f"`{key}` must be ") as refused:
        apply_assignments(BASE, [f"{key}={number}"])
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize("key", NUMBERS)
@pytest.mark.parametrize("number", ["inf", "nan", "-inf"])
def test_nan_is_refused(key: str, number: str) -> None:
    with pytest.raises(ConfigError, match=f"`{key}` must be "):
        apply_assignments(BASE, [f"{key}={number}"])


@pytest.mark.parametrize("value", ["[" * 100_000, "9" * 10_000, "x" * 10_000])
def test_a_long_value_is_shown_truncated(value: str) -> None:
    with pytest.raises(ConfigError, match="must be a whole number, but is") as refused:
        apply_assignments(BASE, [f"model.d_ff={value}"])
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a = " + "[" * 100_000, "nested too deep"),
        ("a = " + "9" * 10_000, "must be TOML"),
    ],
)
def test_a_file_with_a_number_outside_its_bounds_is_refused(
    tmp_path: Path, text: str, said: str
) -> None:
    (tmp_path / "my.toml").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=said):
        apply_file(BASE, tmp_path / "my.toml")


def test_settings_that_depend_on_each_other_can_be_given_in_any_order() -> None:
    # With one of them alone, embeddings and readout are not equally wide.
    config = PRESETS["rnnsearch-multi30k"]
    both = ("model.embedding_width=16", "model.readout_width=16")
    for order in (both, both[::-1]):
        changed = apply_assignments(config, order)
        assert changed.model.embedding_width == changed.model.readout_width == 16


def test_an_empty_table_changes_nothing() -> None:
    named = [("a.b", 1), ("a", {}), ("c", {}), ("c.d", 2), ("e", {})]
    assert nested(named) == {"a": {"b": 1}, "c": {"d": 2}, "e": {}}


def test_a_bare_none_is_a_choice_of_that_name() -> None:
    changed = apply_assignments(PRESETS["deep-att-en-de"], ["model.fast_forward=none"])
    assert changed.model.fast_forward == "none"


def test_numbers_of_numpy_become_pythons() -> None:
    training = {"steps": np.int64(7), "learning_rate_scale": np.float32(0.5)}
    config = apply_mapping(RunConfig(), {"training": training}, "").training
    assert (config.steps, type(config.steps)) == (7, int)
    scale = config.learning_rate_scale
    assert (scale, type(scale)) == (0.5, float)


TABLES = [
    *(get_args(hint) or (hint,) for hint in get_type_hints(RunConfig).values()),
    *((each,) for each in CONFIGS.values()),
    (RunConfig,),
    (ExpertsConfig,),
    (TreeAugmentationConfig,),
]
CLASSES = {kind for kinds in TABLES for kind in kinds if is_dataclass(kind)}
REQUIRED = {CorpusConfig: {"name": "a", "source": "a.en", "target": "a.de"}}
WRONG: dict[object, list[object]] = {
    int: ["5", 5.0, True],
    float: ["0.5", True],
    bool: [1, "no", None],
    str: [5],
}


@pytest.mark.parametrize("kind", sorted(CLASSES, key=str))
@pytest.mark.usefixtures("unchecked_types")
def test_settings_made_in_python_have_the_types_of_their_fields(kind: Any) -> None:
    given = REQUIRED.get(kind, {})
    kind(**given)
    for each in fields(kind):
        hint = get_type_hints(kind)[each.name]
        is_union = get_origin(hint) in (Union, UnionType)
        options = get_args(hint) if is_union else (hint,)
        for wrong in [object(), *WRONG.get(options[0], [])]:
            if type(wrong) not in options:
                with pytest.raises(ConfigError, match=rf"[`.]{each.name}` must be"):
                    kind(**{**given, each.name: wrong})


@pytest.mark.usefixtures("unchecked_types")
def test_settings_made_in_python_keep_the_types_of_json() -> None:
    training = RunConfig(training={"learning_rate_scale": 2}).training  # type: ignore[arg-type]
    assert type(training.learning_rate_scale) is float
    tokenizer = replace(BASE.tokenizer, kind=np.str_("word"), vocab_size=np.int32(900))
    assert (type(tokenizer.kind), type(tokenizer.vocab_size)) == (str, int)
    assert type(replace(BASE.model, tied_output=np.False_).tied_output) is bool


def test_a_corpus_may_have_paths_of_files() -> None:
    corpus = CorpusConfig(name="a", source=Path("a.en"), target=[Path("a.de"), "b.de"])  # type: ignore[arg-type]
    assert (corpus.source, corpus.target) == ("a.en", ("a.de", "b.de"))


@pytest.mark.parametrize("flag", [True, np.True_])
def test_a_flag_is_not_within_bounds(flag: bool) -> None:
    with pytest.raises(ConfigError, match="`worst` must be a number, but is .*True"):
        require_between("worst", flag, 0, 1)


def test_a_bool_of_numpy_is_no_number() -> None:
    with pytest.raises(ConfigError, match="`training.steps` must be a whole number"):
        apply_mapping(RunConfig(), {"training": {"steps": np.True_}}, "")


def test_only_numbers_of_python_and_numpy_are_numbers() -> None:
    training = {"learning_rate_scale": Fraction(10**400)}
    message = "`training.learning_rate_scale` must be a number, but is Fraction"
    with pytest.raises(ConfigError, match=message):
        apply_mapping(RunConfig(), {"training": training}, "")


@dataclass(frozen=True)
class Bounded:
    size: Annotated[int, Bounds(1, 9)] | None = None
    share: Annotated[float, Bounds(0, 1)] = 1.0
    rate: Annotated[float, Bounds(0, 1, above=True, below=True)] = 0.5

    def __post_init__(self) -> None:
        convert_and_check(self, "table.")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"size": 0}, "`table.size` must be at least 1, but is 0."),
        ({"size": 10**400}, "`table.size` must be at most 9, but is 1000"),
        ({"share": -0.1}, "`table.share` must be at least 0, but is -0.1."),
        ({"share": float("nan")}, "`table.share` must be at least 0, but is nan."),
        ({"share": float("inf")}, "`table.share` must be at most 1, but is inf."),
        ({"rate": 0.0}, "`table.rate` must be above 0 and below 1, but is 0.0."),
        ({"rate": 1.0}, "`table.rate` must be above 0 and below 1, but is 1.0."),
        ({"rate": float("nan")}, "`table.rate` must be above 0 and below 1, but is"),
    ],
)
def test_a_number_outside_the_bounds_of_its_type_is_refused(
    given: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        Bounded(**given)


def test_bounds_that_are_not_excluded_are_allowed() -> None:
    for size in (None, 1, 9):
        assert Bounded(size=size, share=0.0).size == size


@dataclass(frozen=True)
class Inner:
    size: int = 3


@dataclass(frozen=True)
class Outer:
    rate: float = 0.1
    inner: Inner | None = None
    names: tuple[str, ...] = ()


def test_differences_have_both_values_by_full_name() -> None:
    assert differences(Outer(), Outer()) == {}
    assert differences(Outer(), Outer(rate=0.2, names=("a",))) == {
        "rate": (0.1, 0.2),
        "names": ((), ("a",)),
    }
    inner = Outer(inner=Inner())
    assert differences(inner, Outer(inner=Inner(size=4))) == {"inner.size": (3, 4)}
    assert differences(Outer(), inner) == {"inner.size": (None, 3)}
    assert differences(inner, Outer()) == {"inner.size": (3, None)}
