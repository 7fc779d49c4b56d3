from collections.abc import Mapping

class Tables:
    num_nodes: int
    num_types: int
    num_tasks: int
    num_prompts: int
    def __init__(self, arrays: object, scalars: Mapping[str, float]) -> None: ...
