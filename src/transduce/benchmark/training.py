"""Speed and memory of training: transduce and other systems, on the same updates.

All systems take turns, one update at a time, so that a busy or hot machine slows all
alike. Each has its own process, so that its memory is its own.
"""

import math
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from itertools import islice
from statistics import mean, median
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, Integer
from torch import Tensor, nn
from torch.nn import functional

from transduce.architectures.config import require_transformer
from transduce.architectures.interface import TransductionModel
from transduce.benchmark.measurement import (
    MAX_ROUNDS,
    NAME_WIDTH,
    Machine,
    Turn,
    Turns,
    Worker,
    describe_machine,
    load_warning,
    measure_matrix_rates,
    order_of_turns,
    peer_environment,
    within_quota,
)
from transduce.data.batches import Batcher, Update
from transduce.data.dataset import ID_TYPE, OFFSET_TYPE, Dataset, EncodedSide
from transduce.device import Hardware
from transduce.errors import missing_package, warn_caller
from transduce.experiments.presets import RunConfig
from transduce.machine import keep_freed_memory, objects_frozen, use_huge_pages
from transduce.model.config import ModelConfig, count_parameters, update_flops
from transduce.model.embedding import sinusoids
from transduce.model.transformer import Transformer, final_norm
from transduce.settings import require_between
from transduce.text.vocabulary import EOS, PAD
from transduce.training.config import TrainingConfig
from transduce.training.memory import require_memory
from transduce.training.optimizer import scheduled_rate
from transduce.training.trainer import StepReport, Trainer

