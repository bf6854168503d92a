"""Training over packed sentences computes what the model does, without padding.

Without a GPU, Triton's interpreter runs the same kernels in fp32.
"""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from transduce.benchmark.training import TrainingTask
from transduce.data.batches import Batcher, BatchingConfig
from transduce.data.tensors import Batch, PackedBatch
from transduce.device import Hardware, choose_hardware
from transduce.experiments.presets import preset
from transduce.model.config import ModelConfig
from transduce.model.transformer import Transformer
from transduce.nn.fuse import FusedTransformer, fuse, is_packable
from transduce.text.vocabulary import BOS, EOS, PAD
from transduce.training import memory
from transduce.training.config import TrainingConfig
from transduce.training.gradients import packed_parts
from transduce.training.loss import BatchLoss
from transduce.training.trainer import StepReport, Trainer

pytest.importorskip("triton", exc_type=ImportError)

from transduce.nn import cross_entropy, gpu_kernels
from transduce.nn.cross_entropy import Loss, triton_loss
from transduce.nn.gpu_kernels import DropoutMask, PackedAttention, Sentences

IS_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if IS_GPU else "cpu")
DTYPE = torch.bfloat16 if IS_GPU else torch.float32
TOLERANCE = 0.02 if IS_GPU else 1e-5
"""Relative error of a kernel's results."""
GRADIENT_TOLERANCE = 0.4 if IS_GPU else 5e-5
"""Relative error of a parameter's gradient. In bf16 a unit of a ReLU near zero may be
on or off; with random gradients PyTorch's own errors reach 0.15 in such a model."""
WIDTHS = {"d_model": 32, "d_ff": 48, "num_heads": 2, "d_k": 16, "d_v": 16}
LENGTHS = ([5, 40, 1, 17], [9, 38, 2, 4])
"""Source and target lengths: below, at and above a block of attention."""

needs_gpu = pytest.mark.skipif(not IS_GPU, reason="CUDA graphs need a GPU")


def relative_error(found: Tensor, expected: Tensor) -> float:
    difference = (found.detach().double() - expected.detach().double()).norm()
    return float(difference / expected.detach().double().norm().clamp(min=1e-9))


@pytest.fixture
def config(tiny: ModelConfig) -> ModelConfig:
    return replace(tiny, **WIDTHS)


LONG_LENGTHS = ([70, 3, 64], [65, 90, 1])
"""Lengths for which attention has long blocks."""
SHORT_LENGTHS = ([5, 17], [3, 18])
"""Lengths for tests of other things than blocks: the interpreter is slow."""
ONE_LAYER = {"num_layers": 1}


def random_batch(
    vocab_size: int, lengths: tuple[list[int], list[int]] = LENGTHS
) -> Batch:
    generator = torch.Generator().manual_seed(1)

    def side(lengths: list[int]) -> Tensor:
        ids = torch.full((len(lengths), max(lengths)), PAD)
        for row, length in zip(ids, lengths, strict=True):
            row[:length] = torch.randint(4, vocab_size, (length,), generator=generator)
        return ids

    sources, targets = lengths
    return Batch(
        source=side(sources), target_in=side(targets), target_out=side(targets)
    )


def loss_and_gradients(
    model: FusedTransformer, batch: PackedBatch, dtype: torch.dtype = DTYPE
) -> dict[str, Tensor]:
    """Loss of a packed batch and gradients of all parameters."""
    batch = batch.to(DEVICE)
    states = model.packed_states(batch, dtype)
    weight = model.output_weight.detach()
    found = triton_loss(states.detach(), weight, batch.target_out, 0.1, dtype)
    model.zero_grad()
    states.backward(found.grad_states)
    gradients = {name: p.grad for name, p in model.named_parameters()}
    return {
        "loss": found.sums,
        "output": found.grad_weight,
        **{name: each for name, each in gradients.items() if each is not None},
    }


