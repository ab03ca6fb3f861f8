# SPDX-License-Identifier: Apache-2.0
"""
The KV cache in device memory: per layer a key and a value tensor (1, G, Smax, D).

Rows [P, S) hold the context, rows [Smax - n_own, Smax) the expert's own tokens; see `masks`. The
own rows lie at the end, at a multiple of the tile, because a recorded step writes to one place
whatever S is. Buffers are made once, full of zeros, and overwritten in place: a mask cannot undo a
NaN, so no row may ever hold one.

Axes: G key-value heads, S context rows, D head channels.
"""

from collections.abc import Sequence

import torch
import ttnn

from alpamayo_node.chip import formats
from alpamayo_node.chip.options import TILE
from alpamayo_node.errors import ConfigError


class DeviceKvCache:
    """Key and value buffers of all layers, by this process or by a text model in it."""

    def __init__(self, layers: Sequence[tuple[ttnn.Tensor, ttnn.Tensor]], n_own: int) -> None:
        """
        Take buffers that exist.

        :param layers: key and value of each layer, (1, G, Smax, D), all alike: tiled, in DRAM
        :param n_own: rows at the end that are the expert's
        :raises ConfigError: buffers differ in shape or format, or cannot hold the own rows
        """
        self.layers = tuple(layers)
        self.n_own = n_own
        first = self.layers[0][0]
        self.shape = tuple(int(extent) for extent in first.shape)
        self.dtype = first.dtype
        for i_layer, pair in enumerate(self.layers):
            for name, tensor in zip(('key', 'value'), pair, strict=True):
                _require_buffer(f'{name} cache of layer {i_layer}', tensor, self)

    @classmethod
    def allocate(
        cls,
        device: ttnn.Device,
        *,
        n_layers: int,
        n_kv_heads: int,
        head_dim: int,
        cache_rows: int,
        n_own: int,
        dtype: str,
    ) -> 'DeviceKvCache':
        """
        Make buffers of zeros.

        :param device: the chip
        :param cache_rows: Smax
        :param n_own: rows at the end that are the expert's
        :param dtype: 'bf16' or 'bfp8'
        :return: the cache
        :raises ConfigError: rows are no multiple of a tile
        """
        shape = (1, n_kv_heads, cache_rows, head_dim)
        pairs = [
            (formats.zeros(shape, dtype, device), formats.zeros(shape, dtype, device))
            for _ in range(n_layers)
        ]
        return cls(pairs, n_own)

    @property
    def n_rows(self) -> int:
        """Smax."""
        return self.shape[2]

    @property
    def own_row(self) -> int:
        """First of the expert's own rows."""
        return self.n_rows - self.n_own

    def addresses(self) -> tuple[int, ...]:
        """Where the buffers lie; a recorded step is good for these addresses only."""
        return tuple(tensor.buffer_address() for pair in self.layers for tensor in pair)

    def load(
        self, i_layer: int, keys: torch.Tensor, values: torch.Tensor, left_pad: int
    ) -> list[ttnn.Tensor]:
        """
        Overwrite one layer whole: rows of the context as given, all others with zeros.

        :param i_layer: index of the layer
        :param keys: (G, S, D), rotated
        :param values: (G, S, D)
        :param left_pad: P, rows at the beginning that are hidden, whatever they hold
        :return: host tensors, to be kept until the device has been synchronised
        """
        dtype = 'bf16' if self.dtype == ttnn.bfloat16 else 'bfp8'
        kept = []
        for target, rows in zip(self.layers[i_layer], (keys, values), strict=True):
            staged = torch.zeros(self.shape, dtype=torch.bfloat16)
            staged[0, :, left_pad : rows.shape[1]] = rows[:, left_pad:]
            kept.append(formats.overwrite(target, staged, dtype))
        return kept


def _require_buffer(what: str, tensor: ttnn.Tensor, cache: DeviceKvCache) -> None:
    shape = tuple(int(extent) for extent in tensor.shape)
    if shape != cache.shape or tensor.dtype != cache.dtype:
        rule = f'must be {list(cache.shape)} {cache.dtype} like the first'
        raise ConfigError(what, f'{list(shape)} {tensor.dtype}', rule)
    if tensor.dtype not in (ttnn.bfloat16, ttnn.bfloat8_b):
        raise ConfigError(what, tensor.dtype, 'must be bfloat16 or bfloat8_b')
    if tensor.layout != ttnn.TILE_LAYOUT:
        raise ConfigError(what, tensor.layout, 'must be tiled')
    if len(shape) != 4 or shape[0] != 1 or shape[2] % TILE or shape[3] % TILE:
        rule = f'must be (1, heads, rows, head_dim), the last two multiples of {TILE}'
        raise ConfigError(what, list(shape), rule)
    if shape[2] <= cache.n_own or cache.n_own % TILE:
        rule = f'must have more rows than the {cache.n_own} of the expert, a multiple of {TILE}'
        raise ConfigError(what, list(shape), rule)
