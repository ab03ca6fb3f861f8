# SPDX-License-Identifier: Apache-2.0
"""
Add up what the expert keeps in a chip's memory, buffer by buffer.

    python -m benchmarks.chip_memory [--weights bfp8] [--cache bf16] [--max-rows 8128]

Computed from the sizes of the released model; a test holds the total against what the real library
allocates on mocked chips.
"""

from argparse import ArgumentParser
import sys

from alpamayo_node.chip.options import ChipConfig
from alpamayo_node.chip.options import ChipOptions
from alpamayo_node.chip.options import WeightDtypes

BYTES = {'bf16': 2.0, 'bfp8': 1.0625, 'bfp4': 0.5625}
"""Per value, the shared exponents of the block formats included."""
DRAM_GB = {'Wormhole n150': 12.8, 'Blackhole p150': 34.1}
_LAYERS, _HIDDEN, _INNER, _Q, _KV, _HEAD, _TOKENS = 64, 1536, 6144, 2048, 1024, 128, 64
_TILE_ROWS = 32


def buffers(options: ChipOptions, max_rows: int) -> dict[str, float]:
    """
    List all that stays on the chip.

    :param options: formats and attention mode
    :param max_rows: largest context
    :return: bytes by name
    """
    rows = options.cache_rows(max_rows, _TOKENS)
    weights = options.weights
    matrices = {
        'qkv': (_HIDDEN * (_Q + 2 * _KV), weights.qkv),
        'o': (_Q * _HIDDEN, weights.o),
        'gate': (_HIDDEN * _INNER, weights.gate),
        'up': (_HIDDEN * _INNER, weights.up),
        'down': (_INNER * _HIDDEN, weights.down),
    }
    sizes = {
        f'{name} ({dtype}), {_LAYERS} layers': _LAYERS * n_values * BYTES[dtype]
        for name, (n_values, dtype) in matrices.items()
    }
    # A row of norm weights takes a row of whole tiles.
    n_norm = _TILE_ROWS * (_LAYERS * (2 * _HIDDEN + 2 * _HEAD) + _HIDDEN)
    mask_rows = _TOKENS * (2 if options.folds_heads else 1)
    cache = 2 * _LAYERS * _KV * rows * BYTES[options.cache_dtype]
    return sizes | {
        'norms (bf16)': 2.0 * n_norm,
        f'KV cache ({options.cache_dtype}), {rows} rows': cache,
        f'mask ({options.effective_mask_dtype})': (
            mask_rows * rows * BYTES[options.effective_mask_dtype]
        ),
        'tokens, cos, sin (bf16)': 2.0 * _TOKENS * (_HIDDEN + 2 * _HEAD),
        'trace region': float(ChipConfig().trace_region_bytes),
    }


def main() -> int:
    """
    Print the table.

    :return: exit code
    """
    parser = ArgumentParser(description=(__doc__ or '').split('\n\n')[0])
    parser.add_argument('--weights', default='bfp8', help="as the parameter 'chip.weights'")
    parser.add_argument('--cache', default='bf16', choices=('bf16', 'bfp8'))
    parser.add_argument('--attention', default='decode', choices=('decode', 'standard'))
    parser.add_argument('--max-rows', type=int, default=8128)
    args = parser.parse_args()
    options = ChipOptions(
        weights=WeightDtypes.parse(args.weights),
        cache_dtype=args.cache,
        attention=args.attention,
    )
    sizes = buffers(options, args.max_rows)
    for name, n_bytes in sizes.items():
        print(f'{name:34} {n_bytes / 1e6:9.2f} MB')
    total_gb = sum(sizes.values()) / 1e9
    print(f'{"total":34} {total_gb * 1e3:9.2f} MB')
    for chip, dram_gb in DRAM_GB.items():
        print(f'{chip}: {total_gb / dram_gb:.0%} of {dram_gb} GB')
    return 0


if __name__ == '__main__':
    sys.exit(main())
