# SPDX-License-Identifier: Apache-2.0
"""Each check is tried on a machine made of files, in its good state and in every bad one."""

from argparse import ArgumentParser
import json
import os
from pathlib import Path
import sys

import pytest

from alpamayo_node.tools import preflight
from alpamayo_node.tools.preflight import Finding
from alpamayo_node.tools.preflight import Level
from tests.rules.pins import pinned


def allow(path: Path, mode: int) -> bool:
    del path, mode
    return True


def deny(path: Path, mode: int) -> bool:
    del path, mode
    return False


def write(path: Path, text: str = '') -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def add_chip(root: Path, number: int, iommu: str = '', vendor: str = '0x1e52') -> None:
    device = root / 'sys' / 'bus' / 'pci' / 'devices' / f'0000:0{number}:00.0'
    write(device / 'vendor', f'{vendor}\n')
    if iommu:
        write(device / 'iommu_group' / 'type', f'{iommu}\n')


def add_huge_pages(root: Path, count: int, *, mounted: bool = True) -> None:
    folder = root / 'sys' / 'kernel' / 'mm' / 'hugepages' / 'hugepages-1048576kB'
    write(folder / 'nr_hugepages', f'{count}\n')
    if mounted:
        (root / 'dev' / 'hugepages-1G').mkdir(parents=True)


def arguments(*given: str) -> object:
    parser = ArgumentParser()
    preflight.add_arguments(parser)
    return parser.parse_args(given)


def test_python_312_is_ok() -> None:
    assert preflight.check_python((3, 12)).level == Level.OK


@pytest.mark.parametrize('running', [(3, 11), (3, 13), (2, 12), (4, 12)])
def test_python_other_fails_and_says_which(running: tuple[int, int]) -> None:
    finding = preflight.check_python(running)
    assert finding.level == Level.FAIL
    assert finding.text == f'ROS 2 Jazzy needs Python 3.12, this is {running[0]}.{running[1]}'


def test_import_of_an_importable_module_is_ok() -> None:
    finding = preflight.check_import('json.decoder', {'ROS_DISTRO': 'jazzy'})
    assert finding == Finding('json', Level.OK, 'ROS 2 jazzy')


def test_import_of_an_absent_module_fails_with_its_error() -> None:
    finding = preflight.check_import('no_such_thing.msg', {'ROS_DISTRO': 'jazzy'})
    assert finding.name == 'no_such_thing'
    assert finding.level == Level.FAIL
    assert "No module named 'no_such_thing'" in finding.text


def test_import_that_kills_the_interpreter_fails_and_we_live(tmp_path: Path) -> None:
    write(tmp_path / 'fatal.py', 'import os\nos.abort()\n')
    environment = {'ROS_DISTRO': 'jazzy', 'PYTHONPATH': str(tmp_path)}
    assert preflight.check_import('fatal', environment).level == Level.FAIL


@pytest.mark.parametrize('distribution', ['humble', 'kilted', None])
def test_import_under_another_distribution_fails(distribution: str | None) -> None:
    environment = {'ROS_DISTRO': distribution} if distribution else {}
    finding = preflight.check_import('json', environment)
    assert finding.level == Level.FAIL
    assert f'{distribution or "unknown"}, not jazzy' in finding.text


@pytest.mark.parametrize(
    ('found', 'level'),
    [('2.14.1', Level.OK), ('2.9.0', Level.NOTE), (None, Level.FAIL)],
)
def test_torch_missing_fails_and_another_one_is_noted(found: str | None, level: Level) -> None:
    assert preflight.check_torch(lambda name: found).level == level


@pytest.mark.parametrize(
    ('found', 'needs_chip', 'level'),
    [
        ('1.26.4', True, Level.OK),
        ('2.0.0', False, Level.NOTE),
        ('2.0.0', True, Level.FAIL),
        ('10.0', True, Level.FAIL),
        (None, False, Level.FAIL),
    ],
)
def test_numpy_2_fails_only_for_the_chip(
    found: str | None, needs_chip: bool, level: Level
) -> None:
    assert preflight.check_numpy(lambda name: found, needs_chip=needs_chip).level == level


@pytest.mark.parametrize(
    ('found', 'needs_chip', 'level'),
    [
        ('0.81.1', True, Level.OK),
        ('0.81.0', False, Level.NOTE),
        ('0.81.0', True, Level.FAIL),
        (None, False, Level.NOTE),
        (None, True, Level.FAIL),
    ],
)
def test_ttnn_must_be_the_version_that_we_are_written_for(
    found: str | None, needs_chip: bool, level: Level
) -> None:
    finding = preflight.check_ttnn(lambda name: found, needs_chip=needs_chip)
    assert finding.level == level
    assert level == Level.OK or '0.81.1' in finding.fix


