"""What the kernels of training read, field by field as in their C."""

import ctypes
from ctypes import c_float, c_int64, c_uint32, c_void_p


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
        ("room", c_void_p),
    ]


class MaskingFields(ctypes.Structure):
    """`Masking` of dropout.c."""

    _fields_ = [
        ("x", c_void_p),
        ("y", c_void_p),
        ("kept", c_void_p),
        ("count", c_int64),
        ("seeds", c_uint32 * 2),
        ("num_dropped", c_uint32),
        ("scale", c_float),
    ]
