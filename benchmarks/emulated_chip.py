# SPDX-License-Identifier: Apache-2.0
"""
Print how far the chip's number formats are from float32, by emulation of every op.

    python -m benchmarks.emulated_chip

Two models with random weights: all 64 layers at reduced width, and two layers at full width. Each
line compares one step's last hidden state and velocity (relative norm of the difference) and the
waypoints of ten steps (largest distance), all against the torch backend in float32 on the same
context and noise. The first lines of each model are the torch backend in bfloat16, for comparison.
"""

from pathlib import Path
import sys
from tempfile import TemporaryDirectory

from benchmarks.machine import describe_machine
from tests.emulation.library import install

install()

from tests.emulation.differences import MODELS  # noqa: E402
from tests.emulation.differences import MODES  # noqa: E402
from tests.emulation.differences import compare  # noqa: E402
from tests.emulation.differences import compare_bfloat16  # noqa: E402
from tests.emulation.differences import write_calm_checkpoint  # noqa: E402


def main() -> int:
    """
    Print the table.

    :return: exit code
    """
    print(describe_machine())
    with TemporaryDirectory() as folder:
        for name, model in MODELS.items():
            directory = write_calm_checkpoint(Path(folder) / name, model.config)
            print(f'\n{name}: hidden state, velocity, waypoints')
            print(f'  torch bfloat16      {compare_bfloat16(directory, model)}')
            for mode, options in MODES.items():
                for weights in ('bf16', 'bfp8', 'bfp4'):
                    found = compare(directory, model, weights=weights, **options)
                    print(f'  {mode:9} {weights:9} {found}')
            found = compare(directory, model, weights='bfp8', cache_dtype='bfp8')
            print(f'  decode    bfp8, cache bfp8 {found}')
    return 0


if __name__ == '__main__':
    sys.exit(main())