@torch.enable_grad()
@pytest.mark.parametrize(
    ("changes", "lengths"),
    [
        (ONE_LAYER, LENGTHS),
        ({"positions": "learned", "max_positions": 10} | ONE_LAYER, SHORT_LENGTHS),
        ({"target_vocab_size": 29} | ONE_LAYER, SHORT_LENGTHS),
        ({"decoder_layers": 1, "scores": "unscaled"}, SHORT_LENGTHS),
        ({"output_bias": True, "tied_output": False} | ONE_LAYER, SHORT_LENGTHS),
        ({"learned_start": False} | ONE_LAYER, SHORT_LENGTHS),
        ({"d_model": 40, "d_k": 32, "d_v": 32}, SHORT_LENGTHS),
        ({"d_k": 64, "d_v": 64} | ONE_LAYER, LONG_LENGTHS),
        ({"d_k": 128, "d_v": 128} | ONE_LAYER, ([66, 3], [65, 1])),
    ],
    ids=[
        "base", "learned positions", "two vocabularies", "unscaled", "own output",
        "no start", "d_model is no power of two", "long sentences", "wide heads",
    ],
)  # fmt: skip
def test_the_loss_and_gradients_are_those_of_the_model(
    config: ModelConfig,
    changes: dict[str, object],
    lengths: tuple[list[int], list[int]],
):
    model = Transformer(replace(config, **changes)).to(DEVICE)
    batch = random_batch(config.vocab_size, lengths)
    plain = batch.to(DEVICE)
    grad = torch.randn(int((plain.target_out != PAD).sum()), model.config.d_model)
    grad = grad.to(DEVICE)

    def of_the_model(dtype: torch.dtype) -> tuple[Tensor, dict[str, Tensor | None]]:
        with Hardware(device=DEVICE, dtype=dtype).autocast():
            states = model.decode(plain.target_in, model.encode(plain.source))
        states[plain.target_out != PAD].backward(grad)
        gradients = {name: p.grad for name, p in model.named_parameters()}
        model.zero_grad(set_to_none=True)
        return states[plain.target_out != PAD], gradients

    _, as_precise = of_the_model(DTYPE)
    expected, wanted = of_the_model(torch.float32)
    found = fuse(model).packed_states(batch.packed().to(DEVICE), DTYPE)
    found.backward(grad.to(DTYPE))
    assert relative_error(found, expected) < TOLERANCE
    largest = max(float(each.norm()) for each in wanted.values() if each is not None)
    errors: list[float] = []
    errors_of_torch: list[float] = []
    for name, parameter in model.named_parameters():
        if (each := wanted[name]) is None:
            assert parameter.grad is None
            continue
        errors.append(float((parameter.grad - each).norm()))
        errors_of_torch.append(float((as_precise[name] - each).norm()))
        # Gradients of keys' biases are sums that cancel.
        size = max(float(each.norm()), largest / 1_000)
        assert errors[-1] < GRADIENT_TOLERANCE * size, name
    if IS_GPU:
        assert math.hypot(*errors) < 1.5 * math.hypot(*errors_of_torch)


@torch.enable_grad()
def test_a_batch_padded_to_a_bucket_has_the_same_loss_and_gradients(
    config: ModelConfig,
):
    model = fuse(Transformer(replace(config, **ONE_LAYER)).to(DEVICE))
    packed = random_batch(config.vocab_size, ([5, 18], [15, 18])).packed()
    filled = packed.padded_to_bucket()
    assert len(filled.source.ids) > len(packed.source.ids)
    assert len(filled.target.ids) > len(packed.target.ids)
    expected = loss_and_gradients(model, packed)
    found = loss_and_gradients(model, filled)
    for name, wanted in expected.items():
        if IS_GPU:  # products of other sizes may be summed in another order
            assert relative_error(found[name], wanted) < TOLERANCE, name
        else:
            torch.testing.assert_close(found[name], wanted, rtol=1e-5, atol=1e-7)


