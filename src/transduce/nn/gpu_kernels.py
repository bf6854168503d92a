"""Triton kernels: attention, norm, dropout and loss in training, and top-k in search.

Each function is followed by its kernels. Sentences in training are packed: the rows of
all sentences follow each other without padding, and `starts` has the first row of each
sentence and the end of the last. Kernels read and write rows in any floating-point type
and compute in fp32. All are deterministic.

Dropout draws no mask in advance: whether an element is kept follows from a seed and its
place, so the backward pass computes the same mask again. Seeds are in the GPU's memory,
so that a CUDA graph has others in each replay.

Triton comes with PyTorch's builds for GPUs. The kernels also run on a CPU, slowly, if
the variable TRITON_INTERPRET is 1.
"""

from dataclasses import dataclass
from subprocess import SubprocessError

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int, Shaped
from torch import Tensor

MAX_SEED = 2**31
"""Seeds are below this."""
SEED_STRIDE = 4
"""Distance of seeds in memory: Triton compiles pointers to 16 bytes differently."""


@dataclass(frozen=True, slots=True)
class DropoutMask:
    """Rate of a dropout, and the seed of its mask."""

    rate: float
    seed: Int[Tensor, " _"]
    """The first element is the seed, in int32."""


@triton.jit
def _is_kept(place, seed, RATE: tl.constexpr):
    """Whether dropout keeps each element: two rounds of a 32-bit hash of its place."""
    bits = place.to(tl.uint32) * 0x9E3779B1 ^ seed.to(tl.uint32)
    for _ in tl.static_range(2):
        bits = (bits ^ (bits >> 16)) * 0x85EBCA6B
        bits = (bits ^ (bits >> 13)) * 0xC2B2AE35
        bits = (bits ^ (bits >> 16)) + seed.to(tl.uint32)
    return (bits >> 8).to(tl.float32) >= RATE * 16777216.0


TILE = 2_048
"""Elements that a program of `add_and_norm` computes at a time."""
BACKWARD_TILE = 512
"""Elements that a program of `add_and_norm_backward` computes at a time; it needs more
registers."""
PROGRAMS = 1_056
"""Programs of a kernel that sums over rows: eight per multiprocessor of an H100."""


