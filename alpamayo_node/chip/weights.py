# SPDX-License-Identifier: Apache-2.0
"""
Bring a layer's weights onto the chip: fused, transposed, tilised, in their number formats.

A checkpoint stores [out, in]; the chip multiplies by [in, out]. Query, key and value weights form
one matrix, in this order. Norm weights are rows of bf16.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import ttnn

from alpamayo_node.chip import formats
from alpamayo_node.chip.options import WeightDtypes
from alpamayo_node.chip.weight_cache import WeightCache
from alpamayo_node.model.checkpoint import EXPERT
from alpamayo_node.model.checkpoint import Checkpoint
from alpamayo_node.model.checkpoint import layer_prefix


@dataclass(frozen=True)
class LayerWeights:
    """Device tensors of one layer; H hidden, Q and K widths of all query and key heads."""

    input_norm: ttnn.Tensor
    """(1, 1, 1, H)"""
    qkv: ttnn.Tensor
    """(H, Q + 2 K)"""
    q_norm: ttnn.Tensor
    """(1, 1, 1, D)"""
    k_norm: ttnn.Tensor
    o: ttnn.Tensor
    """(Q, H)"""
    mlp_norm: ttnn.Tensor
    gate: ttnn.Tensor
    """(H, intermediate)"""
    up: ttnn.Tensor
    down: ttnn.Tensor
    """(intermediate, H)"""


def load_layer(
    checkpoint: Checkpoint,
    i_layer: int,
    dtypes: WeightDtypes,
    cache: WeightCache,
    device: ttnn.Device,
) -> LayerWeights:
    """
    Load one layer, from the cache where it can.

    :param checkpoint: opened
    :param i_layer: index of the layer
    :param dtypes: of the matrices
    :param cache: of tilised tensors
    :param device: the chip
    :return: the layer on the chip
    :raises CheckpointError: a file has changed since the checkpoint was opened
    """
    prefix = layer_prefix(i_layer)

    def norm(name: str) -> ttnn.Tensor:
        return _put(cache, device, f'L{i_layer}.{name}', 'bf16', lambda: _row(read(name)))

    def matrix(name: str, dtype: str, *parts: str) -> ttnn.Tensor:
        return _put(cache, device, f'L{i_layer}.{name}', dtype, lambda: _fuse(read, parts))

    def read(name: str) -> torch.Tensor:
        return checkpoint.get(f'{prefix}{name}.weight')

    return LayerWeights(
        input_norm=norm('input_layernorm'),
        qkv=matrix('qkv', dtypes.qkv, *(f'self_attn.{name}_proj' for name in ('q', 'k', 'v'))),
        q_norm=norm('self_attn.q_norm'),
        k_norm=norm('self_attn.k_norm'),
        o=matrix('o', dtypes.o, 'self_attn.o_proj'),
        mlp_norm=norm('post_attention_layernorm'),
        gate=matrix('gate', dtypes.gate, 'mlp.gate_proj'),
        up=matrix('up', dtypes.up, 'mlp.up_proj'),
        down=matrix('down', dtypes.down, 'mlp.down_proj'),
    )


def load_final_norm(
    checkpoint: Checkpoint, cache: WeightCache, device: ttnn.Device
) -> ttnn.Tensor:
    """
    Load the norm behind the last layer.

    :param checkpoint: opened
    :param cache: of tilised tensors
    :param device: the chip
    :return: (1, 1, 1, H)
    :raises CheckpointError: a file has changed since the checkpoint was opened
    """
    name = EXPERT + 'norm.weight'
    return _put(cache, device, 'norm', 'bf16', lambda: _row(checkpoint.get(name)))


def _put(
    cache: WeightCache,
    device: ttnn.Device,
    name: str,
    dtype: str,
    make: Callable[[], torch.Tensor],
) -> ttnn.Tensor:
    host = cache.get(name, dtype, lambda: formats.to_host_tile(make(), dtype))
    return formats.to_device(host, device)


def _row(norm: torch.Tensor) -> torch.Tensor:
    return norm.reshape(1, 1, 1, -1)


def _fuse(read: Callable[[str], torch.Tensor], parts: tuple[str, ...]) -> torch.Tensor:
    stacked = read(parts[0]) if len(parts) == 1 else torch.cat([read(part) for part in parts])
    return stacked.T.contiguous()
