"""The option that takes files."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

Files = Annotated[
    tuple[Path, ...],
    Parameter(consume_multiple=True, negative="", show_default=False),
]
"""One file or several, one after the other."""
