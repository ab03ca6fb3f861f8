# SPDX-License-Identifier: Apache-2.0
"""
The chip's numbers, in its own formats, against the torch reference in float32.

The accepted differences are stated in EXPERT_NOTES.md; `benchmarks/emulated_chip.py` prints what
was seen.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from alpamayo_node.errors import Cancelled
from alpamayo_node.errors import Refusal
from alpamayo_node.model.checkpoint import Checkpoint
from tests.emulation.differences import MODELS
from tests.emulation.differences import MODES
from tests.emulation.differences import TOLERANCES
from tests.emulation.differences import Model
from tests.emulation.differences import compare
from tests.emulation.differences import write_calm_checkpoint
from tests.emulation.experts import chip_expert
from tests.emulation.experts import device_of
from tests.emulation.experts import relative
from tests.emulation.experts import sample
from tests.model.builders import RandomContext
from tests.model.builders import load_expert
from tests.model.builders import never
from tests.model.builders import noise
from tests.model.builders import tiny_config
from tests.model.builders import write_checkpoint

CONFIG = tiny_config()


@pytest.fixture(scope='module')
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp('tiny'), CONFIG)


@pytest.fixture(scope='module')
def deep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_calm_checkpoint(tmp_path_factory.mktemp('deep'), MODELS['deep'].config)


@pytest.fixture(scope='module')
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_calm_checkpoint(tmp_path_factory.mktemp('wide'), MODELS['wide'].config)


@pytest.mark.parametrize('weights', ['bf16', 'bfp8', 'bfp4'])
@pytest.mark.parametrize('mode', sorted(MODES))
def test_numbers_of_all_layers_at_reduced_width(mode: str, weights: str, deep: Path) -> None:
    differences = compare(deep, MODELS['deep'], weights=weights, **MODES[mode])
    assert differences.hidden <= TOLERANCES['deep'][weights].hidden
    assert differences.velocity <= TOLERANCES['deep'][weights].velocity
    assert differences.waypoint_m <= TOLERANCES['deep'][weights].waypoint_m


@pytest.mark.slow
@pytest.mark.parametrize('weights', ['bf16', 'bfp8', 'bfp4'])
@pytest.mark.parametrize('mode', sorted(MODES))
def test_numbers_of_two_layers_at_full_width(mode: str, weights: str, wide: Path) -> None:
    differences = compare(wide, MODELS['wide'], weights=weights, **MODES[mode])
    assert differences.hidden <= TOLERANCES['wide'][weights].hidden
    assert differences.velocity <= TOLERANCES['wide'][weights].velocity
    assert differences.waypoint_m <= TOLERANCES['wide'][weights].waypoint_m


@pytest.mark.parametrize('mode', sorted(MODES))
@pytest.mark.parametrize('n_rows', range(192, 224))
def test_hidden_rows_never_count_whatever_the_context_length(
    n_rows: int, mode: str, directory: Path
) -> None:
    """Large finite values behind the context and before it, in every layer, change no bit."""
    left_pad = n_rows % 32
    expert = chip_expert(directory, weights='bf16', is_traced=False, **MODES[mode])
    context = RandomContext(CONFIG, n_rows, left_pad=left_pad, rope_delta=-50)
    expert.load(context, never)
    before = sample(expert, noise(), 1)
    own_row = expert.network.cache.own_row
    for keys, values in expert.network.cache.layers:
        for tensor in (keys, values):
            for hidden in (slice(0, left_pad), slice(n_rows, own_row)):
                tensor.reader().read()[:, :, hidden] = 30.0
    after = sample(expert, noise(), 1)
    assert np.array_equal(before, after)
    # And the first and last visible rows do count.
    for row in (left_pad, n_rows - 1):
        changed = chip_expert(directory, weights='bf16', is_traced=False, **MODES[mode])
        changed.load(context, never)
        for _, values in changed.network.cache.layers:
            values.reader().read()[:, :, row] += 30.0
        assert not np.array_equal(before, sample(changed, noise(), 1))


@pytest.mark.parametrize('n_rows', range(192, 224))
def test_velocity_follows_the_reference_at_every_context_length(
    n_rows: int, directory: Path
) -> None:
    differences = compare(
        directory,
        Model(CONFIG, n_rows, 300),
        weights='bf16',
        left_pad=n_rows % 7,
        **MODES['decode'],
    )
    assert differences.hidden <= 2e-2


@pytest.mark.parametrize('mode', sorted(MODES))
@pytest.mark.parametrize('cache_dtype', ['bf16', 'bfp8'])
def test_replayed_steps_equal_single_ops(mode: str, cache_dtype: str, directory: Path) -> None:
    context = RandomContext(CONFIG, 200, left_pad=3, rope_delta=-50)
    actions = []
    for is_traced in (False, True):
        expert = chip_expert(
            directory, is_traced=is_traced, cache_dtype=cache_dtype, **MODES[mode]
        )
        expert.load(context, never)
        actions.append(sample(expert, noise(), 10))
        assert bool(device_of(expert).n_replays) == is_traced
    assert np.array_equal(*actions)


@pytest.mark.parametrize('is_traced', [False, True])
@pytest.mark.parametrize('mode', sorted(MODES))
def test_contexts_one_after_the_other_equal_fresh_ones(
    mode: str, is_traced: bool, directory: Path
) -> None:
    contexts = {
        n_rows: RandomContext(CONFIG, n_rows, left_pad=pad, rope_delta=-n_rows // 3, seed=n_rows)
        for n_rows, pad in ((300, 40), (65, 0))
    }
    options: dict[str, Any] = {'is_traced': is_traced, **MODES[mode]}
    used = chip_expert(directory, **options)
    for n_rows in (300, 65, 300):
        used.load(contexts[n_rows], never)
        fresh = chip_expert(directory, **options)
        fresh.load(contexts[n_rows], never)
        assert np.array_equal(sample(used, noise()), sample(fresh, noise()))


def test_tuned_programs_and_own_ones_give_the_same_numbers(directory: Path) -> None:
    context = RandomContext(CONFIG, 100)
    actions = []
    for is_tuned in (True, False):
        expert = chip_expert(directory, is_tuned=is_tuned)
        expert.load(context, never)
        actions.append(sample(expert, noise()))
    assert np.array_equal(*actions)


def test_nan_in_hidden_rows_of_a_context_is_harmless(directory: Path) -> None:
    actions = []
    for hidden in (0.0, np.nan):
        expert = chip_expert(directory)
        expert.load(RandomContext(CONFIG, 100, left_pad=11, hidden=hidden), never)
        actions.append(sample(expert, noise()))
    assert np.array_equal(*actions)
    assert np.isfinite(actions[0]).all()


def test_nan_in_a_hidden_row_of_the_chip_shows_in_the_action(directory: Path) -> None:
    """Whoever fills the chip's cache must keep it finite; if not, the gate sees no number."""
    expert = chip_expert(directory)
    expert.load(RandomContext(CONFIG, 100), never)
    keys, _ = expert.network.cache.layers[0]
    keys.reader().read()[:, :, 150] = torch.nan
    assert np.isnan(sample(expert, noise())).any()


