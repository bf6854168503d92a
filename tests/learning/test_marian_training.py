"""An imported model learns as Hugging Face's own training of the same folder does."""

import importlib
from itertools import islice
from pathlib import Path

import pytest

from marian_folder import write_marian_folder
from transduce.data.corpus_files import CorpusFiles
from transduce.grammar.corpus import Grammar

pytestmark = pytest.mark.filterwarnings("ignore")  # raised by the libraries

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
UPDATES, RATE = 20, 1e-4


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> CorpusFiles:
    folder = tmp_path_factory.mktemp("text")
    pairs = list(islice(Grammar.built_in().training_sentences(seed=5), 200))
    # The model has several target languages, so that each source begins with a tag.
    source = "".join(f">>deu<< {pair.source}\n" for pair in pairs)
    (folder / "source").write_text(source, encoding="utf-8")
    target = "".join(f"{pair.target}\n" for pair in pairs)
    (folder / "target").write_text(target, encoding="utf-8")
    return CorpusFiles(source=(folder / "source",), target=(folder / "target",))


@pytest.mark.parametrize("activation", ["swish", "relu"])
def test_an_imported_model_learns_as_in_its_own_library(
    files: CorpusFiles,
    tmp_path: Path,
    activation: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    script = importlib.import_module("marian_losses")
    folder = write_marian_folder(tmp_path / "theirs", activation_function=activation)
    curves = script.compare(folder, files, UPDATES, RATE)
    assert len(curves.ours) == UPDATES
    assert curves.ours == pytest.approx(curves.plain, rel=1e-6)
    assert curves.ours == pytest.approx(curves.library, rel=1e-3)
