"""A GPU computes, trains and decodes as the CPU does.

The reference is the CPU in float64, where everything is computed by PyTorch's own
operators. Where there is no GPU, the same tests run on the CPU: they then hold fp32 and
bf16 by our kernels to float64.
"""

from collections.abc import Iterator
from contextlib import suppress
from copy import deepcopy
from dataclasses import fields, replace

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from small_rivals import RIVALS
from transduce.architectures.bytenet import ByteNet
from transduce.architectures.mixture_of_experts import MixtureTransformer
from transduce.checkpoint import Checkpoint, build
from transduce.data.batches import Batcher, BatchingConfig
from transduce.data.tensors import Batch
from transduce.decoding.translator import Translator
from transduce.device import Hardware, choose_hardware
from transduce.model.config import ModelConfig
from transduce.model.transformer import Transformer
from transduce.training.config import TrainingConfig
from transduce.training.gpu_gradients import compile_layers
from transduce.training.loss import BatchLoss
from transduce.training.trainer import Trainer, TrainingStoppedError

BATCHING = BatchingConfig(source_tokens=200, target_tokens=200, batch_tokens=100)
REFERENCE = Hardware(device=torch.device("cpu"), dtype=torch.float64)
SMALL = {"d_model": 64, "d_ff": 128, "num_heads": 2, "d_k": 32, "d_v": 32}
"""Widths that are multiples of 32, as matrix units need."""


@pytest.fixture(scope="module")
def hardware() -> Hardware:
    """GPU in fp32 if there is one, otherwise the CPU."""
    return choose_hardware("auto", "fp32")


@pytest.fixture
def batcher(make_dataset, random_pairs) -> Batcher:
    return Batcher(make_dataset(random_pairs(40, 20)), BATCHING, seed=1)


@pytest.fixture
def batch(batcher: Batcher) -> Batch:
    """The longest batch, with padding on both sides."""
    return batcher.dataset.load(batcher.longest_batch())


def loss_and_gradients(
    model: nn.Module, batch: Batch, hardware: Hardware
) -> dict[str, Tensor]:
    """Loss of a batch and gradients of all parameters, on the CPU."""
    model = deepcopy(model).to(hardware.device).train()
    if hardware.dtype == torch.float64:
        model = model.double()
        hardware = replace(hardware, dtype=torch.float32)
    loss = BatchLoss(model, 0.1, hardware)(batch).smoothed
    loss.backward()
    found = {name: p.grad for name, p in model.named_parameters()}
    return {
        name: tensor.detach().cpu().double()
        for name, tensor in {"loss": loss, **found}.items()
        if tensor is not None
    }


def relative_errors(
    found: dict[str, Tensor], expected: dict[str, Tensor]
) -> dict[str, float]:
    """Norm of each difference relative to the norm of the expected value.

    Gradients far smaller than the others, such as those of keys' biases, are sums that
    cancel: their errors count as if they were a thousandth of the largest.
    """
    assert found.keys() == expected.keys()
    least = max(float(tensor.norm()) for tensor in expected.values()) / 1_000
    return {
        name: float((found[name] - wanted).norm()) / max(float(wanted.norm()), least)
        for name, wanted in expected.items()
    }


@torch.enable_grad()
def test_the_device_computes_the_loss_and_gradients_of_float64(
    model: Transformer, batch: Batch, hardware: Hardware
):
    expected = loss_and_gradients(model, batch, REFERENCE)
    found = loss_and_gradients(model, batch, hardware)
    errors = relative_errors(found, expected)
    assert max(errors.values()) < 1e-4, errors


@torch.enable_grad()
def test_bf16_loss_and_gradients_are_near_float64(
    tiny: ModelConfig, batch: Batch, hardware: Hardware
):
    model = Transformer(replace(tiny, **SMALL))
    expected = loss_and_gradients(model, batch, REFERENCE)
    bf16 = replace(hardware, dtype=torch.bfloat16)
    errors = relative_errors(loss_and_gradients(model, batch, bf16), expected)
    assert errors["loss"] < 1e-2
    assert max(errors.values()) < 0.1, errors


@pytest.fixture(params=RIVALS.values(), ids=RIVALS)
def rival(request: pytest.FixtureRequest) -> nn.Module:
    """Small model of each other architecture, which draws no random numbers."""
    config = request.param
    names = (each.name for each in fields(config) if each.name.endswith("dropout"))
    config = replace(config, **dict.fromkeys(names, 0.0))
    if hasattr(config, "experts"):
        experts = replace(config.experts, gating="batchwise")
        config = replace(config, experts=experts)
    return build(config)


@torch.enable_grad()
def test_the_device_computes_the_losses_and_gradients_of_rivals(
    rival: nn.Module, batch: Batch, hardware: Hardware
):
    """Mixtures choose their experts in fp32 on every device."""
    expected = loss_and_gradients(rival, batch, REFERENCE)
    found = loss_and_gradients(rival, batch, hardware)
    errors = relative_errors(found, expected)
    assert max(errors.values()) < 1e-3, errors


@torch.enable_grad()
def test_losses_and_gradients_of_rivals_in_bf16_are_near_float64(
    rival: nn.Module, batch: Batch, hardware: Hardware
):
    expected = loss_and_gradients(rival, batch, REFERENCE)
    bf16 = replace(hardware, dtype=torch.bfloat16)
    errors = relative_errors(loss_and_gradients(rival, batch, bf16), expected)
    # ByteNet has long sums of small gradients; in a mixture that rounds, a token may
    # take another expert in the next layer.
    is_rough = isinstance(rival, ByteNet | MixtureTransformer)
    assert errors["loss"] < 1e-2
    assert max(errors.values()) < (0.4 if is_rough else 0.05), errors


