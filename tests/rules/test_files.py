# SPDX-License-Identifier: Apache-2.0
"""Every file of the repository is small, licensed, and free of one machine's paths and hosts."""

from pathlib import Path
import re

import pytest

from tests.rules.tree import PACKAGE
from tests.rules.tree import ROOT
from tests.rules.tree import module_name
from tests.rules.tree import project_files
from tests.rules.tree import python_files

MAX_BYTES = 500_000
HEADER = '# SPDX-License-Identifier: Apache-2.0'
CODE = ('.py', '.sh', '.yaml')
CODE_NAMES = ('Makefile', 'run', 'CMakeLists.txt')
FORBIDDEN = {
    'a path of one machine': re.compile(r'(?<![\w.:/-])/(?:root|home|work|Users)/'),
    'a package index': re.compile(
        r'(?:--(?:extra-)?index-url|--find-links|--trusted-host|PIP_\w*(?:INDEX|LINKS|HOST)\w*=)'
        r'|https?://[^\s/]*(?:pypi|pythonhosted|artifactory|nexus|mirror)[^\s]*'
    ),
}
NO_GENERIC_MODULES = {'utils', 'util', 'helpers', 'helper', 'common', 'misc', 'base', 'manager'}


def text_files() -> list[Path]:
    return [path for path in project_files() if b'\0' not in path.read_bytes()]


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def first_line_of_text(path: Path) -> str:
    lines = [line for line in path.read_text().splitlines() if not line.startswith('#!')]
    return lines[0] if lines else ''


def test_files_are_small() -> None:
    files = project_files()
    assert files
    assert [relative(path) for path in files if path.stat().st_size > MAX_BYTES] == []


def test_files_of_code_say_their_licence_first() -> None:
    files = [p for p in project_files() if p.suffix in CODE or p.name in CODE_NAMES]
    assert files
    assert [relative(path) for path in files if first_line_of_text(path) != HEADER] == []


def test_files_name_no_machine_and_no_package_index() -> None:
    found = [
        f'{relative(path)}: {what}: {match.group()}'
        for path in text_files()
        if path != Path(__file__)
        for what, pattern in FORBIDDEN.items()
        for match in pattern.finditer(path.read_text())
    ]
    assert found == []


@pytest.mark.parametrize(
    ('what', 'text'),
    [
        ('a path of one machine', 'see /home/someone/x'),
        ('a path of one machine', "open('/root/x')"),
        ('a package index', 'pip install --extra-index-url x'),
        ('a package index', 'https://mirror.example.com/simple'),
    ],
)
def test_forbidden_text_is_found(what: str, text: str) -> None:
    assert FORBIDDEN[what].search(text)


@pytest.mark.parametrize(
    'text', ['a ros2/ws/root/x', 'model/home/y', '/tmp/ckpt', '/opt/ros/jazzy']
)
def test_harmless_text_is_not_found(text: str) -> None:
    assert not FORBIDDEN['a path of one machine'].search(text)


def test_licence_is_there() -> None:
    assert 'Apache License' in (ROOT / 'LICENSE').read_text()


def test_modules_are_named_after_their_subject() -> None:
    names = [module_name(path) for path in python_files(PACKAGE)]
    assert [name for name in names if NO_GENERIC_MODULES & set(name.split('.'))] == []


def test_links_between_documents_lead_somewhere() -> None:
    links = [
        (path, target)
        for path in project_files()
        if path.suffix == '.md'
        for target in re.findall(r'\]\(([^)#:]+)(?:#[^)]*)?\)', path.read_text())
    ]
    assert links
    broken = [
        f'{relative(path)}: {target}'
        for path, target in links
        if not (path.parent / target).exists()
    ]
    assert broken == []
