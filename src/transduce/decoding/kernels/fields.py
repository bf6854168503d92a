"""What the kernels read, field by field as in their C."""

import ctypes
from ctypes import POINTER, c_double, c_float, c_int64, c_void_p


class LinearFields(ctypes.Structure):
    """`Linear` of linear.h."""

    _fields_ = [
        ("outputs", c_int64),
        ("inputs", c_int64),
        ("packed", c_void_p),
        ("scales", c_void_p),
        ("sums", c_void_p),
        ("bias", c_void_p),
    ]


class NormFields(ctypes.Structure):
    """`Norm` of transformer.h."""

    _fields_ = [("weight", c_void_p), ("bias", c_void_p)]


class LayerFields(ctypes.Structure):
    """`Layer` of transformer.h."""

    _fields_ = [
        ("query_key_value", LinearFields),
        ("own_output", LinearFields),
        ("memory_query", LinearFields),
        ("memory_key_value", LinearFields),
        ("memory_output", LinearFields),
        ("inner", LinearFields),
        ("outer", LinearFields),
        ("after_own", NormFields),
        ("after_memory", NormFields),
        ("after_feed_forward", NormFields),
    ]


class StackFields(ctypes.Structure):
    """`Stack` of transformer.h."""

    _fields_ = [
        ("num_layers", c_int64),
        ("d_model", c_int64),
        ("d_ff", c_int64),
        ("num_heads", c_int64),
        ("d_k", c_int64),
        ("d_v", c_int64),
        ("is_pre_norm", c_int64),
        ("is_silu", c_int64),
        ("norm_epsilon", c_float),
        ("layers", POINTER(LayerFields)),
        ("final", NormFields),
    ]


class EmbeddingFields(ctypes.Structure):
    """`Embedding` of transformer.h."""

    _fields_ = [("tokens", c_void_p), ("vocab", c_int64), ("scale", c_float)]


class EncoderFields(ctypes.Structure):
    """`Encoder` of encoder.c."""

    _fields_ = [
        ("stack", StackFields),
        ("embedding", EmbeddingFields),
        ("neighbourhood", c_int64),
    ]


class SourceFields(ctypes.Structure):
    """`Sources` of encoder.c."""

    _fields_ = [
        ("sentences", c_int64),
        ("source", c_int64),
        ("ids", c_void_p),
        ("mask", c_void_p),
    ]


class DecoderFields(ctypes.Structure):
    """`Decoder` of decoder.h."""

    _fields_ = [
        ("stack", StackFields),
        ("embedding", EmbeddingFields),
        ("neighbourhood", c_int64),
        ("output", LinearFields),
    ]


class StateFields(ctypes.Structure):
    """`State` of decoder.h."""

    _fields_ = [
        ("sentences", c_int64),
        ("group", c_int64),
        ("room", c_int64),
        ("source", c_int64),
        ("past", c_void_p),
        ("lengths", c_void_p),
        ("places", c_void_p),
        ("memory_mask", c_void_p),
        ("attention", c_void_p),
        ("layers", POINTER(c_int64)),
    ]


class NeedsFields(ctypes.Structure):
    """`Needs` of gathering.c."""

    _fields_ = [("slots", c_int64), ("source", c_int64), ("length", c_int64)]


class CandidateSearchFields(ctypes.Structure):
    """`CandidateSearch` of candidates.h."""

    _fields_ = [
        ("sentences", c_int64),
        ("group", c_int64),
        ("vocab", c_int64),
        ("totals", c_void_p),
        ("mask", c_void_p),
        ("never", c_void_p),
        ("num_never", c_int64),
        ("forced", c_void_p),
        ("diversity", c_double),
        ("count", c_int64),
        ("found_totals", c_void_p),
        ("found_parents", c_void_p),
        ("found_tokens", c_void_p),
    ]


class StepsFields(ctypes.Structure):
    """`Steps` of steps.h."""

    _fields_ = [
        ("decoder", c_void_p),
        ("state", c_void_p),
        ("positions", c_void_p),
        ("beams", c_void_p),
        ("candidates", c_void_p),
        ("is_greedy", c_int64),
        ("has_prefixes", c_int64),
        ("most", c_int64),
        ("few", c_int64),
        ("taken", c_int64),
    ]


class EndFields(ctypes.Structure):
    """`End` of beams.h."""

    _fields_ = [
        ("score", c_double),
        ("log_probability", c_double),
        ("num_steps", c_int64),
        ("last", c_int64),
        ("is_finished", c_int64),
    ]


class BeamFields(ctypes.Structure):
    """`Beam` of beams.h."""

    _fields_ = [
        ("max_length", c_int64),
        ("last_divisor", c_double),
        ("prefix_length", c_int64),
        ("prefix", c_void_p),
        ("num_steps", c_int64),
        ("num_ends", c_int64),
        ("num_finished", c_int64),
        ("totals", c_void_p),
        ("parents", c_void_p),
        ("tokens", c_void_p),
        ("ends", c_void_p),
    ]


class BeamsFields(ctypes.Structure):
    """`Beams` of beams.h."""

    _fields_ = [
        ("sentences", c_int64),
        ("size", c_int64),
        ("eos", c_int64),
        ("min_length", c_int64),
        ("num_best", c_int64),
        ("end_candidates", c_int64),
        ("enough_ends", c_int64),
        ("cut_ones_compete", c_int64),
        ("coverage_penalty", c_double),
        ("divisors", c_void_p),
        ("live", c_void_p),
        ("totals", c_void_p),
        ("rows", c_void_p),
        ("tokens", c_void_p),
        ("forced", c_void_p),
        ("coverages", c_void_p),
    ]
