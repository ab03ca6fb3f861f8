# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable
import threading

import pytest
import ttnn

from alpamayo_node.chip import device as device_module
from alpamayo_node.chip.device import ChipDevice
from alpamayo_node.chip.device import DeviceConfig
from alpamayo_node.errors import BackendError
from alpamayo_node.errors import Cancelled
from alpamayo_node.errors import ConfigError
from tests.emulation.device import Device
from tests.model.builders import never


def replace_opening(monkeypatch: pytest.MonkeyPatch, open_device: Callable[..., object]) -> None:
    monkeypatch.setattr(ttnn, 'open_device', open_device)


@pytest.mark.parametrize(
    ('values', 'name'),
    [
        ({'chip_id': -1}, 'chip.id'),
        ({'trace_region_bytes': 0}, 'chip.trace_region_bytes'),
        ({'open_timeout_s': 0.0}, 'chip.open_timeout_s'),
        ({'open_timeout_s': float('nan')}, 'chip.open_timeout_s'),
    ],
)
def test_wrong_config_is_refused_by_name(values: dict[str, float], name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        DeviceConfig(**values)  # type: ignore[arg-type]
    assert caught.value.field == name


def test_opened_chip_has_the_region_that_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, int]] = []

    def open_device(**values: int) -> Device:
        given.append(values)
        return Device(values['trace_region_size'])

    replace_opening(monkeypatch, open_device)
    chip = ChipDevice.open(DeviceConfig(chip_id=3, trace_region_bytes=1 << 21), never, print)
    assert given == [{'device_id': 3, 'trace_region_size': 1 << 21}]
    assert chip.handle.is_open


def test_owner_is_waited_for_first(monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(*_: object) -> None:
        raise BackendError('held by process 7')

    replace_opening(monkeypatch, lambda **_: pytest.fail('opened a chip of another process'))
    monkeypatch.setattr(device_module, 'wait_until_free', busy)
    with pytest.raises(BackendError, match='held by process 7'):
        ChipDevice.open(DeviceConfig(), never, print)


def test_chip_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    release, late = threading.Event(), Device()

    def hang(**_: object) -> Device:
        release.wait(60.0)
        return late

    replace_opening(monkeypatch, hang)
    with pytest.raises(BackendError, match=r'did not open within 0\.1 s.*never resets.*tt-smi -r'):
        ChipDevice.open(DeviceConfig(open_timeout_s=0.1), never, print)
    # What opens after all is closed at once, so the next try finds it free.
    assert late.is_open
    release.set()
    for thread in threading.enumerate():
        if thread.name == 'open_chip':
            thread.join(60.0)
    assert not late.is_open


def test_stop_while_opening(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()

    def hang(**_: object) -> Device:
        release.wait(60.0)
        return Device()

    replace_opening(monkeypatch, hang)
    with pytest.raises(Cancelled):
        ChipDevice.open(DeviceConfig(), lambda: True, print)
    release.set()


def test_refusal_of_ttnn_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: object) -> Device:
        raise RuntimeError('\nTT_THROW: no chip 0\nbacktrace')

    replace_opening(monkeypatch, fail)
    with pytest.raises(BackendError, match=r'chip 0 cannot be opened: TT_THROW: no chip 0$'):
        ChipDevice.open(DeviceConfig(), never, print)


def test_closing_twice_closes_once(monkeypatch: pytest.MonkeyPatch) -> None:
    chip = ChipDevice.open(DeviceConfig(), never, print)
    handle, closed = chip.handle, []
    monkeypatch.setattr(ttnn, 'close_device', closed.append)
    chip.close()
    chip.close()
    assert closed == [handle]
    with pytest.raises(BackendError, match='closed'):
        _ = chip.handle


def test_chip_is_closed_even_if_it_does_not_finish(monkeypatch: pytest.MonkeyPatch) -> None:
    chip = ChipDevice.open(DeviceConfig(), never, print)
    handle = chip.handle
    handle.begin_trace()
    with pytest.raises(BackendError, match=r'did not close in order.*during trace capture'):
        chip.close()
    assert not handle.is_open
