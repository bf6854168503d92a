"""Models with mixtures of experts: decoding, batches, gradients, training, commands."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from rival_variants import MIXTURE_RECURRENT, MIXTURE_TRANSFORMER, MIXTURES
from transduce.architectures import recurrent
from transduce.architectures.config import (
    ExpertsConfig,
    MixtureRecurrentConfig,
    architecture_of,
    num_parameters,
)
from transduce.architectures.interface import AuxiliaryLoss, TransductionModel
from transduce.architectures.mixture_layers import MixtureOfExperts
from transduce.checkpoint import Checkpoint, average, build, load_model, save_model
from transduce.data.batches import Batcher, BatchingConfig
from transduce.data.dataset import EncodedPair, write_dataset
from transduce.data.tensors import Batch
from transduce.decoding.translator import Translator
from transduce.device import Hardware
from transduce.errors import ConfigError, RequestError
from transduce.experiments.presets import PRESETS
from transduce.model.transformer import Transformer
from transduce.nn.fuse import fuse
from transduce.search_config import SearchConfig
from transduce.text.tokenizer import Tokenizer
from transduce.text.vocabulary import BOS, EOS, PAD
from transduce.training.config import TrainingConfig
from transduce.training.loss import BatchLoss
from transduce.training.trainer import Trainer, TrainingStoppedError

CPU = torch.device("cpu")
one_of_each = pytest.mark.parametrize(
    "config", [MIXTURE_RECURRENT, MIXTURE_TRANSFORMER], ids=["recurrent", "transformer"]
)
all_models = pytest.mark.parametrize("config", MIXTURES.values(), ids=MIXTURES)


def drawn(config: object) -> TransductionModel:
    """Build a model with other weights than the first ones, which choose alike."""
    torch.manual_seed(1)
    model = build(config)  # type: ignore[arg-type]
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "gates" in name:
                noise = torch.randn_like(weight)
                weight.add_(0.1 * noise if "threshold" in name else noise)
    return model


def halve(_: nn.Module, __: object, output: Tensor) -> Tensor:
    """Factor in the places of dropout, to see that it is in all of them."""
    return 0.5 * output


class PaperModel:
    """LSTMs and mixtures of appendix E by loops over positions, with flat gates.

    `kept` is the factor in the places of dropout.
    """

    def __init__(self, model: TransductionModel, kept: float) -> None:
        self.kept = kept
        self.weights = {
            name: weight.detach().double().numpy()
            for name, weight in model.state_dict().items()
        }

    def logits(self, source: list[int], target_in: list[int]) -> np.ndarray:
        xs = [self.kept * self.weights["embedding.weight"][token] for token in source]
        forward = self.lstm(xs, "forward_layer.rnn")
        backward = self.lstm(xs[::-1], "backward_layer.rnn")[::-1]
        xs = [
            x + self.kept * (f + b)
            for x, f, b in zip(xs, forward, backward, strict=True)
        ]
        xs = self.upper([self.mixed(x, "encoder_mixture") for x in xs], "upper_encoder")
        ys, state = [], None
        for token in target_in:
            y = self.kept * self.weights["target_embedding.weight"][token]
            h = np.zeros_like(y) if state is None else state[0]
            inputs = np.concatenate([y, self.context(h, xs)])
            state = self.step(inputs, state, "attentive.stack.layers.0.rnn")
            ys.append(self.mixed(y + self.kept * state[0], "decoder_mixture"))
        ys = self.upper(ys, "upper_decoder")
        return np.array(ys) @ self.weights["output.weight"].T

    def upper(self, xs: list[np.ndarray], name: str) -> list[np.ndarray]:
        outputs = self.lstm(xs, f"{name}.0.rnn")
        return [x + self.kept * h for x, h in zip(xs, outputs, strict=True)]

    def lstm(self, xs: list[np.ndarray], name: str) -> list[np.ndarray]:
        outputs, state = [], None
        for x in xs:
            state = self.step(x, state, name)
            outputs.append(state[0])
        return outputs

    def step(
        self, x: np.ndarray, state: tuple[np.ndarray, ...] | None, name: str
    ) -> tuple[np.ndarray, ...]:
        parts = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")
        w, u, b_w, b_u, projection = (self.weights[f"{name}.{p}_l0"] for p in parts)
        h, c = (np.zeros(n) for n in projection.shape) if state is None else state
        i, f, g, o = np.split(w @ x + u @ h + b_w + b_u, 4)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        return projection @ (sigmoid(o) * np.tanh(c)), c

    def context(self, h: np.ndarray, xs: list[np.ndarray]) -> np.ndarray:
        name = "attentive.attention"
        u, w = (self.weights[f"{name}.project_{p}.weight"] for p in ("keys", "query"))
        scores = [
            self.weights[f"{name}.vector"] @ (np.tanh(u @ x) * np.tanh(w @ h))
            for x in xs
        ]
        return softmax(np.array(scores)) @ np.array(xs)

    def mixed(self, x: np.ndarray, name: str) -> np.ndarray:
        logits = x @ self.weights[f"{name}.gates.0.weight"][0]
        best = np.argsort(-logits)[:2]
        y = np.zeros_like(x)
        for gate, expert in zip(softmax(logits[best]), best, strict=True):
            inner = np.maximum(0, x @ self.weights[f"{name}.experts.inner"][expert])
            y += gate * inner @ self.weights[f"{name}.experts.outer"][expert]
        return x + self.kept * sigmoid(y)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def softmax(x: np.ndarray) -> np.ndarray:
    return np.exp(x) / np.exp(x).sum()


SOURCE = torch.tensor([[5, 6, 7, 8, EOS], [9, 10, EOS, PAD, PAD]])
TARGET = torch.tensor([[BOS, 11, 12, 13], [BOS, 14, PAD, PAD]])


@all_models
def test_a_model_with_experts_has_the_members_of_a_model(config) -> None:
    model = build(config)
    assert isinstance(model, TransductionModel)
    assert isinstance(fuse(model), TransductionModel)
    assert isinstance(model, AuxiliaryLoss)
    assert not isinstance(model, Transformer)
    is_recurrent = isinstance(config, MixtureRecurrentConfig)
    name = "mixture-recurrent" if is_recurrent else "mixture-transformer"
    assert architecture_of(config) == name


@all_models
def test_the_first_model_of_a_process_has_the_weights_of_later_ones(config) -> None:
    recurrent.suppress_projection_warning.cache_clear()
    first, second = drawn(config), drawn(config)
    for name, weight in first.state_dict().items():
        assert torch.equal(weight, second.state_dict()[name]), name


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_one_expert_is_the_feed_forward_network(norm) -> None:
    experts = ExpertsConfig(num_experts=1, top_k=1, d_ff=12)
    config = replace(MIXTURE_TRANSFORMER, experts=experts, norm=norm, dropout=0.1)
    mixture = drawn(config).eval()
    dense = Transformer(mixture.config.transformer).eval()
    for module in (*mixture.modules(), *dense.modules()):
        if isinstance(module, nn.Dropout) and module.p > 0:
            module.register_forward_hook(halve)
    weights = {name: torch.zeros_like(w) for name, w in dense.state_dict().items()}
    for name, weight in mixture.state_dict().items():
        name = name.replace("after_mixture", "after_feed_forward")
        if name in weights:
            weights[name] = weight
        elif ".mixture.experts." in name:
            name = name.replace("mixture.experts", "feed_forward")
            weights[f"{name}.weight"] = weight[0].T
    dense.load_state_dict(weights)
    found = mixture.decode(TARGET, mixture.encode(SOURCE))
    expected = dense.decode(TARGET, dense.encode(SOURCE))
    is_token = TARGET != PAD  # padding reaches no expert
    torch.testing.assert_close(found[is_token], expected[is_token])


@all_models
def test_fused_and_plain_models_are_equal_in_values_and_gradients(config) -> None:
    model = drawn(config)
    results = []
    for each in (model, fuse(model)):
        torch.manual_seed(2)
        each.train()
        states = each.decode(TARGET, each.encode(SOURCE))[TARGET != PAD]
        loss = states.square().sum() + each.auxiliary_loss()
        weights = list(each.parameters())
        results.append([states, *torch.autograd.grad(loss, weights, allow_unused=True)])
    for mine, other in zip(*results, strict=True):
        torch.testing.assert_close(mine, other, atol=1e-4, rtol=1e-4)


@all_models
def test_padding_has_no_influence_on_gates_and_losses(config) -> None:
    model = drawn(config)
    losses = []
    for padding in (0, 3):
        source = torch.nn.functional.pad(SOURCE, (0, padding))
        target = torch.nn.functional.pad(TARGET, (0, padding))
        torch.manual_seed(3)
        model.decode(target, model.encode(source))
        losses.append(model.auxiliary_loss())
    assert losses[0] > 0
    torch.testing.assert_close(losses[0], losses[1])


@pytest.mark.parametrize(("consistency", "num_passes"), [(0.0, 1), (3.0, 2)])
def test_the_auxiliary_loss_is_added_for_each_target_token(
    cpu: Hardware, consistency: float, num_passes: int
) -> None:
    batch = Batch(source=SOURCE, target_in=TARGET, target_out=TARGET.roll(-1, 1))
    found = []
    for weight in (0.0, 0.5):
        experts = replace(
            MIXTURE_TRANSFORMER.experts, importance_weight=weight, load_weight=weight
        )
        model = drawn(replace(MIXTURE_TRANSFORMER, experts=experts))
        torch.manual_seed(4)
        loss = BatchLoss(model, 0.0, cpu, consistency=consistency)(batch)
        found.append(loss.smoothed)
    torch.manual_seed(4)
    memory = model.encode(SOURCE.repeat(num_passes, 1))
    model.decode(TARGET.repeat(num_passes, 1), memory)
    num_tokens = (batch.target_out != PAD).sum()
    expected = num_tokens * model.auxiliary_loss()
    torch.testing.assert_close(found[1] - found[0], expected)


def test_an_interrupted_pass_leaves_no_loss() -> None:
    model = drawn(MIXTURE_TRANSFORMER)
    model.encode(SOURCE)
    once = model.auxiliary_loss()
    model.decode(TARGET, model.encode(SOURCE))
    torch.manual_seed(5)
    model.encode(SOURCE)
    after = model.auxiliary_loss()
    torch.manual_seed(5)
    model.encode(SOURCE)
    torch.testing.assert_close(model.auxiliary_loss(), after)
    assert once > 0


@one_of_each
def test_flops_are_those_of_the_experts_that_tokens_go_to(config) -> None:
    lengths = np.array([3, 5]), np.array([4, 2])
    few = build(config).update_flops(*lengths) / 3
    experts = replace(config.experts, num_experts=64)
    many = build(replace(config, experts=experts)).update_flops(*lengths) / 3
    # Only the gates' matrix and that of the noise grow with the experts.
    num_layers = 1 if config is MIXTURE_RECURRENT else 2
    assert many - few == 2 * num_layers * (8 + 6) * 2 * 16 * (64 - 8)


@one_of_each
def test_flops_are_those_that_pytorch_counts(config) -> None:
    # One length without padding, and all experts for every token.
    experts = ExpertsConfig(num_experts=2, top_k=2, d_ff=12)
    model = drawn(replace(config, experts=experts)).train()
    source, target = torch.full((4, 6), 7), torch.full((4, 5), 8)
    with FlopCounterMode(display=False) as counter:
        model.logits(model.decode(target, model.encode(source)))
    lengths = np.full(4, 6), np.full(4, 5)
    assert model.update_flops(*lengths) == 3 * counter.get_total_flops()


def test_the_sizes_of_the_papers_models_are_those_it_tells() -> None:
    # Table 3: 8.7 billion parameters, 85 million operations a timestep.
    config = PRESETS["moe-en-de"].model
    assert isinstance(config, MixtureRecurrentConfig)
    assert config.experts.num_experts == 2_048
    assert config.experts.experts_per_token == 4
    assert num_parameters(config) == 8_693_240_448
    assert config.source_operations + config.target_operations == 85_196_800
    # Table 5, all languages: 512 experts, k = 2, 8.7 billion and 102 million.
    experts = ExpertsConfig(num_experts=512, top_k=2, d_ff=8_192)
    multilingual = replace(config, experts=experts)
    assert round(num_parameters(multilingual), -8) == 8_700_000_000
    # The matrix of the noise is needed in training only.
    noise = 2 * 512 * 512
    operations = multilingual.source_operations + multilingual.target_operations
    assert round(operations - noise, -6) == 102_000_000


def test_an_encoder_reads_the_source_in_both_directions() -> None:
    model = drawn(MIXTURE_RECURRENT).eval()
    first = model.encode(torch.tensor([[5, 6, 7, EOS]])).states
    other = model.encode(torch.tensor([[5, 6, 9, EOS]])).states
    assert (first != other).any(dim=-1).all()


@pytest.mark.parametrize("kept", [1.0, 0.5])
@torch.no_grad()
def test_lstms_and_mixtures_equal_the_formulas_of_appendix_e(kept) -> None:
    model = drawn(MIXTURE_RECURRENT).eval()
    if kept == 0.5:
        model.dropout.register_forward_hook(halve)
    logits = model.logits(model.decode(TARGET, model.encode(SOURCE)))
    for source, target_in, found in zip(SOURCE, TARGET, logits, strict=True):
        tokens = target_in[target_in != PAD].tolist()
        paper = PaperModel(model, kept)
        expected = paper.logits(source[source != PAD].tolist(), tokens)
        np.testing.assert_allclose(found[: len(tokens)], expected, atol=1e-4)


def test_attention_is_that_of_appendix_g() -> None:
    model = drawn(MIXTURE_RECURRENT).eval()
    memory, found = model.encode(SOURCE[:1]), []
    attention = model.attentive.attention
    attention.weights_tap.register_forward_hook(lambda _, __, w: found.append(w))
    model.decode(TARGET[:1], memory)
    assert found[0].shape == (1, 1, 4, 5)
    # The first query is zero, so that all scores are.
    torch.testing.assert_close(found[0][0, 0, 0], torch.full((5,), 0.2))
    layer, embedded = model.attentive.stack.layers[0], model.target_embedding(TARGET)
    context = memory.states.mean(1)
    outputs, _ = layer(torch.cat([embedded[:1, 0], context], -1)[:, None])
    u, w = attention.project_keys.weight, attention.project_query.weight
    products = torch.tanh(memory.states[0] @ u.T) * torch.tanh(outputs[0, 0] @ w.T)
    expected = (products @ attention.vector).softmax(-1)
    torch.testing.assert_close(found[0][0, 0, 1], expected)


def test_the_output_of_a_mixture_passes_a_sigmoid() -> None:
    model = drawn(MIXTURE_RECURRENT).eval()
    with torch.no_grad():
        model.encoder_mixture.experts.outer.zero_()
    inputs: list[Tensor] = []
    model.upper_encoder[0].register_forward_pre_hook(lambda _, x: inputs.append(x[0]))
    model.encoder_mixture.register_forward_pre_hook(lambda _, x: inputs.append(x[0]))
    model.encode(SOURCE[:1])
    before, after = inputs
    torch.testing.assert_close(after, before + 0.5)


# Training


@pytest.fixture
def make_trainer(
    corpus: tuple[list[str], list[str]],
    tokenizer: Tokenizer,
    cpu: Hardware,
    tmp_path: Path,
) -> Callable[..., Trainer]:
    pairs = (
        EncodedPair(source=tokenizer.encode(source), target=tokenizer.encode(target))
        for source, target in zip(*corpus, strict=True)
    )
    dataset = write_dataset(pairs, tmp_path / "dataset")

    def make(config: object, batch_tokens: int = 100) -> Trainer:
        torch.manual_seed(6)
        batching = BatchingConfig(
            source_tokens=150, target_tokens=150, batch_tokens=batch_tokens
        )
        model = build(replace(config, vocab_size=tokenizer.vocab_size))  # type: ignore[type-var]
        training = TrainingConfig(steps=4, warmup_steps=3)
        return Trainer(model, Batcher(dataset, batching, seed=1), training, cpu)

    return make


def train(trainer: Trainer, last: int | None = None) -> list[float]:
    losses: list[float] = []
    trainer.train(
        on_step=lambda report: losses.append(report.loss),
        should_stop=lambda: trainer.progress.step == last,
    )
    return losses


TRAINABLE = ["recurrent", "recurrent-batchwise", "transformer", "transformer-batchwise"]
trainable = pytest.mark.parametrize(
    "config", [MIXTURES[name] for name in TRAINABLE], ids=TRAINABLE
)


@trainable
def test_resumed_training_equals_uninterrupted_training(make_trainer, config) -> None:
    trainer = make_trainer(replace(config, dropout=0.1))
    with pytest.raises(TrainingStoppedError):
        train(trainer, last=2)
    weights = {name: w.clone() for name, w in trainer.model.state_dict().items()}
    state = trainer.state()
    once = train(trainer)
    assert len(once) == 2
    trainer.model.load_state_dict(weights)
    trainer.restore(state)
    assert train(trainer) == once


def test_a_run_keeps_no_graph_between_updates(make_trainer) -> None:
    trainer = make_trainer(MIXTURE_TRANSFORMER)
    trainer.find_micro_batch()
    train(trainer)
    modules = [m for m in trainer.model.modules() if isinstance(m, MixtureOfExperts)]
    assert len(modules) == 4
    assert not any(module.take_loss().requires_grad for module in modules)


@pytest.fixture
def make_checkpoint(tokenizer: Tokenizer) -> Callable[[object], Checkpoint]:
    def make(config: object) -> Checkpoint:
        config = replace(  # type: ignore[type-var]
            config, vocab_size=tokenizer.vocab_size, target_vocab_size=None
        )
        model = drawn(config)
        return Checkpoint(
            config=model.config,
            weights=model.state_dict(),
            tokenizer=tokenizer,
            step=1,
        )

    return make


@all_models
def test_a_model_folder_keeps_settings_and_weights(
    make_checkpoint, tmp_path: Path, config
) -> None:
    checkpoint = make_checkpoint(config)
    save_model(checkpoint, tmp_path / "model")
    found = load_model(tmp_path / "model")
    assert found.config == checkpoint.config
    for name, weight in checkpoint.weights.items():
        assert torch.equal(found.weights[name], weight)
    states = [
        each.build().decode(TARGET, each.build().encode(SOURCE))
        for each in (checkpoint, found)
    ]
    assert torch.equal(*states)


@one_of_each
def test_the_average_of_models_is_the_mean_of_their_weights(
    make_checkpoint, config
) -> None:
    checkpoint = make_checkpoint(config)
    weights = {name: 3 * weight for name, weight in checkpoint.weights.items()}
    mean = average([checkpoint, replace(checkpoint, weights=weights)])
    for name, weight in checkpoint.weights.items():
        torch.testing.assert_close(mean.weights[name], 2 * weight)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@one_of_each
def test_translations_do_not_depend_on_other_lines(
    make_checkpoint, config, precision
) -> None:
    translator = Translator(make_checkpoint(config), CPU, precision=precision)
    texts = ["one two", "three", "four five six"]
    search = SearchConfig(beam_size=3, extra_length=3)
    together = list(translator.translate_stream(texts, search))
    for text, expected in zip(texts, together, strict=True):
        [alone] = translator.translate_stream([text], search)
        assert alone.hypotheses[0].log_probability > -1_000
        if precision == "fp32":
            best, other = alone.hypotheses[0], expected.hypotheses[0]
            assert best.text == other.text
            assert best.log_probability == pytest.approx(
                other.log_probability, abs=1e-3
            )


@one_of_each
def test_a_coverage_penalty_reads_the_attention(make_checkpoint, config) -> None:
    translator = Translator(make_checkpoint(config), CPU)
    search = SearchConfig(coverage_penalty=0.2, extra_length=3)
    [found] = translator.translate_stream(["one two"], search)
    assert found.hypotheses


@one_of_each
def test_int8_is_refused(make_checkpoint, config) -> None:
    with pytest.raises(RequestError, match="Precision int8 must have a Tr.*; use fp32"):
        Translator(make_checkpoint(config), CPU, precision="int8")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"d_model": 24}, "`model.cells` must be at least 25"),
        ({"encoder_layers": 2}, "`model.encoder_layers` must be at least 3"),
        ({"decoder_layers": 1}, "`model.decoder_layers` must be at least 2"),
        ({"dropout": 1.0}, "`model.dropout` must be at least 0 and below 1"),
        ({"initial_range": 0.0}, "`model.initial_range` must be at least"),
    ],
)
def test_wrong_settings_are_refused(settings, message) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(MIXTURE_RECURRENT, **settings)


def test_wrong_settings_of_a_transformer_are_refused() -> None:
    with pytest.raises(ConfigError, match="`model.d_model` must be even"):
        replace(MIXTURE_TRANSFORMER, d_model=15)