MEAN_LENGTH, LENGTH_SPREAD, LONGEST = 25, 0.6, 100
"""Length of a source in tokens, log-normal, about that of news text in sub-words."""
RATIO_SPREAD = 0.2
"""Spread of a target's length over its source's, log-normal around 1."""
MIN_PAIRS = 10_000
"""Pairs that give batches of similar lengths, as in a real corpus."""
SEED = 1
OUR_ENVIRONMENT = {"MALLOC_ARENA_MAX": "1"}
"""Variables of our process. It starts with a thread that watches its parent, so that
`use_one_arena` would come too late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingTask:
    """Updates of a run on random tokens, in sentences of realistic lengths."""

    run: RunConfig
    hardware: Hardware
    steps: int
    are_peers_plain: bool = False
    """Whether peers run without our memory settings."""

    @property
    def model(self) -> ModelConfig:
        """Model with a vocabulary of the tokenizer's configured size."""
        return require_transformer(
            self.run.sized_model, "The benchmark of training", "choose another preset"
        )

    def new_model(self) -> TransductionModel:
        """Make our model, with random weights."""
        return Transformer(self.model)

    @property
    def training(self) -> TrainingConfig:
        """Training settings of all systems, without features that peers lack."""
        return replace(
            self.run.training,
            steps=self.steps,
            optimizer="adam",
            sgd_from_step=None,
            sgd_learning_rate=None,
            cooldown_share=0.0,
            weight_decay=0.0,
            clip_norm=None,
            consistency=0.0,
            reward="none",
            reward_steps=None,
        )

    def dataset(self) -> Dataset:
        """Generate the corpus; the same task gives the same one."""
        random = np.random.default_rng(SEED)
        mu = np.log(MEAN_LENGTH) - LENGTH_SPREAD**2 / 2
        source = random.lognormal(mu, LENGTH_SPREAD, self._num_pairs())
        target = source * random.lognormal(0.0, RATIO_SPREAD, len(source))
        return Dataset(
            source=self._side(source, random), target=self._side(target, random)
        )

    def batcher(self, dataset: Dataset) -> Batcher:
        """Batcher of the task's updates."""
        return Batcher(dataset, self.run.batching, SEED)

    def updates(self, dataset: Dataset) -> Iterator[Update]:
        """Updates that a trainer draws from the batcher."""
        return islice(self.batcher(dataset).epoch(0), self.steps)

    def update_flops(self) -> list[int]:
        """FLOPs of each update, without padding."""
        dataset = self.dataset()
        # Count the end token.
        source = np.diff(dataset.source.offsets) + 1
        target = np.diff(dataset.target.offsets) + 1
        pairs = [np.concatenate(each.batches) for each in self.updates(dataset)]
        return [update_flops(self.model, source[p], target[p]) for p in pairs]

    @property
    def _longest(self) -> int:
        return max(min(LONGEST, self.run.batching.max_length - 1), 1)

    def _num_pairs(self) -> int:
        """Twice the pairs that all steps need, so that one epoch is enough."""
        tokens = max(self.run.batching.source_tokens, self.run.batching.target_tokens)
        mean_length = min(MEAN_LENGTH, self._longest)
        return max(MIN_PAIRS, 2 * self.steps * tokens // mean_length)

    def _side(
        self, lengths: Float[np.ndarray, " pairs"], random: np.random.Generator
    ) -> EncodedSide:
        whole = lengths.round().clip(1, self._longest).astype(OFFSET_TYPE)
        offsets = np.concatenate([np.zeros(1, OFFSET_TYPE), np.cumsum(whole)])
        ids = random.integers(EOS + 1, self.run.tokenizer.vocab_size, offsets[-1])
        return EncodedSide(ids=ids.astype(ID_TYPE), offsets=offsets)


HUGGING_FACE, TORCH = "Hugging Face Marian", "torch.nn.Transformer"
COMPILED = "torch.nn.Transformer, compiled"


class TorchPeer(nn.Module):
    """`torch.nn.Transformer` with the embeddings that it lacks."""

    def __init__(self, config: ModelConfig, max_length: int) -> None:
        super().__init__()
        self.scale = math.sqrt(config.d_model)
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        nn.init.normal_(self.embedding.weight, std=config.d_model**-0.5)
        self.dropout = nn.Dropout(config.dropout)
        positions = sinusoids(max_length, config.d_model, config.position_base)
        self.register_buffer("positions", positions, persistent=False)
        self.transformer = _torch_transformer(config)

    def forward(
        self,
        source: Int[Tensor, "batch source"],
        target_in: Int[Tensor, "batch target"],
    ) -> Float[Tensor, "batch target vocab"]:
        is_padding = source == PAD
        states = self.transformer(
            self._embed(source),
            self._embed(target_in),
            tgt_mask=nn.Transformer.generate_square_subsequent_mask(
                target_in.size(1), device=source.device
            ),
            tgt_is_causal=True,
            src_key_padding_mask=is_padding,
            memory_key_padding_mask=is_padding,
        )
        return functional.linear(states, self.embedding.weight)

    def _embed(
        self, ids: Int[Tensor, "batch length"]
    ) -> Float[Tensor, "batch length d_model"]:
        positions = self.get_buffer("positions")[: ids.size(1)]
        return self.dropout(self.embedding(ids) * self.scale + positions)


class HuggingFacePeer(nn.Module):
    """`MarianMTModel` of the package `transformers`."""

    def __init__(self, config: ModelConfig, max_length: int) -> None:
        super().__init__()
        from transformers import MarianMTModel

        from transduce.interop.marian_export import marian_config

        self.marian = MarianMTModel(marian_config(config, max_length))

    def forward(
        self,
        source: Int[Tensor, "batch source"],
        target_in: Int[Tensor, "batch target"],
    ) -> Float[Tensor, "batch target vocab"]:
        return self.marian(
            input_ids=source,
            attention_mask=source != PAD,
            decoder_input_ids=target_in,
            use_cache=False,
        ).logits


def compiled_torch_peer(config: ModelConfig, max_length: int) -> nn.Module:
    """`TorchPeer` with `torch.compile`, compiled once for all lengths."""
    peer = TorchPeer(config, max_length)
    peer.compile(dynamic=True)
    return peer


PEERS: dict[str, Callable[[ModelConfig, int], nn.Module]] = {
    HUGGING_FACE: HuggingFacePeer,
    TORCH: TorchPeer,
    COMPILED: compiled_torch_peer,
}
"""Constructor of each peer, from the model's config and the longest sentence."""


def peers_on(device: torch.device) -> list[str]:
    """Peers to compare on a device: compiling gains little on a CPU."""
    return [name for name in PEERS if name != COMPILED or device.type == "cuda"]


def obstacle(name: str, config: ModelConfig) -> str | None:
    """Sentence on why a peer cannot take part; None if it can."""
    if name == HUGGING_FACE and find_spec("transformers") is None:
        return (
            f"{name} is left out. {missing_package('It', 'transformers', 'benchmark')}"
        )
    if name == COMPILED and find_spec("triton") is None:
        return f"{name} is left out, as PyTorch needs Triton to compile for GPUs."
    width = config.d_model / config.num_heads
    known = {
        "d_k": width, "d_v": width, "positions": "sinusoidal", "scores": "scaled",
        "neighbourhood": None, "output_bias": False,
        "decoder_self_attention": "attention",
    }  # fmt: skip
    if name == HUGGING_FACE:
        known["norm"] = "post"
    else:
        known |= {
            "activation": "relu", "tied_output": True, "attention_dropout": 0.0,
            "relu_dropout": 0.0,
        }  # fmt: skip
    for setting, value in known.items():
        if (ours := getattr(config, setting)) != value:
            return f"{name} is left out, as it lacks `model.{setting}` = {ours}."
    return None


class PeerTrainer:
    """Plain training loop with the same updates, optimizer and schedule as ours."""

    def __init__(self, model: nn.Module, task: TrainingTask) -> None:
        self._task = task
        self._config = task.training
        self._dataset = task.dataset()
        self._batcher = task.batcher(self._dataset)
        self._model = model.to(task.hardware.device).train()
        self._optimizer = torch.optim.Adam(
            [p for p in model.parameters() if p.requires_grad],
            lr=0.0,  # set before each step
            betas=(self._config.beta1, self._config.beta2),
            eps=self._config.epsilon,
            fused=True,
        )

    def train(self, on_step: Callable[[Update, float], None]) -> None:
        """Make the task's updates; calls `on_step` with each and its loss.

        The loss is in nats per target token.
        """
        for step, update in enumerate(self._task.updates(self._dataset), start=1):
            on_step(update, self._step(step, update))

    def _step(self, step: int, update: Update) -> float:
        rate = scheduled_rate(step, self._task.model.d_model, self._config)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.zero_grad()
        losses = [self._accumulate(batch, update) for batch in update.batches]
        self._optimizer.step()
        return torch.stack(losses).sum().item()

    def _accumulate(
        self, indices: Integer[np.ndarray, " batch"], update: Update
    ) -> Float[Tensor, ""]:
        """Add a batch's share of the gradient of the update's mean loss per token."""
        hardware = self._task.hardware
        batch = self._batcher.dataset.load(indices).to(hardware.device)
        with hardware.autocast():
            logits = self._model(batch.source, batch.target_in)
        loss = functional.cross_entropy(
            logits.flatten(0, 1).float(),
            batch.target_out.flatten(),
            ignore_index=PAD,
            label_smoothing=self._config.label_smoothing,
            reduction="sum",
        )
        loss = loss / update.num_target_tokens
        loss.backward()
        return loss.detach()


def _torch_transformer(config: ModelConfig) -> nn.Transformer:
    """`nn.Transformer` without the norms and dropouts that the paper does not have."""
    choices: dict[str, Any] = {
        "d_model": config.d_model,
        "nhead": config.num_heads,
        "dim_feedforward": config.d_ff,
        "dropout": config.dropout,
        "layer_norm_eps": config.norm_epsilon,
        "norm_first": config.norm == "pre",
        "batch_first": True,
    }
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(**choices),
        config.num_layers,
        final_norm(config),
        enable_nested_tensor=False,
    )
    decoder = nn.TransformerDecoder(
        nn.TransformerDecoderLayer(**choices),
        config.num_decoder_layers,
        final_norm(config),
    )
    for layer in (*encoder.layers, *decoder.layers):
        layer.dropout = nn.Identity()
    for module in (*encoder.modules(), *decoder.modules()):
        if isinstance(module, nn.MultiheadAttention):
            module.dropout = 0.0
    return nn.Transformer(
        config.d_model,
        config.num_heads,
        batch_first=True,
        custom_encoder=encoder,
        custom_decoder=decoder,
    )


