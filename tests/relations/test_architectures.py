"""Another architecture can be trained, stored, averaged, scored and decoded."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from beam_kinds import beam_search
from callers_modes import MODES
from transduce import checkpoint as checkpoint_module
from transduce.architectures.config import CONFIGS
from transduce.architectures.interface import TransductionModel
from transduce.checkpoint import Checkpoint, average, build, load_model, save_model
from transduce.data.batches import Batcher, BatchingConfig
from transduce.data.corpus_files import CorpusFiles
from transduce.data.dataset import EncodedPair, write_dataset
from transduce.data.tensors import pad_rows
from transduce.decoding.search import Ensemble
from transduce.decoding.torch_decoder import TorchDecoder
from transduce.decoding.translator import Translator, load
from transduce.device import Hardware
from transduce.errors import ConfigError, RequestError, VersionError
from transduce.experiments.contradictions import refuse_contradictions
from transduce.experiments.presets import PRESETS
from transduce.interop import onnx
from transduce.model.transformer import Memory, Transformer
from transduce.nn.fuse import fuse
from transduce.search_config import SamplingConfig, SearchConfig
from transduce.text.tokenizer import Tokenizer, learn_tokenizer
from transduce.text.vocabulary import BOS, EOS, PAD, TokenizerConfig
from transduce.training.config import TrainingConfig
from transduce.training.loss import BatchLoss, GuidedAttention
from transduce.training.trainer import Trainer, TrainingStoppedError

CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class SumConfig:
    has_cross_attention: ClassVar[bool] = False

    vocab_size: int = 50
    target_vocab_size: int | None = None
    d_model: int = 16
    dropout: float = 0.1


@dataclass(slots=True)
class Sums:
    """State: sum of the embeddings of each hypothesis and of its source."""

    memory_mask: Tensor
    source: Tensor
    read: Tensor

    def reorder(self, rows: Tensor) -> None:
        sentences = rows[:, 0] // self.read.size(1)
        self.read = self.read.flatten(0, 1)[rows]
        self.source, self.memory_mask = (
            self.source[sentences],
            self.memory_mask[sentences],
        )

    def join(self, other: "Sums") -> None:
        width = max(each.memory_mask.size(3) for each in (self, other))
        masks = [
            nn.functional.pad(each.memory_mask, (0, width - each.memory_mask.size(3)))
            for each in (self, other)
        ]
        self.memory_mask = torch.cat(masks)
        self.source = torch.cat([self.source, other.source])
        self.read = torch.cat([self.read, other.read])


class SumModel(nn.Module):
    """Model whose decoder states are a linear map and a tanh of sums of embeddings."""

    def __init__(self, config: SumConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.inner = nn.Linear(config.d_model, config.d_model)
        self.dropout = nn.Dropout(config.dropout)

    def encode(self, source: Tensor) -> Memory:
        mask = source != PAD
        states = self.embedding(source) * mask[..., None]
        return Memory(states=states, mask=mask[:, None, None])

    def decode(self, target_in: Tensor, memory: Memory) -> Tensor:
        read = self.embedding(target_in).cumsum(1)
        return self.states(read, memory.states.sum(1)[:, None])

    def states(self, read: Tensor, source: Tensor) -> Tensor:
        return torch.tanh(self.inner(self.dropout(read + source)))

    def logits(self, states: Tensor) -> Tensor:
        return states @ self.output_weight.T

    @property
    def output_weight(self) -> Tensor:
        return self.embedding.weight

    @property
    def output_bias(self) -> None:
        return None

    @property
    def cross_attention_taps(self) -> list[nn.Module]:
        return []

    def start(self, memory: Memory) -> Sums:
        source = memory.states.sum(1)[:, None]
        return Sums(memory.mask, source, torch.zeros_like(source))

    def step(self, last_ids: Tensor, state: Sums) -> Tensor:
        state.read = state.read + self.embedding(last_ids)
        return self.logits(self.states(state.read, state.source))

    def num_parameters(self) -> int:
        return sum(each.numel() for each in self.parameters())

    def update_flops(self, source_lengths: np.ndarray, _: np.ndarray) -> int:
        return int(source_lengths.sum())


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register the architecture as a module of `transduce.architectures` would."""

    def build_any(config: object) -> TransductionModel:
        return SumModel(config) if isinstance(config, SumConfig) else build(config)

    monkeypatch.setitem(CONFIGS, "sum", SumConfig)
    monkeypatch.setattr(checkpoint_module, "build", build_any)


