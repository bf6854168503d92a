"""Generation settings of a Hugging Face folder: those applied, and those not.

The library has them in generation_config.json or, in older folders, in config.json. Its
lengths count the token with which a target starts, this package's do not.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from os.path import lexists
from pathlib import Path
from typing import Any

from transduce.errors import CheckpointError, ConfigError, RequestError
from transduce.files import read_json
from transduce.model.config import MAX_VOCAB_SIZE
from transduce.search_config import SearchConfig
from transduce.settings import shown, shown_json
from transduce.text.vocabulary import BOS, EOS

SETTINGS, SEARCH = "config.json", "generation_config.json"
TOKENIZER, CLEAN_UP = "tokenizer_config.json", "clean_up_tokenization_spaces"
SPECIAL = ("pad_token_id", "decoder_start_token_id", "eos_token_id")
"""Names of the special ids, in this package's order."""
MAX_WHOLE = MAX_VOCAB_SIZE
"""Largest whole number that is accepted."""
NEUTRAL: dict[str, tuple[tuple[object, ...], str]] = {
    "do_sample": ((None, False), "`transduce sample` draws translations at random"),
    "num_return_sequences": ((None, 1), "`transduce translate --nbest` gives several"),
    "num_beam_groups": ((None, 1), "`transduce translate --diversity` is similar"),
    "diversity_penalty": ((None, 0), "`transduce translate --diversity` is similar"),
    "penalty_alpha": ((None, 0), "there is no contrastive search here"),
    "encoder_no_repeat_ngram_size": ((None, 0), "sources restrict nothing here"),
    "encoder_repetition_penalty": ((None, 1), "sources restrict nothing here"),
    "exponential_decay_length_penalty": ((None,), "there is no such penalty here"),
    "sequence_bias": ((None, {}, []), "`search.bad_words` excludes sequences"),
    "force_words_ids": ((None, []), "words cannot be forced here"),
    "constraints": ((None, []), "words cannot be forced here"),
    "begin_suppress_tokens": ((None, []), "`search.bad_words` excludes tokens"),
    "forced_bos_token_id": (
        (None,),
        "`transduce translate --prefixes` forces the first tokens",
    ),
    "forced_decoder_ids": (
        (None, []),
        "`transduce translate --prefixes` forces the first tokens",
    ),
    "stop_strings": ((None, []), "translations end by the end token only"),
    "max_time": ((None,), "searches have no limit of time"),
    "guidance_scale": ((None, 1), "there is no such guidance here"),
    "watermarking_config": ((None,), "translations have no watermark"),
}
"""Settings that are not applied as in the library: for each the values that leave
translations unchanged, and what to use instead."""


def whole(
    content: Mapping[str, object], name: str, path: Path, *, minimum: int = 1
) -> int:
    """Return a whole number of a JSON file; `CheckpointError` if it is none."""
    value = content.get(name)
    if type(value) is not int or value < minimum:
        raise CheckpointError(
            f"{path}: `{name}` must be a whole number of {minimum} at least, but is "
            f"{shown(value)}."
        )
    if value > MAX_WHOLE:
        raise CheckpointError(
            f"{path}: `{name}` must be at most {MAX_WHOLE:,}, but is {shown(value)}."
        )
    return value


def read_if_there(path: Path) -> Mapping[str, Any]:
    """Read a JSON object; empty if there is no such file."""
    return read_json(path) if lexists(path) else {}


def _file(folder: Path) -> Path:
    return folder / (SEARCH if lexists(folder / SEARCH) else SETTINGS)


def read_search(folder: Path, ids: Sequence[int]) -> SearchConfig:
    """Read search settings; search is greedy without a number of beams, as there.

    `ids` maps this package's ids to the library's. Raises `CheckpointError` if a value
    is damaged, `RequestError` if it is impossible here.
    """
    path = _file(folder)
    content = read_json(path)
    settings = {
        **_beams(content, path),
        **_lengths(content, path),
        **_restrictions(content, ids, path),
    }
    try:
        return SearchConfig(**settings)
    except ConfigError as error:
        reason = str(error).removesuffix(".")
        raise RequestError(
            f"{path}: {reason}; change it there, to import the model."
        ) from None


def _beams(content: Mapping[str, object], path: Path) -> dict[str, Any]:
    return {
        "beam_size": _whole_or(content, "num_beams", path, 1, minimum=1),
        # A patience of 1 ends search where true does. With false, the library goes on
        # while its best unfinished hypothesis, at its present length, ranks above the
        # worst finished one. A search without patience is nearest to that, and the
        # export writes false for it. A folder without the setting gets a patience of 1,
        # which is faster, although the library's default is false.
        "patience": None if content.get("early_stopping") in (False, "never") else 1.0,
        "penalty": "power",
        "length_penalty": _number(content, "length_penalty", path, 1.0),
    }


