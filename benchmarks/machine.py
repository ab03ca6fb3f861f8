# SPDX-License-Identifier: Apache-2.0
"""Say on what a number was measured."""

import os
from pathlib import Path
import time

import torch

_TOLD_FLAGS = ('avx2', 'avx512f', 'avx512_bf16', 'amx_bf16')
_GIB = 1 << 30


def describe_machine() -> str:
    """
    Describe processor, memory and torch.

    :return: one line
    """
    lines = Path('/proc/cpuinfo').read_text(encoding='utf-8').splitlines()
    info = dict(line.split(':', 1) for line in reversed(lines) if ':' in line)
    info = {key.strip(): value.strip() for key, value in info.items()}
    flags = [flag for flag in _TOLD_FLAGS if flag in info.get('flags', '').split()]
    n_bytes = os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')
    return (
        f'{info.get("model name", "unknown processor")}, {os.cpu_count()} cores '
        f'({", ".join(flags)}), {n_bytes / _GIB:.0f} GiB; torch {torch.__version__}, '
        f'{torch.get_num_threads()} threads'
    )


class OtherLoad:
    """Tells how busy other processes kept the machine since this was made."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self._machine_s = _machine_busy_s()
        self._own_s = time.process_time()

    def share(self) -> float:
        """
        Compare the machine's processor time with our own.

        :return: processor time of others, as a share of all there was; 0 for an idle machine
        """
        available_s = (time.monotonic() - self._began_s) * (os.cpu_count() or 1)
        busy_s = _machine_busy_s() - self._machine_s
        return max(0.0, busy_s - (time.process_time() - self._own_s)) / available_s


def _machine_busy_s() -> float:
    """Time of all processors that was neither idle nor waiting, stolen time included."""
    line = Path('/proc/stat').read_text(encoding='ascii').splitlines()[0]
    user, nice, system, _, _, *interrupts = map(int, line.split()[1:9])
    return (user + nice + system + sum(interrupts)) / os.sysconf('SC_CLK_TCK')


def resident_gb() -> float:
    """
    Tell how much memory of this process is resident now.

    :return: GB
    """
    n_pages = int(Path('/proc/self/statm').read_text(encoding='ascii').split()[1])
    return n_pages * os.sysconf('SC_PAGE_SIZE') / 1e9