class Elsewhere(TorchDispatchMode):
    """Records operators whose results are not on the device "meta".

    It has shapes but no numbers, so each number that a model asks for is 8.
    """

    def __init__(self) -> None:
        super().__init__()
        self.operators: set[str] = set()

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):  # noqa: ANN001, ANN204
        if str(operator) == "aten._local_scalar_dense.default":
            return 8
        if str(operator) == "aten.equal.default":
            return False
        result = operator(*args, **kwargs or {})
        made = result if isinstance(result, (tuple, list)) else [result]
        if any(isinstance(x, Tensor) and x.device.type != "meta" for x in made):
            self.operators.add(str(operator))
        return result


@pytest.mark.parametrize("name", [name for name in RIVALS if "expert" not in name])
@torch.enable_grad()
def test_rivals_make_all_their_tensors_on_the_device_of_their_weights(name: str):
    """A tensor made on the CPU would stop a GPU, and is not seen on a CPU."""
    model = build(RIVALS[name]).to("meta").train()
    source, target_in = torch.ones(2, 3, 4, dtype=torch.long, device="meta")
    with Elsewhere() as elsewhere:
        memory = model.encode(source)
        model.logits(model.decode(target_in, memory)).sum().backward()
        state = model.start(memory)
        rows = torch.ones(3, 2, dtype=torch.long, device="meta")
        for last_ids in (target_in[:, :1], rows):
            model.step(last_ids, state)
            state.reorder(rows)
    assert elsewhere.operators == set()


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch, hardware: Hardware) -> Iterator[None]:
    """PyTorch's compiler as in a fresh process; on a CPU it makes no machine code."""
    if hardware.device.type == "cpu":
        compile_ = nn.Module.compile

        def by_operators(module: nn.Module, *, dynamic: bool) -> None:
            # The tests of compiled layers compare the whole compiler with PyTorch.
            compile_(module, dynamic=dynamic, backend="eager")

        monkeypatch.setattr(nn.Module, "compile", by_operators)
    torch._dynamo.reset()
    with torch._dynamo.config.patch(recompile_limit=8, suppress_errors=False):
        yield
    torch._dynamo.reset()


@pytest.mark.filterwarnings(
    "ignore"
)  # the compiler calls functions of which PyTorch warns
@pytest.mark.usefixtures("compiler", "unchecked_types")
def test_compiled_layers_compute_the_same(
    tiny: ModelConfig, batcher: Batcher, hardware: Hardware
):
    # A CPU's kernels cannot be compiled: there the layers are PyTorch's, in float64.
    is_gpu = hardware.device.type == "cuda"
    model = Transformer(replace(tiny, **SMALL, dropout=0.0)).to(hardware.device)
    batch_loss = BatchLoss(model if is_gpu else model.double(), 0.1, hardware)
    batches = [
        batcher.dataset.load(indices)
        for update in batcher.epoch(0)
        for indices in update.batches
    ]

    def gradients() -> list[Tensor]:
        batch_loss.zero_grad()
        for batch in batches:
            batch_loss(batch).smoothed.backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    expected = gradients()
    assert compile_layers(batch_loss, batcher, hardware) is None
    for found, wanted in zip(gradients(), expected, strict=True):
        assert (found - wanted).norm() <= 1e-4 * wanted.norm() + 1e-9


CONFIG = TrainingConfig(steps=6, warmup_steps=3, learning_rate_scale=0.5)


def train(trainer: Trainer, stop_at: int | None = None) -> Trainer:
    """Train to the end, or until a step."""
    with suppress(TrainingStoppedError):
        trainer.train(
            on_step=lambda _: None,
            should_stop=lambda: trainer.progress.step == stop_at,
        )
    return trainer


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_resumed_training_is_bit_for_bit_the_same(
    tiny: ModelConfig, batcher: Batcher, hardware: Hardware, dtype: torch.dtype
):
    hardware = replace(hardware, dtype=dtype)
    model = Transformer(replace(tiny, **SMALL, dropout=0.2))
    whole = train(Trainer(deepcopy(model), batcher, CONFIG, hardware))
    stopped = train(Trainer(deepcopy(model), batcher, CONFIG, hardware), stop_at=3)
    model.load_state_dict(stopped.model.state_dict())
    resumed = Trainer(model, batcher, CONFIG, hardware)
    resumed.restore(stopped.state())
    train(resumed)
    assert whole.progress.step == resumed.progress.step == 6
    expected = whole.model.state_dict()
    for name, weight in resumed.model.state_dict().items():
        assert torch.equal(weight, expected[name]), name


def test_training_without_dropout_equals_that_of_the_cpu(
    tiny: ModelConfig, batcher: Batcher, hardware: Hardware, cpu: Hardware
):
    model = Transformer(replace(tiny, **SMALL, dropout=0.0))
    found, expected = (
        train(Trainer(deepcopy(model), batcher, CONFIG, each))
        for each in (hardware, cpu)
    )
    assert found.progress.recent_loss == pytest.approx(
        expected.progress.recent_loss, rel=1e-4
    )


@pytest.mark.parametrize("beam_size", [1, 4])
def test_translations_of_the_device_equal_those_of_the_cpu(
    trained_checkpoint: Checkpoint,
    corpus: tuple[list[str], list[str]],
    hardware: Hardware,
    beam_size: int,
):
    """A GPU records steps and replays them, while sentences leave the batch."""
    found, expected = (
        [
            each.text
            for each in Translator(trained_checkpoint, device).translate(
                corpus[0], beam_size=beam_size
            )
        ]
        for device in (hardware.device, "cpu")
    )
    assert found == expected