def _lengths(content: Mapping[str, object], path: Path) -> dict[str, Any]:
    """Return limits of the length that are given, without the start token.

    The last token before the limit is the end token if the library forces that.
    """
    fewest, most = _new_tokens(content, path)
    limits: dict[str, Any] = {"min_length": fewest}
    if most is not None:
        limits["max_length"] = most
        # Contradictory limits are refused as they are. The library accepts a minimum
        # that equals the limit, also where it forces the end token.
        if fewest <= most:
            max_length = max(most - _forces_end(content), 1)
            limits = {
                "min_length": min(fewest, max_length - 1),
                "max_length": max_length,
            }
    return {name: limit for name, limit in limits.items() if limit}


def _new_tokens(content: Mapping[str, object], path: Path) -> tuple[int, int | None]:
    """Return the library's limits of the tokens that follow the start.

    The first is the minimum, without the end token. The second is the maximum, with it;
    it is None without a limit, and for a limit that would leave no token.
    """
    fewest = max(_whole_or(content, "min_length", path, 0) - 1, 0)
    fewest = _whole_or(content, "min_new_tokens", path, fewest)
    most = max(_whole_or(content, "max_length", path, 0) - 1, 0)
    most = _whole_or(content, "max_new_tokens", path, most)
    return fewest, most or None


def _inexact_lengths(
    content: Mapping[str, object], path: Path
) -> Iterator[tuple[str, str]]:
    """Yield a limit that is not applied as in the library, and the difference."""
    fewest, most = _new_tokens(content, path)
    name = _given(content, "max")
    if most is None:
        if content.get(name) is not None:
            yield name, "translations have no such limit here"
        return
    if fewest > most:
        return
    max_length = most - _forces_end(content)
    if max_length < 1:
        yield name, "a translation may have one token here"
    elif fewest >= max_length:
        yield _given(content, "min"), "a translation may have one token less here"


def _given(content: Mapping[str, object], kind: str) -> str:
    """Return the name of the minimum or maximum that counts."""
    name = f"{kind}_new_tokens"
    return f"{kind}_length" if content.get(name) is None else name


def _forces_end(content: Mapping[str, object]) -> bool:
    """Whether the library ends translations at the limit by the end token."""
    forced = _single(content.get("forced_eos_token_id"))
    return forced is not None and forced == _single(content.get("eos_token_id"))


def _restrictions(
    content: Mapping[str, object], ids: Sequence[int], path: Path
) -> dict[str, Any]:
    """Return restrictions of the next token that are given."""
    found: dict[str, Any] = {}
    if ngram := _whole_or(content, "no_repeat_ngram_size", path, 0):
        found["no_repeat_ngram"] = ngram
    if (penalty := _number(content, "repetition_penalty", path, 1.0)) != 1:
        found["repetition_penalty"] = penalty
    if words := _bad_words(content, ids, path):
        found["bad_words"] = words
    return found


def _bad_words(
    content: Mapping[str, object], ids: Sequence[int], path: Path
) -> list[list[int]]:
    """Return the sequences to exclude, but not those that cannot occur in any case."""
    words, tokens = _excluded(content, path)
    return [each for each in _own_ids([*words, *tokens], ids) if _is_possible(each)]


def _excluded(
    content: Mapping[str, object], path: Path
) -> tuple[list[list[int]], list[list[int]]]:
    """Return the bad words and the suppressed tokens, by the library's ids."""
    words = _sequences(content.get("bad_words_ids") or [], path)
    tokens: Any = content.get("suppress_tokens") or []
    if isinstance(tokens, list):
        tokens = [[each] for each in tokens]
    return words, _sequences(tokens, path)


def _sequences(given: Any, path: Path) -> list[list[int]]:
    """Return lists of ids; `CheckpointError` if they are anything else."""
    for each in given if isinstance(given, list) else [given]:
        if not isinstance(each, list) or any(type(i) is not int for i in each):
            raise CheckpointError(
                f"{path}: `bad_words_ids` and `suppress_tokens` must be lists of ids, "
                f"but one is {shown(each)}."
            )
    return list(given)


def _own_ids(sequences: Sequence[Sequence[int]], ids: Sequence[int]) -> list[list[int]]:
    """Return sequences by this package's ids; -1 for ids that it does not have."""
    ours = {theirs: i for i, theirs in enumerate(ids)}
    return [[ours.get(i, -1) for i in sequence] for sequence in sequences]


