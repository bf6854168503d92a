"""What the kernels of training read, field by field as in their C."""

import ctypes
from ctypes import c_float, c_int, c_int64, c_uint32, c_void_p


class PanelsFields(ctypes.Structure):
    """`Panels` of bf16.h."""

    _fields_ = [
        ("at", c_void_p),
        ("rows", c_int64),
    ]


class DropoutRateFields(ctypes.Structure):
    """`DropoutRate` of dropout.h."""

    _fields_ = [
        ("num_dropped", c_uint32),
        ("scale", c_float),
    ]


class MaskDrawFields(ctypes.Structure):
    """`MaskDraw` of dropout.h."""

    _fields_ = [
        ("seeds", c_uint32 * 2),
        ("rate", DropoutRateFields),
    ]


class AttentionFields(ctypes.Structure):
    """`Attention` of attention.c."""

    _fields_ = [
        ("sentences", c_int64),
        ("heads", c_int64),
        ("queries", c_int64),
        ("keys", c_int64),
        ("d_k", c_int64),
        ("d_v", c_int64),
        ("mask_by_sentence", c_int64),
        ("mask_by_query", c_int64),
        ("scale", c_float),
        ("mask", c_void_p),
        ("query", c_void_p),
        ("key_value", c_void_p),
        ("weights", c_void_p),
        ("output", c_void_p),
        ("of_output", c_void_p),
        ("of_query", c_void_p),
        ("of_key_value", c_void_p),
        ("bf16_output", PanelsFields),
        ("bf16_of_query", PanelsFields),
        ("bf16_of_key_value", PanelsFields),
        ("first_sentence", c_int64),
        ("dropout", MaskDrawFields),
        ("room", c_void_p),
    ]


class MaskingFields(ctypes.Structure):
    """`Masking` of dropout.h."""

    _fields_ = [
        ("x", c_void_p),
        ("y", c_void_p),
        ("kept", c_void_p),
        ("count", c_int64),
        ("width", c_int64),
        ("block", c_int64),
        ("first_block", c_int64),
        ("draw", MaskDrawFields),
    ]


class OrthogonalizationFields(ctypes.Structure):
    """`Orthogonalization` of orthogonal.c."""

    _fields_ = [
        ("count", c_int64),
        ("rows", c_int64),
        ("columns", c_int64),
        ("steps", c_int64),
        ("factors", c_void_p),
        ("least_norm", c_float),
        ("matrices", c_void_p),
        ("room", c_void_p),
    ]


class CrossEntropyFields(ctypes.Structure):
    """`CrossEntropy` of cross_entropy.c."""

    _fields_ = [
        ("rows", c_int64),
        ("vocab", c_int64),
        ("logits", c_void_p),
        ("bf16_logits", c_void_p),
        ("room", c_void_p),
        ("targets", c_void_p),
        ("smoothing", c_float),
        ("smoothed", c_void_p),
        ("negative_log_likelihood", c_void_p),
    ]


class SeenFields(ctypes.Structure):
    """`Seen` of stack.c."""

    _fields_ = [
        ("at", c_void_p),
        ("by_sentence", c_int64),
        ("by_query", c_int64),
    ]


class StackFields(ctypes.Structure):
    """`Stack` of stack.c."""

    _fields_ = [
        ("layers", c_int64),
        ("sentences", c_int64),
        ("length", c_int64),
        ("d_model", c_int64),
        ("d_ff", c_int64),
        ("heads", c_int64),
        ("d_k", c_int64),
        ("d_v", c_int64),
        ("memory_length", c_int64),
        ("kept_layers", c_int64),
        ("parts", c_int64),
        ("first_row", c_int64),
        ("is_bf16", c_int64),
        ("epsilon", c_float),
        ("scale", c_float),
        ("dropout", DropoutRateFields),
        ("attention_dropout", DropoutRateFields),
        ("relu_dropout", DropoutRateFields),
        ("self_mask", SeenFields),
        ("memory_mask", SeenFields),
        ("seeds", c_void_p),
        ("weights", c_void_p),
        ("gradients", c_void_p),
        ("x", c_void_p),
        ("memory", c_void_p),
        ("y", c_void_p),
        ("states", c_void_p),
        ("of_y", c_void_p),
        ("of_x", c_void_p),
        ("of_memory", c_void_p),
        ("room", c_void_p),
        ("num_threads", c_int),
    ]


class ResidualFields(ctypes.Structure):
    """`Residual` of residual.c."""

    _fields_ = [
        ("rows", c_int64),
        ("width", c_int64),
        ("epsilon", c_float),
        ("x", c_void_p),
        ("gain", c_void_p),
        ("bias", c_void_p),
        ("normalized", c_void_p),
        ("inverse_deviation", c_void_p),
        ("y", c_void_p),
        ("bf16_y", PanelsFields),
        ("of_y", c_void_p),
        ("of_x", c_void_p),
        ("of_gain", c_void_p),
        ("of_bias", c_void_p),
        ("of_groups", c_void_p),
        ("bf16_of_s", PanelsFields),
        ("masking", MaskingFields),
    ]


class UnitLossFields(ctypes.Structure):
    """`UnitLoss` of unit_loss.c."""

    _fields_ = [
        ("rows", c_int64),
        ("vocab", c_int64),
        ("width", c_int64),
        ("states", c_void_p),
        ("weight", c_void_p),
        ("targets", c_void_p),
        ("smoothing", c_float),
        ("smoothed", c_void_p),
        ("negative_log_likelihood", c_void_p),
        ("of_states", c_void_p),
        ("of_weight", c_void_p),
        ("is_added", c_int64),
        ("forth", c_void_p),
        ("back", c_void_p),
        ("room", c_void_p),
    ]