def add_and_norm(
    x: Float[Tensor, "rows width"],
    addend: Float[Tensor, "rows width"],
    gain: Float[Tensor, " width"],
    bias: Float[Tensor, " width"],
    epsilon: float,
    dropout: DropoutMask,
) -> tuple[Float[Tensor, "rows width"], Float[Tensor, "rows 2"]]:
    """Return LayerNorm(x + Dropout(addend)), and each row's mean and scale.

    The sum overwrites `addend`; the backward pass reads it.
    """
    (rows, width), y = x.shape, torch.empty_like(x)
    scales = x.new_empty(rows, 2, dtype=torch.float32)
    block = triton.next_power_of_2(width)
    tile = max(TILE // block, 1)
    _add_and_norm[(triton.cdiv(rows, tile),)](
        x, addend, y, scales, gain, bias, dropout.seed, rows, epsilon,
        WIDTH=width, BLOCK=block, ROWS=tile, RATE=dropout.rate,
    )  # fmt: skip
    return y, scales


@triton.jit(do_not_specialize=["rows"])
def _add_and_norm(
    x, addend, y, scales, gain, bias, seed, rows, epsilon,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, RATE: tl.constexpr,
):  # fmt: skip
    """Sum and norm of a tile of rows."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    inside = (row < rows) & (column < WIDTH)
    place = row.to(tl.int64) * WIDTH + column
    added = tl.load(addend + place, inside, 0.0).to(tl.float32)
    if RATE > 0:
        kept = _is_kept(place, tl.load(seed), RATE)
        added = tl.where(kept, added / (1 - RATE), 0.0)
    total = tl.load(x + place, inside, 0.0).to(tl.float32) + added
    # The backward pass reads the sum as it is rounded here.
    total = total.to(addend.dtype.element_ty)
    tl.store(addend + place, total, inside)
    total = total.to(tl.float32)
    mean = tl.sum(total, 1)[:, None] / WIDTH
    centred = tl.where(inside, total - mean, 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, 1)[:, None] / WIDTH + epsilon)
    gains = tl.load(gain + column, column < WIDTH, 0.0).to(tl.float32)
    biases = tl.load(bias + column, column < WIDTH, 0.0).to(tl.float32)
    result = centred * scale * gains + biases
    tl.store(y + place, result.to(y.dtype.element_ty), inside)
    tl.store(scales + 2 * row, mean, row < rows)
    tl.store(scales + 2 * row + 1, scale, row < rows)


@dataclass(frozen=True, slots=True)
class SumGradients:
    """Gradients of `add_and_norm`."""

    x: Float[Tensor, "rows width"]
    addend: Float[Tensor, "rows width"]
    gain: Float[Tensor, " width"]
    bias: Float[Tensor, " width"]
    addend_sum: Float[Tensor, " width"]
    """Sum of the gradient of the addend over rows: that of the addend's own bias."""


def add_and_norm_backward(
    grad_y: Float[Tensor, "rows width"],
    total: Float[Tensor, "rows width"],
    scales: Float[Tensor, "rows 2"],
    gain: Float[Tensor, " width"],
    dropout: DropoutMask,
) -> SumGradients:
    """Return the gradients of `add_and_norm`, given the sum that it has written."""
    rows, width = grad_y.shape
    grad_x, grad_addend = torch.empty_like(grad_y), torch.empty_like(grad_y)
    block = triton.next_power_of_2(width)
    tile = max(BACKWARD_TILE // block, 1)
    programs = min(PROGRAMS, triton.cdiv(rows, tile))
    sums = grad_y.new_empty(programs, 3, width, dtype=torch.float32)
    _add_and_norm_backward[(programs,)](
        grad_y, total, scales, gain, grad_x, grad_addend, sums, dropout.seed, rows,
        WIDTH=width, BLOCK=block, ROWS=tile, RATE=dropout.rate,
    )  # fmt: skip
    grad_gain, grad_bias, addend_sum = sums.sum(dim=0).unbind()
    return SumGradients(grad_x, grad_addend, grad_gain, grad_bias, addend_sum)


@triton.jit(do_not_specialize=["rows"])
def _add_and_norm_backward(
    grad_y, total, scales, gain, grad_x, grad_addend, sums, seed, rows,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, RATE: tl.constexpr,
):  # fmt: skip
    """Gradients of some tiles of rows, and sums over all these rows for the vectors."""
    column = tl.arange(0, BLOCK)[None, :]
    gains = tl.load(gain + column, column < WIDTH, 0.0).to(tl.float32)
    grad_gain = tl.zeros((1, BLOCK), tl.float32)
    grad_bias = tl.zeros((1, BLOCK), tl.float32)
    added_sum = tl.zeros((1, BLOCK), tl.float32)
    for tile in range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0)):
        row = tile * ROWS + tl.arange(0, ROWS)[:, None]
        inside = (row < rows) & (column < WIDTH)
        place = row.to(tl.int64) * WIDTH + column
        grad = tl.load(grad_y + place, inside, 0.0).to(tl.float32)
        mean = tl.load(scales + 2 * row, row < rows, 0.0)
        scale = tl.load(scales + 2 * row + 1, row < rows, 0.0)
        x = tl.load(total + place, inside, 0.0).to(tl.float32)
        normalized = tl.where(inside, (x - mean) * scale, 0.0)
        grad_gain += tl.sum(grad * normalized, 0)[None, :]
        grad_bias += tl.sum(grad, 0)[None, :]
        grad *= gains
        along = tl.sum(grad * normalized, 1)[:, None] / WIDTH
        grad = (grad - tl.sum(grad, 1)[:, None] / WIDTH - normalized * along) * scale
        tl.store(grad_x + place, grad.to(grad_x.dtype.element_ty), inside)
        if RATE > 0:
            kept = _is_kept(place, tl.load(seed), RATE)
            grad = tl.where(kept, grad / (1 - RATE), 0.0)
        tl.store(grad_addend + place, grad.to(grad_addend.dtype.element_ty), inside)
        added_sum += tl.sum(tl.where(inside, grad, 0.0), 0)[None, :]
    own = sums + tl.program_id(0) * 3 * WIDTH + column
    tl.store(own, grad_gain, column < WIDTH)
    tl.store(own + WIDTH, grad_bias, column < WIDTH)
    tl.store(own + 2 * WIDTH, added_sum, column < WIDTH)


def dropout_into(
    y: Float[Tensor, "rows width"], x: Float[Tensor, "rows width"], dropout: DropoutMask
) -> Float[Tensor, "rows width"]:
    """Write Dropout(x) to y, which can be x or of another type; return y.

    The backward pass calls it with the gradient of y.
    """
    rows, width = x.shape
    _dropout[(triton.cdiv(rows * width, TILE),)](
        x, y, dropout.seed, rows, WIDTH=width, BLOCK=TILE, RATE=dropout.rate
    )
    return y


