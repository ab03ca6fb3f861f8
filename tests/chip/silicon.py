# SPDX-License-Identifier: Apache-2.0
"""What the silicon tests do, in a process that owns the chip; every job answers with numbers."""

from functools import cache
from pathlib import Path
import time
from typing import Any

import numpy as np
import torch

from alpamayo_node.backend import BackendConfig
from alpamayo_node.backend import build_expert
from alpamayo_node.chip.options import ChipConfig
from alpamayo_node.chip.options import ChipOptions
from alpamayo_node.chip.options import WeightDtypes
from alpamayo_node.contracts import Expert
from alpamayo_node.model.checkpoint import Checkpoint
from tests.model.builders import RandomContext
from tests.model.builders import load_expert
from tests.model.builders import never
from tests.model.builders import noise
from tests.model.builders import wide_config
from tests.model.builders import write_checkpoint

N_LAYERS = 4
MAX_ROWS = 8128


@cache
def checkpoint() -> Path:
    """Write four layers of full width into the working folder."""
    return write_checkpoint(Path.cwd() / 'checkpoint', wide_config(N_LAYERS))


def open_expert(weights: str = 'bfp8', max_rows: int = MAX_ROWS, **options: Any) -> Expert:
    """Build it as the node does."""
    chip = ChipConfig(
        options=ChipOptions(weights=WeightDtypes.parse(weights), **options),
        cache_directory=Path.cwd() / 'cache',
    )
    config = BackendConfig(checkpoint(), backend='ttnn', max_rows=max_rows, chip=chip)
    return build_expert(config, never, print)


def context(n_rows: int) -> RandomContext:
    config = Checkpoint.open(checkpoint()).config
    return RandomContext(config, n_rows, rope_delta=-n_rows // 2, dtype=torch.bfloat16)


def self_test(**options: Any) -> str:
    """Give the line of the start-up self-test; raises when it fails."""
    expert = open_expert(**options)
    try:
        return expert.self_test(never)
    finally:
        expert.close()


def compare_with_cpu(n_rows: int, **options: Any) -> dict[str, float]:
    """Sample on the chip and on the CPU in float32; relative difference of the first velocity."""
    reference = load_expert(checkpoint(), max_rows=MAX_ROWS)
    expert = open_expert(**options)
    try:
        velocities = []
        for each in (reference, expert):
            each.load(context(n_rows), never)
            steps: list[Any] = []
            each.sample(noise(), n_steps=10, should_stop=never, on_step=steps.append)
            velocities.append(steps[0].v)
        difference = np.linalg.norm(velocities[1] - velocities[0])
        return {'velocity': float(difference / np.linalg.norm(velocities[0]))}
    finally:
        expert.close()


def soak(n_replays: int, lengths: list[int], **options: Any) -> dict[str, Any]:
    """Replay over contexts of several lengths in turns; equal input must give equal bits."""
    expert = open_expert(**options)
    try:
        expert.self_test(never)
        first: dict[int, Any] = {}
        times_ms = []
        n_done = 0
        while n_done < n_replays:
            for n_rows in lengths:
                expert.load(context(n_rows), never)
                started_s = time.perf_counter()
                action = expert.sample(noise(), n_steps=10, should_stop=never)
                times_ms.append(1e2 * (time.perf_counter() - started_s))
                n_done += 10
                if not np.array_equal(action, first.setdefault(n_rows, action)):
                    raise AssertionError(
                        f'{n_rows} rows gave another action after {n_done} replays'
                    )
        return {'n_replays': n_done, 'step_ms': sorted(times_ms)[len(times_ms) // 2]}
    finally:
        expert.close()


def times(n_rows: int, **options: Any) -> dict[str, Any]:
    """Time a step, a layer and its ops."""
    expert = open_expert(**options)
    try:
        from alpamayo_node.chip.timing import time_layer
        from alpamayo_node.chip.timing import time_ops
        from alpamayo_node.chip.timing import time_step

        expert.self_test(never)
        expert.load(context(n_rows), never)
        network = expert.network  # type: ignore[attr-defined]
        return {
            'step_ms': time_step(network).median_ms,
            'n_layers': N_LAYERS,
            'layer_us': time_layer(network, 0),
            'ops_us': time_ops(network, 0),
        }
    finally:
        expert.close()
