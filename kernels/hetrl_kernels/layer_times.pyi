from collections.abc import Sequence

from hetrl_kernels.tables import Tables

def replica_seconds(
    t: Tables,
    task: int,
    degree_index: int,
    degree: int,
    shape: int,
    micro_batch: int,
    recompute: bool,
    nodes: Sequence[int],
    layers: Sequence[int],
    prompts: int,
) -> float: ...
def pipeline_seconds(
    forward: Sequence[float], backward: Sequence[float], send: Sequence[float], num_micro_batches: int
) -> float: ...
