"""hetrl: plan and run reinforcement-learning post-training of LLMs on mixed fleets.

Data flows one way: spec -> workload -> cost -> search -> plan -> runtime -> measurements -> refit -> cost.
Importing this package is light: neither torch, ray, vllm nor scikit-learn is loaded.
"""

__all__ = ["__version__"]


def __getattr__(name: str) -> str:
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import PackageNotFoundError, version  # takes longer to import than all of this package

    try:
        return version("hetrl")
    except PackageNotFoundError:  # running from a source tree that was never installed
        return "0+unknown"
