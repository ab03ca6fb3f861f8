# SPDX-License-Identifier: Apache-2.0
"""Experts on an emulated chip."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from alpamayo_node.chip.options import ChipOptions
from alpamayo_node.chip.options import WeightDtypes
from alpamayo_node.chip.ttnn_expert import TtnnExpert
from alpamayo_node.chip.weight_cache import WeightCache
from alpamayo_node.model.checkpoint import Checkpoint
from tests.emulation.device import Device
from tests.model.builders import never


class EmulatedChip:
    """What `ChipDevice` is to the expert, around an emulated chip."""

    def __init__(self, device: Device) -> None:
        self.handle = device
        self.n_closed = 0

    def close(self) -> None:
        self.n_closed += 1
        self.handle.close()


def chip_expert(
    directory: Path,
    *,
    max_rows: int = 300,
    device: Device | None = None,
    cache: Path | None = None,
    weights: str = 'bfp8',
    **options: Any,
) -> TtnnExpert:
    """
    Load an expert onto an emulated chip.

    :param directory: of the checkpoint
    :param device: an existing chip
    :param cache: folder of tilised weights; without one nothing is kept
    :param options: of `ChipOptions`
    """
    return TtnnExpert.from_checkpoint(
        Checkpoint.open(directory),
        EmulatedChip(device or Device()),
        ChipOptions(weights=WeightDtypes.parse(weights), **options),
        WeightCache(cache or Path('/dev/null/none'), 'sha256:' + '0' * 64, lambda text: None),
        buffer_rounding='bf16',
        max_rows=max_rows,
        fingerprint='sha256:test',
        progress=lambda text: None,
        should_stop=never,
    )


def device_of(expert: TtnnExpert) -> Device:
    device: Device = expert.network.device
    return device


def sample(
    expert: TtnnExpert, noise: NDArray[np.float32], n_steps: int = 3
) -> NDArray[np.float32]:
    return expert.sample(noise, n_steps=n_steps, should_stop=never)


def relative(got: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    return float(np.linalg.norm(got - expected) / np.linalg.norm(expected))
