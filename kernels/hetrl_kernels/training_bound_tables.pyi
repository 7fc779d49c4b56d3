from typing import Final

SETTING: Final[dict[str, int]]
