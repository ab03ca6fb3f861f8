# SPDX-License-Identifier: Apache-2.0
"""What was measured, as commands that measure it again; docs/benchmarks.md holds the results."""