OURS = "transduce"


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateOutcome:
    """Result of one update."""

    num_target_tokens: int
    loss: float
    """Smoothed cross-entropy in nats per target token."""


def work_of(name: str, task: TrainingTask) -> Callable[[Turns[UpdateOutcome]], None]:
    """Work of a system's process."""
    if name == OURS:
        return partial(train_ours, task)
    return partial(train_peer, name, task)


def train_ours(task: TrainingTask, turns: Turns[UpdateOutcome]) -> None:
    """Train as `transduce train` does, one update per turn."""

    def done(report: StepReport) -> None:
        turns.done(
            UpdateOutcome(num_target_tokens=report.num_target_tokens, loss=report.loss)
        )

    keep_freed_memory()
    if task.hardware.device.type == "cpu":
        use_huge_pages()
    torch.manual_seed(SEED)
    trainer = our_trainer(task)
    trainer.runs_ahead = False  # an update must end with its turn
    if trainer.all_can_pack():
        make_graphs(trainer)
    elif task.hardware.device.type == "cuda":  # as in all but short trainings
        reason = trainer.compile_layers()
        if reason is not None:
            warn_caller(
                f"The layers of {OURS} are not compiled, as PyTorch cannot: {reason}"
            )
    turns.begin()
    with objects_frozen():
        trainer.train(on_step=done)


