# SPDX-License-Identifier: Apache-2.0
"""
Check one safetensors file down to its last byte before any of it is used, and read parts of it.

A file is 8 bytes (length of the header, little-endian), the header (JSON: name -> dtype, shape,
byte range) and the tensors' bytes without gaps. The header therefore says how long the file must
be, which finds a download that broke off. Reading goes through plain `read` calls straight into
the tensor: no memory map, so no second copy shows up in the process's memory.

Source of the format: the README of huggingface/safetensors.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from io import FileIO
import json
import math
import operator
from pathlib import Path
from typing import Any
from typing import BinaryIO

import torch

from alpamayo_node.errors import CheckpointError

_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 100_000_000
_LFS_MAGIC = b'version https://git-lfs'
_ITEM_BYTES = {
    **dict.fromkeys(('BOOL', 'U8', 'I8', 'F8_E4M3', 'F8_E5M2'), 1),
    **dict.fromkeys(('BF16', 'F16', 'I16', 'U16'), 2),
    **dict.fromkeys(('F32', 'I32', 'U32'), 4),
    **dict.fromkeys(('F64', 'I64', 'U64'), 8),
}


@dataclass(frozen=True)
class TensorEntry:
    """Where one tensor lies in a file, and what it is."""

    dtype: str
    """Name in the format: 'BF16', 'F32', ..."""
    shape: tuple[int, ...]
    start: int
    """First byte, from the beginning of the file."""
    stop: int


@dataclass(frozen=True)
class Header:
    """What a file says of itself."""

    entries: dict[str, TensorEntry]
    metadata: Any
    """As found: the format wants strings by name, but nothing has checked that."""
    data_start: int
    """First byte behind the header."""


def read_header(path: Path) -> dict[str, TensorEntry]:
    """
    Read what a file says it holds, and check that it holds it.

    :param path: the file; a symbolic link is followed
    :return: entry of each tensor by name
    :raises CheckpointError: unreadable, a Git LFS pointer, not safetensors, truncated, or too long
    """
    try:
        with path.open('rb') as file:
            return parse(file, path).entries
    except OSError as error:
        raise CheckpointError(f'{path}: cannot be read ({error.strerror})') from error


def parse(file: BinaryIO, path: Path) -> Header:
    """
    Read the header of an open file, and check that the file holds what it says.

    :param file: open for reading; its position is moved
    :param path: of the file, for messages
    :raises CheckpointError: as `read_header`
    :raises OSError: the file cannot be read
    """
    header, n_header_bytes = _read_json(file, path)
    base = _LENGTH_BYTES + n_header_bytes
    metadata = header.pop('__metadata__', {})
    entries = {name: _parse_entry(path, name, value, base) for name, value in header.items()}
    _require_whole(path, entries, base, file.seek(0, 2))
    return Header(entries=entries, metadata=metadata, data_start=base)


def read_into(path: Path, name: str, entry: TensorEntry, out: torch.Tensor) -> None:
    """
    Read a tensor's bytes into memory that is already there.

    :param path: the file
    :param name: of the tensor, for messages
    :param entry: from `read_header`
    :param out: contiguous, of the entry's number of bytes
    :raises CheckpointError: the file has become shorter or unreadable
    """
    with _opened_at(path, entry.start) as file:
        fill(file, path, name, entry, out)


def fill(file: FileIO, path: Path, name: str, entry: TensorEntry, out: torch.Tensor) -> None:
    """
    Read a tensor's bytes from an open file, as `read_into`.

    :param file: its position is moved
    """
    target = memoryview(out.reshape(-1).view(torch.uint8).numpy())
    assert out.is_contiguous()
    assert len(target) == entry.stop - entry.start
    file.seek(entry.start)
    _fill(file, target, path, name)


def read_chunks(
    path: Path, name: str, entry: TensorEntry, buffer: bytearray
) -> Iterator[memoryview]:
    """
    Read a tensor's bytes piece by piece.

    :param path: the file
    :param name: of the tensor, for messages
    :param entry: from `read_header`
    :param buffer: filled anew for each piece
    :return: the pieces in order, views of the buffer
    :raises CheckpointError: the file has become shorter or unreadable
    """
    n_left = entry.stop - entry.start
    with _opened_at(path, entry.start) as file:
        while n_left:
            chunk = memoryview(buffer)[: min(n_left, len(buffer))]
            _fill(file, chunk, path, name)
            n_left -= len(chunk)
            yield chunk


def _opened_at(path: Path, start: int) -> FileIO:
    try:
        file = FileIO(path)
        file.seek(start)
    except OSError as error:
        raise CheckpointError(f'{path}: cannot be read ({error.strerror})') from error
    return file


def _fill(file: FileIO, target: memoryview, path: Path, name: str) -> None:
    while target:
        try:
            n_read = file.readinto(target)
        except OSError as error:
            raise CheckpointError(f'{path}: cannot be read ({error.strerror})') from error
        if not n_read:
            raise CheckpointError(
                f'{path}: ended inside {name}; it was whole when it was opened: do not change a '
                'checkpoint that is in use'
            )
        target = target[n_read:]


def _read_json(file: BinaryIO, path: Path) -> tuple[dict[str, Any], int]:
    start = file.read(len(_LFS_MAGIC))
    if start == _LFS_MAGIC:
        raise CheckpointError(
            f'{path}: is a Git LFS pointer, not the file itself; fetch it with "git lfs pull"'
        )
    n_header_bytes = int.from_bytes(start[:_LENGTH_BYTES], 'little')
    file.seek(_LENGTH_BYTES)
    if len(start) < _LENGTH_BYTES or not 2 <= n_header_bytes <= _MAX_HEADER_BYTES:
        raise CheckpointError(f'{path}: is not a safetensors file; download it again')
    text = file.read(n_header_bytes)
    if len(text) < n_header_bytes:
        raise CheckpointError(
            f'{path}: is truncated inside its header: {len(text)} of {n_header_bytes} bytes; '
            'download it again'
        )
    try:
        header = json.loads(text)
    except ValueError as error:
        raise CheckpointError(f'{path}: its header is not JSON ({error})') from error
    if not isinstance(header, dict):
        raise CheckpointError(f'{path}: its header is not a JSON object')
    return header, n_header_bytes


def _parse_entry(path: Path, name: str, value: Any, base: int) -> TensorEntry:
    try:
        dtype, shape = str(value['dtype']), tuple(map(operator.index, value['shape']))
        start, stop = map(operator.index, value['data_offsets'])
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f'{path}: its header does not describe {name}: {value!r}') from error
    n_bytes = math.prod(shape) * _ITEM_BYTES.get(dtype, 0)
    is_sane = 0 <= start <= stop and min(shape, default=1) >= 0
    if not is_sane or (dtype in _ITEM_BYTES and stop - start != n_bytes):
        raise CheckpointError(
            f'{path}: {name} of {dtype} {list(shape)} cannot lie in bytes {start} to {stop}'
        )
    return TensorEntry(dtype=dtype, shape=shape, start=base + start, stop=base + stop)


def _require_whole(path: Path, entries: dict[str, TensorEntry], base: int, n_bytes: int) -> None:
    end = base
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].start, item[1].stop)):
        if entry.start != end:
            raise CheckpointError(
                f'{path}: {name} begins at byte {entry.start}, expected {end}: tensors must '
                'follow each other without gaps'
            )
        end = entry.stop
    if end != n_bytes:
        problem = 'is truncated' if n_bytes < end else 'has bytes after its last tensor'
        raise CheckpointError(
            f'{path}: {problem}: {n_bytes} bytes, its header says {end}; download it again'
        )
