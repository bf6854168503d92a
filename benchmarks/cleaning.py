"""Measure `transduce clean`: precision and recall on planted faults, speed, memory.

    python benchmarks/cleaning.py [--source FILE --target FILE] [--faults 0.2]
        [--model MODEL] [--reverse-model MODEL] [--pairs 1000000] [--processes N]

Plants faults of ten kinds into a clean corpus, by default the built-in one, and cleans
it. With a model there is an eleventh kind, translations of another sentence, which no
rule can find. Then cleans a larger generated corpus in a process of its own, and
measures time and memory. Prints Markdown tables.

A pair counts as found if it is dropped for any reason. Precision is that of the kind's
own rules: of the pairs that they drop, the share in which its fault was planted. What
was faulty before counts against it.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random
from typing import NamedTuple

from machine import describe_machine, memory_of

import transduce
from transduce.data.cleaning import CleaningReport
from transduce.data.cleaning_rules import RULES
from transduce.grammar.corpus import Grammar
from transduce.machine import num_cores
from transduce.text.corpus import read_pairs
from transduce.text.languages import guess

BUILT_IN_PAIRS = 20_000
"""Pairs of the built-in corpus into which faults are planted."""
SEED = 1
CYRILLIC = str.maketrans(
    "abcdefghijklmnopqrstuvwxyzäöüßABCDEFGHIJKLMNOPQRSTUVWXYZÄÖÜ",
    "абцдефгхийклмнопкрстуввхизаеуссАБЦДЕФГХИЙКЛМНОПКРСТУВВХИЗАЕУ"[:30]
    + "АБЦДЕФГХИЙКЛМНОПКРСТУВВХИЗАЕУ",
)
"""Letters that make text of another script."""
POLL_S = 0.02
"""Seconds between two measurements of memory."""
DISTINCT_PAIRS = 3_000
"""Sentences of the built-in corpus that are combined to a large one."""


class Pair(NamedTuple):
    """Sentence with its translation."""

    source: str
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Kind of fault: how it is planted, and the rules that are to find it."""

    name: str
    plant: Callable[[Pair, Pair, Random], Pair]
    """Fault of a pair; the second pair is another one of the corpus."""
    rules: tuple[str, ...]


def empty(pair: Pair, _: Pair, random: Random) -> Pair:
    """Lose the text of one side."""
    return random.choice([Pair(pair.source, " "), Pair("", pair.target)])


def repeated(_: Pair, other: Pair, random: Random) -> Pair:
    """Repeat another pair, half of the time with other spaces."""
    return other if random.random() < 0.5 else Pair(f" {other.source}", other.target)


def untranslated(pair: Pair, _: Pair, random: Random) -> Pair:
    """Copy the source to the target, half of the time without its full stop."""
    copied = pair.source if random.random() < 0.5 else pair.source.rstrip(" .")
    return Pair(pair.source, copied)


