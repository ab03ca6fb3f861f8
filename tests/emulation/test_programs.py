# SPDX-License-Identifier: Apache-2.0
import pytest

from alpamayo_node.chip.programs import Grid
from alpamayo_node.chip.programs import MatmulPlan
from alpamayo_node.chip.programs import matmul_programs
from alpamayo_node.errors import ConfigError
from tests.model.builders import wide_config

TEXT = wide_config(1).expert
MATRICES = {
    'qkv': (1536, 4096, 8),
    'o': (2048, 1536, 8),
    'gate': (1536, 6144, 8),
    'down': (6144, 1536, 48),
}


@pytest.mark.parametrize('n_cores', [4, 7, 13, 32, 56, 64, 72, 80, 110, 130, 140])
@pytest.mark.parametrize('name', sorted(MATRICES))
def test_plan_covers_the_matrix_on_any_number_of_cores(name: str, n_cores: int) -> None:
    k, n, wanted = MATRICES[name]
    plan = MatmulPlan.fit(64, k, n, n_cores, wanted)
    assert (k // 32) % plan.block_w == 0
    assert plan.block_w <= wanted
    assert plan.per_core_n * n_cores >= n // 32
    assert (plan.per_core_n - 1) * n_cores < n // 32
    assert plan.per_core_n % plan.subblock_w == 0
    assert 1 <= plan.subblock_w <= 4


def test_plan_on_the_two_chips_keeps_the_long_blocks() -> None:
    for n_cores in (64, 110):
        for k, n, wanted in MATRICES.values():
            assert MatmulPlan.fit(64, k, n, n_cores, wanted).block_w == wanted


def test_plan_takes_shorter_blocks_where_memory_is_short() -> None:
    assert MatmulPlan.fit(64, 6144, 1536, 7, 48).block_w < 48


def test_plan_of_a_narrow_matrix_divides_it() -> None:
    assert MatmulPlan.fit(64, 96, 64, 64, 8).block_w == 3


def test_plan_on_too_few_cores_is_refused() -> None:
    with pytest.raises(ConfigError, match=r'chip\.tuned_matmul = .1 cores.: .*1536 x 6144'):
        MatmulPlan.fit(64, 1536, 6144, 1, 8)


@pytest.mark.parametrize('grid', [(8, 8), (11, 10), (13, 10), (8, 7), (4, 4)])
def test_programs_use_the_grid_that_they_are_given(grid: tuple[int, int]) -> None:
    programs = matmul_programs(TEXT, 64, Grid(*grid))
    for name in ('qkv', 'o', 'gate', 'up', 'down'):
        program = getattr(programs, name)
        assert program.compute_with_storage_grid_size == grid
        assert program.per_core_M == 2
        assert (program.fused_activation is not None) == (name == 'gate')
