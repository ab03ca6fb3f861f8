# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of any size that take no room: every tensor is zero."""

from collections.abc import Callable
from typing import Any

import torch
import ttnn

from alpamayo_node.chip.network import ChipNetwork
from alpamayo_node.chip.options import ChipOptions
from alpamayo_node.chip.options import WeightDtypes
from alpamayo_node.chip.ttnn_expert import TtnnExpert
from alpamayo_node.model.checkpoint import expected_tensors
from alpamayo_node.model.config import ModelConfig
from tests.model.builders import never
from tests.model.builders import tiny_config
from tests.model.builders import wide_config


class ZeroCheckpoint:
    """Reads like a checkpoint."""

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        self._shapes = expected_tensors(config)

    def get(self, name: str) -> torch.Tensor:
        return torch.zeros(self._shapes[name], dtype=torch.bfloat16)


class SharedWeights:
    """Takes the place of the cache of tilised weights: layers share what is alike."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], ttnn.Tensor] = {}

    def get(self, name: str, dtype: str, convert: Callable[[], ttnn.Tensor]) -> ttnn.Tensor:
        key = (name.partition('.')[2] or name, dtype)
        if key not in self._kept:
            self._kept[key] = convert()
        return self._kept[key]

    def account(self, what: str, n_bytes: int) -> None:
        """Tell nobody."""

    def summary(self) -> str:
        return ''


class BorrowedChip:
    """A chip that stays open."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle

    def close(self) -> None:
        """Leave it to its owner."""


def config_of(n_layers: int) -> ModelConfig:
    """0 layers mean the tiny model of two, others are of full width."""
    return wide_config(n_layers) if n_layers else tiny_config()


def zero_expert(
    device: Any, n_layers: int, *, max_rows: int = 8128, weights: str = 'bfp8', **options: Any
) -> TtnnExpert:
    """Load zeros onto a chip."""
    return TtnnExpert.from_checkpoint(
        ZeroCheckpoint(config_of(n_layers)),  # type: ignore[arg-type]
        BorrowedChip(device),
        ChipOptions(weights=WeightDtypes.parse(weights), **options),
        SharedWeights(),  # type: ignore[arg-type]
        buffer_rounding='bf16',
        max_rows=max_rows,
        fingerprint='sha256:zeros',
        progress=lambda text: None,
        should_stop=never,
    )


def zero_network(device: Any, n_layers: int, **values: Any) -> ChipNetwork:
    return zero_expert(device, n_layers, **values).network