def train_peer(name: str, task: TrainingTask, turns: Turns[UpdateOutcome]) -> None:
    """Train another library's model, one update per turn."""

    def done(update: Update, loss: float) -> None:
        turns.done(UpdateOutcome(num_target_tokens=update.num_target_tokens, loss=loss))

    if not task.are_peers_plain:
        keep_freed_memory()  # speeds peers up as well
        if task.hardware.device.type == "cpu":
            use_huge_pages()
    torch.manual_seed(SEED)
    trainer = PeerTrainer(PEERS[name](task.model, task.run.batching.max_length), task)
    turns.begin()
    trainer.train(done)


def make_graphs(trainer: Trainer) -> None:
    """Make the CUDA graphs of a task's updates, as in all but short trainings.

    A graph is made when the shape of a batch appears for the second time. Weights and
    optimizer are then as before.
    """
    weights = {name: each.clone() for name, each in trainer.model.state_dict().items()}
    for _ in range(2):
        trainer.train(on_step=lambda _: None)
        trainer.restore(None)
    trainer.model.load_state_dict(weights)


def our_trainer(task: TrainingTask) -> Trainer:
    """Trainer of `transduce train` on the task's pairs."""
    return Trainer(
        task.new_model(),
        task.batcher(task.dataset()),
        task.training,
        task.hardware,
    )


WARM_UP_ROUNDS = 2
"""Rounds that are not counted, in which memory is allocated and kernels are chosen."""
PACKAGES = ("torch", "numpy", "transformers")

Round = Mapping[str, Turn[UpdateOutcome]]
"""One update by every system."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemSpeed:
    """Speed and memory of one system; medians are over the rounds."""

    name: str
    tokens_per_second: float
    """Median of target tokens per second."""
    our_advantage: float
    """Median of the system's time for an update over ours."""
    matrix_share: float
    """Median of the model's FLOP/s over the machine's matrix rate."""
    peak_bytes: int
    """Peak resident memory of the process, or peak GPU memory."""
    seconds: tuple[float, ...]
    """Time of each round."""
    losses: tuple[float, ...]
    """Smoothed cross-entropy of each round, in nats per target token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSpeed:
    """Results of a comparison of training."""

    machine: Machine
    hardware: str
    """Device and precision."""
    num_parameters: int
    rounds: int
    target_tokens: tuple[int, ...]
    """Target tokens of each round's update."""
    update_flops: tuple[int, ...]
    """FLOPs of each round's update, without padding."""
    matrix_rate: float
    """Best FLOP/s of large square matrix products in all rounds."""
    systems: tuple[SystemSpeed, ...]
    left_out: tuple[str, ...] = ()
    """Sentences about systems that could not take part."""
    load: float = 0.0
    """Load average of the minute before the measurement."""


def measure_training(
    run: RunConfig,
    hardware: Hardware,
    rounds: int,
    on_round: Callable[[int], None],
    *,
    are_peers_plain: bool = False,
    peers: Collection[str] | None = None,
) -> TrainingSpeed:
    """Measure the training speed of all systems in turns.

    The first `WARM_UP_ROUNDS` are not counted. Peers get our memory settings, unless
    `are_peers_plain`. `peers` has the names of those that take part, by default all.
    Calls `on_round` with the number of each round before it.
    """
    require_between("rounds", rounds, 1, MAX_ROUNDS)
    task = TrainingTask(
        run=run,
        hardware=hardware,
        steps=WARM_UP_ROUNDS + rounds,
        are_peers_plain=are_peers_plain,
    )
    require_memory(task.model, hardware)
    load = os.getloadavg()[0]
    there = peers_on(hardware.device)
    chosen = [name for name in there if peers is None or name in peers]
    obstacles = {name: obstacle(name, task.model) for name in chosen}
    names = [OURS, *(name for name, reason in obstacles.items() if reason is None)]
    rates, played = _play_rounds(task, names, on_round)
    speed = _summary(task, max(rates), played[WARM_UP_ROUNDS:])
    left_out = tuple(reason for reason in obstacles.values() if reason is not None)
    return replace(speed, load=load, left_out=left_out)


