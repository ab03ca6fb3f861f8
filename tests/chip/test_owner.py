# SPDX-License-Identifier: Apache-2.0
import os
from pathlib import Path
import threading

import pytest

from alpamayo_node.chip.owner import owners_of
from alpamayo_node.chip.owner import wait_until_free
from alpamayo_node.errors import BackendError
from alpamayo_node.errors import Cancelled
from tests.model.builders import never


def hold(proc: Path, *pids: int, chip_id: int = 0) -> Path:
    path = proc / 'driver' / 'tenstorrent' / str(chip_id) / 'pids'
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(''.join(f'{pid}\n' for pid in pids))
    for pid in pids:
        (proc / str(pid)).mkdir(exist_ok=True)
        (proc / str(pid) / 'comm').write_text('text_model\n')
    return path


def test_no_driver_means_no_owner(tmp_path: Path) -> None:
    assert owners_of(0, tmp_path) == ()


def test_owners_are_the_other_processes_of_this_chip(tmp_path: Path) -> None:
    hold(tmp_path, 4242, os.getpid(), 17)
    hold(tmp_path, 99, chip_id=1)
    assert owners_of(0, tmp_path) == (17, 4242)


def test_free_chip_is_not_waited_for(tmp_path: Path) -> None:
    said: list[str] = []
    wait_until_free(0, 0.0, never, said.append, tmp_path)
    assert said == []


def test_owner_is_named_when_the_wait_ends(tmp_path: Path) -> None:
    hold(tmp_path, 4242)
    said: list[str] = []
    with pytest.raises(BackendError, match=r'chip 0 is held by process 4242 \(text_model\)') as e:
        wait_until_free(0, 0.15, never, said.append, tmp_path)
    assert 'share a process' in str(e.value)
    assert said == ['waiting for chip 0, held by process 4242 (text_model)']


def test_owner_that_has_gone_is_named_as_far_as_known(tmp_path: Path) -> None:
    hold(tmp_path, 4242)
    (tmp_path / '4242' / 'comm').unlink()
    with pytest.raises(BackendError, match=r'4242 \(unknown\)'):
        wait_until_free(0, 0.0, never, print, tmp_path)


def test_wait_ends_when_the_owner_lets_go(tmp_path: Path) -> None:
    path = hold(tmp_path, 4242)
    timer = threading.Timer(0.2, path.write_text, [''])
    timer.start()
    said: list[str] = []
    wait_until_free(0, 60.0, never, said.append, tmp_path)
    timer.join()
    assert len(said) == 1


def test_wait_can_be_stopped(tmp_path: Path) -> None:
    hold(tmp_path, 4242)
    with pytest.raises(Cancelled):
        wait_until_free(0, 60.0, lambda: True, print, tmp_path)