@torch.enable_grad()
def test_the_gradients_of_a_batch_are_the_sum_of_those_of_its_sentences(
    config: ModelConfig,
):
    model = fuse(Transformer(replace(config, **ONE_LAYER)).to(DEVICE))
    batch = random_batch(config.vocab_size, SHORT_LENGTHS)
    together = loss_and_gradients(model, batch.packed())
    one_by_one = [
        loss_and_gradients(
            model,
            Batch(
                source=batch.source[i : i + 1],
                target_in=batch.target_in[i : i + 1],
                target_out=batch.target_out[i : i + 1],
            ).packed(),
        )
        for i in range(len(batch.source))
    ]
    largest = max(float(each.norm()) for each in together.values())
    for name, whole in together.items():
        total = torch.stack([each[name] for each in one_by_one]).sum(dim=0)
        error = float((total - whole).norm())
        assert error < 5 * TOLERANCE * max(float(whole.norm()), largest / 1_000), name


@pytest.mark.skipif(IS_GPU, reason="differences of bf16 losses are too coarse")
@torch.enable_grad()
def test_with_dropout_the_gradient_is_the_slope_of_the_loss(config: ModelConfig):
    rates = {"dropout": 0.2, "attention_dropout": 0.3, "relu_dropout": 0.1}
    layers = {"num_layers": 1, "decoder_layers": 2}
    model = fuse(Transformer(replace(config, **layers, **rates))).train()
    batch = random_batch(config.vocab_size, SHORT_LENGTHS).packed()

    @torch.no_grad()
    def loss(seed: int = 7) -> float:
        """Loss with the same masks in each call."""
        torch.manual_seed(seed)
        states = model.packed_states(batch.to(DEVICE), DTYPE)
        targets = batch.target_out.to(DEVICE)
        found = triton_loss(states, model.output_weight, targets, 0.1, DTYPE)
        return float(found.sums[0])

    torch.manual_seed(7)
    found = loss_and_gradients(model, batch)
    loss_before = float(found["loss"][0])
    parameters = {n: p for n, p in model.named_parameters() if "layers" in n}
    weights = list(parameters.values())
    gradients = [found[name] for name in parameters]
    steepness = float(torch.stack([each.norm() for each in gradients]).norm())
    directions = [each / steepness for each in gradients]

    def moved(distance: float) -> float:
        before = [each.detach().clone() for each in weights]
        with torch.no_grad():
            torch._foreach_add_(weights, directions, alpha=distance)
        value = loss()
        with torch.no_grad():
            torch._foreach_copy_(weights, before)
        return value

    step = 3e-3
    measured = (moved(step) - moved(-step)) / (2 * step)
    assert steepness == pytest.approx(measured, rel=0.01)
    assert loss(seed=8) != loss_before


def starts_of(lengths: list[int]) -> Sentences:
    starts = torch.tensor(np.cumsum([0, *lengths]), dtype=torch.int32, device=DEVICE)
    return Sentences(starts, max(lengths), are_short=max(lengths) < 64)


NO_DROPOUT = DropoutMask(0.0, torch.zeros(4, dtype=torch.int32, device=DEVICE))