def misaligned_length(pair: Pair, other: Pair, random: Random) -> Pair:
    """Attach two further sentences to the target, or leave out most of it."""
    words = pair.target.split()
    cut = " ".join(words[: max(1, len(words) // 5)])
    return Pair(
        pair.source,
        random.choice([f"{pair.target} {other.target} {other.target[:40]}", cut]),
    )


def wrong_script(pair: Pair, _: Pair, __: Random) -> Pair:
    """Write the target in Cyrillic letters."""
    return Pair(pair.source, pair.target.translate(CYRILLIC) + " Это так.")


def damaged(pair: Pair, _: Pair, random: Random) -> Pair:
    """Encode an umlaut twice, lose a letter, or add a control character."""
    place = random.randrange(1, len(pair.target))
    mark = random.choice(["Ã¼", "\ufffd", "\x0b", "\x08", "â€œ"])
    return Pair(pair.source, f"{pair.target[:place]}{mark}{pair.target[place:]}")


def markup(pair: Pair, _: Pair, random: Random) -> Pair:
    """Leave a tag or an entity in the source."""
    mark = random.choice(["<br/> ", "</p>", "&nbsp;", '<a href="/x">', "&quot;"])
    return Pair(mark + pair.source, pair.target)


def other_number(pair: Pair, _: Pair, random: Random) -> Pair:
    """Give both sides a number, but not the same one."""
    one, other = random.sample(range(13, 99), 2)
    end = random.choice(["", "0", "5", "81"])
    return Pair(f"{pair.source} ({one}{end})", f"{pair.target} ({other}{end})")


def loop(pair: Pair, _: Pair, random: Random) -> Pair:
    """Repeat the last words of the target, as translation models do."""
    words = pair.target.split()
    phrase = words[-random.randint(1, min(4, len(words))) :]
    return Pair(pair.source, " ".join(words + phrase * random.randint(3, 6)))


def no_text(pair: Pair, _: Pair, random: Random) -> Pair:
    """Put an address, or digits and punctuation, in place of the target."""
    address = f"https://example.org/{random.randrange(10**6)}/page.html"
    number = random.randrange(10**6)
    table = f"| {number} | {number / 7:.2f} % | -- | {number + 13} |"
    return Pair(pair.source, random.choice([address, table, "*" * 20, f"({number})."]))


def other_sentence(pair: Pair, other: Pair, _: Random) -> Pair:
    """Pair the source with the translation of another sentence."""
    return Pair(pair.source, other.target)


KINDS = (
    Kind(name="empty side", plant=empty, rules=("empty",)),
    Kind(name="repeated pair", plant=repeated, rules=("duplicate",)),
    Kind(name="untranslated", plant=untranslated, rules=("identical",)),
    Kind(name="lengths", plant=misaligned_length, rules=("length-ratio",)),
    Kind(name="wrong script", plant=wrong_script, rules=("wrong-script",)),
    Kind(
        name="damaged characters",
        plant=damaged,
        rules=(
            *("replacement-character", "doubly-encoded-letter", "control-character"),
            "line-separator",
        ),
    ),
    Kind(name="markup", plant=markup, rules=("markup",)),
    Kind(name="numbers", plant=other_number, rules=("numbers",)),
    Kind(name="loop", plant=loop, rules=("loop",)),
    Kind(name="no text", plant=no_text, rules=("url-only", "few-letters")),
)
OTHER_SENTENCE = Kind(name="other sentence", plant=other_sentence, rules=("low-score",))


def built_in_corpus(number: int) -> list[Pair]:
    """Distinct pairs of the built-in corpus."""
    sentences = Grammar.built_in().training_sentences(SEED)
    found: dict[str, str] = {}
    while len(found) < number:
        sentence = next(sentences)
        found[sentence.source] = sentence.target
    return list(map(Pair, found, found.values()))


def plant(
    pairs: Sequence[Pair], kinds: Sequence[Kind], share: float, random: Random
) -> tuple[list[Pair], list[Kind | None]]:
    """Plant faults into a share of the pairs, equally many of each kind.

    A repeated pair repeats an earlier sound one, since the first of both is kept.
    """
    number = round(share * len(pairs)) // len(kinds)
    chosen = random.sample(range(1, len(pairs)), number * len(kinds))
    faults: list[Kind | None] = [None] * len(pairs)
    for position, row in enumerate(chosen):
        faults[row] = kinds[position % len(kinds)]
    planted, sound = [pairs[0]], [0]
    for row in range(1, len(pairs)):
        kind = faults[row]
        if kind is None:
            sound.append(row)
            planted.append(pairs[row])
        else:
            other = pairs[random.choice(sound)]
            planted.append(kind.plant(pairs[row], other, random))
    return planted, faults


def write(pairs: Sequence[Pair], folder: Path, endings: tuple[str, str]) -> list[Path]:
    """Write both sides of a corpus; U+000B and others stay in their lines."""
    paths = [folder / f"corpus.{ending}" for ending in endings]
    for path, side in zip(paths, zip(*pairs, strict=True), strict=True):
        path.write_bytes("".join(f"{line}\n" for line in side).encode())
    return paths


def reasons(folder: Path) -> dict[int, str]:
    """Reason of each dropped pair, by its row from 0."""
    with (folder / "dropped.jsonl").open(encoding="utf-8") as file:
        records = map(json.loads, file)
        return {each["line"] - 1: each["reason"] for each in records}


def show_quality(
    faults: Sequence[Kind | None],
    kinds: Sequence[Kind],
    found: dict[int, str],
    report: CleaningReport,
) -> None:
    """Print precision and recall of each kind, and of all."""
    print("| fault | planted | found | recall | precision | found by |")
    print("|---|---:|---:|---:|---:|---|")
    for kind in kinds:
        rows = [row for row, each in enumerate(faults) if each is kind]
        met = [row for row in rows if row in found]
        by_rules = [row for row, rule in found.items() if rule in kind.rules]
        right = sum(faults[row] is kind for row in by_rules)
        rules = Counter(found[row] for row in met).most_common()
        print(
            f"| {kind.name} | {len(rows):,} | {len(met):,} | {_share(met, rows)} | "
            f"{_percent(right, len(by_rules))} | "
            f"{', '.join(f'{rule} {number:,}' for rule, number in rules)} |"
        )
    faulty = [row for row, kind in enumerate(faults) if kind is not None]
    met = [row for row in faulty if row in found]
    print(
        f"| all | {len(faulty):,} | {len(met):,} | {_share(met, faulty)} | "
        f"{_percent(len(met), len(found))} | |\n"
    )
    sound = report.total - len(faulty)
    lost = Counter(rule for row, rule in found.items() if faults[row] is None)
    by_rule = ", ".join(f"{rule} {lost[rule]:,}" for rule in RULES if lost[rule])
    print(
        f"Dropped of the other {sound:,} pairs: {lost.total():,} "
        f"({_percent(lost.total(), sound)}){': ' if by_rule else ''}{by_rule}.\n"
    )


def _share(part: Sequence[int], whole: Sequence[int]) -> str:
    return _percent(len(part), len(whole))


def _percent(number: int, total: int) -> str:
    return f"{number / total:.1%}".replace("%", " %") if total else ""


def write_large(folder: Path, num_pairs: int) -> list[Path]:
    """Write a large corpus: two sentences of the built-in corpus in each line."""
    random, pairs = Random(SEED), built_in_corpus(DISTINCT_PAIRS)
    paths = [folder / "large.en", folder / "large.de"]
    with paths[0].open("w") as source, paths[1].open("w") as target:
        for _ in range(num_pairs):
            one, other = random.choice(pairs), random.choice(pairs)
            source.write(f"{one.source} {other.source}\n")
            target.write(f"{one.target} {other.target}\n")
    return paths


class Measured(NamedTuple):
    """Time and peak memory of a command with all its processes."""

    seconds: float
    cpu_seconds: float
    private: int
    proportional: int


def measured(call: Sequence[str]) -> Measured:
    """Measure a command.

    Private memory is what no other process and no file holds; files on disk that are
    mapped count in proportional memory alone.
    """
    started, used = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    process = subprocess.Popen(call, stdout=subprocess.DEVNULL)
    peak = [0, 0]

    def watch() -> None:
        while process.poll() is None:
            now = [memory_of(process.pid, name) for name in ("Private_Dirty", "Pss")]
            peak[:] = map(max, peak, now)
            time.sleep(POLL_S)

    watcher = threading.Thread(target=watch)
    watcher.start()
    code = process.wait()
    seconds = time.monotonic() - started
    watcher.join()
    if code:
        sys.exit(f"{' '.join(call)} failed with exit code {code}.")
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
    return Measured(seconds, cpu, *peak)


def show_speed(folder: Path, num_pairs: int, processes: Sequence[int]) -> None:
    """Print pairs per second and peak memory for a corpus and for a tenth of it."""
    heads = ("pairs", "MB of text", "processes", "pairs/s", "pairs per CPU second")
    print("| " + " | ".join((*heads, "memory, MB", "with files, MB")) + " |")
    print("|---:|---:|---:|---:|---:|---:|---:|")
    for number in (num_pairs // 10, num_pairs):
        paths = write_large(folder, number)
        size = sum(path.stat().st_size for path in paths) / 1e6
        for each in processes:
            call = [
                *(
                    sys.executable,
                    "-m",
                    "transduce",
                    "clean",
                    "--source",
                    str(paths[0]),
                ),
                *("--target", str(paths[1]), "--out", str(folder / "large"), "--force"),
                *("--processes", str(each)),
            ]
            found = measured(call)
            rate = number / found.seconds
            print(
                f"| {number:,} | {size:,.0f} | {each} | {rate:,.0f} | "
                f"{number / found.cpu_seconds:,.0f} | {found.private / 1e6:,.0f} | "
                f"{found.proportional / 1e6:,.0f} |",
                flush=True,
            )


def main() -> None:
    """Plant faults, clean, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", type=Path)
    parser.add_argument("--target", type=Path)
    parser.add_argument("--faults", type=float, default=0.2)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--reverse-model", type=Path)
    parser.add_argument("--worst", type=float, default=0.1)
    parser.add_argument("--pairs", type=int, default=1_000_000)
    parser.add_argument("--processes", type=int, nargs="+", default=[num_cores()])
    parser.add_argument("--limit", type=int, help="use only the first pairs")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cleaning-") as name:
        folder = Path(name)
        if given.source is None:
            pairs, endings = (
                built_in_corpus(given.limit or BUILT_IN_PAIRS),
                ("en", "de"),
            )
        else:
            read = read_pairs([given.source], [given.target])
            pairs = [Pair(p.source, p.target) for p in islice(read, given.limit)]
            endings = (guess(given.source) or "source", guess(given.target) or "target")
        kinds = (*KINDS, OTHER_SENTENCE) if given.model else KINDS
        planted, faults = plant(pairs, kinds, given.faults, Random(SEED))
        source, target = write(planted, folder, endings)
        report = transduce.clean(
            source,
            target,
            folder / "out",
            model=given.model,
            reverse_model=given.reverse_model,
            worst=given.worst if given.model else None,
        )
        print(f"{describe_machine()}\n")
        corpus = given.source.name if given.source else "the built-in corpus"
        print(f"{report.total:,} pairs of {corpus}, {given.faults:.0%} with a fault.\n")
        show_quality(faults, kinds, reasons(folder / "out"), report)
        if given.pairs:
            show_speed(folder, given.pairs, given.processes)


if __name__ == "__main__":
    main()