@pytest.fixture
def trainer(
    corpus: tuple[list[str], list[str]],
    tokenizer: Tokenizer,
    cpu: Hardware,
    tmp_path: Path,
) -> Trainer:
    pairs = (
        EncodedPair(source=tokenizer.encode(source), target=tokenizer.encode(target))
        for source, target in zip(*corpus, strict=True)
    )
    dataset = write_dataset(pairs, tmp_path / "dataset")
    batching = BatchingConfig(source_tokens=150, target_tokens=150)
    model = SumModel(SumConfig(vocab_size=tokenizer.vocab_size))
    config = TrainingConfig(steps=30, warmup_steps=10)
    return Trainer(model, Batcher(dataset, batching, seed=1), config, cpu)


def train(trainer: Trainer, last: int | None = None) -> list[float]:
    losses: list[float] = []
    trainer.train(
        on_step=lambda report: losses.append(report.loss),
        should_stop=lambda: trainer.progress.step == last,
    )
    return losses


@pytest.fixture
def checkpoint(trainer: Trainer, tokenizer: Tokenizer) -> Checkpoint:
    model = trainer.model
    return Checkpoint(
        config=model.config, weights=model.state_dict(), tokenizer=tokenizer, step=30
    )


@pytest.mark.parametrize("model", [SumModel, None], ids=["own", "transformer"])
def test_every_architecture_has_the_members_of_a_model(model, tiny) -> None:
    built = Transformer(tiny) if model is None else model(SumConfig())
    assert isinstance(built, TransductionModel)
    assert isinstance(fuse(built), TransductionModel)


def test_an_architecture_trains(trainer: Trainer) -> None:
    losses = train(trainer)
    assert losses[-1] < losses[0] - 0.5
    assert trainer.progress.flops > 0


def test_resumed_training_of_an_architecture_equals_uninterrupted_training(
    trainer: Trainer,
) -> None:
    with pytest.raises(TrainingStoppedError):
        train(trainer, last=12)
    weights = {name: w.clone() for name, w in trainer.model.state_dict().items()}
    state = trainer.state()
    once = train(trainer)
    assert len(once) == 18
    trainer.model.load_state_dict(weights)
    trainer.restore(state)
    assert train(trainer) == once


def test_the_micro_batch_of_an_architecture_is_found(trainer: Trainer) -> None:
    assert not trainer.find_micro_batch().was_cut