@torch.enable_grad()
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(
    "lengths", [([3, 70, 16], [3, 70, 16]), ([2, 0, 17], [5, 4, 0])]
)
def test_attention_is_that_of_each_sentence(
    lengths: tuple[list[int], list[int]], is_causal: bool
):
    queries, keys = lengths
    if is_causal and queries != keys:
        pytest.skip("only self-attention is causal")
    heads, width = 2, 16
    query = torch.randn(sum(queries), heads * width, device=DEVICE)
    both = torch.randn(sum(keys), 2 * heads * width, device=DEVICE)
    query, both = (x.to(DTYPE).float().requires_grad_() for x in (query, both))
    outputs = []
    pairs = zip(query.split(queries), both.split(keys), strict=True)
    for of_query, of_both in pairs:
        q, k, v = (
            each.view(len(each), heads, width).transpose(0, 1)
            for each in (of_query, *of_both.chunk(2, dim=1))
        )
        scores = q @ k.transpose(1, 2) / math.sqrt(width)
        if is_causal:
            above = torch.ones_like(scores[0], dtype=torch.bool).triu(1)
            scores = scores.masked_fill(above, -math.inf)
        outputs.append((scores.softmax(-1) @ v).transpose(0, 1).flatten(1))
    expected = torch.cat(outputs)
    grad = torch.randn_like(expected)
    expected.backward(grad)

    settings = PackedAttention(
        starts_of(queries), starts_of(keys), heads, width, 1 / math.sqrt(width),
        is_causal, NO_DROPOUT,
    )  # fmt: skip
    inputs = (query.detach().to(DTYPE), both.detach().to(DTYPE))
    output, log_sums = gpu_kernels.attention(*inputs, settings)
    gradients = (torch.empty_like(inputs[0]), torch.empty_like(inputs[1]))
    gpu_kernels.attention_backward(
        gradients, grad.to(DTYPE), inputs, output, log_sums, settings
    )
    assert relative_error(output, expected) < TOLERANCE
    for found, wanted in zip(gradients, (query.grad, both.grad), strict=True):
        assert relative_error(found, wanted) < TOLERANCE


def test_heads_and_queries_have_dropout_masks_of_their_own():
    heads, width, length = 4, 16, 16
    seed = torch.tensor([3, 0, 0, 0], dtype=torch.int32, device=DEVICE)
    settings = PackedAttention(
        starts_of([length, length]), starts_of([length, length]), heads, width, 1.0,
        is_causal=False, dropout=DropoutMask(0.5, seed),
    )  # fmt: skip
    # Queries of zeros weight all keys equally, and value i is the i-th unit vector.
    query = torch.zeros(2 * length, heads * width, device=DEVICE, dtype=DTYPE)
    values = torch.eye(width, device=DEVICE, dtype=DTYPE).repeat(2, heads)
    key_value = torch.cat([torch.zeros_like(values), values], dim=1)
    output, _ = gpu_kernels.attention(query, key_value, settings)
    rows = (output > 0).view(2 * length * heads, width)
    assert set(output.unique().tolist()) == {0.0, 2 / length}
    # Of 128 rows of 16 random bits, few are equal by chance.
    assert len({tuple(row) for row in rows.tolist()}) > 120


@torch.enable_grad()
@pytest.mark.parametrize("max_logits", [10**9, 2_000])
def test_the_loss_is_torch_s_and_ignores_rows_without_a_target(max_logits: int):
    vocab = 101
    states = torch.randn(50, 32, device=DEVICE).to(DTYPE).float().requires_grad_()
    weight = torch.randn(vocab, 32, device=DEVICE).to(DTYPE).float().requires_grad_()
    targets = torch.randint(vocab, (50,), device=DEVICE)
    targets[::7] = -1
    expected = functional.cross_entropy(
        states @ weight.t(), targets, ignore_index=-1, reduction="sum",
        label_smoothing=0.1,
    )  # fmt: skip
    expected.backward()
    found = triton_loss(
        states.detach(), weight.detach(), targets, 0.1, DTYPE, max_logits
    )
    assert relative_error(found.sums[0], expected) < TOLERANCE
    assert relative_error(found.grad_states, states.grad) < TOLERANCE
    assert relative_error(found.grad_weight, weight.grad) < TOLERANCE
    likelihood = functional.cross_entropy(
        states @ weight.t(), targets, ignore_index=-1, reduction="sum"
    )
    assert relative_error(found.sums[1], likelihood) < TOLERANCE


