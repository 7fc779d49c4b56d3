from collections.abc import Sequence

from hetrl_kernels.links import Links

class PlanAnnealer:
    num_blocks: int
    scale: float
    def __init__(self, links: Links, plan: object, scale: float = 0.0) -> None: ...
    @property
    def seconds(self) -> float: ...
    def rebuild(self, nodes: Sequence[int]) -> None: ...
    def nodes(self) -> list[int]: ...
    def counts(self) -> tuple[int, int]: ...
    def wander(self, seed: int, num_moves: int, *, between_groups: bool = True, feasible: bool = False) -> int: ...
    def anneal(
        self,
        seed: int,
        num_moves: int,
        start_temperature: float,
        end_temperature: float,
        *,
        between_groups: bool = True,
        early: bool = True,
    ) -> tuple[int, int, int, int, int]: ...
