"""What users import is a contract."""

from importlib import import_module

import pytest

import transduce


@pytest.mark.parametrize("name", transduce.__all__)
def test_a_public_name_is_there(name: str) -> None:
    assert getattr(transduce, name) is not None


def test_the_public_names_are_these() -> None:
    assert set(transduce.__all__) == {
        "SamplingConfig",
        "SearchConfig",
        "TransduceError",
        "Translation",
        "Translator",
        "__version__",
        "load",
        "resume",
        "train",
    }


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'transduce' has no attribute 'laod'"):
        transduce.laod  # noqa: B018


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("transduce.model.config", "ModelConfig"),
        ("transduce.model.transformer", "Transformer"),
        ("transduce.experiments.presets", "PRESETS"),
        ("transduce.training.optimizer", "learning_rate"),
        ("transduce.decoding.translator", "load"),
        ("transduce.trees.bracket_f1", "bracket_f1"),
    ],
)
def test_a_name_in_the_documentation_is_where_it_says(module: str, name: str) -> None:
    assert hasattr(import_module(module), name)
