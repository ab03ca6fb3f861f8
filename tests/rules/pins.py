# SPDX-License-Identifier: Apache-2.0
"""The versions of constraints.txt."""

import re

from tests.rules.tree import ROOT


def pinned() -> dict[str, str]:
    lines = (ROOT / 'constraints.txt').read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith('#')]
    assert all(re.fullmatch(r'[A-Za-z0-9._-]+==[A-Za-z0-9.]+', pin) for pin in pins)
    return {
        name.lower().replace('_', '-'): number for name, number in (p.split('==') for p in pins)
    }
