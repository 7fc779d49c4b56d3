"""RL algorithms the runtime carries out: one file each, advantages and loss.

``grpo``  group relative policy optimisation
"""
