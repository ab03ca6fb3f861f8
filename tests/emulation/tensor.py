# SPDX-License-Identifier: Apache-2.0
"""Tiled tensors on the host and at addresses of an emulated chip."""

from dataclasses import dataclass
import math

import torch

from tests.emulation.block_float import round_to
from tests.emulation.device import Buffer
from tests.emulation.device import Device

TILE = 32


def padded(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Round the last two extents up to whole tiles."""
    return (*shape[:-2], *(-(-extent // TILE) * TILE for extent in shape[-2:]))


@dataclass(frozen=True)
class DataType:
    """A number format; equal by name."""

    name: str

    def __repr__(self) -> str:
        return f'DataType.{self.name}'


@dataclass(frozen=True)
class Layout:
    name: str


TILE_LAYOUT = Layout('TILE')


class Tensor:
    """Values in host memory, or at an address of a device."""

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: DataType,
        *,
        host: torch.Tensor | None = None,
        buffer: Buffer | None = None,
    ) -> None:
        self.shape = shape
        self.dtype = dtype
        self.layout = TILE_LAYOUT
        self._host = host
        self._buffer = buffer

    @classmethod
    def on_host(cls, values: torch.Tensor, dtype: DataType) -> 'Tensor':
        shape = tuple(values.shape)
        tiles = torch.zeros(padded(shape))
        tiles[tuple(slice(extent) for extent in shape)] = values.float()
        return cls(shape, dtype, host=round_to(tiles, dtype.name))

    @classmethod
    def on_device(cls, device: Device, shape: tuple[int, ...], dtype: DataType) -> 'Tensor':
        buffer = device.allocate(math.prod(padded(shape)), dtype.name)
        return cls(shape, dtype, buffer=buffer)

    @property
    def device(self) -> Device:
        return self.buffer.device

    @property
    def buffer(self) -> Buffer:
        if self._buffer is None:
            raise RuntimeError('TT_FATAL: the tensor is not on a device')
        if not self._buffer.is_allocated:
            raise RuntimeError('TT_FATAL: the tensor has been deallocated')
        return self._buffer

    @property
    def host(self) -> torch.Tensor:
        if self._host is None:
            raise RuntimeError('TT_FATAL: the tensor is not on the host')
        return self._host

    @property
    def is_on_device(self) -> bool:
        return self._buffer is not None

    def buffer_address(self) -> int:
        return self.buffer.address

    def deallocate(self) -> None:
        if self._buffer is not None:
            self._buffer.free()

    def view(self, shape: tuple[int, ...]) -> 'Tensor':
        """See the same buffer in another shape; rows of tiles must stay whole."""
        same_width = shape[-1] == self.shape[-1]
        whole = shape[-2] % TILE == 0 and self.shape[-2] % TILE == 0
        if math.prod(shape) != math.prod(self.shape) or not (same_width and whole):
            raise RuntimeError(f'TT_FATAL: no view of {self.shape} as {shape}')
        return Tensor(shape, self.dtype, buffer=self.buffer)

    # What ops use: they run later than they are issued, so they bind addresses, not tensors.

    def reader(self) -> 'Slot':
        return Slot(self.device, self.buffer.address, self.shape, self.dtype.name)


@dataclass(frozen=True)
class Slot:
    """An address seen in a shape and a format: all that a recorded op knows of a tensor."""

    device: Device
    address: int
    shape: tuple[int, ...]
    dtype: str

    def _memory(self) -> torch.Tensor:
        shape = padded(self.shape)
        memory = self.device.memory[self.address : self.address + math.prod(shape)]
        return memory.view(shape)

    def read(self) -> torch.Tensor:
        return self._memory()[tuple(slice(extent) for extent in self.shape)]

    def write(self, values: torch.Tensor) -> None:
        tiles = torch.zeros(padded(self.shape))
        tiles[tuple(slice(extent) for extent in self.shape)] = values
        self._memory().copy_(round_to(tiles, self.dtype))

    def write_tiles(self, tiles: torch.Tensor) -> None:
        self._memory().copy_(tiles)

    def write_rows(self, values: torch.Tensor, user: int, first: int) -> None:
        """Overwrite rows [first, first + n) of all heads of one user."""
        rows = round_to(values, self.dtype)
        self._memory()[user, :, first : first + values.shape[1]].copy_(rows)
