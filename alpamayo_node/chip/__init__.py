# SPDX-License-Identifier: Apache-2.0
"""The action expert on one Tenstorrent chip, through ttnn; knows no ROS."""
