"""Reports whose pictures are not drawn."""

import pytest
from matplotlib.figure import Figure

from transduce.report.report import Picture


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the pictures of reports empty, as drawing them takes a second."""

    def picture_of(_figure: Figure, name: str, title: str) -> Picture:
        return Picture(name=name, title=title, svg="", png=b"")

    monkeypatch.setattr("transduce.report.chart.picture_of", picture_of)