def _is_possible(word: Sequence[int]) -> bool:
    """Whether a sequence of this package's ids could occur and may be excluded.

    Padding, the start and unused ids never occur. The end token ends a sequence, and
    cannot be excluded alone.
    """
    can_occur = bool(word) and min(word) >= EOS and EOS not in word[:-1]
    return can_occur and list(word) != [EOS]


def _whole_or(
    content: Mapping[str, object],
    name: str,
    path: Path,
    default: int,
    *,
    minimum: int = 0,
) -> int:
    if content.get(name) is None:
        return default
    return whole(content, name, path, minimum=minimum)


def _number(
    content: Mapping[str, object], name: str, path: Path, default: float
) -> float:
    value = content.get(name)
    if value is None:
        return default
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise CheckpointError(
            f"{path}: `{name}` must be a number, but is {shown(value)}."
        )
    try:
        return float(value)
    except OverflowError:  # infinite, as 1e400 is in JSON
        return math.inf if value > 0 else -math.inf


def _other_ids(
    model: Mapping[str, Any], content: Mapping[str, object]
) -> dict[str, str]:
    """Return special ids that differ from the model's."""
    return {
        name: f"the model's is {shown_json(model[name])} by its {SETTINGS}"
        for name in SPECIAL
        if name in model and _single(content.get(name)) not in (None, model[name])
    }


def _ids_of_words(
    model: Mapping[str, Any], content: Mapping[str, object], path: Path
) -> list[int]:
    """Return the library's special ids and those of bad words, in this package's
    order; -1 for unknown ones."""
    found = [_single({**model, **content}.get(name)) for name in SPECIAL]
    special = [each if isinstance(each, int) else -1 for each in found]
    words, tokens = _excluded(content, path)
    size = model.get("vocab_size", MAX_WHOLE)
    known = range(size if isinstance(size, int) else MAX_WHOLE)
    others = (i for i in chain(*words, *tokens) if i in known and i not in special)
    return [*special, *others]


def _special_words(
    content: Mapping[str, object], ids: Sequence[int], path: Path
) -> Iterator[tuple[str, str]]:
    """Yield settings by which the library excludes special tokens, unlike this package,
    and the difference."""
    words, tokens = (_own_ids(each, ids) for each in _excluded(content, path))
    starts = {BOS, EOS} if ids[BOS] == ids[EOS] != -1 else {BOS}
    if any(len(word) > 1 and word[0] in starts for word in words):
        yield (
            "bad_words_ids",
            "sequences that begin with the start token exclude nothing here",
        )
    if [EOS] in tokens:
        yield "suppress_tokens", "the end token may always follow"
    if EOS in starts:
        reason = "the end token, which is also the start, counts as unused here"
        if content.get("no_repeat_ngram_size") == 1:
            yield "no_repeat_ngram_size", reason
        if content.get("repetition_penalty") not in (None, 1):
            yield "repetition_penalty", reason


def _single(value: Any) -> Any:
    """Return the id of a list of one, which the library takes for that id."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def differing_settings(folder: Path) -> list[str]:
    """Return a sentence for each setting that is not applied as in the library."""
    path = _file(folder)
    content, model = read_json(path), read_if_there(folder / SETTINGS)
    differing = {
        name: instead
        for name, (neutral, instead) in NEUTRAL.items()
        if content.get(name) not in neutral
    }
    differing |= _other_ids(model, content)
    ends = (None, _single(content.get("eos_token_id")))
    if _single(content.get("forced_eos_token_id")) not in ends:
        differing["forced_eos_token_id"] = "translations end by the end token only"
    differing |= dict(_inexact_lengths(content, path))
    ids = _ids_of_words(model, content, path)
    differing |= dict(_special_words(content, ids, path))
    has_restrictions = bool(_restrictions(content, ids, path))
    if has_restrictions and content.get("renormalize_logits"):
        differing["renormalize_logits"] = "tokens that remain keep their probabilities"
    is_greedy = content.get("num_beams") in (None, 1)
    penalty = content.get("repetition_penalty")
    if is_greedy and penalty not in (None, 1):
        differing["repetition_penalty"] = (
            "it is applied to log-probabilities; greedy search in Transformers applies "
            "it to logits"
        )
    found = [
        _differs(path, name, content[name], instead)
        for name, instead in differing.items()
    ]
    if read_if_there(folder / TOKENIZER).get(CLEAN_UP) is True:
        instead = "translations keep spaces before marks"
        found.append(_differs(folder / TOKENIZER, CLEAN_UP, True, instead))
    return found


def _differs(path: Path, name: str, value: object, instead: str) -> str:
    return (
        f"{path}: `{name}` = {shown_json(value)} is not applied as in the library; "
        f"{instead}."
    )
