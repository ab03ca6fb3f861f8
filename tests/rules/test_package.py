# SPDX-License-Identifier: Apache-2.0
"""What ROS and pip are told about the packages is valid and true."""

from configparser import ConfigParser
import importlib
from importlib.metadata import requires
from importlib.metadata import version
import os
from pathlib import Path
import re
import subprocess
import sys

from ament_index_python.packages import get_package_prefix
from ament_index_python.packages import get_package_share_path
from catkin_pkg.package import parse_package
import pytest
import setuptools

from alpamayo_node import __version__
from tests.rules.pins import pinned
from tests.rules.tree import PACKAGE
from tests.rules.tree import ROOT
from tests.rules.tree import imports_of
from tests.rules.tree import python_files

MESSAGES = ROOT / 'ros2_ws' / 'src' / 'alpamayo_msgs'
NO_ROS_PACKAGE = {'matplotlib', 'numpy', 'safetensors', 'torch', 'transformers', 'ttnn'}
DEBIAN_KEYS = {'python3-numpy'}
"""Keys of rosdep for Debian packages; whatever else is needed to run must be a ROS package."""


@pytest.fixture
def described(monkeypatch: pytest.MonkeyPatch) -> dict:
    """Run setup.py and return what it passes to setuptools."""
    said: dict = {}
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(setuptools, 'setup', lambda **arguments: said.update(arguments))
    exec(compile((ROOT / 'setup.py').read_text(), 'setup.py', 'exec'), {'__name__': '__main__'})
    return said


@pytest.mark.parametrize('folder', [ROOT, MESSAGES], ids=lambda folder: folder.name)
def test_package_xml_is_valid(folder: Path) -> None:
    warnings: list[str] = []
    package = parse_package(str(folder), warnings=warnings)
    package.validate(warnings=warnings)
    assert warnings == []
    assert package.package_format == 3
    assert package.licenses == ['Apache-2.0']


def test_package_xml_names_what_the_code_imports() -> None:
    imported = {
        item.name.split('.')[0]
        for path in python_files(PACKAGE, 'launch')
        for item in imports_of(path.read_text())
    }
    ros = imported - set(sys.stdlib_module_names) - {PACKAGE, '?'} - NO_ROS_PACKAGE
    listed = {dependency.name for dependency in parse_package(str(ROOT)).exec_depends}
    assert listed - DEBIAN_KEYS == ros


def test_package_xml_has_no_pip_key() -> None:
    for folder in (ROOT, MESSAGES):
        names = {d.name for d in parse_package(str(folder)).exec_depends}
        assert not [name for name in names if name.endswith('-pip')]


def test_versions_agree(described: dict) -> None:
    assert parse_package(str(ROOT)).version == described['version'] == __version__


def test_setup_names_a_maintainer_that_package_xml_names(described: dict) -> None:
    (maintainer,) = parse_package(str(ROOT)).maintainers
    assert (maintainer.name, maintainer.email) == (
        described['maintainer'],
        described['maintainer_email'],
    )


def test_setup_entry_points_can_be_called(described: dict) -> None:
    scripts = dict(entry.split(' = ') for entry in described['entry_points']['console_scripts'])
    assert set(scripts) == {'alpamayo', 'planner', 'stand_in'}
    for target in scripts.values():
        module, function = target.split(':')
        assert callable(getattr(importlib.import_module(module), function))


def test_setup_data_files_are_all_there(described: dict) -> None:
    installed = {folder: set(files) for folder, files in described['data_files']}
    share = f'share/{PACKAGE}'
    for folder in ('launch', 'params'):
        in_tree = {p.relative_to(ROOT).as_posix() for p in (ROOT / folder).glob('*.*')}
        assert installed[f'{share}/{folder}'] == in_tree
        assert in_tree
    assert installed[share] == {'package.xml'}
    marker = f'resource/{PACKAGE}'
    assert installed['share/ament_index/resource_index/packages'] == {marker}
    assert (ROOT / marker).is_file()


def test_setup_packages_hold_every_folder_and_no_test(described: dict) -> None:
    folders = {p.parent.relative_to(ROOT).as_posix() for p in python_files(PACKAGE)}
    assert set(described['packages']) == {folder.replace('/', '.') for folder in folders}
    assert 'py.typed' in described['package_data'][PACKAGE]


def test_setup_executables_go_where_ros_looks_and_find_the_environment() -> None:
    config = ConfigParser()
    config.read(ROOT / 'setup.cfg')
    assert config['install']['install_scripts'] == f'$base/lib/{PACKAGE}'
    assert config['develop']['script_dir'] == f'$base/lib/{PACKAGE}'
    assert config['build_scripts']['executable'] == '/usr/bin/env python3'


@pytest.mark.ros
@pytest.mark.parametrize('executable', ['alpamayo', 'planner', 'stand_in'])
def test_workspace_executables_run_under_this_interpreter(executable: str) -> None:
    path = Path(get_package_prefix(PACKAGE)) / 'lib' / PACKAGE / executable
    assert os.access(path, os.X_OK)
    interpreter = path.read_text().splitlines()[0].removeprefix('#!')
    assert interpreter in (sys.executable, '/usr/bin/env python3')


@pytest.mark.ros
def test_workspace_command_runs() -> None:
    path = Path(get_package_prefix(PACKAGE)) / 'lib' / PACKAGE / 'alpamayo'
    process = subprocess.run([path, '--version'], capture_output=True, text=True, check=True)
    assert process.stdout.strip() == f'alpamayo {__version__}'


@pytest.mark.ros
@pytest.mark.parametrize('name', ['launch/planner.launch.py', 'params/planner.yaml'])
def test_workspace_share_holds_this_tree(name: str) -> None:
    assert (get_package_share_path(PACKAGE) / name).read_text() == (ROOT / name).read_text()


def asked(name: str) -> list[str]:
    lines = (ROOT / name).read_text().splitlines()
    return [re.sub(r'\[.*', '', line) for line in lines if line and not line.startswith('#')]


def test_constraints_pin_each_name_once_and_all_that_is_asked_for() -> None:
    pins = pinned()
    assert len(pins) == sum(
        '==' in line for line in (ROOT / 'constraints.txt').read_text().splitlines()
    )
    for name in (*asked('requirements.txt'), *asked('requirements-ros.txt')):
        assert name.lower() in pins


def test_constraints_pin_what_the_chip_and_colcon_can_live_with() -> None:
    pins = pinned()
    assert pins['ttnn'] == '0.81.1'
    assert pins['numpy'].split('.')[0] == '1'
    assert int(pins['setuptools'].split('.')[0]) < 80


def test_constraints_pin_what_the_asked_for_packages_need() -> None:
    pins = pinned()
    for name in asked('requirements.txt'):
        for requirement in requires(name) or ():
            needed, _, marker = requirement.partition(';')
            # What a marker excludes here may be named; whatever needs no marker must be pinned.
            if not marker:
                needed = re.split(r'[^A-Za-z0-9._-]', needed)[0].lower().replace('_', '-')
                assert needed.replace('.', '-') in {p.replace('.', '-') for p in pins}, name


@pytest.mark.parametrize('name', ['numpy', 'setuptools', 'torch', 'ttnn', 'transformers'])
def test_constraints_are_what_is_installed(name: str) -> None:
    assert version(name).split('+')[0] == pinned()[name]


def test_requirements_for_ros_name_one_distribution_only() -> None:
    assert all(name.startswith('ros-jazzy-') for name in asked('requirements-ros.txt'))
