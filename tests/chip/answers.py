# SPDX-License-Identifier: Apache-2.0
"""
Ask ttnn, whichever it is, what it answers to each op that the backend issues.

The same questions go to the real library on a mocked chip and to the emulation.
"""

from collections.abc import Callable
from typing import Any

import torch
import ttnn

from alpamayo_node.chip import formats
from tests.chip.jobs import device
from tests.chip.zero_weights import zero_network

Answer = list[Any]
"""Shape, format and layout, by their names."""


def describe(tensor: ttnn.Tensor) -> Answer:
    shape = [int(extent) for extent in tensor.shape]
    return [shape, tensor.dtype.name, tensor.layout.name]


def layer_answers(chip: Any, n_layers: int, **values: Any) -> list[Any]:
    """Describe the results of every op of a layer, in order, by name."""
    network = zero_network(chip, n_layers, **values)
    answers: list[Any] = []

    def run(name: str, op: Callable[[], Any]) -> Any:
        result = op()
        tensors = result if isinstance(result, tuple | list) else [result]
        answers.append([name, [describe(tensor) for tensor in tensors]])
        return result

    result = network.issue_layer(0, run)
    answers.append(['layer', [describe(result)]])
    for name in ('tokens', 'cos', 'sin', 'mask'):
        answers.append([name, [describe(getattr(network.inputs, name))]])
    for name, tensor in vars(network.weights[0]).items():
        answers.append([f'weight {name}', [describe(tensor)]])
    return answers


def real_layer_answers(n_layers: int, **values: Any) -> list[Any]:
    return layer_answers(device(), n_layers, **values)


def refusals(chip: Any) -> dict[str, bool]:
    """Do what must not be done; tell by name whether it was refused."""

    def zeros(*shape: int, dtype: str = 'bf16') -> ttnn.Tensor:
        return formats.zeros(shape, dtype, chip)

    cache = zeros(1, 2, 384, 32)
    rows = zeros(1, 2, 64, 32)
    query, keys = zeros(1, 2, 128, 32), zeros(2, 1, 384, 32)
    host = formats.to_host_tile(torch.zeros(1, 2, 64, 32), 'bf16')

    def decode(chunk: int, mask: ttnn.Tensor) -> ttnn.Tensor:
        size = chip.compute_with_storage_grid_size()
        return ttnn.transformer.scaled_dot_product_attention_decode(
            query,
            keys,
            keys,
            is_causal=False,
            attn_mask=mask,
            scale=1.0,
            program_config=ttnn.SDPAProgramConfig(
                compute_with_storage_grid_size=ttnn.CoreCoord(size.x, size.y),
                q_chunk_size=32,
                k_chunk_size=chunk,
                exp_approx_mode=False,
                max_cores_per_head_batch=16,
            ),
            compute_kernel_config=ttnn.WormholeComputeKernelConfig(
                math_fidelity=ttnn.MathFidelity.HiFi2,
                math_approx_mode=False,
                fp32_dest_acc_en=False,
                packer_l1_acc=False,
            ),
            memory_config=ttnn.DRAM_MEMORY_CONFIG,
        )

    def linear(inner: int) -> ttnn.Tensor:
        return ttnn.linear(
            zeros(1, 1, 64, 64),
            zeros(inner, 64),
            dtype=ttnn.bfloat16,
            compute_kernel_config=None,
            memory_config=ttnn.DRAM_MEMORY_CONFIG,
        )

    deeds: dict[str, Callable[[], Any]] = {
        'fill at the tail': lambda: ttnn.fill_cache(cache, rows, 0, update_idx=320),
        'fill between tiles': lambda: ttnn.fill_cache(cache, rows, 0, update_idx=100),
        'fill behind the end': lambda: ttnn.fill_cache(cache, rows, 0, update_idx=352),
        'fill in another format': lambda: ttnn.fill_cache(
            cache, zeros(1, 2, 64, 32, dtype='bfp8'), 0, update_idx=320
        ),
        'fill with other heads': lambda: ttnn.fill_cache(
            cache, zeros(1, 1, 64, 32), 0, update_idx=320
        ),
        'copy to another shape': lambda: ttnn.copy_host_to_device_tensor(host, cache),
        'copy to the shape': lambda: ttnn.copy_host_to_device_tensor(host, rows),
        'copy to another format': lambda: ttnn.copy_host_to_device_tensor(
            host, zeros(1, 2, 64, 32, dtype='bfp8')
        ),
        'decode': lambda: decode(64, zeros(1, 1, 128, 384, dtype='bfp4')),
        'decode with a chunk that does not divide': lambda: decode(
            256, zeros(1, 1, 128, 384, dtype='bfp4')
        ),
        'decode with an odd chunk': lambda: decode(96, zeros(1, 1, 128, 384, dtype='bfp4')),
        'decode with a short mask': lambda: decode(64, zeros(1, 1, 128, 320, dtype='bfp4')),
        'linear': lambda: linear(64),
        'linear with another inner side': lambda: linear(96),
        'view of other size': lambda: ttnn.view(rows, (1, 2, 32, 32)),
        'view by users': lambda: ttnn.view(cache, (2, 1, 384, 32)),
        'address of freed memory': lambda: zeros_freed().buffer_address(),
    }

    def zeros_freed() -> ttnn.Tensor:
        tensor = zeros(1, 1, 32, 32)
        tensor.deallocate()
        return tensor

    return {name: _is_refused(deed) for name, deed in deeds.items()}


def real_refusals() -> dict[str, bool]:
    return refusals(device())


def _is_refused(deed: Callable[[], Any]) -> bool:
    try:
        deed()
    except (RuntimeError, TypeError):
        return True
    return False