def test_versions_are_those_of_the_constraints() -> None:
    pins = pinned()
    assert (pins['torch'], pins['ttnn']) == (preflight.TORCH_VERSION, preflight.TTNN_VERSION)


def test_installed_version_of_an_absent_package_is_none() -> None:
    assert preflight.installed_version('no-such-distribution') is None
    assert preflight.installed_version('numpy') == pinned()['numpy']


@pytest.mark.parametrize(
    ('needs_chip', 'level'), [(False, Level.NOTE), (True, Level.FAIL)], ids=['cpu', 'chip']
)
class TestChip:
    """A missing thing is a note on the CPU, and a failure for the chip."""

    def test_device_absent(self, tmp_path: Path, needs_chip: bool, level: Level) -> None:
        finding = preflight.check_device(tmp_path, allow, needs_chip=needs_chip)
        assert finding.level == level
        assert finding.text.startswith('no chip')
        assert finding.fix

    def test_device_on_the_bus_without_driver(
        self, tmp_path: Path, needs_chip: bool, level: Level
    ) -> None:
        add_chip(tmp_path, 1)
        add_chip(tmp_path, 2, vendor='0x10de')
        finding = preflight.check_device(tmp_path, allow, needs_chip=needs_chip)
        assert finding.level == level
        assert finding.text.startswith('1 Tenstorrent card(s) on the bus, but no driver')

    def test_device_without_permission(
        self, tmp_path: Path, needs_chip: bool, level: Level
    ) -> None:
        write(tmp_path / 'dev' / 'tenstorrent' / '0')
        finding = preflight.check_device(tmp_path, deny, needs_chip=needs_chip)
        assert finding.level == level
        assert 'may not be opened' in finding.text

    def test_compiler_absent(self, tmp_path: Path, needs_chip: bool, level: Level) -> None:
        finding = preflight.check_compiler(tmp_path, tmp_path / 'rt', needs_chip=needs_chip)
        assert finding.level == level
        assert str(tmp_path / 'rt' / 'runtime' / 'sfpi') in finding.text
        assert str(tmp_path / 'opt' / 'tenstorrent' / 'sfpi') in finding.text

    def test_huge_pages_too_few_for_the_chips(
        self, tmp_path: Path, needs_chip: bool, level: Level
    ) -> None:
        add_chip(tmp_path, 1, iommu='DMA')
        add_chip(tmp_path, 2, iommu='identity')
        add_huge_pages(tmp_path, 1)
        finding = preflight.check_huge_pages(tmp_path, needs_chip=needs_chip)
        assert finding.level == level
        assert '1 of 1 GB, 2 needed' in finding.text

    def test_huge_pages_not_mounted(self, tmp_path: Path, needs_chip: bool, level: Level) -> None:
        add_huge_pages(tmp_path, 1, mounted=False)
        finding = preflight.check_huge_pages(tmp_path, needs_chip=needs_chip)
        assert finding.level == level
        assert 'not mounted' in finding.text

    def test_huge_pages_unknown(self, tmp_path: Path, needs_chip: bool, level: Level) -> None:
        finding = preflight.check_huge_pages(tmp_path, needs_chip=needs_chip)
        assert finding.level == level
        assert '0 of 1 GB, 1 needed' in finding.text

    def test_kernel_cache_not_writable(
        self, tmp_path: Path, needs_chip: bool, level: Level
    ) -> None:
        environment = {'TT_METAL_CACHE': str(tmp_path / 'a' / 'b')}
        finding = preflight.check_kernel_cache(environment, deny, needs_chip=needs_chip)
        assert finding.level == level
        assert str(tmp_path) in finding.text

    def test_kernel_cache_below_a_file(
        self, tmp_path: Path, needs_chip: bool, level: Level
    ) -> None:
        write(tmp_path / 'file')
        environment = {'TT_METAL_CACHE': str(tmp_path / 'file' / 'cache')}
        finding = preflight.check_kernel_cache(environment, os.access, needs_chip=needs_chip)
        assert finding.level == level


def test_device_that_can_be_opened_is_ok(tmp_path: Path) -> None:
    write(tmp_path / 'dev' / 'tenstorrent' / '0')
    finding = preflight.check_device(tmp_path, os.access, needs_chip=True)
    assert finding.level == Level.OK
    assert finding.text == str(tmp_path / 'dev' / 'tenstorrent' / '0')


