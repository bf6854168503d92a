"""Measure the adaptation of a trained model to another domain.

    python benchmarks/adaptation.py FOLDER [--out FOLDER] [--source en] [--target de]
        [--pairs 500 2000 10000] [--replay-share 0.2] [--general-steps N]
        [--adapt-steps N] [--rate RATE]

FOLDER holds the image captions of Multi30k: train.en, train.de, val.en and val.de.
English captions with a word of sports, animals or nature are the new domain; the
others, of people and streets, are the general one. A model is trained on the general
captions by the preset multi30k, exported to a folder of Hugging Face's Marian, and
imported again. Then it is adapted with some pairs of the new domain by `transduce train
--from`, without and with a share of the general pairs (replay). Prints a Markdown table
of BLEU on both domains, before and after, and of the minutes that it took.

What is in the output folder is not made again, so that an interrupted benchmark goes
on.
"""

import argparse
import json
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from machine import describe_machine

import transduce
from transduce.cli import main as command

NEW_DOMAIN = re.compile(
    r"\b(dogs?|horses?|cows?|animals?|birds?|cats?|balls?|players?|teams?|games?"
    r"|soccer|football|basketball|baseball|tennis|volleyball|hockey|races?|racing"
    r"|bikes?|bicycles?|bikers?|motorcycles?|snow\w*|skat\w*|surf\w*|ski\w*|swim\w*"
    r"|water|beach|ocean|lake|river|boats?|jump\w*|climb\w*|mountains?|hills?|rocks?"
    r"|fields?|grass\w*|runs?|running|riding|rides?|trees?|parks?)\b",
    re.IGNORECASE,
)
"""Pattern of words of the new domain."""
DOMAINS = ("general", "new")
SPLITS = ("train", "val")


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
    """Scores of an adapted model and of its start."""

    pairs: int
    replay_share: float
    before: dict[str, float]
    """BLEU of the start by domain."""
    after: dict[str, float]
    """BLEU of the adapted model by domain."""
    updates: int
    minutes: float


def divide(corpus: Path, data: Data) -> None:
    """Write the text of both domains."""
    data.folder.mkdir(parents=True, exist_ok=True)
    for split in SPLITS:
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


def general_model(data: Data, out: Path, settings: dict[str, Any]) -> Path:
    """Train on the general domain, export to Marian and import; return the model."""
    imported = out / "imported"
    if imported.exists():
        return imported
    run = out / "general"
    if not (run / "averaged").exists() and not (run / "best").exists():
        source, target = data.files("general", "train")
        dev_source, dev_target = data.files("general", "val")
        transduce.train(
            source, target, run, preset="multi30k", settings=settings,
            dev_source=dev_source, dev_target=dev_target, overwrite=True,
        )  # fmt: skip
    marian = out / "marian"
    if not marian.exists():
        command(["export", str(run), "--to", "marian", "--out", str(marian)])
    command(["import", str(marian), "--out", str(imported)])
    return imported


def adapted(
    model: Path, data: Data, out: Path, pairs: int, share: float, settings: Any
) -> Adaptation:
    """Adapt the model with some pairs, and a share of general ones if it is not 0."""
    run = out / f"adapted-{pairs}-{share:g}"
    result_file = run / "adaptation.json"
    if result_file.exists():
        return Adaptation(**json.loads(result_file.read_text(encoding="utf-8")))
    source, target = data.first_pairs(pairs)
    files: tuple[Any, ...] = (source, target)
    if share:
        general = data.files("general", "train")
        settings = {
            **settings,
            "corpora": [
                _corpus("new", (source, target), 1 - share),
                _corpus("general", general, share),
            ],
        }
        files = ((), ())
    started = time.monotonic()
    result = transduce.train(
        *files, run, start=model, settings=settings, overwrite=True,
        dev_sets={name: data.files(name, "val") for name in ("new", "general")},
    )  # fmt: skip
    minutes = (time.monotonic() - started) / 60
    assert result.dev is not None
    found = Adaptation(
        pairs=pairs,
        replay_share=share,
        before={score.name: score.quality.score for score in result.before},
        after={s.name: s.quality.score for s in (result.dev, *result.dev_sets)},
        updates=result.dev.step,
        minutes=minutes,
    )
    content = {name: getattr(found, name) for name in Adaptation.__slots__}
    result_file.write_text(json.dumps(content) + "\n", encoding="utf-8")
    return found


def _corpus(name: str, files: tuple[Path, Path], weight: float) -> dict[str, Any]:
    source, target = map(str, files)
    return {"name": name, "source": source, "target": target, "weight": weight}


def table(rows: Sequence[Adaptation]) -> Iterator[str]:
    """Lines of the Markdown table."""
    yield (
        "| pairs | replay | BLEU new, before | after | BLEU general, before | after "
        "| last update | minutes |"
    )
    yield "|---:|---:|---:|---:|---:|---:|---:|---:|"
    for row in rows:
        replay = f"{row.replay_share:.0%}" if row.replay_share else "none"
        scores = (
            f"{scores[name]:.2f}"
            for name in ("new", "general")
            for scores in (row.before, row.after)
        )
        yield (
            f"| {row.pairs:,} | {replay} | {' | '.join(scores)} | {row.updates:,} "
            f"| {row.minutes:.1f} |"
        )


def main() -> None:
    """Divide the captions, train, adapt, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--out", type=Path, default=Path("adaptation"))
    parser.add_argument("--source", default="en")
    parser.add_argument("--target", default="de")
    parser.add_argument("--pairs", type=int, nargs="+", default=[500, 2_000, 10_000])
    parser.add_argument("--replay-share", type=float, default=0.2)
    parser.add_argument("--general-steps", type=int, default=11_000)
    parser.add_argument("--adapt-steps", type=int)
    parser.add_argument("--rate", type=float)
    options = parser.parse_args()
    data = Data(
        folder=options.out / "text", source=options.source, target=options.target
    )
    divide(options.corpus, data)
    steps = options.general_steps
    few = {"training.checkpoint_steps": max(steps // 4, 1)} if steps < 1_000 else {}
    general = {"training.steps": steps, **few}
    model = general_model(data, options.out, general)
    given = {
        "training.steps": options.adapt_steps,
        "training.learning_rate": options.rate,
    }
    settings = {name: value for name, value in given.items() if value is not None}
    rows = [
        adapted(model, data, options.out, number, share, settings)
        for number in options.pairs
        for share in (0.0, options.replay_share)
    ]
    print(f"{describe_machine()}\n")
    print("\n".join(table(rows)))


if __name__ == "__main__":
    main()