def masks(seed: int, rate: float, count: int) -> Tensor:
    """Return a mask of the elements that dropout keeps."""
    x = torch.ones(1, count, device=DEVICE)
    seeds = torch.tensor([seed, 0, 0, 0], dtype=torch.int32, device=DEVICE)
    gpu_kernels.dropout_into(x, x, DropoutMask(rate, seeds))
    assert set(x.unique().tolist()) <= {0.0, float(torch.tensor(1 / (1 - rate)))}
    return x[0] > 0


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_dropout_keeps_independent_elements_at_its_rate(rate: float):
    count = 200_000
    first, second = masks(1, rate, count), masks(2, rate, count)
    kept, both = 1 - rate, (1 - rate) ** 2

    def deviations(found: Tensor, share: float) -> float:
        spread = math.sqrt(share * (1 - share) / len(found))
        return abs(float(found.float().mean()) - share) / spread

    assert deviations(first, kept) < 4
    assert deviations(first & second, both) < 4
    for distance in (1, 32, 512):
        assert deviations(first[distance:] & first[:-distance], both) < 4


@pytest.mark.parametrize(
    "changes",
    [
        {"norm": "pre"},
        {"neighbourhood": 2},
        {"decoder_self_attention": "ssru"},
        {"activation": "silu"},
        {"scores": "additive"},
        {"d_k": 24},
    ],
)
def test_a_model_with_what_packing_lacks_is_not_packed(
    config: ModelConfig, changes: dict[str, object]
):
    def can_be_packed(model: FusedTransformer) -> bool:
        return all(map(is_packable, (model.encoder_layers, model.decoder_layers)))

    model = fuse(Transformer(config).to(DEVICE))
    assert can_be_packed(model)
    assert model.can_pack(torch.bfloat16) is IS_GPU
    assert not model.can_pack(torch.float32)
    model.cross_attention_taps[0].register_forward_hook(lambda *_: None)
    assert not can_be_packed(model)
    assert not can_be_packed(fuse(Transformer(replace(config, **changes))))


def test_a_dataset_packs_as_its_padded_batches_do(make_dataset, random_pairs):
    dataset = make_dataset(random_pairs(40, 20))
    indices = np.array([7, 3, 39, 0])
    found = dataset.load_packed(indices)
    expected = dataset.load(indices).packed()
    for tensor, wanted in zip(found.tensors, expected.tensors, strict=True):
        assert torch.equal(tensor, wanted)
    assert found.shape == expected.shape


def test_sides_without_ids_are_packed(make_dataset):
    found = make_dataset([([], []), ([], [])]).load_packed(np.array([0, 1]))
    assert found.source.ids.tolist() == [EOS, EOS]
    assert found.target.ids.tolist() == [BOS, BOS]
    assert found.source.starts.tolist() == [0, 1, 2]


def test_the_batches_of_a_training_have_few_shapes(cpu: Hardware):
    task = TrainingTask(run=preset("base"), hardware=cpu, steps=200)
    dataset = task.dataset()
    shapes = [
        dataset.load_packed(np.concatenate(update.batches)).padded_to_bucket().shape
        for update in task.updates(dataset)
    ]
    assert len(shapes) == task.steps
    assert len(set(shapes)) < task.steps / 2


@pytest.mark.parametrize("longest", [3, 20, 60])
def test_the_largest_update_has_the_tokens_of_any(
    make_dataset, random_pairs, longest: int
):
    batching = BatchingConfig(source_tokens=300, target_tokens=200, batch_tokens=100)
    batcher = Batcher(make_dataset(random_pairs(150, longest)), batching, 1)
    largest = batcher.dataset.load_packed(batcher.largest_update())
    for epoch in range(5):
        for update in batcher.epoch(epoch):
            assert update.num_source_tokens <= len(largest.source.ids)
            assert update.num_target_tokens <= len(largest.target.ids)


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("positions", [None, 150, 400])
def test_batches_of_an_update_are_joined_within_the_bound(
    make_dataset, random_pairs, positions: int | None, count: int
):
    batching = BatchingConfig(source_tokens=300, target_tokens=300, batch_tokens=100)
    batcher = Batcher(make_dataset(random_pairs(150, 20)), batching, 1)
    for update in batcher.epoch(0):
        parts = packed_parts(update, positions, count)
        pairs = np.concatenate(update.batches)
        assert np.array_equal(np.concatenate(parts), pairs)
        assert len(parts) % count == 0
        if positions is None:
            assert len(parts) == count
            continue
        for part in parts:
            batch = batcher.dataset.load_packed(part).padded_to_bucket()
            assert len(batch.source.ids) + len(batch.target.ids) <= positions


