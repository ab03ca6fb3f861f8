# SPDX-License-Identifier: Apache-2.0
"""
The expert's network: its layers, its two projections and its cache.

Axes: N waypoints, A action channels (2: acceleration, curvature; normalised), H hidden channels.
"""

from collections.abc import Callable

import torch

from alpamayo_node.errors import Cancelled
from alpamayo_node.model.action_proj import ActionInProj
from alpamayo_node.model.action_proj import ActionOutProj
from alpamayo_node.model.checkpoint import EXPERT
from alpamayo_node.model.checkpoint import Checkpoint
from alpamayo_node.model.kv_cache import KvCache
from alpamayo_node.model.layers import DecoderLayer
from alpamayo_node.model.layers import rms_norm
from alpamayo_node.model.rope import expert_positions
from alpamayo_node.model.rope import rope_tables


class ExpertNetwork:
    """Evaluates the velocity field that a context defines."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        dtype: torch.dtype,
        buffer_rounding: str,
        max_rows: int,
        progress: Callable[[str], None],
        should_stop: Callable[[], bool],
    ) -> None:
        """
        Read all weights, and reserve the cache.

        :param checkpoint: opened
        :param dtype: of linear layers, attention and cache
        :param buffer_rounding: see `buffers`
        :param max_rows: largest context
        :param progress: receives progress in words
        :param should_stop: polled between layers
        :raises CheckpointError: a file has changed since the checkpoint was opened
        :raises Cancelled: `should_stop` became true
        """
        text = checkpoint.config.expert
        self._text = text
        self._n_tokens = checkpoint.config.action_space.n_waypoints
        self.in_proj = ActionInProj(checkpoint, buffer_rounding=buffer_rounding)
        self._norm = checkpoint.get(EXPERT + 'norm.weight').float()
        self._out_proj = ActionOutProj(checkpoint)
        self.layers: list[DecoderLayer] = []
        for i_layer in range(text.n_layers):
            if should_stop():
                raise Cancelled('stopped while loading the weights')
            progress(f'loading layer {i_layer + 1} of {text.n_layers}')
            layer = DecoderLayer(checkpoint, i_layer, n_tokens=self._n_tokens, dtype=dtype)
            self.layers.append(layer)
        self.cache = KvCache(
            n_layers=text.n_layers,
            n_kv_heads=text.n_kv_heads,
            head_dim=text.head_dim,
            max_rows=max_rows,
            n_own=self._n_tokens,
            dtype=dtype,
        )
        self._rope = self._tabulate(0, 0)

    def set_window(self, n_rows: int, left_pad: int, rope_delta: int) -> None:
        """
        Choose the visible rows of the cache and the positions of the own tokens.

        :param n_rows: S, rows of the context
        :param left_pad: hidden rows at its beginning
        :param rope_delta: position minus row index for tokens after the prompt
        """
        self.cache.set_window(n_rows, left_pad)
        self._rope = self._tabulate(n_rows, rope_delta)

    def run_layer(self, i_layer: int, x: torch.Tensor) -> torch.Tensor:
        """
        Run one layer on the context in the cache.

        :param i_layer: index of the layer
        :param x: (N, H) float32, left unchanged
        :return: (N, H) float32
        """
        return self.layers[i_layer](x, self._rope, self.cache)

    def velocity(self, x: torch.Tensor, t: float, should_stop: Callable[[], bool]) -> torch.Tensor:
        """
        Run the whole network.

        :param x: (N, A) float32
        :param t: time of the flow, in [0, 1)
        :param should_stop: polled in every layer
        :return: (N, A) float32
        :raises Cancelled: `should_stop` became true
        """
        h = self.in_proj(x, t)
        for i_layer in range(len(self.layers)):
            if should_stop():
                raise Cancelled('stopped while sampling')
            h = self.run_layer(i_layer, h)
        return self._out_proj(self.normalise(h))

    def normalise(self, h: torch.Tensor) -> torch.Tensor:
        """
        Apply the norm behind the last layer.

        :param h: (N, H) float32
        :return: (N, H) float32
        """
        return rms_norm(h, self._norm, self._text.rms_eps)

    def _tabulate(self, n_rows: int, rope_delta: int) -> tuple[torch.Tensor, torch.Tensor]:
        positions = expert_positions(n_rows, rope_delta, self._n_tokens)
        return rope_tables(positions, self._text.head_dim, self._text.rope_theta)
