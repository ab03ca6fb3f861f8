# SPDX-License-Identifier: Apache-2.0
"""
Refuse a context that does not fit an expert, whatever runs it.

Axes: G key-value heads, S context rows, D head channels.
"""

import torch

from alpamayo_node.contracts import ExpertInfo
from alpamayo_node.contracts import KvShape
from alpamayo_node.errors import Reason
from alpamayo_node.errors import Refusal

CACHE_DTYPES = ('bfloat16', 'float32')


def require_fitting(shape: KvShape, info: ExpertInfo) -> None:
    """
    Check an announced extent.

    :param shape: of the context
    :param info: of the expert
    :raises Refusal: another model's cache, too long, or impossible
    """
    for name in ('n_layers', 'n_kv_heads', 'head_dim'):
        got, expected = getattr(shape, name), getattr(info, name)
        if got != expected:
            _refuse(f'{name} is {got}, the expert has {expected}')
    if not 1 <= shape.n_rows <= info.max_rows:
        _refuse(f'{shape.n_rows} rows, must be 1 to max_rows ({info.max_rows})')
    if not 0 <= shape.left_pad < shape.n_rows:
        _refuse(f'left_pad {shape.left_pad}, must be 0 to {shape.n_rows - 1}')
    if shape.n_rows + shape.rope_delta < 0:
        _refuse(f'rope_delta {shape.rope_delta} puts the expert before position 0')
    if shape.dtype not in CACHE_DTYPES:
        _refuse(f'dtype {shape.dtype!r}, must be one of {", ".join(CACHE_DTYPES)}')


def require_layer_shape(
    i_layer: int, shape: KvShape, keys: torch.Tensor, values: torch.Tensor
) -> None:
    """
    Check one layer as it was read.

    :param i_layer: index of the layer
    :param shape: as announced
    :param keys: must be (G, S, D)
    :param values: alike
    :raises Refusal: they are of another shape
    """
    expected = (shape.n_kv_heads, shape.n_rows, shape.head_dim)
    for name, tensor in (('key', keys), ('value', values)):
        if tuple(tensor.shape) != expected:
            _refuse(f'{name} of layer {i_layer} is {list(tensor.shape)}, not {list(expected)}')


def _refuse(text: str) -> None:
    raise Refusal(Reason.SHAPE_MISMATCH, f'the cache does not fit: {text}')
