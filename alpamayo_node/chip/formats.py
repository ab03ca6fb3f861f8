# SPDX-License-Identifier: Apache-2.0
"""The chip's number formats, and the few ways in which tensors reach and leave it."""

import torch
import ttnn

DTYPES = {'bf16': ttnn.bfloat16, 'bfp8': ttnn.bfloat8_b, 'bfp4': ttnn.bfloat4_b}
"""ttnn's formats by our names; bfp8 and bfp4 share one exponent over 16 values of a row."""


def to_host_tile(values: torch.Tensor, dtype: str) -> ttnn.Tensor:
    """
    Convert to tiles in host memory; touches no device memory.

    :param values: any shape of two or more dimensions
    :param dtype: a key of `DTYPES`
    :return: host tensor
    """
    return ttnn.from_torch(values, dtype=DTYPES[dtype], layout=ttnn.TILE_LAYOUT)


def to_device(host: ttnn.Tensor, device: ttnn.Device) -> ttnn.Tensor:
    """
    Allocate device memory (DRAM, interleaved over its banks) and copy a host tensor there.

    :param host: tiled
    :param device: the chip
    :return: device tensor
    """
    return ttnn.to_device(host, device, memory_config=ttnn.DRAM_MEMORY_CONFIG)


def zeros(shape: tuple[int, ...], dtype: str, device: ttnn.Device) -> ttnn.Tensor:
    """
    Allocate a device tensor of zeros: every value finite before the first use.

    :param shape: of two or more dimensions
    :param dtype: a key of `DTYPES`
    :param device: the chip
    :return: device tensor
    """
    return to_device(to_host_tile(torch.zeros(shape, dtype=torch.bfloat16), dtype), device)


def overwrite(device_tensor: ttnn.Tensor, values: torch.Tensor, dtype: str) -> ttnn.Tensor:
    """
    Write new values into an existing device tensor, at its address; allocates no device memory.

    :param device_tensor: the target
    :param values: of its shape, padding apart
    :param dtype: its format
    :return: the host tensor, to be kept until the device has been synchronised: the copy may
        still be under way
    """
    host = to_host_tile(values.reshape(tuple(device_tensor.shape)), dtype)
    ttnn.copy_host_to_device_tensor(host, device_tensor)
    return host


def read(device_tensor: ttnn.Tensor) -> torch.Tensor:
    """
    Copy a device tensor to the host; blocks until it is there.

    :param device_tensor: the source
    :return: float32
    """
    values: torch.Tensor = ttnn.to_torch(device_tensor).float()
    return values


def dram_bytes_in_use(device: ttnn.Device) -> int:
    """
    Tell how much device memory is allocated, in all banks together.

    :param device: the chip
    :return: bytes
    """
    view = ttnn.get_memory_view(device, ttnn.BufferType.DRAM)
    return int(view.total_bytes_allocated_per_bank * view.num_banks)
