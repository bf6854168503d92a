"""The public names of the package are a contract with its users."""

from importlib import import_module

import pytest

import transduce


@pytest.mark.parametrize("name", transduce.__all__)
def test_every_public_name_can_be_imported(name: str) -> None:
    assert getattr(transduce, name) is not None


def test_the_public_names_are_exactly_these() -> None:
    assert set(transduce.__all__) == {
        "SamplingConfig",
        "SearchConfig",
        "TransduceError",
        "TransduceWarning",
        "Translation",
        "Translator",
        "__version__",
        "back_translate",
        "clean",
        "distill",
        "load",
        "quantize",
        "resume",
        "train",
    }


def test_a_translator_has_exactly_these_public_members() -> None:
    assert {name for name in dir(transduce.Translator) if not name.startswith("_")} == {
        "align",
        "close",
        "corpus_tag",
        "cross_attention",
        "get_ready",
        "glossary",
        "into",
        "is_native",
        "language_tag",
        "models",
        "num_processes",
        "parse",
        "parser",
        "sample",
        "sample_stream",
        "score",
        "score_stream",
        "shortlist",
        "source_ids",
        "target_languages",
        "token_ids",
        "torch_model",
        "translate",
        "translate_document",
        "translate_stream",
        "with_glossary",
        "with_tag",
    }


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'transduce' has no attribute 'laod'"):
        transduce.laod  # noqa: B018


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("transduce.model.config", "ModelConfig"),
        ("transduce.model.transformer", "Transformer"),
        ("transduce.experiments.presets", "PRESETS"),
        ("transduce.training.optimizer", "inverse_sqrt_rate"),
        ("transduce.decoding.translator", "load"),
        ("transduce.trees.bracket_f1", "bracket_f1"),
    ],
)
def test_names_in_the_documentation_exist_in_their_modules(
    module: str, name: str
) -> None:
    assert hasattr(import_module(module), name)
