# SPDX-License-Identifier: Apache-2.0
"""
Tests in this folder run the chip's own code on an emulated chip, in pytest's process.

The emulation takes the library's name before any of that code is imported. The real library runs
in processes of its own (tests/chip).
"""

from tests.emulation.library import install

install()
