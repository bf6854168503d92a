"""Folder of Marian's own, with random weights, and what Marian computes of it."""

import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece

from marian_folder import write_sentencepiece
from transduce.grammar.corpus import Grammar

WIDTH, D_FF, HEADS = 16, 24, 2
FLOAT = np.float32
OPTIONS: dict[str, object] = {
    "type": "transformer", "dim-emb": WIDTH, "transformer-dim-ffn": D_FF,
    "transformer-heads": HEADS, "enc-depth": 2, "dec-depth": 1,
    "transformer-preprocess": '""', "transformer-postprocess": "dan",
    "transformer-postprocess-top": '""', "transformer-ffn-activation": "swish",
    "transformer-decoder-autoreg": "self-attention", "transformer-ffn-depth": 2,
    "transformer-decoder-ffn-depth": 0, "tied-embeddings-all": "true",
    "tied-embeddings": "false", "tied-embeddings-src": "false",
    "transformer-tied-layers": "\n  []", "input-types": "\n  []", "right-left": "false",
    "lemma-dependency": '""', "version": "v1.12.0 of a test",
}  # fmt: skip
PRE_NORM = {
    "transformer-preprocess": "n", "transformer-postprocess": "da",
    "transformer-postprocess-top": "n", "transformer-ffn-activation": "relu",
}  # fmt: skip
SSRU = {"transformer-decoder-autoreg": "rnn", "dec-cell": "ssru"}
SHARED = ["vocab.spm", "vocab.spm"]
TWO = ["source.spm", "target.spm"]
UNTIED = {"tied-embeddings-all": "false"}
VARIANTS = {
    "tied": (SHARED, {}),
    "tied, norms first": (SHARED, PRE_NORM),
    "sources tied": (SHARED, {**UNTIED, "tied-embeddings-src": "true"}),
    "targets tied": (TWO, {**UNTIED, "tied-embeddings": "true"}),
    "nothing tied": (TWO, UNTIED),
    "nothing tied, norms first": (TWO, {**UNTIED, **PRE_NORM}),
    "nothing tied, one vocabulary": (SHARED, UNTIED),
    "a recurrent decoder": (SHARED, SSRU),
    "a recurrent decoder, norms first": (
        SHARED,
        {**SSRU, **PRE_NORM},
    ),
}
"""Vocabularies and options of models that Marian can have."""
TRAINER = {"bos_id": -1, "eos_id": 0, "unk_id": 1}


def write_vocabularies(folder: Path, names: list[str], **trainer: object) -> None:
    """Learn a model of SentencePiece for each name, as Marian does."""
    for number, name in enumerate(names):
        pairs = Grammar.built_in().training_sentences(seed=number + 1)
        texts = [next(pairs) for _ in range(200)]
        sides = [t.target if number else t.source for t in texts]
        write_sentencepiece(sides, folder / name, **{**TRAINER, **trainer})


def write_folder(
    folder: Path,
    vocabularies: list[str],
    seed: int = 0,
    trainer: dict[str, object] | None = None,
    **options: object,
) -> dict[str, np.ndarray]:
    """Write model.npz and its vocabularies, source first; return the arrays."""
    folder.mkdir(parents=True, exist_ok=True)
    write_vocabularies(folder, list(dict.fromkeys(vocabularies)), **(trainer or {}))
    sizes = [
        sentencepiece.SentencePieceProcessor(model_file=str(folder / name)).vocab_size()
        for name in (vocabularies[0], vocabularies[-1])
    ]
    changed = {name.replace("_", "-"): value for name, value in options.items()}
    merged = {**OPTIONS, **changed}
    arrays = random_arrays(merged, sizes, np.random.default_rng(seed))
    write_npz(folder / "model.npz", arrays, merged)
    return arrays


def write_npz(path: Path, arrays: dict[str, Any], options: dict[str, object]) -> None:
    text = "".join(f"{name}: {value}\n" for name, value in options.items()) + "\0"
    stored = np.frombuffer(text.encode(), dtype=np.int8)
    np.savez(path, **{**arrays, "special:model.yml": stored})


INTGEMM8, INTGEMM16, FP32, TEXT = 0x4101, 0x4102, 0x0404, 0x0101
"""Numbers of types in Marian's binary format."""


def write_binary(
    path: Path,
    arrays: dict[str, np.ndarray],
    options: dict[str, object],
    kind: int = INTGEMM8,
) -> dict[str, np.ndarray]:
    """Write weights as `marian-conv --gemm-type` does; return what they stand for."""
    text = "".join(f"{name}: {value}\n" for name, value in options.items()) + "\0"
    items = {"special:model.yml": (TEXT, (len(text.encode()),), text.encode())}
    rounded = {}
    for name, array in arrays.items():
        is_matrix = "Wemb" in name or re.search("_W.?$", name)
        stored = quantized(array, kind) if is_matrix and kind != FP32 else None
        content, rounded[name] = stored or (array.tobytes(), array)
        if stored and "Wemb" not in name:
            content = quantized(array.T, kind)[0]
        items[name] = (kind if stored else FP32, array.shape, content)
    path.write_bytes(binary(items))
    return rounded


