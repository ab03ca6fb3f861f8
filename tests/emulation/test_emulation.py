# SPDX-License-Identifier: Apache-2.0
"""The emulation itself: it must be able to go wrong where silicon does."""

import gc

import pytest
import torch
import ttnn

from tests.emulation.block_float import round_to
from tests.emulation.device import Device


def put(values: torch.Tensor, device: Device, dtype: str = 'bfloat16') -> ttnn.Tensor:
    return ttnn.from_torch(
        values, dtype=getattr(ttnn, dtype), layout=ttnn.TILE_LAYOUT, device=device
    )


def add(a: ttnn.Tensor, b: ttnn.Tensor) -> ttnn.Tensor:
    return ttnn.add(a, b, memory_config=ttnn.DRAM_MEMORY_CONFIG)


def test_freed_memory_is_given_out_again() -> None:
    device = Device()
    first, second = (put(torch.full((32, 32), float(i)), device) for i in (1, 2))
    address = first.buffer_address()
    first.deallocate()
    third = put(torch.full((32, 32), 3.0), device)
    assert third.buffer_address() == address
    assert ttnn.to_torch(second).eq(2).all()
    with pytest.raises(RuntimeError, match='deallocated'):
        first.buffer_address()


def test_memory_goes_with_the_last_owner() -> None:
    device = Device()
    tensor = put(torch.ones(32, 32), device)
    seen = ttnn.view(tensor, (1, 32, 32))
    del tensor
    gc.collect()
    assert len(device.live) == 1
    del seen
    gc.collect()
    assert device.live == {}


def test_memory_that_was_never_written_is_no_number() -> None:
    device = Device()
    buffer = device.allocate(1024, 'BFLOAT16')
    assert device.memory[buffer.address : buffer.address + buffer.size].isnan().all()


def test_trace_reads_what_lies_at_its_addresses_now() -> None:
    device = Device()
    a, b = (put(torch.full((32, 32), float(i)), device) for i in (1, 2))
    add(a, b)
    trace_id = device.begin_trace()
    result = add(a, b)
    device.end_trace(trace_id)
    ttnn.copy_host_to_device_tensor(
        ttnn.from_torch(torch.full((32, 32), 5.0), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT), a
    )
    device.execute_trace(trace_id)
    assert ttnn.to_torch(result).eq(7).all()


def test_recording_runs_nothing_and_compiles_nothing() -> None:
    device = Device()
    a = put(torch.ones(32, 32), device)
    device.begin_trace()
    with pytest.raises(RuntimeError, match='during capture'):
        add(a, a)
    device = Device()
    a = put(torch.ones(32, 32), device)
    add(a, a).deallocate()
    device.begin_trace()
    result = add(a, a)
    assert not result.reader().read().isnan().all()
    result.reader().read().fill_(0.0)
    assert result.reader().read().eq(0).all()


@pytest.mark.parametrize('name', ['synchronize_device', 'begin_trace_capture'])
def test_host_may_not_wait_or_begin_again_while_recording(name: str) -> None:
    device = Device()
    device.begin_trace()
    with pytest.raises(RuntimeError, match='during trace capture'):
        getattr(ttnn, name)(device, **({'cq_id': 0} if 'begin' in name else {}))


def test_host_may_not_copy_while_recording() -> None:
    device = Device()
    a = put(torch.ones(32, 32), device)
    device.begin_trace()
    with pytest.raises(RuntimeError, match='during trace capture'):
        ttnn.to_torch(a)
    with pytest.raises(RuntimeError, match='during trace capture'):
        put(torch.ones(32, 32), device)


@pytest.mark.parametrize(('dtype', 'error'), [('BFLOAT8_B', 0.0073), ('BFLOAT4_B', 0.114)])
def test_block_formats_lose_as_much_as_on_the_chip(dtype: str, error: float) -> None:
    values = torch.randn(256, 256)
    lost = (round_to(values, dtype) - values).norm() / values.norm()
    assert lost == pytest.approx(error, rel=0.05)


@pytest.mark.parametrize('dtype', ['BFLOAT8_B', 'BFLOAT4_B'])
def test_block_formats_round_once(dtype: str) -> None:
    values = round_to(torch.randn(64, 64) * 10 ** torch.randn(64, 64), dtype)
    assert torch.equal(round_to(values, dtype), values)
    assert torch.equal(round_to(torch.zeros(1, 32), dtype), torch.zeros(1, 32))


@pytest.mark.parametrize('dtype', ['BFLOAT8_B', 'BFLOAT4_B'])
def test_one_nan_spoils_its_block_alone(dtype: str) -> None:
    values = torch.ones(1, 32)
    values[0, 3] = torch.nan
    assert round_to(values, dtype).isnan().sum() == 16
