"""Measure the adaptation of a trained model to another domain.

    python benchmarks/adaptation.py FOLDER [--out FOLDER] [--source en] [--target de]
        [--pairs 500 2000 10000] [--replay-share 0.2] [--seeds 1] [--tests NAME...]
        [--general-steps N] [--adapt-steps N] [--rate RATE]

FOLDER holds the image captions of Multi30k: train, val and test sets with the
languages as extensions. English captions with a word of sports, animals or nature are
the new domain; the others, of people and streets, are the general one. A model is
trained on the general captions by the preset multi30k, exported to a folder of Hugging
Face's Marian, and imported again. Then it is adapted with some pairs of the new domain
by `transduce train --from`, without and with a share of the general pairs (replay). The
new domain's part of val chooses the best checkpoint. Prints Markdown tables of BLEU on
both domains, before and after, for val and each test set, and of the minutes that it
took.

The same command continues after an interruption.
"""

import argparse
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from machine import describe_machine, minutes_of

from commands import call, compared, table, train, translated

NEW_DOMAIN = re.compile(
    r"\b(dogs?|horses?|cows?|animals?|birds?|cats?|balls?|players?|teams?|games?"
    r"|soccer|football|basketball|baseball|tennis|volleyball|hockey|races?|racing"
    r"|bikes?|bicycles?|bikers?|motorcycles?|snow\w*|skat\w*|surf\w*|ski\w*|swim\w*"
    r"|water|beach|ocean|lake|river|boats?|jump\w*|climb\w*|mountains?|hills?|rocks?"
    r"|fields?|grass\w*|runs?|running|riding|rides?|trees?|parks?)\b",
    re.IGNORECASE,
)
"""Pattern of words of the new domain."""
DOMAINS = ("new", "general")


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """Text of both domains, in a folder."""

    folder: Path
    source: str
    target: str

    def files(self, domain: str, split: str) -> tuple[Path, Path]:
        """Source and target file."""
        names = (f"{domain}.{split}.{side}" for side in (self.source, self.target))
        first, second = (self.folder / name for name in names)
        return first, second

    def first_pairs(self, number: int) -> tuple[Path, Path]:
        """Files with the first pairs of the new domain's training text."""
        sides = []
        for path in self.files("new", "train"):
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
            if len(lines) < number:
                raise SystemExit(f"{path}: has only {len(lines):,} pairs.")
            shorter = self.folder / f"first-{number}{path.suffix}"
            shorter.write_text("".join(lines[:number]), encoding="utf-8")
            sides.append(shorter)
        return sides[0], sides[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Adaptation:
    """Runs that adapt the model, one for each seed."""

    pairs: int
    replay_share: float
    runs: list[Path]


def divide(corpus: Path, data: Data, splits: Sequence[str]) -> None:
    """Write the text of both domains."""
    data.folder.mkdir(parents=True, exist_ok=True)
    for split in splits:
        sides = [
            (corpus / f"{split}.{side}").read_text(encoding="utf-8").splitlines()
            for side in (data.source, data.target)
        ]
        pairs = list(zip(*sides, strict=True))
        for domain in DOMAINS:
            chosen = [
                pair
                for pair in pairs
                if bool(NEW_DOMAIN.search(pair[0])) == (domain == "new")
            ]
            for number, path in enumerate(data.files(domain, split)):
                text = "".join(f"{pair[number]}\n" for pair in chosen)
                path.write_text(text, encoding="utf-8")


def general_model(data: Data, out: Path, settings: Sequence[str]) -> Path:
    """Train on the general domain, export to Marian and import; return the model."""
    imported, marian = out / "imported", out / "marian"
    if imported.exists():
        return imported
    source, target = data.files("general", "train")
    dev_source, dev_target = data.files("general", "val")
    run = train(
        out / "general",
        *("--preset", "multi30k", "--source", source, "--target", target),
        *("--dev-source", dev_source, "--dev-target", dev_target),
        *("--set", *settings),
    )
    if not marian.exists():
        call("export", run, "--to", "marian", "--out", marian)
    call("import", marian, "--out", imported)
    return imported


def adapted(
    model: Path, data: Data, run: Path, pairs: int, share: float, settings: list[str]
) -> Path:
    """Adapt the model with some pairs, and a share of general ones if it is not 0."""
    source, target = data.first_pairs(pairs)
    replay = ("--replay", *data.files("general", "train"), "--replay-share", share)
    dev_sets = [
        option
        for domain in DOMAINS
        for option in ("--dev", domain, *data.files(domain, "val"))
    ]
    return train(
        run,
        *("--from", model, "--source", source, "--target", target),
        *(replay if share else ()),
        *dev_sets,
        *("--set", *settings),
    )


def scores(model: Path, data: Data, rows: Sequence[Adaptation], split: str) -> str:
    """Format BLEU on a text of both domains, before and after."""
    cells = [
        [f"{row.pairs:,}", f"{row.replay_share:.0%}" if row.replay_share else "none"]
        for row in rows
    ]
    for domain in DOMAINS:
        source, reference = data.files(domain, split)
        before = translated(
            [model], source, data.folder / f"start.{domain}.{split}.out"
        )
        for row, line in zip(rows, cells, strict=True):
            found = [
                compared(
                    {
                        "before": before,
                        "after": translated(
                            [run], source, run / f"{domain}.{split}.out"
                        ),
                    },
                    reference,
                )
                for run in row.runs
            ]
            line += [
                f"{found[0]['before'].bleu:.2f}",
                f"{fmean(each['after'].bleu for each in found):.2f}",
                ", ".join(f"{each['after'].p:.4f}" for each in found),
            ]
    heads = ["pairs", "replay"]
    for domain in DOMAINS:
        heads += [f"BLEU {domain}, before", "after", "p by seed"]
    return f"{split}:\n\n{table(heads, cells)}"


def costs(rows: Sequence[Adaptation]) -> str:
    """Format the numbers of updates and the minutes, means over the seeds."""
    cells = [
        (
            f"{row.pairs:,}",
            f"{row.replay_share:.0%}" if row.replay_share else "none",
            f"{fmean(last_update(run) for run in row.runs):,.0f}",
            f"{fmean(minutes_of(run) for run in row.runs):.1f}",
        )
        for row in rows
    ]
    return table(("pairs", "replay", "updates", "minutes of updates"), cells)


def last_update(run: Path) -> int:
    """Number of updates of a run, those after the best checkpoint included."""
    lines = (run / "log.jsonl").read_text(encoding="utf-8").splitlines()
    return max(each["step"] for each in map(json.loads, lines) if "step" in each)


def report(options: argparse.Namespace) -> Iterator[str]:
    """Divide the captions, train and adapt; yield the tables."""
    data = Data(
        folder=options.out / "text", source=options.source, target=options.target
    )
    divide(options.corpus, data, ("train", "val", *options.tests))
    steps = options.general_steps
    general = [f"training.steps={steps}"]
    if steps < 1_000:
        general.append(f"training.checkpoint_steps={max(steps // 4, 1)}")
    model = general_model(data, options.out, general)
    given = {"steps": options.adapt_steps, "learning_rate": options.rate}
    settings = [f"training.{name}={value}" for name, value in given.items() if value]
    rows = [
        Adaptation(
            pairs=number,
            replay_share=share,
            runs=[
                adapted(
                    model,
                    data,
                    options.out / f"adapted-{number}-{share:g}-{seed}",
                    number,
                    share,
                    [*settings, f"training.seed={seed}"],
                )
                for seed in options.seeds
            ],
        )
        for number in options.pairs
        for share in (0.0, options.replay_share)
    ]
    for split in ("val", *options.tests):
        yield scores(model, data, rows, split)
    yield costs(rows)
    yield (
        f"Seeds: {', '.join(map(str, options.seeds))}. val chose the checkpoints. p is "
        "the larger of the paired bootstrap's and of approximate randomisation's.\n"
    )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--out", type=Path, default=Path("adaptation"))
    parser.add_argument("--source", default="en")
    parser.add_argument("--target", default="de")
    parser.add_argument("--pairs", type=int, nargs="+", default=[500, 2_000, 10_000])
    parser.add_argument("--replay-share", type=float, default=0.2)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--tests", nargs="*", default=["test_2016_flickr"])
    parser.add_argument("--general-steps", type=int, default=11_000)
    parser.add_argument("--adapt-steps", type=int)
    parser.add_argument("--rate", type=float)
    for part in report(parser.parse_args()):
        print(part)
    print(describe_machine())


if __name__ == "__main__":
    main()
