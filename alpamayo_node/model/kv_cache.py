# SPDX-License-Identifier: Apache-2.0
"""
Hold the keys and values of all layers once, with room for the expert's own directly behind.

Per layer there is one buffer of `max_rows + n_own` rows per head, allocated when the expert is
built. Of a loaded context of S rows with P rows of left padding:

    rows [0, P)      [P, S)      [S, S + n_own)              the rest
         hidden      context     own, new at every step      never read

Attention reads the view [P, S + n_own). What is hidden lies outside of it, so there is no mask to
build, nothing is copied or concatenated, and NaN in a hidden row cannot reach the result. (A
device whose program is compiled once for all S has to write its own rows at a fixed place, the end
of the buffer, and to mask the gap in between; the set of rows attended to is the same.)

Values are held transposed, (D, rows), as `attention` multiplies them.

Axes: G key-value heads, D head channels.
"""

import torch

_STRIDE_PADDING = 32
"""Keeps rows of values from lying a power of two apart, where they would evict each other."""


class KvCache:
    """Buffers of all layers, and the window of rows that the loaded context opens."""

    def __init__(
        self,
        *,
        n_layers: int,
        n_kv_heads: int,
        head_dim: int,
        max_rows: int,
        n_own: int,
        dtype: torch.dtype,
    ) -> None:
        """
        Reserve memory; pages that no context reaches are never touched.

        :param max_rows: largest S
        :param n_own: rows of the expert's own tokens
        :param dtype: of keys and values
        """
        n_all = max_rows + n_own
        keys_shape = (n_kv_heads, n_all, head_dim)
        values_shape = (n_kv_heads, head_dim, n_all + _STRIDE_PADDING)
        self._layers = [
            (torch.empty(keys_shape, dtype=dtype), torch.empty(values_shape, dtype=dtype))
            for _ in range(n_layers)
        ]
        self._n_own = n_own
        self._left_pad = 0
        self._n_rows = 0

    def set_window(self, n_rows: int, left_pad: int) -> None:
        """
        Choose which rows belong to the context.

        :param n_rows: S
        :param left_pad: P, rows at the beginning that are hidden
        """
        self._n_rows = n_rows
        self._left_pad = left_pad

    def load(self, i_layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """
        Copy the visible rows of a context's layer; other dtypes are converted.

        :param i_layer: index of the layer
        :param keys: (G, S, D), rotated
        :param values: (G, S, D)
        """
        window = slice(self._left_pad, self._n_rows)
        held_keys, held_values = self._layers[i_layer]
        held_keys[:, window].copy_(keys[:, window])
        held_values[:, :, window].copy_(values[:, window].transpose(1, 2))

    def store_own(self, i_layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """
        Write the expert's own rows of this step.

        :param i_layer: index of the layer
        :param keys: (n_own, G, D), rotated
        :param values: (n_own, G, D)
        """
        window = slice(self._n_rows, self._n_rows + self._n_own)
        held_keys, held_values = self._layers[i_layer]
        held_keys[:, window].copy_(keys.transpose(0, 1))
        held_values[:, :, window].copy_(values.permute(1, 2, 0))

    def visible(self, i_layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """
        Rows that attention reads.

        :param i_layer: index of the layer
        :return: keys (G, T, D) and values (G, D, T), views of T rows
        """
        window = slice(self._left_pad, self._n_rows + self._n_own)
        keys, values = self._layers[i_layer]
        return keys[:, window], values[:, :, window]
