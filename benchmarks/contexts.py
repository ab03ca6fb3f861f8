# SPDX-License-Identifier: Apache-2.0
"""
Contexts of random rows that are drawn when they are asked for, so that they take no memory.

Axes: G key-value heads, S context rows, D head channels.
"""

import torch

from alpamayo_node.contracts import KvShape
from alpamayo_node.model.config import ModelConfig


class DrawnContext:
    """Standard normal keys and values, the same at every call."""

    def __init__(self, config: ModelConfig, n_rows: int, rope_delta: int) -> None:
        """
        Choose the extent.

        :param config: of the expert that will load it
        :param n_rows: S
        :param rope_delta: position minus row index after the prompt
        """
        self.shape = KvShape(
            n_layers=config.expert.n_layers,
            n_kv_heads=config.expert.n_kv_heads,
            head_dim=config.expert.head_dim,
            n_rows=n_rows,
            left_pad=0,
            rope_delta=rope_delta,
            dtype='bfloat16',
        )

    def layer(self, i_layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """
        Draw one layer.

        :param i_layer: index of the layer, which is the seed
        :return: keys and values, (G, S, D) bfloat16
        """
        shape = self.shape
        size = (shape.n_kv_heads, shape.n_rows, shape.head_dim)
        generator = torch.Generator().manual_seed(i_layer)
        keys = torch.randn(size, generator=generator).to(torch.bfloat16)
        values = torch.randn(size, generator=generator).to(torch.bfloat16)
        return keys, values

    def close(self) -> None:
        """Do nothing: there is no file behind it."""
