# SPDX-License-Identifier: Apache-2.0
"""Run the whole expert at full size in the child process, and count."""

import gc
from pathlib import Path
from typing import Any

import numpy as np
import torch
import ttnn

from alpamayo_node.chip import formats
from alpamayo_node.chip.context import Window
from alpamayo_node.chip.options import ChipOptions
from alpamayo_node.chip.ttnn_expert import TtnnExpert
from alpamayo_node.chip.weight_cache import WeightCache
from alpamayo_node.errors import AlpamayoError
from alpamayo_node.model.checkpoint import Checkpoint
from tests.chip.jobs import TRACE_REGION_BYTES
from tests.chip.jobs import device
from tests.chip.zero_weights import BorrowedChip
from tests.chip.zero_weights import zero_expert
from tests.model.builders import RandomContext
from tests.model.builders import never
from tests.model.builders import noise
from tests.model.builders import wide_config
from tests.model.builders import write_checkpoint


def run_trajectories(n_layers: int = 64, **options: Any) -> dict[str, Any]:
    """Sample two trajectories of ten steps with different contexts, op by op."""
    chip = device()
    n_at_start = formats.dram_bytes_in_use(chip)
    expert = zero_expert(chip, n_layers, is_traced=False, **options)
    network = expert.network
    result: dict[str, Any] = {
        'loaded_bytes': formats.dram_bytes_in_use(chip) - n_at_start,
        'dram_bytes': dram_bytes(),
        'trace_region_bytes': TRACE_REGION_BYTES,
        'trajectories': [],
    }
    one_layer = RandomContext(wide_config(1), 33, left_pad=1)
    for n_rows in (4592, 8128):
        network.set_window(Window(n_rows, 0, -3888))
        # One layer's rows stand for all: 64 of them would take the test a minute.
        network.load_layer_cache(0, *one_layer.layer(0))
        expert._is_loaded = True
        n_programs, n_bytes = chip.num_program_cache_entries(), formats.dram_bytes_in_use(chip)
        action = expert.sample(noise(), n_steps=10, should_stop=never)
        result['trajectories'].append(
            {
                'new_programs': chip.num_program_cache_entries() - n_programs,
                'new_bytes': formats.dram_bytes_in_use(chip) - n_bytes,
                'shape': list(action.shape),
                'dtype': str(action.dtype),
                'is_finite': bool(np.isfinite(action).all()),
            }
        )
    result['programs'] = chip.num_program_cache_entries()
    expert.close()
    del expert, network
    gc.collect()
    result['left_bytes'] = formats.dram_bytes_in_use(chip) - n_at_start
    return result


def dram_bytes() -> int:
    view = ttnn.get_memory_view(device(), ttnn.BufferType.DRAM)
    return int(view.total_bytes_per_bank * view.num_banks)


def refusal_of(free_bytes: int | None = None, **options: Any) -> str:
    """
    Load one layer with options that cannot work.

    :param free_bytes: device memory to leave; the rest is taken before
    :return: the error's type and text, or nothing
    """
    taken = None if free_bytes is None else _take_memory(dram_bytes() - free_bytes)
    try:
        expert = zero_expert(device(), 1, is_traced=False, **options)
        expert.network.run_layers(torch.zeros(64, 1536), [0])
    except (AlpamayoError, RuntimeError) as error:
        return f'{type(error).__name__}: {error}'
    finally:
        if taken is not None:
            taken.deallocate()
    return ''


def _take_memory(n_bytes: int) -> ttnn.Tensor:
    shape = ttnn.Shape([n_bytes // (2 * 1024), 1024])
    return ttnn.empty(
        shape, ttnn.bfloat16, ttnn.ROW_MAJOR_LAYOUT, device(), ttnn.DRAM_MEMORY_CONFIG
    )


def self_test_of_random_weights(chip_folder: str) -> str:
    """Let the start-up self-test judge a chip whose every result is zero."""
    directory = write_checkpoint(Path(chip_folder) / 'random', wide_config(1))
    expert = TtnnExpert.from_checkpoint(
        Checkpoint.open(directory),
        BorrowedChip(device()),
        ChipOptions(is_traced=False),
        WeightCache(Path(chip_folder) / 'weights', 'sha256:' + '0' * 64, print),
        buffer_rounding='bf16',
        max_rows=448,
        fingerprint='sha256:random',
        progress=print,
        should_stop=never,
    )
    try:
        return expert.self_test(never)
    except AlpamayoError as error:
        return f'{type(error).__name__}: {error}'
    finally:
        expert.close()