def quantized(array: np.ndarray, kind: int) -> tuple[bytes, np.ndarray]:
    """Content of a quantized matrix, and the numbers that it stands for."""
    limit, dtype = (127, np.int8) if kind == INTGEMM8 else (None, np.int16)
    scale = FLOAT(limit / np.abs(array).max() if limit else 1_024)
    numbers = np.round(array * scale).astype(dtype)
    return numbers.tobytes() + scale.tobytes(), numbers * (FLOAT(1) / scale)


def binary(
    items: dict[str, tuple[int, tuple[int, ...], bytes]], version: int = 1
) -> bytes:
    """Binary file of types, shapes and contents."""
    padded = [content + b"\0" * (-len(content) % 256) for *_, content in items.values()]
    headers = [
        struct.pack("<4Q", len(name.encode()) + 1, kind, len(shape), len(content))
        for (name, (kind, shape, _)), content in zip(items.items(), padded, strict=True)
    ]
    names = [name.encode() + b"\0" for name in items]
    shapes = [np.array(shape, "<i4").tobytes() for _, shape, _ in items.values()]
    start = struct.pack("<2Q", version, len(items)) + b"".join(
        [*headers, *names, *shapes]
    )
    padding = bytes(-(len(start) + 8) % 256)
    return start + struct.pack("<Q", len(padding)) + padding + b"".join(padded)


