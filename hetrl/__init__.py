"""hetrl: plan and run reinforcement-learning post-training of LLMs on mixed fleets.

Data flows one way: spec -> workload -> cost -> search -> plan -> runtime -> measurements -> refit -> cost.
Importing this package is light: neither torch, ray, vllm nor scikit-learn is loaded.
"""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("hetrl")
except PackageNotFoundError:  # running from a source tree that was never installed
    __version__ = "0+unknown"

__all__ = ["__version__"]
