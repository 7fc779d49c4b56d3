"""Carries a plan out with Ray, vLLM and torch, and measures it.

``session``        the programming interface: start a plan's workers, step, reset, save
``run``            a whole run on a session: progress, metrics, checkpoints
``step``           one GRPO step; ``algorithms`` has its advantages and loss
``cluster``        the user's Ray or one of our own; ``placement``: plan devices to Ray nodes, checked before asking
``guard``          sees to it that a Ray of our own leaves nothing, even when the launcher is killed
``workers``        all Ray actors of a run; ``rollout`` (vLLM), ``score`` and ``train`` (torch) are their classes
``groups``         gloo process groups; ``buckets`` and ``weight_extension``: weight updates of the engines
``recording``      timings and memory peaks as measurements, beside the plan's predictions
``throttle``       slows processes from outside, to stand in for slower devices
``data``, ``limits``, ``checkpoint``, ``metrics``, ``sequences``, ``language_model``, ``worker``   what these share

Importing a module loads neither Ray, torch nor vLLM before they are needed, except ``groups``, ``language_model`` and
``weight_extension``, which are torch.
"""
