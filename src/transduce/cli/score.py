"""`transduce score`: log-probabilities of given translations."""

import json
import math
from array import array
from pathlib import Path

from transduce.cli.files import Files
from transduce.cli.lines import (
    decoding_of,
    into_language_of,
    tags_of,
    warn_of_other_languages,
)
from transduce.cli.resumable_output import Destination, Origin
from transduce.decoding.native_decoder import PrecisionChoice
from transduce.decoding.translator import load
from transduce.errors import counted
from transduce.files import without_infinity
from transduce.metrics.scores import TargetScore, perplexity
from transduce.model_folder import model_sum
from transduce.text.corpus import (
    WINDOW_LINES,
    SentencePair,
    full_windows,
    read_pairs,
)


def score(
    model: Path,
    /,
    *,
    source: Files,
    target: Files,
    ensemble: Files = (),
    output: Path | None = None,
    force: bool = False,
    resume: bool = False,
    target_language: str | None = None,
    tag: str | None = None,
    jsonl: bool = False,
    device: str = "auto",
    precision: PrecisionChoice = "auto",
) -> None:
    """Print the log-probability of each target line, and the perplexity of all.

    A log-probability is in nats, summed over the tokens of a line and its end token. It
    is not divided by a length penalty, unlike the score by which search ranks.

    For example:

        transduce score runs/mine --source test.en --target test.de

    Parameters
    ----------
    model
        A model or run folder.
    source
        Text files, one sentence per line.
    target
        Their translations, line by line.
    ensemble
        Further models; the probability of each token is the mean over all models.
    output
        A file to write; - is standard output, the default. Lines are kept in
        OUTPUT.part until all are done.
    force
        Overwrite the output if it exists.
    resume
        Continue an interrupted output of the same model, input and options.
    target_language
        Language to translate into, of a model with several target languages: its tag,
        such as >>de<<, is put before each line that does not begin with one. By default
        that of the targets' ending (.de, .zh), or else the model's own, or the first of
        its languages.
    tag
        Tag of a corpus of the training, such as bt for <bt>, before each line.
    jsonl
        Write one JSON object per line, and one for the total.
    device
        auto, cpu or cuda.
    precision
        Precision of matrix products: auto, which is fp32, and int8 for a quantized
        model on a CPU; fp32, which is exact; or bf16 or int8, which can be several
        times faster on a processor that supports them.
    """
    destination = Destination(output=output, force=force, resume=resume)
    destination.require_usable(*source, *target)
    translator = load(
        model,
        *ensemble,
        device=device,
        precision=precision,
        target_language=target_language,
        tag=tag,
    )
    is_chosen = target_language is not None
    if not is_chosen:
        translator = into_language_of(translator, target)
    warn_of_other_languages(translator, model, source, target, is_chosen=is_chosen)

    def origin() -> Origin:
        return {
            "command": "score",
            "models": [model_sum(each) for each in (model, *ensemble)],
            "jsonl": jsonl,
            **decoding_of(translator, WINDOW_LINES),
            **tags_of(translator),
        }

    with destination.opened(origin, WINDOW_LINES) as out:
        pairs = out.reading(read_pairs(source, target), _text)
        log_probabilities = array("d", (note[0] for note in out.notes))
        num_tokens = sum(note[1] for note in out.notes)
        for window in full_windows(pairs):
            for found in translator.score(
                [p.source for p in window], [p.target for p in window]
            ):
                note = (found.log_probability, found.num_tokens)
                out.write(_line(found, jsonl=jsonl), note)
                log_probabilities.append(found.log_probability)
                num_tokens += found.num_tokens
        # An exact sum does not depend on where an earlier command was interrupted.
        total = math.fsum(log_probabilities)
        out.write_end(_total(total, num_tokens, len(log_probabilities), jsonl=jsonl))


def _text(pair: SentencePair) -> str:
    return f"{pair.source}\n{pair.target}"


def _line(score: TargetScore, *, jsonl: bool) -> str:
    if not jsonl:
        return f"{score.log_probability:z.6f}\n"
    line = {
        "log_probability": score.log_probability,
        "num_tokens": score.num_tokens,
        "tokens": score.tokens,
        "token_log_probabilities": score.token_log_probabilities,
    }
    return json.dumps(without_infinity(line)) + "\n"


def _total(total: float, num_tokens: int, num_pairs: int, *, jsonl: bool) -> str:
    mean = perplexity(total, num_tokens) if num_tokens else math.nan
    if jsonl:
        summary = {
            "total_log_probability": total,
            "total_tokens": num_tokens,
            "perplexity": mean,
        }
        return json.dumps(without_infinity(summary)) + "\n"
    return (
        f"# {counted(num_pairs, 'pair')}, {counted(num_tokens, 'token')}: "
        f"log-probability {total:z.4f}, perplexity {mean:.4f} a token\n"
    )