@triton.jit(do_not_specialize=["rows"])
def _dropout(
    x, y, seed, rows, WIDTH: tl.constexpr, BLOCK: tl.constexpr, RATE: tl.constexpr
):
    """Dropout of a block of elements."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < rows.to(tl.int64) * WIDTH
    value = tl.load(x + place, inside, 0.0).to(tl.float32)
    if RATE > 0:
        kept = _is_kept(place, tl.load(seed), RATE)
        value = tl.where(kept, value / (1 - RATE), 0.0)
    tl.store(y + place, value.to(y.dtype.element_ty), inside)


COLUMNS, SUMMED_ROWS = 128, 32
"""Tile of a kernel that sums columns over rows."""


def column_sums(x: Float[Tensor, "rows width"]) -> Float[Tensor, " width"]:
    """Return the sums over rows in fp32."""
    rows, width = x.shape
    grid = _grid_of_sums(rows, width)
    sums = x.new_empty(grid[1], width, dtype=torch.float32)
    _column_sums[grid](x, sums, rows, WIDTH=width, BLOCK=COLUMNS, ROWS=SUMMED_ROWS)
    return sums.sum(dim=0)


@triton.jit(do_not_specialize=["rows"])
def _column_sums(
    x, sums, rows, WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr
):
    """Sum some columns over a part of the rows."""
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[None, :]
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    for tile in range(tl.program_id(1), tl.cdiv(rows, ROWS), tl.num_programs(1)):
        row = tile * ROWS + tl.arange(0, ROWS)[:, None]
        inside = (row < rows) & (column < WIDTH)
        place = row.to(tl.int64) * WIDTH + column
        total += tl.load(x + place, inside, 0.0).to(tl.float32)
    own = sums + tl.program_id(1) * WIDTH + column
    tl.store(own, tl.sum(total, 0)[None, :], column < WIDTH)


def relu_backward_(
    grad: Float[Tensor, "rows width"],
    hidden: Float[Tensor, "rows width"],
    dropout_rate: float,
) -> Float[Tensor, " width"]:
    """Overwrite `grad` by the gradient of the ReLU's input; return its column sums.

    The hidden units are those after dropout, if there is any.
    """
    rows, width = grad.shape
    grid = _grid_of_sums(rows, width)
    sums = grad.new_empty(grid[1], width, dtype=torch.float32)
    _relu_backward[grid](
        grad, hidden, sums, rows, 1 / (1 - dropout_rate),
        WIDTH=width, BLOCK=COLUMNS, ROWS=SUMMED_ROWS,
    )  # fmt: skip
    return sums.sum(dim=0)


@triton.jit(do_not_specialize=["rows"])
def _relu_backward(
    grad, hidden, sums, rows, scale,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Set gradients to 0 where the hidden unit is 0, and sum them as `_column_sums`."""
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[None, :]
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    for tile in range(tl.program_id(1), tl.cdiv(rows, ROWS), tl.num_programs(1)):
        row = tile * ROWS + tl.arange(0, ROWS)[:, None]
        inside = (row < rows) & (column < WIDTH)
        place = row.to(tl.int64) * WIDTH + column
        value = tl.load(grad + place, inside, 0.0).to(tl.float32)
        active = tl.load(hidden + place, inside, 0.0) > 0
        value = tl.where(active, value * scale, 0.0)
        tl.store(grad + place, value.to(grad.dtype.element_ty), inside)
        total += value
    own = sums + tl.program_id(1) * WIDTH + column
    tl.store(own, tl.sum(total, 0)[None, :], column < WIDTH)


