from hetrl_kernels.tables import Tables

class Links:
    num_kinds: int
    num_nodes: int
    def __init__(self, t: Tables) -> None: ...
