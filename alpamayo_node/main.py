# SPDX-License-Identifier: Apache-2.0
"""
The planner's executable: parameters, backend, planner and node put together.

The one module that knows all layers; nothing imports it.
"""

from pathlib import Path

from alpamayo_node.backend import BackendConfig
from alpamayo_node.backend import build_expert
from alpamayo_node.chip.options import ChipConfig
from alpamayo_node.chip.options import ChipOptions
from alpamayo_node.chip.options import WeightDtypes
from alpamayo_node.errors import ConfigError
from alpamayo_node.model.context_file import FileStore
from alpamayo_node.plan.planner import Planner
from alpamayo_node.plan.worker import Build
from alpamayo_node.plan.worker import Report
from alpamayo_node.plan.worker import ShouldStop
from alpamayo_node.ros.node import PlannerNode
from alpamayo_node.ros.params import Settings
from alpamayo_node.ros.process import run_until_signal


def main() -> int:
    """Run the node until a signal ends it; 0 then, 2 if a parameter is refused at start."""
    return run_until_signal(lambda stop: PlannerNode(make_build))


def make_build(settings: Settings) -> Build:
    """
    Turn checked parameters into what the worker builds its planner with.

    :raises ConfigError: a folder that must be given is not, or does not exist
    """
    config = BackendConfig(
        checkpoint=_folder(settings, 'checkpoint.directory'),
        backend=settings.text('backend'),
        precision=settings.text('torch.precision'),
        buffer_rounding=settings.text('model.buffer_rounding'),
        max_rows=settings.integer('model.max_rows'),
        n_threads=settings.integer('torch.threads'),
        chip=_chip_config(settings),
    )
    store = FileStore(_folder(settings, 'context.directory'))

    def build(should_stop: ShouldStop, report: Report) -> tuple[Planner, str]:
        expert = build_expert(config, should_stop, report)
        try:
            report('self-test')
            self_test = expert.self_test(should_stop)
        except BaseException:
            expert.close()
            raise
        planner = Planner(expert, store, adjust_limits=settings.adjust, gate_limits=settings.gate)
        return planner, self_test

    return build


def _chip_config(settings: Settings) -> ChipConfig:
    """Read what only the ttnn backend uses; refused by name whatever the backend is."""
    folder = settings.text('chip.cache_directory')
    return ChipConfig(
        chip_id=settings.integer('chip.id'),
        options=ChipOptions(
            weights=WeightDtypes.parse(settings.text('chip.weights')),
            cache_dtype=settings.text('chip.cache_dtype'),
            attention=settings.text('chip.attention'),
            is_folded=settings.flag('chip.fold_heads'),
            mask_dtype=settings.text('chip.mask_dtype'),
            k_chunk_rows=settings.integer('chip.k_chunk_rows'),
            q_chunk_rows=settings.integer('chip.q_chunk_rows'),
            is_tuned=settings.flag('chip.tuned_matmul'),
            is_traced=settings.flag('chip.trace'),
        ),
        trace_region_bytes=settings.integer('chip.trace_region_bytes'),
        open_timeout_s=settings.number('chip.open_timeout_s'),
        operation_timeout_s=settings.number('chip.operation_timeout_s'),
        cache_directory=Path(folder) if folder else None,
    )


def _folder(settings: Settings, name: str) -> Path:
    value = settings.text(name)
    if not value:
        raise ConfigError(name, value, 'must be set to an existing folder')
    folder = Path(value)
    if not folder.is_dir():
        raise ConfigError(name, value, 'is no existing folder')
    return folder