def _grid_of_sums(rows: int, width: int) -> tuple[int, int]:
    """Return numbers of programs: for blocks of columns, and for parts of the rows."""
    blocks = triton.cdiv(width, COLUMNS)
    parts = min(PROGRAMS // blocks, triton.cdiv(rows, SUMMED_ROWS))
    return blocks, max(parts, 1)


def weight_gradient(
    grad_y: Float[Tensor, "rows outputs"], x: Float[Tensor, "rows inputs"]
) -> Float[Tensor, "outputs inputs"]:
    """Return the gradient of a matrix, in fp32, by PyTorch's product."""
    if grad_y.is_cuda:
        return torch.mm(grad_y.t(), x, out_dtype=torch.float32)
    return grad_y.t().float() @ x.float()


SHORT, LONG, LONG_WIDE = 16, 64, 32
"""Queries, or keys, that a program of attention computes at a time: in short sentences,
in long ones, and in long ones with wide heads."""
SHORT_WARPS, LONG_WARPS = 1, 4
SHORT_SENTENCE = 32
"""Mean length up to which short blocks are faster: long ones would mostly be empty."""
LONGEST_SHORT = 1_024
"""Length of a sentence from which on all have long blocks."""
WIDE_HEAD = 64
"""Largest width of a head for which the long blocks fit in shared memory."""


@dataclass(frozen=True, slots=True)
class Sentences:
    """Places of the sentences among packed rows."""

    starts: Int[Tensor, " sentences_and_one"]
    """First row of each sentence, and the number of rows, in int32."""
    longest: int
    are_short: bool
    """Whether most sentences have at most `SHORT_SENTENCE` rows."""

    def __len__(self) -> int:
        return len(self.starts) - 1


@dataclass(frozen=True, slots=True)
class PackedAttention:
    """Settings of one attention over packed sentences."""

    queries: Sentences
    keys: Sentences
    num_heads: int
    width: int
    """Width of a head."""
    scale: float
    is_causal: bool
    dropout: DropoutMask

    @property
    def block(self) -> int:
        """Queries, or keys, of a program."""
        if self.queries.are_short and self.keys.are_short:
            return SHORT
        return LONG if self.width <= WIDE_HEAD else LONG_WIDE

    def grid(self, sentences: Sentences) -> tuple[int, int]:
        """Programs for the blocks of all sentences and heads."""
        blocks = triton.cdiv(sentences.longest, self.block)
        return len(sentences) * self.num_heads, blocks

    def split(
        self, x: Shaped[Tensor, "rows all_widths"]
    ) -> tuple[Shaped[Tensor, "rows width"], Shaped[Tensor, "rows both_widths"]]:
        """Split columns into queries on the one hand, and keys and values on the
        other."""
        width = self.num_heads * self.width
        return x[:, :width], x[:, width:]

    def constants(
        self,
        query: Float[Tensor, "queries width"],
        key_value: Float[Tensor, "keys both_widths"],
    ) -> dict[str, int | float | bool]:
        """Constants of the kernels, for these tensors and their gradients."""
        return {
            "QUERY_STRIDE": query.stride(0),
            "KEY_STRIDE": key_value.stride(0),
            "HEADS": self.num_heads,
            "WIDTH": self.width,
            "BLOCK": self.block,
            "IS_CAUSAL": self.is_causal,
            "RATE": self.dropout.rate,
            "num_warps": SHORT_WARPS if self.block == SHORT else LONG_WARPS,
        }


def attention(
    query: Float[Tensor, "queries width"],
    key_value: Float[Tensor, "keys both_widths"],
    settings: PackedAttention,
) -> tuple[Float[Tensor, "queries width"], Float[Tensor, "queries heads"]]:
    """Return softmax(Q K^T * scale) V, and the logarithm of each softmax's sum."""
    output = query.new_empty(query.shape)
    shape = (len(query), settings.num_heads)
    log_sums = query.new_empty(shape, dtype=torch.float32)
    _attention[settings.grid(settings.queries)](
        query, key_value, output, log_sums,
        settings.queries.starts, settings.keys.starts,
        settings.scale, settings.dropout.seed, **settings.constants(query, key_value),
    )  # fmt: skip
    return output, log_sums


@triton.jit
def _attention(
    query, key_value, output, log_sums, query_starts, key_starts, scale, seed,
    QUERY_STRIDE: tl.constexpr, KEY_STRIDE: tl.constexpr,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    IS_CAUSAL: tl.constexpr, RATE: tl.constexpr,
):  # fmt: skip
    """Attention of one head for a block of the queries of one sentence."""
    first_query, num_queries = _sentence_rows(query_starts, HEADS)
    first_key, num_keys = _sentence_rows(key_starts, HEADS)
    query_row = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    if tl.program_id(1) * BLOCK < num_queries:
        is_query = query_row[:, None] < num_queries
        query_place = _places(first_query, query_row, QUERY_STRIDE, HEADS, WIDTH)
        queries = tl.load(query + query_place, is_query, 0.0)
        largest = tl.full((BLOCK,), float("-inf"), tl.float32)
        total = tl.zeros((BLOCK,), tl.float32)
        average = tl.zeros((BLOCK, WIDTH), tl.float32)
        for start in range(0, _end_of_keys(num_keys, BLOCK, IS_CAUSAL), BLOCK):
            key_row = start + tl.arange(0, BLOCK)
            is_key = key_row[:, None] < num_keys
            key_place = _places(first_key, key_row, KEY_STRIDE, HEADS, WIDTH)
            keys = tl.load(key_value + key_place, is_key, 0.0)
            values = tl.load(key_value + key_place + HEADS * WIDTH, is_key, 0.0)
            scores = _scores(
                queries, keys, query_row, key_row, num_queries, num_keys, scale,
                IS_CAUSAL,
            )  # fmt: skip
            new_largest = tl.maximum(largest, tl.max(scores, 1))
            # A row beyond the last query has no key: any finite number will do.
            new_largest = tl.where(new_largest == float("-inf"), 0.0, new_largest)
            weights = tl.exp(scores - new_largest[:, None])
            correction = tl.exp(largest - new_largest)
            total = total * correction + tl.sum(weights, 1)
            if RATE > 0:
                kept = _kept_weights(query_row, key_row, first_query, seed, HEADS, RATE)
                weights = tl.where(kept, weights, 0.0)
            average = average * correction[:, None]
            average += tl.dot(weights.to(values.dtype), values)
            largest = new_largest
        total = tl.where(total > 0, total, 1.0)  # beyond the last query, or no keys
        average = average / (total * (1 - RATE))[:, None]
        place = _places(first_query, query_row, HEADS * WIDTH, HEADS, WIDTH)
        tl.store(output + place, average.to(output.dtype.element_ty), is_query)
        number = (first_query + query_row) * HEADS + tl.program_id(0) % HEADS
        tl.store(log_sums + number, largest + tl.log(total), query_row < num_queries)


def attention_backward(
    gradients: tuple[Tensor, Tensor],
    grad_output: Float[Tensor, "queries width"],
    inputs: tuple[Tensor, Tensor],
    output: Float[Tensor, "queries width"],
    log_sums: Float[Tensor, "queries heads"],
    settings: PackedAttention,
) -> None:
    """Write the gradients of queries, and of keys and values.

    `gradients` have the shapes and strides of the inputs.
    """
    grad_query, grad_key_value = gradients
    constants, deltas = settings.constants(*inputs), torch.empty_like(log_sums)
    places = (settings.queries.starts, settings.keys.starts)
    scalars = (settings.scale, settings.dropout.seed)
    _attention_backward_queries[settings.grid(settings.queries)](
        *inputs, output, grad_output, log_sums, deltas, grad_query,
        *places, *scalars, **constants,
    )  # fmt: skip
    _attention_backward_keys[settings.grid(settings.keys)](
        *inputs, grad_output, log_sums, deltas, grad_key_value,
        *places, *scalars, **constants,
    )  # fmt: skip


@triton.jit
def _attention_backward_queries(
    query, key_value, output, grad_output, log_sums, deltas, grad_query,
    query_starts, key_starts, scale, seed,
    QUERY_STRIDE: tl.constexpr, KEY_STRIDE: tl.constexpr,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    IS_CAUSAL: tl.constexpr, RATE: tl.constexpr,
):  # fmt: skip
    """Gradient of one head's queries, for a block of one sentence.

    It also writes the inner product of each output and its gradient, a delta, which
    `_attention_backward_keys` reads.
    """
    first_query, num_queries = _sentence_rows(query_starts, HEADS)
    first_key, num_keys = _sentence_rows(key_starts, HEADS)
    query_row = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    if tl.program_id(1) * BLOCK < num_queries:
        is_query = query_row[:, None] < num_queries
        query_place = _places(first_query, query_row, QUERY_STRIDE, HEADS, WIDTH)
        queries = tl.load(query + query_place, is_query, 0.0)
        place = _places(first_query, query_row, HEADS * WIDTH, HEADS, WIDTH)
        grads = tl.load(grad_output + place, is_query, 0.0)
        outputs = tl.load(output + place, is_query, 0.0)
        delta = tl.sum(grads.to(tl.float32) * outputs.to(tl.float32), 1)
        number = (first_query + query_row) * HEADS + tl.program_id(0) % HEADS
        sums = tl.load(log_sums + number, query_row < num_queries, 0.0)
        tl.store(deltas + number, delta, query_row < num_queries)
        grad_queries = tl.zeros((BLOCK, WIDTH), tl.float32)
        for start in range(0, _end_of_keys(num_keys, BLOCK, IS_CAUSAL), BLOCK):
            key_row = start + tl.arange(0, BLOCK)
            is_key = key_row[:, None] < num_keys
            key_place = _places(first_key, key_row, KEY_STRIDE, HEADS, WIDTH)
            keys = tl.load(key_value + key_place, is_key, 0.0)
            values = tl.load(key_value + key_place + HEADS * WIDTH, is_key, 0.0)
            scores = _scores(
                queries, keys, query_row, key_row, num_queries, num_keys, scale,
                IS_CAUSAL,
            )  # fmt: skip
            weights = tl.exp(scores - sums[:, None])
            grad_weights = tl.dot(grads, tl.trans(values))
            if RATE > 0:
                kept = _kept_weights(query_row, key_row, first_query, seed, HEADS, RATE)
                grad_weights = tl.where(kept, grad_weights / (1 - RATE), 0.0)
            grad_scores = weights * (grad_weights - delta[:, None]) * scale
            grad_queries += tl.dot(grad_scores.to(keys.dtype), keys)
        grad_queries = grad_queries.to(grad_query.dtype.element_ty)
        tl.store(grad_query + query_place, grad_queries, is_query)


@triton.jit
def _attention_backward_keys(
    query, key_value, grad_output, log_sums, deltas, grad_key_value,
    query_starts, key_starts, scale, seed,
    QUERY_STRIDE: tl.constexpr, KEY_STRIDE: tl.constexpr,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    IS_CAUSAL: tl.constexpr, RATE: tl.constexpr,
):  # fmt: skip
    """Gradients of one head's keys and values, for a block of one sentence."""
    first_query, num_queries = _sentence_rows(query_starts, HEADS)
    first_key, num_keys = _sentence_rows(key_starts, HEADS)
    key_row = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    if tl.program_id(1) * BLOCK < num_keys:
        is_key = key_row[:, None] < num_keys
        key_place = _places(first_key, key_row, KEY_STRIDE, HEADS, WIDTH)
        value_place = key_place + HEADS * WIDTH
        keys = tl.load(key_value + key_place, is_key, 0.0)
        values = tl.load(key_value + value_place, is_key, 0.0)
        grad_keys = tl.zeros((BLOCK, WIDTH), tl.float32)
        grad_values = tl.zeros((BLOCK, WIDTH), tl.float32)
        begin = 0
        if IS_CAUSAL:
            begin = tl.program_id(1) * BLOCK
        for start in range(begin, num_queries, BLOCK):
            query_row = start + tl.arange(0, BLOCK)
            is_query = query_row[:, None] < num_queries
            query_place = _places(first_query, query_row, QUERY_STRIDE, HEADS, WIDTH)
            queries = tl.load(query + query_place, is_query, 0.0)
            place = _places(first_query, query_row, HEADS * WIDTH, HEADS, WIDTH)
            grads = tl.load(grad_output + place, is_query, 0.0)
            number = (first_query + query_row) * HEADS + tl.program_id(0) % HEADS
            sums = tl.load(log_sums + number, query_row < num_queries, 0.0)
            delta = tl.load(deltas + number, query_row < num_queries, 0.0)
            scores = _scores(
                queries, keys, query_row, key_row, num_queries, num_keys, scale,
                IS_CAUSAL,
            )  # fmt: skip
            weights = tl.exp(scores - sums[:, None])
            grad_weights = tl.dot(grads, tl.trans(values))
            dropped = weights
            if RATE > 0:
                kept = _kept_weights(query_row, key_row, first_query, seed, HEADS, RATE)
                dropped = tl.where(kept, weights / (1 - RATE), 0.0)
                grad_weights = tl.where(kept, grad_weights / (1 - RATE), 0.0)
            grad_values += tl.dot(tl.trans(dropped.to(grads.dtype)), grads)
            grad_scores = weights * (grad_weights - delta[:, None]) * scale
            grad_keys += tl.dot(tl.trans(grad_scores.to(queries.dtype)), queries)
        dtype = grad_key_value.dtype.element_ty
        tl.store(grad_key_value + key_place, grad_keys.to(dtype), is_key)
        tl.store(grad_key_value + value_place, grad_values.to(dtype), is_key)


@triton.jit
def _sentence_rows(starts, HEADS: tl.constexpr):
    """First row of the program's sentence, and its number of rows."""
    sentence = tl.program_id(0) // HEADS
    first = tl.load(starts + sentence)
    return first, tl.load(starts + sentence + 1) - first


@triton.jit
def _places(first, row, STRIDE: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr):
    """Places of the elements of the program's head in rows of a sentence."""
    column = tl.program_id(0) % HEADS * WIDTH + tl.arange(0, WIDTH)
    return (first + row).to(tl.int64)[:, None] * STRIDE + column[None, :]


@triton.jit
def _end_of_keys(num_keys, BLOCK: tl.constexpr, IS_CAUSAL: tl.constexpr):
    """Number of keys that the program's block of queries may attend to."""
    end = num_keys
    if IS_CAUSAL:
        end = tl.minimum(num_keys, (tl.program_id(1) + 1) * BLOCK)
    return end


@triton.jit
def _scores(
    queries, keys, query_row, key_row, num_queries, num_keys, scale,
    IS_CAUSAL: tl.constexpr,
):  # fmt: skip
    """Scores of a block, -inf where a query may not attend to a key."""
    scores = tl.dot(queries, tl.trans(keys)) * scale
    allowed = (query_row[:, None] < num_queries) & (key_row[None, :] < num_keys)
    if IS_CAUSAL:
        allowed = allowed & (key_row[None, :] <= query_row[:, None])
    return tl.where(allowed, scores, float("-inf"))


@triton.jit
def _kept_weights(
    query_row, key_row, first_query, seed, HEADS: tl.constexpr, RATE: tl.constexpr
):
    """Return whether dropout keeps each weight of a block.

    Places differ for all queries, heads and keys: multiples of the factor, 2^32 over
    the golden ratio, are far apart modulo 2^32.
    """
    row = (first_query + query_row).to(tl.uint32) * HEADS + tl.program_id(0) % HEADS
    place = row[:, None] * 0x9E3779B1 + key_row[None, :].to(tl.uint32)
    return _is_kept(place, tl.load(seed), RATE)


LOGITS = 2_048
"""Logits that a program of the loss reads at a time."""


def cross_entropy_(
    logits: Float[Tensor, "rows padded_vocab"],
    targets: Int[Tensor, " rows"],
    vocab: int,
    label_smoothing: float,
) -> Float[Tensor, "rows 2"]:
    """Return the smoothed loss and the negative log-likelihood of each row.

    The gradient of the smoothed loss overwrites the logits. Logits beyond the
    vocabulary and rows with the target -1 do not count, and become zeros.
    """
    rows, padded = logits.shape
    losses = logits.new_empty(rows, 2, dtype=torch.float32)
    _cross_entropy[(rows,)](
        logits, targets, losses, vocab, label_smoothing,
        STRIDE=padded, BLOCK=LOGITS,
    )  # fmt: skip
    return losses


@triton.jit(do_not_specialize=["vocab"])
def _cross_entropy(
    logits, targets, losses, vocab, smoothing,
    STRIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Losses of one row; its logits become the gradient of the smoothed loss."""
    row = tl.program_id(0).to(tl.int64)
    own = logits + row * STRIDE
    target = tl.load(targets + row)
    is_token = target >= 0
    true = tl.load(own + tl.maximum(target, 0)).to(tl.float32)
    largest = tl.full((), float("-inf"), tl.float32)
    exponentials = tl.zeros((BLOCK,), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, STRIDE, BLOCK):
        column = start + tl.arange(0, BLOCK)
        # The mask is a constant, so that eight logits are read at a time.
        value = tl.load(own + column, column < STRIDE, 0.0).to(tl.float32)
        total += tl.where(column < vocab, value, 0.0)
        value = tl.where(column < vocab, value, float("-inf"))
        new_largest = tl.maximum(largest, tl.max(value))
        exponentials *= tl.exp(largest - new_largest)
        exponentials += tl.exp(value - new_largest)
        largest = new_largest
    log_sum = largest + tl.log(tl.sum(exponentials))
    likelihood = true - log_sum
    mean = tl.sum(total) / vocab - log_sum
    smoothed = likelihood + smoothing * (mean - likelihood)
    tl.store(losses + 2 * row, tl.where(is_token, -smoothed, 0.0))
    tl.store(losses + 2 * row + 1, tl.where(is_token, -likelihood, 0.0))
    for start in range(0, STRIDE, BLOCK):
        column = start + tl.arange(0, BLOCK)
        value = tl.load(own + column, column < STRIDE, 0.0).to(tl.float32)
        grad = tl.exp(value - log_sum) - smoothing / vocab
        grad -= tl.where(column == target, 1 - smoothing, 0.0)
        grad = tl.where(is_token & (column < vocab), grad, 0.0)
        tl.store(own + column, grad.to(logits.dtype.element_ty), column < STRIDE)


SPAN, SPANS = 64, 32
"""Logits whose maximum is kept, and maxima that a program computes at a time."""
MAX_PARTS, PARTS = 16, 512
"""Most programs that share a row of logits, and programs that keep a GPU busy."""
MAX_CANDIDATES = 32
"""Largest number of candidates of a row for which there are registers enough."""


def top_k(
    logits: Float[Tensor, "rows vocab"], count: int, excluded: Int[Tensor, " excluded"]
) -> Int[Tensor, "2 rows {count}"]:
    """Return bits of the log-probabilities, and tokens, of the likeliest, best first.

    `excluded` tokens, in int32, count in the normalization, but come last with minus
    infinity. Of equal tokens the lowest comes first. A row with a NaN has only NaN.
    There must be at least `count` spans of logits, and at most `MAX_CANDIDATES`. The
    log-probabilities in fp32 are as int32, so that one copy is enough for both.
    """
    rows, vocab = logits.shape
    logits, num_spans = logits.contiguous(), triton.cdiv(vocab, SPAN)
    assert count <= min(num_spans, MAX_CANDIDATES)
    parts = min(triton.next_power_of_2(triton.cdiv(PARTS, rows)), MAX_PARTS)
    maxima = logits.new_empty(rows, num_spans, dtype=torch.float32)
    sums = logits.new_empty(rows, parts, 2, dtype=torch.float32)
    found = logits.new_empty(2, rows, count, dtype=torch.int32)
    log_probs, tokens = found[0].view(torch.float32), found[1]
    sizes = {"VOCAB": vocab, "SPAN": SPAN, "NUM_EXCLUDED": len(excluded)}
    _maxima[(rows, parts)](logits, excluded, maxima, sums, SPANS=SPANS, **sizes)
    _top_k[(rows,)](
        logits, excluded, maxima, sums, log_probs, tokens, parts, count,
        MAX_PARTS=MAX_PARTS, ROWS=triton.next_power_of_2(count),
        ALL=triton.next_power_of_2(num_spans), **sizes,
    )  # fmt: skip
    return found


@triton.jit
def _maxima(
    logits, excluded, maxima, sums,
    VOCAB: tl.constexpr, SPAN: tl.constexpr, SPANS: tl.constexpr,
    NUM_EXCLUDED: tl.constexpr,
):  # fmt: skip
    """Compute the maximum of each span of a row, and a part's sum of exponentials."""
    num_spans = tl.cdiv(VOCAB, SPAN)
    largest = tl.full((), float("-inf"), tl.float32)
    total = tl.zeros((SPANS, SPAN), tl.float32)
    first = tl.program_id(1) * SPANS
    for start in range(first, num_spans, tl.num_programs(1) * SPANS):
        span = start + tl.arange(0, SPANS)
        _, value, allowed = _spans(logits, excluded, span, NUM_EXCLUDED, VOCAB, SPAN)
        new_largest = tl.maximum(largest, tl.max(value))
        # All logits of a part may be -inf, as outside a shortlist.
        shift = tl.where(new_largest == float("-inf"), 0.0, new_largest)
        total = total * tl.exp(largest - shift) + tl.exp(value - shift)
        largest = new_largest
        place = tl.program_id(0) * num_spans + span
        tl.store(maxima + place, tl.max(allowed, 1), span < num_spans)
    own = sums + 2 * (tl.program_id(0) * tl.num_programs(1) + tl.program_id(1))
    tl.store(own, largest)
    tl.store(own + 1, tl.sum(total))


@triton.jit(do_not_specialize=["parts", "count"])
def _top_k(
    logits, excluded, maxima, sums, log_probs, tokens, parts, count,
    VOCAB: tl.constexpr, SPAN: tl.constexpr, NUM_EXCLUDED: tl.constexpr,
    MAX_PARTS: tl.constexpr, ROWS: tl.constexpr, ALL: tl.constexpr,
):  # fmt: skip
    """Likeliest tokens of a row, best first; of equal ones, the lowest first.

    All are in the spans with the largest maxima. `ROWS` and `ALL` are powers of two, at
    least the numbers of candidates and of spans.
    """
    num_spans = tl.cdiv(VOCAB, SPAN)
    part, is_part = tl.arange(0, MAX_PARTS), tl.arange(0, MAX_PARTS) < parts
    part_sums = sums + 2 * (tl.program_id(0) * parts + part)
    part_largest = tl.load(part_sums, is_part, float("-inf"))
    total = tl.load(part_sums + 1, is_part, 0.0)
    largest = tl.max(part_largest)
    shift = tl.where(largest == float("-inf"), 0.0, largest)
    log_sum = shift + tl.log(tl.sum(total * tl.exp(part_largest - shift)))

    place, span = tl.arange(0, ROWS), tl.arange(0, ALL)
    is_left = span < num_spans
    found = tl.load(maxima + tl.program_id(0) * num_spans + span, is_left, 0.0)
    chosen = tl.full((ROWS,), VOCAB, tl.int32)  # further rows have no logits
    for number in range(count):
        best = tl.max(tl.where(is_left, found, float("-inf")))
        first = tl.min(tl.where(is_left & (found == best), span, num_spans - 1))
        chosen = tl.where(place == number, first, chosen)
        is_left = is_left & (span != first)

    column, _, value = _spans(logits, excluded, chosen, NUM_EXCLUDED, VOCAB, SPAN)
    is_free = column < VOCAB
    for number in range(count):
        best = tl.max(tl.where(is_free, value, float("-inf")))
        first = tl.min(tl.where(is_free & (value == best), column, VOCAB - 1))
        own = tl.program_id(0) * count + number
        tl.store(log_probs + own, best - log_sum)
        tl.store(tokens + own, first)
        is_free = is_free & (column != first)


@triton.jit
def _spans(logits, excluded, span, NUM_EXCLUDED, VOCAB, SPAN):
    """Logits of some spans of the program's row, -inf beyond the vocabulary.

    Also returns their columns, and the logits with -inf where a token is excluded.
    """
    column = span[:, None] * SPAN + tl.arange(0, SPAN)[None, :]
    own = logits + tl.program_id(0).to(tl.int64) * VOCAB
    value = tl.load(own + column, column < VOCAB, float("-inf")).to(tl.float32)
    allowed = value
    for number in tl.static_range(NUM_EXCLUDED):
        is_excluded = column == tl.load(excluded + number)
        allowed = tl.where(is_excluded, float("-inf"), allowed)
    return column, value, allowed


def launch_fault() -> str | None:
    """Return why kernels cannot run on the current GPU; None if they can."""
    faults = (ImportError, OSError, RuntimeError, SubprocessError, triton.TritonError)
    try:
        column_sums(torch.zeros(1, 16, device="cuda"))
    except faults as error:
        return str(error).partition("\n")[0]
    return None