def in_large_batches(run: RunConfig) -> RunConfig:
    """Return a run with batches as large as an update, which is fastest for peers."""
    batching = run.batching
    size = max(batching.source_tokens, batching.target_tokens, batching.batch_tokens)
    return replace(run, batching=replace(batching, batch_tokens=size))


def _play_rounds(
    task: TrainingTask, names: Sequence[str], on_round: Callable[[int], None]
) -> tuple[list[float], list[Round]]:
    """Matrix rate of the machine and results of the systems in each round."""
    device = task.hardware.device
    measure = partial(measure_matrix_rates, task.hardware)
    rates: list[float] = []
    played: list[Round] = []
    with ExitStack() as stack:
        rate_worker = stack.enter_context(
            Worker("the matrix rate", partial(within_quota, measure), device)
        )
        workers = {
            name: stack.enter_context(
                Worker(
                    name,
                    partial(within_quota, work_of(name, task)),
                    device,
                    OUR_ENVIRONMENT if name == OURS else peer_environment(),
                )
            )
            for name in names
        }
        for number in range(task.steps):
            on_round(number + 1)
            rates.append(rate_worker.take_turn().outcome)
            played.append(
                {
                    name: workers[name].take_turn()
                    for name in order_of_turns(names, number)
                }
            )
    return rates, played


def _summary(task: TrainingTask, rate: float, rounds: Sequence[Round]) -> TrainingSpeed:
    tokens = tuple(each[OURS].outcome.num_target_tokens for each in rounds)
    for turns in rounds:
        # All systems must have trained on the same update.
        assert len({turn.outcome.num_target_tokens for turn in turns.values()}) == 1
    flops = tuple(task.update_flops()[-len(rounds) :])
    return TrainingSpeed(
        machine=describe_machine(PACKAGES, task.hardware.device),
        hardware=str(task.hardware),
        num_parameters=count_parameters(task.model).total,
        rounds=len(rounds),
        target_tokens=tokens,
        update_flops=flops,
        matrix_rate=rate,
        systems=tuple(
            _system_speed(name, rounds, flops, rate)
            for name in (OURS, *PEERS)
            if name in rounds[0]
        ),
    )


def _system_speed(
    name: str, rounds: Sequence[Round], flops: Sequence[int], rate: float
) -> SystemSpeed:
    turns = [each[name] for each in rounds]
    ours = [each[OURS] for each in rounds]
    return SystemSpeed(
        name=name,
        tokens_per_second=median(
            t.outcome.num_target_tokens / t.seconds for t in turns
        ),
        our_advantage=median(
            theirs.seconds / our.seconds
            for theirs, our in zip(turns, ours, strict=True)
        ),
        matrix_share=median(
            needed / turn.seconds / rate
            for needed, turn in zip(flops, turns, strict=True)
        ),
        peak_bytes=turns[-1].peak_bytes,
        seconds=tuple(turn.seconds for turn in turns),
        losses=tuple(turn.outcome.loss for turn in turns),
    )


def training_table(speed: TrainingSpeed) -> Iterator[str]:
    """Format a comparison of training as lines of text."""
    yield f"Machine: {speed.machine}"
    yield f"Matrix products: {speed.matrix_rate / 1e9:,.0f} GFLOP/s on {speed.hardware}"
    yield (
        f"Model: {speed.num_parameters:,} parameters; an update is about "
        f"{mean(speed.target_tokens):,.0f} target tokens and "
        f"{mean(speed.update_flops) / 1e9:,.1f} GFLOP"
    )
    yield from speed.left_out
    yield ""
    heads = ("target tokens/s", "ours / this", "of matrix rate", "peak memory")
    yield f"{f'Rounds: {speed.rounds}':<{NAME_WIDTH}}" + "".join(
        f"{h:>16}" for h in heads
    )
    for each in speed.systems:
        cells = (
            f"{each.tokens_per_second:,.0f}",
            f"{each.our_advantage:.2f} x",
            f"{each.matrix_share:.1%}",
            f"{each.peak_bytes / 1e6:,.0f} MB",
        )
        yield f"{each.name:<{NAME_WIDTH}}" + "".join(f"{cell:>16}" for cell in cells)
    yield from load_warning(speed.load)