def binary_lexicon(first: int, lists: list[list[int]]) -> bytes:
    """Binary shortlist with the targets of each source row."""
    ends = [0, *np.cumsum([len(each) for each in lists]).tolist()]
    numbers = (first, 100, len(ends), ends[-1], *ends)
    entries = np.array([i for each in lists for i in sorted(each)], "<u4").tobytes()
    content = struct.pack(f"<{len(numbers)}Q", *numbers) + entries
    checksum = 0
    for number in np.frombuffer(content, "<u8", len(content) // 8).tolist():
        mixed = number + 0x9E3779B9 + (checksum << 6) + (checksum >> 2)
        checksum ^= mixed % 2**64
    return struct.pack("<2Q", 0xF11A48D5013417F5, checksum) + content


def random_arrays(
    options: dict[str, object], sizes: list[int], random: np.random.Generator
) -> dict[str, np.ndarray]:
    ending = "_pre" if options["transformer-preprocess"] == "n" else ""
    arrays: dict[str, np.ndarray] = {}

    def add(name: str, *shape: int, mean: float = 0.0) -> None:
        arrays[name] = (mean + 0.4 * random.normal(size=shape)).astype(FLOAT)

    def add_norm(name: str, ending: str = ending) -> None:
        add(f"{name}_ln_scale{ending}", 1, WIDTH, mean=1.0)
        add(f"{name}_ln_bias{ending}", 1, WIDTH)

    for name, shape in embedding_shapes(options, sizes).items():
        add(name, *shape)
    for stack, depth in (("encoder", 2), ("decoder", 1)):
        for layer in range(1, depth + 1):
            is_recurrent = stack == "decoder" and options.get("dec-cell") == "ssru"
            add_layer(f"{stack}_l{layer}", add, add_norm, is_recurrent)
            if is_recurrent:
                add_norm(f"{stack}_l{layer}_rnn" + ("" if ending else "_ffn"))
        if ending:
            add_norm(f"{stack}_top", "")
    return arrays


def add_layer(
    prefix: str, add: Callable, add_norm: Callable, is_recurrent: bool
) -> None:
    kinds = ["self", "context"] if "decoder" in prefix else ["self"]
    if is_recurrent:
        kinds.remove("self")
        for name in ("W", "Wf"):
            add(f"{prefix}_rnn_{name}", WIDTH, WIDTH)
        add(f"{prefix}_rnn_bf", 1, WIDTH)
    for kind in kinds:
        for letter in "qkvo":
            add(f"{prefix}_{kind}_W{letter}", WIDTH, WIDTH)
            add(f"{prefix}_{kind}_b{letter}", 1, WIDTH)
        add_norm(f"{prefix}_{kind}_Wo")
    for number, shape in (("1", (WIDTH, D_FF)), ("2", (D_FF, WIDTH))):
        add(f"{prefix}_ffn_W{number}", *shape)
        add(f"{prefix}_ffn_b{number}", 1, shape[1])
    add_norm(f"{prefix}_ffn_ffn")


def embedding_shapes(
    options: dict[str, object], sizes: list[int]
) -> dict[str, tuple[int, int]]:
    """Shapes of embeddings and of the output, by what is tied."""
    tied = {name for name in options if options[name] == "true"}
    shapes = {"Wemb": (sizes[1], WIDTH)}
    if not tied & {"tied-embeddings-all", "tied-embeddings-src"}:
        shapes = {
            "encoder_Wemb": (sizes[0], WIDTH),
            "decoder_Wemb": (sizes[1], WIDTH),
        }
    if not tied & {"tied-embeddings-all", "tied-embeddings"}:
        shapes["decoder_ff_logit_out_Wt"] = (sizes[1], WIDTH)
    return {**shapes, "decoder_ff_logit_out_b": (1, sizes[1])}


class Reference:
    """Log-probabilities by Marian's formulas, in double precision."""

    def __init__(self, arrays: dict[str, np.ndarray], *, pre_norm: bool) -> None:
        self.arrays = {name: a.astype(np.float64) for name, a in arrays.items()}
        self.pre_norm = pre_norm

    def log_probs(self, source: list[int], target: list[int]) -> np.ndarray:
        """Log-probabilities [target] of target tokens; both sides end with id 0."""
        a = self.arrays
        x = self._embedded(a.get("Wemb", a.get("encoder_Wemb"))[source])
        for layer in (1, 2):
            x = self._layer(f"encoder_l{layer}", x, None, None)
        memory = self._top("encoder", x)
        table = a.get("Wemb", a.get("decoder_Wemb"))
        # The first position has an embedding of zeros.
        shifted = np.concatenate([np.zeros((1, WIDTH)), table[target[:-1]]])
        causal = np.triu(np.full((len(target), len(target)), -1e9), 1)
        y = self._layer("decoder_l1", self._embedded(shifted), causal, memory)
        output = a.get("decoder_ff_logit_out_Wt", table)
        logits = self._top("decoder", y) @ output.T + a["decoder_ff_logit_out_b"]
        logits -= logits.max(axis=-1, keepdims=True)
        logits -= np.log(np.exp(logits).sum(axis=-1, keepdims=True))
        return logits[np.arange(len(target)), target]

    def _embedded(self, rows: np.ndarray) -> np.ndarray:
        half = WIDTH // 2
        rates = 10_000.0 ** -(np.arange(half) / (half - 1))
        angles = np.arange(len(rows))[:, None] * rates
        positions = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
        return rows * np.sqrt(WIDTH) + positions

    def _layer(self, prefix, x, mask, memory) -> np.ndarray:
        if f"{prefix}_rnn_W" in self.arrays:
            norm = f"{prefix}_rnn" + ("" if self.pre_norm else "_ffn")
            x = self._sublayer(norm, x, lambda h: self._recur(f"{prefix}_rnn", h))
        else:
            name = f"{prefix}_self"
            x = self._sublayer(
                f"{name}_Wo", x, lambda q: self._attend(name, q, q, mask)
            )
        if memory is not None:
            across = f"{prefix}_context"
            x = self._sublayer(
                f"{across}_Wo", x, lambda q: self._attend(across, q, memory, None)
            )
        return self._sublayer(f"{prefix}_ffn_ffn", x, lambda h: self._ffn(prefix, h))

    def _sublayer(self, norm, x, function) -> np.ndarray:
        if self.pre_norm:
            return x + function(self._norm(norm, x, "_pre"))
        return self._norm(norm, x + function(x), "")

    def _top(self, stack, x) -> np.ndarray:
        return self._norm(f"{stack}_top", x, "") if self.pre_norm else x

    def _norm(self, name, x, ending) -> np.ndarray:
        centered = x - x.mean(axis=-1, keepdims=True)
        deviation = np.sqrt((centered**2).mean(axis=-1, keepdims=True) + 1e-6)
        scale, bias = (
            self.arrays[f"{name}_ln_{kind}{ending}"] for kind in ("scale", "bias")
        )
        return centered / deviation * scale + bias

    def _affine(self, name, x, letter) -> np.ndarray:
        return x @ self.arrays[f"{name}_W{letter}"] + self.arrays[f"{name}_b{letter}"]

    def _recur(self, name, x) -> np.ndarray:
        """Return the outputs of the cell SSRU of src/rnn/cells.h."""
        a, cell, outputs = self.arrays, np.zeros(WIDTH), []
        for row in x:
            gate = 1 / (1 + np.exp(-(row @ a[f"{name}_Wf"] + a[f"{name}_bf"][0])))
            cell = gate * cell + (1 - gate) * (row @ a[f"{name}_W"])
            outputs.append(np.maximum(cell, 0))
        return np.array(outputs)

    def _ffn(self, prefix, x) -> np.ndarray:
        inner = self._affine(f"{prefix}_ffn", x, "1")
        active = np.maximum(inner, 0) if self.pre_norm else inner / (1 + np.exp(-inner))
        return self._affine(f"{prefix}_ffn", active, "2")

    def _attend(self, name, query, memory, mask) -> np.ndarray:
        def split(rows: np.ndarray) -> np.ndarray:
            return rows.reshape(len(rows), HEADS, -1).transpose(1, 0, 2)

        q = split(self._affine(name, query, "q"))
        k, v = (split(self._affine(name, memory, letter)) for letter in "kv")
        scores = q @ k.transpose(0, 2, 1) / np.sqrt(WIDTH / HEADS)
        if mask is not None:
            scores = scores + mask
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        joined = (weights @ v).transpose(1, 0, 2).reshape(len(query), WIDTH)
        return self._affine(name, joined, "o")
