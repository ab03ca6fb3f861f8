# SPDX-License-Identifier: Apache-2.0
"""
The inputs of a step that are no weights and no cache: tokens, rope tables and mask.

All are made once, before anything is recorded, and overwritten in place. Between two trajectories
another model's recorded steps may run on the same chip, and memory that was free when those were
recorded is theirs to write; so every trajectory writes tables and mask again, changed or not.
"""

from dataclasses import dataclass

import torch
import ttnn

from alpamayo_node.chip import formats
from alpamayo_node.chip.masks import mask_row
from alpamayo_node.model.config import TextConfig
from alpamayo_node.model.rope import expert_positions
from alpamayo_node.model.rope import rope_tables


@dataclass(frozen=True)
class Window:
    """Which rows of the cache a context fills, and where its rope stands."""

    n_rows: int
    """S."""
    left_pad: int
    rope_delta: int


class StepInputs:
    """Device buffers that a step reads, at addresses that never change."""

    def __init__(
        self,
        device: ttnn.Device,
        text: TextConfig,
        *,
        n_tokens: int,
        cache_rows: int,
        mask_rows: int,
        mask_dtype: str,
    ) -> None:
        """
        Allocate.

        :param device: the chip
        :param text: sizes of a layer
        :param n_tokens: N
        :param cache_rows: Smax
        :param mask_rows: query rows that one key-value head serves
        :param mask_dtype: number format of the mask, the only one in this process: the kernels'
            program cache does not tell masks apart
        """
        self._text = text
        self._n_tokens = n_tokens
        self._mask_dtype = mask_dtype
        self.tokens = formats.zeros((1, 1, n_tokens, text.hidden), 'bf16', device)
        self.cos = formats.zeros((1, 1, n_tokens, text.head_dim), 'bf16', device)
        self.sin = formats.zeros((1, 1, n_tokens, text.head_dim), 'bf16', device)
        # One row of batch serves all key-value heads: ttnn takes its index modulo the mask's own.
        self.mask = formats.zeros((1, 1, mask_rows, cache_rows), mask_dtype, device)
        self._device = device
        self._in_flight: list[ttnn.Tensor] = []

    def addresses(self) -> tuple[int, ...]:
        """Where the buffers lie."""
        return tuple(t.buffer_address() for t in (self.tokens, self.cos, self.sin, self.mask))

    def write_window(self, window: Window) -> None:
        """
        Write rope tables and mask of a context; allocates nothing on the device.

        :param window: of the context
        """
        positions = expert_positions(window.n_rows, window.rope_delta, self._n_tokens)
        head_dim = self._text.head_dim
        cos, signed_sin = rope_tables(positions, head_dim, self._text.rope_theta)
        # The chip's op negates the lower half itself.
        sin = torch.cat([-signed_sin[:, : head_dim // 2], signed_sin[:, head_dim // 2 :]], dim=1)
        cache_rows = int(self.mask.shape[3])
        row = mask_row(window.n_rows, window.left_pad, cache_rows, self._n_tokens)
        mask = row.expand(int(self.mask.shape[2]), -1)
        ttnn.synchronize_device(self._device)
        self._in_flight = [
            formats.overwrite(self.cos, cos, 'bf16'),
            formats.overwrite(self.sin, sin, 'bf16'),
            formats.overwrite(self.mask, mask, self._mask_dtype),
        ]

    def write_tokens(self, tokens: torch.Tensor) -> None:
        """
        Write the tokens that enter the first layer.

        :param tokens: (N, H) float32
        """
        self._in_flight.append(formats.overwrite(self.tokens, tokens, 'bf16'))

    def release_staged(self) -> None:
        """Let go of host copies; to be called after a blocking read, when no copy is under way."""
        self._in_flight.clear()
