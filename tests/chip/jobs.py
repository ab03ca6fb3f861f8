# SPDX-License-Identifier: Apache-2.0
"""What the tests have the real library do, in the child process; the chip is opened once."""

from functools import cache
import os
import signal
import time
from typing import Any

import torch
import ttnn

TRACE_REGION_BYTES = 128 << 20


@cache
def device() -> ttnn.Device:
    """Open the chip on first use."""
    return ttnn.open_device(device_id=0, trace_region_size=TRACE_REGION_BYTES)


def describe() -> dict[str, Any]:
    size = device().compute_with_storage_grid_size()
    view = ttnn.get_memory_view(device(), ttnn.BufferType.DRAM)
    return {
        'grid': [size.x, size.y],
        'dram_gb': view.total_bytes_per_bank * view.num_banks / 1e9,
        'kernels': os.environ['TT_METAL_CACHE'],
    }


def multiply_ones() -> list[float]:
    a = ttnn.from_torch(
        torch.ones(64, 64), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=device()
    )
    result: list[float] = ttnn.to_torch(ttnn.linear(a, a)).unique().tolist()
    return result


def fail(text: str) -> None:
    raise ValueError(text)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def round_trip(rows: list[list[float]], dtype: str) -> list[list[float]]:
    """Convert to a format and back, on the host."""
    host = ttnn.from_torch(torch.tensor(rows), dtype=getattr(ttnn, dtype), layout=ttnn.TILE_LAYOUT)
    result: list[list[float]] = ttnn.to_torch(host).float().tolist()
    return result


def wait(for_s: float) -> None:
    time.sleep(for_s)
