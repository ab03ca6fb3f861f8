# SPDX-License-Identifier: Apache-2.0
"""What the network is: configuration, tensors, layers and sampler; no clock, chip or ROS."""
