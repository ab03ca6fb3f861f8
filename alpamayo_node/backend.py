# SPDX-License-Identifier: Apache-2.0
"""
Choose and build the expert: the one place that names the backends.

Part of the composition root: the node and the command line both build their planner here, so the
same configuration gives the same plans in both. ttnn is imported when it is chosen, never before:
a machine without it runs torch, and the library reads its environment while it is imported.
"""

from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import field
from pathlib import Path

from alpamayo_node.chip.environment import prepare_environment
from alpamayo_node.chip.options import ChipConfig
from alpamayo_node.contracts import Expert
from alpamayo_node.errors import ConfigError
from alpamayo_node.model.checkpoint import Checkpoint
from alpamayo_node.model.torch_expert import TorchExpert

BACKENDS = ('torch', 'ttnn')


@dataclass(frozen=True)
class BackendConfig:
    """What decides which expert runs, and how."""

    checkpoint: Path
    backend: str = 'torch'
    precision: str = 'bfloat16'
    buffer_rounding: str = 'bf16'
    max_rows: int = 8128
    n_threads: int = 0
    """CPU threads of the torch backend; 0 leaves the choice to torch."""
    chip: ChipConfig = field(default_factory=ChipConfig)
    """Of the ttnn backend."""

    def __post_init__(self) -> None:
        if self.backend not in BACKENDS:
            raise ConfigError('backend', self.backend, f'must be one of {", ".join(BACKENDS)}')


def build_expert(
    config: BackendConfig, should_stop: Callable[[], bool], report: Callable[[str], None]
) -> Expert:
    """
    Load the checkpoint onto the chosen backend.

    :param should_stop: polled during loading
    :param report: receives progress in words
    :return: the loaded expert, not yet self-tested; the caller closes it
    :raises SetupError: the checkpoint or a setting is wrong
    :raises BackendError: the hardware failed
    :raises Cancelled: `should_stop` became true
    """
    checkpoint = Checkpoint.open(config.checkpoint)
    report('computing the fingerprint of the checkpoint')
    fingerprint = checkpoint.fingerprint(should_stop, report)
    if config.backend == 'ttnn':
        return _build_on_chip(config, checkpoint, fingerprint, should_stop, report)
    return TorchExpert.from_checkpoint(
        checkpoint,
        precision=config.precision,
        buffer_rounding=config.buffer_rounding,
        max_rows=config.max_rows,
        n_threads=config.n_threads,
        fingerprint=fingerprint,
        progress=report,
        should_stop=should_stop,
    )


def _build_on_chip(
    config: BackendConfig,
    checkpoint: Checkpoint,
    fingerprint: str,
    should_stop: Callable[[], bool],
    report: Callable[[str], None],
) -> Expert:
    chip = config.chip
    prepare_environment(chip.root / 'kernels', chip.operation_timeout_s)
    from alpamayo_node.chip.device import ChipDevice
    from alpamayo_node.chip.device import DeviceConfig
    from alpamayo_node.chip.ttnn_expert import TtnnExpert
    from alpamayo_node.chip.weight_cache import WeightCache

    device_config = DeviceConfig(
        chip_id=chip.chip_id,
        trace_region_bytes=chip.trace_region_bytes,
        open_timeout_s=chip.open_timeout_s,
    )
    report(f'opening chip {chip.chip_id}')
    device = ChipDevice.open(device_config, should_stop, report)
    return TtnnExpert.from_checkpoint(
        checkpoint,
        device,
        chip.options,
        WeightCache(chip.root / 'weights', fingerprint, report),
        buffer_rounding=config.buffer_rounding,
        max_rows=config.max_rows,
        fingerprint=fingerprint,
        progress=report,
        should_stop=should_stop,
    )
