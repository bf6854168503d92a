"""`transduce score`: how likely a model holds given translations."""

import json
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from transduce.cli.files import Files
from transduce.decoding.streaming.windows import full_windows
from transduce.decoding.translator import load
from transduce.evaluation.perplexity import perplexity
from transduce.text.corpus import read_pairs


def score(
    model: Path,
    /,
    *,
    source: Files,
    target: Files,
    jsonl: Annotated[bool, Parameter(negative="")] = False,
    device: str = "auto",
) -> None:
    """Log-probability of each target line, and the perplexity of them all.

    Parameters
    ----------
    model
        A model or run folder.
    source
        Text files, one sentence a line.
    target
        Their translations, line by line.
    jsonl
        Write a JSON object a line, and one for the total.
    device
        auto, cpu or cuda.
    """
    translator = load(model, device=device)
    pairs = read_pairs(source, target)
    total, num_tokens, num_pairs = 0.0, 0, 0
    for window in full_windows(pairs):
        scores = translator.score(
            [p.source for p in window], [p.target for p in window]
        )
        for found in scores:
            line = {
                "log_probability": found.log_probability,
                "num_tokens": found.num_tokens,
            }
            print(json.dumps(line) if jsonl else f"{found.log_probability:.6f}")
        total += sum(found.log_probability for found in scores)
        num_tokens += sum(found.num_tokens for found in scores)
        num_pairs += len(scores)
    _print_total(total, num_tokens, num_pairs, jsonl)


def _print_total(total: float, num_tokens: int, num_pairs: int, jsonl: bool) -> None:
    mean = perplexity(total, max(num_tokens, 1))
    if jsonl:
        summary = {
            "total_log_probability": total,
            "total_tokens": num_tokens,
            "perplexity": mean,
        }
        print(json.dumps(summary))
    else:
        print(
            f"# {num_pairs:,} pairs, {num_tokens:,} tokens: log-probability "
            f"{total:.4f}, perplexity {mean:.4f} a token"
        )
