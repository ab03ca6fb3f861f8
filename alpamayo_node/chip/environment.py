# SPDX-License-Identifier: Apache-2.0
"""
What must hold before ttnn is imported: the right versions, and its environment variables.

Nothing here imports ttnn; it reads its environment while it is imported. What the user has set is
left alone.
"""

import fcntl
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version
import os
from pathlib import Path
from typing import BinaryIO

from alpamayo_node.errors import ConfigError
from alpamayo_node.errors import SetupError

MINIMUM_TTNN = (0, 81, 1)
_OPERATION_TIMEOUT = 'TT_METAL_OPERATION_TIMEOUT_SECONDS'
_KERNEL_CACHE = 'TT_METAL_CACHE'
_MAX_SLOTS = 64

_held_locks: list[BinaryIO] = []
"""Locks of this process; the system lets go of them when it ends, however it ends."""


def prepare_environment(kernel_cache: Path, operation_timeout_s: float) -> None:
    """
    Check versions, and set what ttnn reads from its environment.

    :param kernel_cache: folder below which this process takes one of its own for compiled kernels;
        ttnn's is not safe to share
    :param operation_timeout_s: after which ttnn takes an op for hung, and ends the process
    :raises SetupError: ttnn is missing or too old, or numpy too new for it
    :raises ConfigError: the folder cannot be written
    """
    _require_versions()
    os.environ.setdefault(_OPERATION_TIMEOUT, f'{operation_timeout_s:g}')
    if _KERNEL_CACHE not in os.environ:
        os.environ[_KERNEL_CACHE] = str(take_slot(kernel_cache))


def take_slot(root: Path) -> Path:
    """
    Take the first folder that no other process holds, until this one ends.

    The same folders serve again after a restart, so kernels are compiled once.

    :param root: folder of the slots; made if missing
    :return: the folder
    :raises ConfigError: it cannot be written, or all slots are taken
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        for i_slot in range(_MAX_SLOTS):
            lock = (root / f'slot-{i_slot}.lock').open('ab')
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.close()
                continue
            _held_locks.append(lock)
            slot = root / f'slot-{i_slot}'
            slot.mkdir(exist_ok=True)
            return slot
    except OSError as error:
        rule = f'must be a folder that this user may write ({error})'
        raise ConfigError('chip.cache_directory', str(root), rule) from error
    rule = f'has all of its {_MAX_SLOTS} slots in use by other processes'
    raise ConfigError('chip.cache_directory', str(root), rule)


def _require_versions() -> None:
    needed = '.'.join(map(str, MINIMUM_TTNN))
    fix = f'pip install "ttnn>={needed}" "numpy<2"'
    try:
        ttnn, numpy = version('ttnn'), version('numpy')
    except PackageNotFoundError as error:
        raise SetupError(f'backend ttnn needs the package {error.name}: {fix}') from error
    if _numbers(ttnn) < MINIMUM_TTNN:
        raise SetupError(f'ttnn is {ttnn}, {needed} or newer is needed: {fix}')
    if _numbers(numpy) >= (2,):
        raise SetupError(f'numpy is {numpy}, ttnn needs one below 2: {fix}')


def _numbers(text: str) -> tuple[int, ...]:
    """Leading numbers of a version; '0.81.1rc2' counts as 0.81."""
    numbers = []
    for part in text.split('.'):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)