@pytest.mark.parametrize('place', ['opt/tenstorrent/sfpi', 'rt/runtime/sfpi'])
def test_compiler_is_found_in_both_places(tmp_path: Path, place: str) -> None:
    write(tmp_path / place / 'compiler' / 'bin' / 'riscv-tt-elf-g++')
    finding = preflight.check_compiler(tmp_path, tmp_path / 'rt', needs_chip=True)
    assert finding == Finding('compiler', Level.OK, str(tmp_path / place))


def test_compiler_without_ttnn_is_looked_for_all_the_same(tmp_path: Path) -> None:
    assert preflight.check_compiler(tmp_path, None, needs_chip=False).level == Level.NOTE


def test_runtime_root_is_ttnns_folder_unless_the_environment_says_otherwise() -> None:
    found = preflight.runtime_root({})
    assert found is not None
    assert (found / '__init__.py').is_file()
    assert preflight.runtime_root({'TT_METAL_RUNTIME_ROOT': '/x/y'}) == Path('/x/y')


@pytest.mark.parametrize('iommu', ['DMA', 'DMA-FQ'])
def test_huge_pages_are_not_needed_behind_an_iommu(tmp_path: Path, iommu: str) -> None:
    add_chip(tmp_path, 1, iommu=iommu)
    assert preflight.check_huge_pages(tmp_path, needs_chip=True).level == Level.OK


def test_huge_pages_one_for_each_chip_are_ok(tmp_path: Path) -> None:
    add_chip(tmp_path, 1)
    add_chip(tmp_path, 2)
    add_huge_pages(tmp_path, 2)
    assert preflight.check_huge_pages(tmp_path, needs_chip=True).level == Level.OK


@pytest.mark.parametrize('variable', ['TT_METAL_CACHE', 'HOME'])
def test_kernel_cache_that_can_be_made_is_ok(tmp_path: Path, variable: str) -> None:
    environment = {variable: str(tmp_path / 'new')}
    finding = preflight.check_kernel_cache(environment, os.access, needs_chip=True)
    assert finding.level == Level.OK
    assert finding.text.startswith(str(tmp_path / 'new'))


@pytest.mark.parametrize(('n_cores', 'level'), [(1, Level.NOTE), (2, Level.OK)])
def test_processor_with_a_single_core_is_noted(n_cores: int, level: Level) -> None:
    assert preflight.check_processor(n_cores).level == level


@pytest.mark.parametrize(
    ('available_kb', 'level'),
    [(8 * 2**20, Level.OK), (8 * 2**20 - 1, Level.NOTE)],
)
def test_memory_below_the_full_size_model_is_noted(
    tmp_path: Path, available_kb: int, level: Level
) -> None:
    meminfo = f'MemTotal:       25165824 kB\nMemAvailable:   {available_kb} kB\n'
    write(tmp_path / 'proc' / 'meminfo', meminfo)
    finding = preflight.check_memory(tmp_path)
    assert finding.level == level
    assert finding.text.startswith('8.0 of 24.0 GiB available')


def test_memory_unknown_is_noted(tmp_path: Path) -> None:
    assert preflight.check_memory(tmp_path).level == Level.NOTE


@pytest.mark.parametrize('backend', ['torch', 'ttnn'])
def test_run_prints_a_line_each_and_json_says_the_same(
    backend: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = preflight.run(arguments('--backend', backend))
    lines = capsys.readouterr().out.splitlines()
    assert preflight.run(arguments('--backend', backend, '--json')) == code
    said = json.loads(capsys.readouterr().out)
    assert [line.split()[0] for line in lines] == [c['level'] for c in said['checks']]
    assert all(c['name'] in line for c, line in zip(said['checks'], lines, strict=True))
    assert said['ok'] == (code == 0) == ('FAIL' not in {c['level'] for c in said['checks']})
    assert all(c['fix'] for c in said['checks'] if c['level'] == 'FAIL')


@pytest.mark.ros
def test_run_on_a_machine_that_is_set_up_fails_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert preflight.run(arguments()) == 0, capsys.readouterr().out


def test_run_without_ros_fails_and_names_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, 'executable', '/bin/false')
    assert preflight.run(arguments()) == 1
    out = capsys.readouterr().out
    assert 'FAIL  rclpy: cannot be imported' in out


def test_finding_reads_as_one_line_with_its_fix() -> None:
    assert str(Finding('x', Level.FAIL, 'gone', 'bring it back')) == (
        'FAIL  x: gone; fix: bring it back'
    )
    assert str(Finding('x', Level.OK, 'there')) == 'ok    x: there'