@pytest.fixture
def few_pairs(make_dataset, random_pairs) -> Batcher:
    batching = BatchingConfig(source_tokens=36, target_tokens=36, batch_tokens=18)
    return Batcher(make_dataset(random_pairs(8, 9)), batching, 1)


@pytest.mark.skipif(IS_GPU, reason="interprets the kernels in fp32 on a CPU")
@pytest.mark.usefixtures("unchecked_types")
@torch.enable_grad()
@pytest.mark.parametrize("positions", [None, 50])
def test_a_packed_training_has_the_losses_of_a_padded_one(
    config: ModelConfig,
    cpu: Hardware,
    few_pairs: Batcher,
    monkeypatch: pytest.MonkeyPatch,
    positions: int | None,
):
    def reports(*, packs: bool) -> list[StepReport]:
        torch.manual_seed(1)
        training = TrainingConfig(steps=2, warmup_steps=2)
        model = Transformer(replace(config, **ONE_LAYER))
        trainer = Trainer(model, few_pairs, training, cpu)
        if positions is not None:
            trainer.find_micro_batch(positions)
        if packs:  # after the trials, which the interpreter would take longest for
            monkeypatch.setattr(FusedTransformer, "can_pack", lambda *_: True)
            monkeypatch.setattr(cross_entropy, "has_triton_loss", lambda *_: True)
        found: list[StepReport] = []
        trainer.train(on_step=found.append)
        validation = trainer.validate(few_pairs)
        losses.append(validation.loss)
        return found

    losses: list[float] = []
    padded = reports(packs=False)
    packed = reports(packs=True)
    assert [each.padding for each in packed] == [0.0, 0.0]
    assert all(each.padding > 0 for each in padded)
    for found, expected in zip(packed, padded, strict=True):
        assert found.loss == pytest.approx(expected.loss, rel=1e-5)
        assert found.num_target_tokens == expected.num_target_tokens
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


@pytest.mark.usefixtures("unchecked_types")
@torch.enable_grad()
def test_the_trial_of_a_packed_training_computes_the_largest_update(
    config: ModelConfig,
    cpu: Hardware,
    few_pairs: Batcher,
    monkeypatch: pytest.MonkeyPatch,
):
    tried: list[Batch] = []

    def forward(batch_loss: BatchLoss, batch: Batch) -> Loss:
        tried.append(batch)
        total = batch_loss.model.output_weight.sum()
        return Loss(smoothed=total, negative_log_likelihood=total.detach())

    monkeypatch.setattr(FusedTransformer, "can_pack", lambda *_: True)
    monkeypatch.setattr(BatchLoss, "forward", forward)
    trainer = Trainer(Transformer(config), few_pairs, TrainingConfig(), cpu)
    assert not trainer.find_micro_batch().was_cut
    largest = few_pairs.largest_update()
    assert len(largest) > len(few_pairs.longest_batch())
    assert torch.equal(tried[-1].source, few_pairs.dataset.load(largest).source)


