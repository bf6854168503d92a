"""Table 3 as the paper prints it (section 6.2)."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperRow:
    """The right half of a row; newstest2013, English to German."""

    perplexity: float
    """Of a piece of the paper's byte-pair encoding."""
    bleu: float
    """By beam search, without averaging of checkpoints."""
    millions: int
    """Parameters; a row without a number is as large as base."""

    @property
    def difference(self) -> float:
        """From base, in BLEU."""
        return round(self.bleu - PAPER_ROWS["base"].bleu, 1)


PAPER_ROWS = {
    "base": PaperRow(perplexity=4.92, bleu=25.8, millions=65),
    "A-h1": PaperRow(perplexity=5.29, bleu=24.9, millions=65),
    "A-h4": PaperRow(perplexity=5.00, bleu=25.5, millions=65),
    "A-h16": PaperRow(perplexity=4.91, bleu=25.8, millions=65),
    "A-h32": PaperRow(perplexity=5.01, bleu=25.4, millions=65),
    "B-dk16": PaperRow(perplexity=5.16, bleu=25.1, millions=58),
    "B-dk32": PaperRow(perplexity=5.01, bleu=25.4, millions=60),
    "C-N2": PaperRow(perplexity=6.11, bleu=23.7, millions=36),
    "C-N4": PaperRow(perplexity=5.19, bleu=25.3, millions=50),
    "C-N8": PaperRow(perplexity=4.88, bleu=25.5, millions=80),
    "C-d256": PaperRow(perplexity=5.75, bleu=24.5, millions=28),
    "C-d1024": PaperRow(perplexity=4.66, bleu=26.0, millions=168),
    "C-ff1024": PaperRow(perplexity=5.12, bleu=25.4, millions=53),
    "C-ff4096": PaperRow(perplexity=4.75, bleu=26.2, millions=90),
    "D-drop0": PaperRow(perplexity=5.77, bleu=24.6, millions=65),
    "D-drop0.2": PaperRow(perplexity=4.95, bleu=25.5, millions=65),
    "D-smooth0": PaperRow(perplexity=4.67, bleu=25.3, millions=65),
    "D-smooth0.2": PaperRow(perplexity=5.47, bleu=25.7, millions=65),
    "E-learned": PaperRow(perplexity=4.92, bleu=25.7, millions=65),
    "big": PaperRow(perplexity=4.33, bleu=26.4, millions=213),
}
"""By the names of our presets, in the paper's order."""