def test_every_step_is_recorded(directory: Path) -> None:
    expert = chip_expert(directory)
    expert.load(RandomContext(CONFIG, 100), never)
    steps = []
    action = expert.sample(noise(), n_steps=4, should_stop=never, on_step=steps.append)
    assert [step.t for step in steps] == [0.0, 0.25, 0.5, 0.75]
    assert np.array_equal(steps[0].x, noise())
    assert np.allclose(steps[-1].x + 0.25 * steps[-1].v, action)
    assert np.array_equal(steps[2].v, expert.velocity(steps[2].x, 0.5))


@pytest.mark.parametrize('is_traced', [False, True])
@pytest.mark.parametrize('n_polls', [0, 1, 2])
def test_stopping_between_steps(n_polls: int, is_traced: bool, directory: Path) -> None:
    expert = chip_expert(directory, is_traced=is_traced)
    expert.load(RandomContext(CONFIG, 100), never)
    expected = sample(expert, noise())
    polls = []

    def should_stop() -> bool:
        polls.append(1)
        return len(polls) > n_polls

    with pytest.raises(Cancelled):
        expert.sample(noise(), n_steps=3, should_stop=should_stop)
    assert np.array_equal(sample(expert, noise()), expected)


@pytest.mark.parametrize(
    ('changes', 'text'),
    [({'n_rows': 301}, '301 rows'), ({'left_pad': 99, 'n_rows': 99}, 'left_pad')],
)
def test_a_context_that_does_not_fit_is_refused(
    changes: dict[str, int], text: str, directory: Path
) -> None:
    expert = chip_expert(directory)
    values = {'n_rows': 100} | changes
    n_rows = values.pop('n_rows')
    with pytest.raises(Refusal, match=text):
        expert.load(RandomContext(CONFIG, n_rows, **values), never)


def test_chip_and_cpu_agree_through_the_same_interface(directory: Path) -> None:
    """The two backends are one to the planner: names, shapes, action space."""
    ours, theirs = chip_expert(directory).info, load_expert(directory, max_rows=300).info
    assert (ours.backend, theirs.backend) == ('ttnn', 'torch')
    same = ('n_layers', 'n_kv_heads', 'head_dim', 'max_rows', 'action_space', 'buffer_rounding')
    assert [getattr(ours, name) for name in same] == [getattr(theirs, name) for name in same]
    assert 'bfp8' in ours.precision


def test_run_layers_takes_any_subset(directory: Path) -> None:
    expert = chip_expert(directory, weights='bf16')
    expert.load(RandomContext(CONFIG, 100), never)
    network = expert.network
    tokens = torch.randn(64, CONFIG.expert.hidden)
    one = network.run_layers(tokens, [1])
    assert torch.equal(
        network.run_layers(network.run_layers(tokens, [0]), [1]),
        network.run_layers(tokens, [0, 1]),
    )
    assert not torch.equal(one, network.run_layers(tokens, [0]))
    rounded = tokens.bfloat16().float()
    assert torch.equal(network.run_layers(tokens, []), rounded)
    both = network.run_layers(tokens, [0, 1], has_norm=True)
    assert relative(both.numpy(), network.hidden(tokens).numpy()) == 0
    assert Checkpoint.open(directory).config.expert.n_layers == 2
