# SPDX-License-Identifier: Apache-2.0
"""Say on what a number was measured."""

import os
from pathlib import Path

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


def resident_gb() -> float:
    """
    Tell how much memory of this process is resident now.

    :return: GB
    """
    n_pages = int(Path('/proc/self/statm').read_text(encoding='ascii').split()[1])
    return n_pages * os.sysconf('SC_PAGE_SIZE') / 1e9