def test_a_folder_keeps_its_architecture(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    save_model(checkpoint, tmp_path / "model")
    stored = json.loads((tmp_path / "model" / "config.json").read_text())
    assert stored["architecture"] == "sum"
    found = load_model(tmp_path / "model")
    assert found.config == checkpoint.config
    assert isinstance(found.build(), SumModel)
    for name, weight in checkpoint.weights.items():
        assert torch.equal(found.weights[name], weight)


def test_a_folder_that_names_none_holds_a_transformer(
    trained_checkpoint: Checkpoint, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    save_model(trained_checkpoint, folder)
    content = json.loads((folder / "config.json").read_text())
    assert content.pop("architecture") == "transformer"
    (folder / "config.json").write_text(json.dumps(content))
    assert isinstance(load_model(folder).build(), Transformer)


def test_an_unknown_architecture_is_refused(
    trained_checkpoint: Checkpoint, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    save_model(trained_checkpoint, folder)
    content = json.loads((folder / "config.json").read_text())
    content["architecture"] = "perceptron"
    (folder / "config.json").write_text(json.dumps(content))
    with pytest.raises(VersionError, match="one of .*sum.*, but is .percep"):
        load_model(folder)


def test_the_average_of_an_architecture_is_the_mean(checkpoint: Checkpoint) -> None:
    weights = {name: 3 * weight for name, weight in checkpoint.weights.items()}
    mean = average([checkpoint, replace(checkpoint, weights=weights)])
    for name, weight in checkpoint.weights.items():
        torch.testing.assert_close(mean.weights[name], 2 * weight)


def test_decoding_steps_equal_a_pass_over_the_whole_target() -> None:
    model = SumModel(SumConfig()).eval()
    source, target = torch.tensor([[5, 6, EOS]]), torch.tensor([[BOS, 7, 8]])
    memory = model.encode(source)
    decoder = TorchDecoder(model, memory)
    stepped = [decoder.step(np.array([[token]])) for token in target[0].tolist()]
    whole = model.logits(model.decode(target, memory))
    torch.testing.assert_close(torch.cat(stepped, dim=1), whole)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_an_architecture_translates(trainer, checkpoint, precision) -> None:
    train(trainer)
    translator = Translator(checkpoint, CPU, precision=precision)
    texts = ["one two", "three", "four five six"] * 5
    for each in translator.translate_stream(texts, SearchConfig()):
        assert each.hypotheses[0].log_probability > -1_000
    assert "sum architecture" in repr(translator)


def test_scores_equal_those_of_a_pass_over_the_whole_target(
    checkpoint, tokenizer
) -> None:
    translator, model = Translator(checkpoint, CPU), checkpoint.build()
    texts = ["one two", "three"], ["eins", "drei vier"]
    ids = [tokenizer.encode(each) for each in texts[1]]
    found = translator.score(*texts)
    for source, target, score in zip(texts[0], ids, found, strict=True):
        memory = model.encode(pad_rows([[*tokenizer.encode(source), EOS]]))
        with torch.no_grad():
            states = model.decode(torch.tensor([[BOS, *target]]), memory)
            log_probs = model.logits(states).log_softmax(-1)[0]
        rows = zip(log_probs, [*target, EOS], strict=True)
        expected = sum(float(row[i]) for row, i in rows)
        assert score.log_probability == pytest.approx(expected, abs=1e-4)


@pytest.fixture
def mixed(
    checkpoint: Checkpoint, trained_checkpoint: Checkpoint, tmp_path: Path
) -> list[Path]:
    """Folders of a Transformer and of the other architecture, over one tokenizer."""
    members = [trained_checkpoint, replace(checkpoint, search=None)]
    folders = [tmp_path / "transformer", tmp_path / "sum"]
    for member, folder in zip(members, folders, strict=True):
        save_model(member, folder)
    return folders


@torch.no_grad()
@pytest.mark.parametrize("is_reversed", [False, True])
def test_an_ensemble_may_have_several_architectures(
    mixed: list[Path], tokenizer: Tokenizer, is_reversed: bool
) -> None:
    folders = mixed[::-1] if is_reversed else mixed
    models = [load_model(folder).build().eval() for folder in folders]
    translator = load(*folders, device="cpu")
    assert sorted(type(each).__name__ for each in translator.models) == [
        "NativeModel",
        "TorchModel",
    ]
    texts = ["one two", "three", "four five six"]
    sources = [[*tokenizer.encode(text), EOS] for text in texts]
    members = [each.start(each.encode(sources)) for each in translator.models]
    config = SearchConfig(beam_size=3, num_best=3, extra_length=5)
    limits = [len(source) + 4 for source in sources]
    found = beam_search(
        Ensemble(members), limits, config, bos=BOS, eos=EOS, excluded=(PAD, BOS)
    )
    for text, source, beam in zip(texts, sources, found, strict=True):
        best = next(translator.translate_stream([text], config)).hypotheses[0]
        assert best.log_probability == pytest.approx(beam[0].log_probability, abs=1e-4)
        for each in beam:
            written = [*each.ids, *([EOS] if each.is_finished else [])]
            read = torch.tensor([[BOS, *written[:-1]]])
            chances = [
                m.logits(m.decode(read, m.encode(torch.tensor([source]))))
                for m in models
            ]
            mean = torch.stack(chances).softmax(-1).mean(0)[0]
            expected = mean[range(len(written)), written].log().sum().item()
            assert each.log_probability == pytest.approx(expected, abs=1e-3)


OTHERS = [name for name in PRESETS if name.endswith("-multi30k")]
"""A small preset of every architecture but the Transformer."""


@pytest.mark.parametrize("name", OTHERS)
def test_modes_of_the_caller_do_not_change_translations_of_an_architecture(
    name: str, tokenizer: Tokenizer
) -> None:
    torch.manual_seed(1)
    config = replace(PRESETS[name].model, vocab_size=tokenizer.vocab_size)
    weights = build(config).state_dict()
    checkpoint = Checkpoint(
        config=config, weights=weights, tokenizer=tokenizer, search=None, step=1
    )
    penalty = 0.2 if config.has_cross_attention else 0.0
    search = SearchConfig(beam_size=3, max_length=4, coverage_penalty=penalty)
    samples = SamplingConfig(number=2, extra_length=1)

    def results() -> list[object]:
        translator = Translator(checkpoint, CPU)
        return [
            [*translator.translate_stream(["one two three", "one"], search)],
            translator.score(["one two", "three"], ["eins zwei drei", "eins"]),
            translator.sample("one two three", samples),
        ]

    expected = results()
    for mode in MODES.values():
        with mode():
            assert results() == expected


@pytest.mark.parametrize("name", OTHERS)
def test_a_transformer_translates_with_every_other_architecture(
    name: str, trained_checkpoint: Checkpoint, tokenizer: Tokenizer
) -> None:
    torch.manual_seed(1)
    config = replace(PRESETS[name].model, vocab_size=tokenizer.vocab_size)
    weights = build(config).state_dict()
    other = Checkpoint(config=config, weights=weights, tokenizer=tokenizer, step=1)
    search = SearchConfig(extra_length=3)
    alone = Translator(trained_checkpoint, CPU)
    together = Translator(trained_checkpoint, CPU, other)
    texts = ["one two", "three"]
    for one, both in zip(
        alone.translate_stream(texts, search),
        together.translate_stream(texts, search),
        strict=True,
    ):
        # The other model is untrained, so that its share is nearly the same for all.
        assert both.hypotheses[0].log_probability < one.hypotheses[0].log_probability


def test_an_ensemble_of_architectures_draws_samples(mixed: list[Path]) -> None:
    translator = load(*mixed, device="cpu")
    config = SamplingConfig(number=4, extra_length=5)
    [first] = translator.sample(["one two"], config)
    assert len(first.hypotheses) == 4
    assert translator.sample(["one two"], config) == [first]


def test_an_ensemble_of_architectures_scores_by_the_mean_probability(
    mixed: list[Path],
) -> None:
    sources, targets = ["one two", "three"], ["eins zwei", ""]
    apart = [load(each, device="cpu").score(sources, targets) for each in mixed]
    together = load(*mixed, device="cpu").score(sources, targets)
    for one, other, both in zip(*apart, together, strict=True):
        logs = [one.token_log_probabilities, other.token_log_probabilities]
        mean = np.log(np.exp(logs).mean(axis=0))
        assert both.token_log_probabilities == pytest.approx(mean.tolist(), abs=1e-6)


def test_an_ensemble_of_architectures_must_have_one_tokenizer(
    checkpoint: Checkpoint, trained_checkpoint: Checkpoint
) -> None:
    settings = TokenizerConfig(vocab_size=270)
    other = replace(checkpoint, tokenizer=learn_tokenizer(["a b", "c d"], settings))
    with pytest.raises(RequestError, match="must have one tokenizer, but have diff"):
        Translator(trained_checkpoint, CPU, other)


def test_a_parser_and_a_translation_model_form_no_ensemble(
    trained_checkpoint: Checkpoint, parsing_checkpoint: Checkpoint
) -> None:
    with pytest.raises(RequestError, match="must have one target vocabulary"):
        Translator(trained_checkpoint, CPU, parsing_checkpoint)


def test_parsers_that_read_backslashes_differently_form_no_ensemble(
    parsing_checkpoint: Checkpoint,
) -> None:
    symbols = parsing_checkpoint.symbols
    assert symbols is not None
    other = replace(symbols, unescapes=not symbols.unescapes)
    # The words that a tokenizer is learned from also differ by their backslashes.
    tokenizer = learn_tokenizer(["a b", "c d"], TokenizerConfig(vocab_size=270))
    with pytest.raises(RequestError, match="Parsers of an ensemble must read words al"):
        Translator(
            parsing_checkpoint,
            CPU,
            replace(parsing_checkpoint, symbols=other, tokenizer=tokenizer),
        )


def test_guided_attention_must_have_cross_attention(trainer: Trainer, cpu) -> None:
    every = torch.ones(50, dtype=torch.bool)
    guidance = GuidedAttention(weight=1.0, begins_word=every, takes_word=every)
    with pytest.raises(ConfigError, match="architecture has none"):
        BatchLoss(trainer.model, 0.1, cpu, guidance)


def test_a_run_without_cross_attention_has_no_coverage_penalty() -> None:
    search = SearchConfig(coverage_penalty=0.2)
    config = replace(PRESETS["tiny"], model=SumConfig(), search=search)
    text = (Path("text"),)
    with pytest.raises(ConfigError, match='`search.coverage_penalty` .* "sum", which'):
        refuse_contradictions(config, CorpusFiles(source=text, target=text))


def refusals() -> Iterator[object]:
    config = SearchConfig(coverage_penalty=0.2)
    yield lambda c, _: Translator(c, CPU, precision="int8")
    yield lambda c, _: list(Translator(c, CPU).translate_stream(["one"], config))
    yield lambda c, folder: onnx.export(c, folder / "onnx", ["one"])


@pytest.mark.parametrize("task", list(refusals()), ids=["int8", "coverage", "export"])
def test_some_tasks_are_refused_for_other_architectures(
    checkpoint, tmp_path, task
) -> None:
    with pytest.raises(RequestError, match='architecture.*"sum"'):
        task(checkpoint, tmp_path)