@pytest.mark.usefixtures("unchecked_types")
@torch.enable_grad()
def test_the_parts_of_a_packed_update_have_no_more_tokens_than_the_trial(
    config: ModelConfig,
    cpu: Hardware,
    make_dataset,
    monkeypatch: pytest.MonkeyPatch,
):
    """The sides of pairs differ in length, so a padded batch is mostly padding."""
    tokens: list[int] = []

    def forward(batch_loss: BatchLoss, batch: Batch) -> Loss:
        tokens.append(
            int(sum((x != PAD).sum() for x in (batch.source, batch.target_out)))
        )
        if tokens[-1] > 100:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        total = batch_loss.model.output_weight.sum()
        return Loss(smoothed=total, negative_log_likelihood=total.detach())

    monkeypatch.setattr(FusedTransformer, "can_pack", lambda *_: True)
    monkeypatch.setattr(BatchLoss, "forward", forward)
    monkeypatch.setattr(memory, "free_memory", lambda _: math.inf)
    pairs = [([5] * 17, [6]), ([7], [8] * 17)] * 8
    batching = BatchingConfig(source_tokens=120, target_tokens=120, batch_tokens=60)
    batcher = Batcher(make_dataset(pairs), batching, 1)
    trainer = Trainer(Transformer(config), batcher, TrainingConfig(), cpu)
    fit = trainer.find_micro_batch()
    assert fit.was_cut
    assert fit.max_positions == tokens[-1] <= 100
    assert fit.unit == "tokens"
    [update, *_] = batcher.epoch(0)
    for part in packed_parts(update, fit.max_positions, 1):
        packed = batcher.dataset.load_packed(part)
        assert len(packed.source.ids) + len(packed.target.ids) <= 100


@pytest.fixture
def train(
    config: ModelConfig, make_dataset, random_pairs, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[list[float], list[Tensor], Trainer]]:
    """Train a model on a GPU with or without CUDA graphs."""
    batching = BatchingConfig(source_tokens=800, target_tokens=800, batch_tokens=100)
    dataset = make_dataset(random_pairs(800, 20))

    def run(*, with_graphs: bool, positions: int | None = None):
        if not with_graphs:
            monkeypatch.setattr(
                "transduce.training.gpu_gradients.MEMORY_FACTOR", math.inf
            )
        torch.manual_seed(1)
        model = Transformer(replace(config, dropout=0.1))
        hardware: Hardware = choose_hardware("cuda", "bf16")
        training = TrainingConfig(steps=60, warmup_steps=10)
        trainer = Trainer(model, Batcher(dataset, batching, 1), training, hardware)
        if positions is not None:
            trainer.find_micro_batch(positions)
        losses: list[float] = []
        trainer.train(on_step=lambda report: losses.append(report.loss))
        monkeypatch.undo()
        weights = [each.detach().clone() for each in model.parameters()]
        return losses, weights, trainer

    return run


@needs_gpu
@pytest.mark.filterwarnings("ignore:Memory suffices for 0 CUDA graphs")
@torch.enable_grad()
@pytest.mark.parametrize("positions", [None, 300])
def test_training_by_cuda_graphs_is_bit_for_bit_the_same(train, positions):
    losses, weights, trainer = train(with_graphs=True, positions=positions)
    assert len(trainer.accumulator.graphs) > 0
    expected, plain, _ = train(with_graphs=False, positions=positions)
    assert losses == expected
    assert losses[-1] < losses[0]
    assert all(map(torch.equal, weights, plain))


@needs_gpu
@torch.enable_grad()
def test_a_batch_loss_packs_by_itself(config: ModelConfig):
    hardware = choose_hardware("cuda", "bf16")
    model = Transformer(config).to(DEVICE)
    batch = random_batch(config.vocab_size)
    packing = BatchLoss(fuse(model), 0.1, hardware)
    assert packing.can_pack
    plain = BatchLoss(model, 0.1, hardware)
    assert not plain.can_pack
    assert not BatchLoss(fuse(model), 0.1, hardware, consistency=1.0).can_pack
    assert relative_error(packing(batch).smoothed, plain(batch).smoothed) < TOLERANCE
    with torch.no_grad():
        model.eval()
        found = packing(batch).smoothed
        assert relative_error(found, plain(batch).smoothed) < TOLERANCE
