# SPDX-License-Identifier: Apache-2.0
"""What is recorded, when, and what can go wrong with it: the hazards of traces on silicon."""

from pathlib import Path

import numpy as np
import pytest
import torch
import ttnn

from alpamayo_node.chip.kv_cache import DeviceKvCache
from alpamayo_node.errors import BackendError
from alpamayo_node.errors import ConfigError
from alpamayo_node.errors import SelfTestError
from tests.emulation.device import TRACE_BYTES_PER_OP
from tests.emulation.device import Device
from tests.emulation.experts import chip_expert
from tests.emulation.experts import device_of
from tests.emulation.experts import sample
from tests.model.builders import RandomContext
from tests.model.builders import never
from tests.model.builders import noise
from tests.model.builders import tiny_config
from tests.model.builders import write_checkpoint

CONFIG = tiny_config()
N_OPS = 2 * 19 + 1


@pytest.fixture(scope='module')
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp('tiny'), CONFIG)


def context(n_rows: int = 100, **changes: int) -> RandomContext:
    return RandomContext(CONFIG, n_rows, rope_delta=-n_rows // 3, **changes)


def test_self_test_leaves_the_step_recorded(directory: Path) -> None:
    expert = chip_expert(directory)
    assert 'replays equal the recorded ops' in expert.self_test(never)
    assert expert.network.trace.is_recorded
    device = device_of(expert)
    assert len(device.traces) == 1
    assert len(next(iter(device.traces.values())).ops) == N_OPS


def test_trajectories_allocate_nothing(directory: Path) -> None:
    expert = chip_expert(directory)
    expert.self_test(never)
    device = device_of(expert)
    n_allocations, live = device.n_allocations, dict(device.live)
    programs = set(device.programs)
    for n_rows, left_pad in ((300, 0), (65, 64), (200, 7), (300, 0)):
        expert.load(context(n_rows, left_pad=left_pad), never)
        sample(expert, noise(), 10)
        sample(expert, noise(3), 5)
    assert device.n_allocations == n_allocations
    assert device.live == live
    assert device.programs == programs
    assert device.n_replays >= 4 * 15


def test_trajectories_issue_nothing_but_replays(directory: Path) -> None:
    """No op runs beside the recording, least of all one that draws random numbers."""
    expert = chip_expert(directory)
    expert.self_test(never)
    device = device_of(expert)
    device.op_log.clear()
    expert.load(context(), never)
    first = sample(expert, noise())
    assert device.op_log == []
    assert np.array_equal(first, sample(expert, noise()))
    assert not np.array_equal(first, sample(expert, noise(9)))


@pytest.mark.parametrize('failing', range(N_OPS))
def test_failure_while_recording_ends_the_recording(failing: int, directory: Path) -> None:
    expert = chip_expert(directory)
    expert.load(context(), never)
    device = device_of(expert)
    seen = []

    def fail(name: str) -> None:
        if device.recording is not None:
            seen.append(name)
            if len(seen) == failing + 1:
                raise RuntimeError('TT_THROW: injected')

    device.before_op = fail
    with pytest.raises(BackendError, match='injected'):
        sample(expert, noise())
    assert device.recording is None
    assert device.traces == {}
    # The end succeeded, so the chip is as good as before: it records again.
    device.before_op = lambda name: None
    fresh = chip_expert(directory)
    fresh.load(context(), never)
    assert np.array_equal(sample(expert, noise()), sample(fresh, noise()))


def test_recording_that_cannot_be_ended_taints_the_chip(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expert = chip_expert(directory)
    expert.load(context(), never)
    device = device_of(expert)

    def fail(name: str) -> None:
        if device.recording is not None:
            raise RuntimeError('TT_THROW: injected')

    def fail_to_end(*_: object, **__: object) -> None:
        raise RuntimeError('TT_FATAL: cannot end')

    device.before_op = fail
    monkeypatch.setattr(ttnn, 'end_trace_capture', fail_to_end)
    with pytest.raises(BackendError, match='injected'):
        sample(expert, noise())
    device.before_op = lambda name: None
    monkeypatch.undo()
    for attempt in (
        lambda: sample(expert, noise()),
        lambda: expert.network.run_layers(torch.zeros(64, 64), [0]),
    ):
        with pytest.raises(BackendError, match=r'not used any more.*cannot end.*restart'):
            attempt()


def test_region_too_small_names_the_parameter_and_both_sizes(directory: Path) -> None:
    region = (N_OPS - 1) * TRACE_BYTES_PER_OP
    expert = chip_expert(directory, device=Device(region))
    with pytest.raises(BackendError, match=rf'{N_OPS * TRACE_BYTES_PER_OP}B.*{region}B') as caught:
        expert.self_test(never)
    assert 'chip.trace_region_bytes' in str(caught.value)
    expert.close()
    assert not device_is_open(expert)


def device_is_open(expert: object) -> bool:
    return bool(expert._network.device.is_open)  # type: ignore[attr-defined]


def test_memory_allocated_after_recording_stops_the_replay(directory: Path) -> None:
    expert = chip_expert(directory)
    expert.self_test(never)
    expert.load(context(), never)
    expected = sample(expert, noise())
    foreign = device_of(expert).allocate(64 * 64, 'BFLOAT16')
    with pytest.raises(BackendError, match=f'{foreign.n_bytes} bytes were allocated'):
        sample(expert, noise())
    foreign.free()
    assert np.array_equal(sample(expert, noise()), expected)


def test_emulated_replay_does_overwrite_what_was_allocated_after_it(directory: Path) -> None:
    """The hazard that the check above is for exists in this emulation, as on silicon."""
    expert = chip_expert(directory)
    expert.self_test(never)
    device = device_of(expert)
    foreign = ttnn.from_torch(
        torch.ones(64, 64), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=device
    )
    assert ttnn.to_torch(foreign).eq(1).all()
    for trace_id in device.traces:
        device.execute_trace(trace_id)
    assert not ttnn.to_torch(foreign).eq(1).all()


@pytest.mark.parametrize('damage', [1.01, np.nan])
def test_replay_with_wrong_numbers_fails_the_self_test(damage: float, directory: Path) -> None:
    expert = chip_expert(directory)
    device = device_of(expert)

    def corrupt() -> None:
        output = expert.network.trace._recording.output.reader().read()
        output[:, :, 0] *= damage

    device.after_replay = corrupt
    with pytest.raises(SelfTestError, match=r'not finite|recorded step is off'):
        expert.self_test(never)


def test_replay_that_ignores_new_tokens_fails_the_self_test(directory: Path) -> None:
    expert = chip_expert(directory)
    device = device_of(expert)
    kept: list[torch.Tensor] = []

    def repeat_first() -> None:
        output = expert.network.trace._recording.output.reader().read()
        if not kept:
            kept.append(output.clone())
        output.copy_(kept[0])

    expert.load(context(), never)
    device.after_replay = repeat_first
    with pytest.raises(SelfTestError, match='recorded step is off'):
        expert.self_test(never)


def test_tables_and_mask_are_written_anew_for_every_trajectory(directory: Path) -> None:
    """Another model's recording may have written over them in between."""
    expert = chip_expert(directory)
    expert.self_test(never)
    expert.load(context(), never)
    expected = sample(expert, noise())
    for tensor in (expert.network.inputs.cos, expert.network.inputs.sin):
        tensor.reader().read().fill_(7.0)
    expert.network.inputs.mask.reader().read().fill_(-1e9)
    assert np.array_equal(sample(expert, noise()), expected)


def test_other_buffers_mean_another_recording(directory: Path) -> None:
    expert = chip_expert(directory)
    expert.load(context(), never)
    expected = sample(expert, noise())
    network = expert.network
    own, device = network.cache, device_of(expert)
    copies = []
    for pair in own.layers:
        copies.append(tuple(copy_of(tensor, device) for tensor in pair))
    network.attach(DeviceKvCache(copies, own.n_own))
    assert np.array_equal(sample(expert, noise()), expected)
    assert len(device.traces) == 1
    # The recording follows the new buffers: what happens to the old ones does not matter.
    for keys, values in own.layers:
        keys.reader().read().fill_(torch.nan)
        values.reader().read().fill_(torch.nan)
    assert np.array_equal(sample(expert, noise()), expected)
    network.attach(own)
    assert np.isnan(sample(expert, noise())).any()


def copy_of(tensor: object, device: Device) -> object:
    values = ttnn.to_torch(tensor)
    return ttnn.from_torch(values, dtype=tensor.dtype, layout=ttnn.TILE_LAYOUT, device=device)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ('shapes', 'dtypes', 'text'),
    [
        ([(1, 2, 384, 32), (1, 2, 352, 32)], ['bfloat16'] * 2, 'value cache of layer 0'),
        ([(1, 2, 384, 32)] * 2, ['bfloat16', 'bfloat8_b'], 'value cache of layer 0'),
        ([(1, 2, 384, 32)] * 2, ['bfloat4_b'] * 2, 'must be bfloat16 or bfloat8_b'),
        ([(1, 2, 64, 32)] * 2, ['bfloat16'] * 2, 'more rows'),
        ([(2, 2, 384, 32)] * 2, ['bfloat16'] * 2, 'multiples of 32'),
        ([(1, 2, 380, 32)] * 2, ['bfloat16'] * 2, 'multiples of 32'),
    ],
)
def test_caches_that_do_not_fit_are_refused(
    shapes: list[tuple[int, ...]], dtypes: list[str], text: str
) -> None:
    device = Device()
    pair = [
        ttnn.from_torch(
            torch.zeros(shape), dtype=getattr(ttnn, dtype), layout=ttnn.TILE_LAYOUT, device=device
        )
        for shape, dtype in zip(shapes, dtypes, strict=True)
    ]
    with pytest.raises(ConfigError, match=text):
        DeviceKvCache([(pair[0], pair[1])], 64)


def test_another_models_cache_cannot_be_attached(directory: Path) -> None:
    expert = chip_expert(directory)
    device = device_of(expert)
    other = DeviceKvCache.allocate(
        device, n_layers=2, n_kv_heads=2, head_dim=32, cache_rows=256, n_own=64, dtype='bf16'
    )
    with pytest.raises(ConfigError, match='must be 2 layers of'):
        expert.network.attach(other)


def test_closing_releases_the_recording_and_the_chip_once(directory: Path) -> None:
    expert = chip_expert(directory)
    expert.self_test(never)
    device, chip = device_of(expert), expert._chip
    expert.close()
    expert.close()
    assert device.traces == {}
    assert chip is not None
    assert chip.n_closed == 1  # type: ignore[attr-defined]
    with pytest.raises(BackendError, match='closed'):
        sample(expert, noise())


def test_chip_is_closed_when_releasing_fails(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expert = chip_expert(directory)
    expert.self_test(never)
    device = device_of(expert)

    def fail(*_: object) -> None:
        raise RuntimeError('TT_THROW: cannot release')

    monkeypatch.setattr(ttnn, 'release_trace', fail)
    with pytest.raises(BackendError, match='cannot release'):
        expert.close()
    assert not device.is_open


def test_chip_is_closed_when_loading_fails(directory: Path) -> None:
    device = Device()
    with pytest.raises(ConfigError, match='max_rows'):
        chip_expert(directory, device=device, max_rows=0)
    assert not device.is_open


def test_errors_of_ttnn_become_ours(directory: Path) -> None:
    expert = chip_expert(directory, is_traced=False)
    expert.load(context(), never)

    def fail(name: str) -> None:
        raise RuntimeError('\nTT_FATAL @ x.cpp:1: a > b\ninfo:\nout of memory\nbacktrace:\n -')

    device_of(expert).before_op = fail
    with pytest.raises(
        BackendError, match=r'a step failed on the chip: TT_FATAL @ .*: a > b: out of memory$'
    ):
        sample(expert, noise())


def test_nothing_can_be_sampled_without_a_context(directory: Path) -> None:
    expert = chip_expert(directory)
    with pytest.raises(BackendError, match='no context'):
        sample(expert, noise())
    expert.self_test(never)
    with pytest.raises(BackendError, match='no context'):
        sample(expert, noise())


def test_single_ops_release_the_recording_first(directory: Path) -> None:
    expert = chip_expert(directory)
    expert.self_test(never)
    expert.load(context(), never)
    expected = sample(expert, noise())
    device = device_of(expert)
    expert.network.run_layers(torch.zeros(64, 64), [0])
    assert device.traces == {}
    assert np.array_equal(sample(expert, noise()), expected)
    assert len(device.traces) == 1
