"""Measure what a student learns from its teachers on Multi30k.

    python benchmarks/distillation.py --data DIR --out RUNS [--seeds 1 2 3]

DIR has train, val, test_2016_flickr, test_2017_flickr and test_2017_mscoco with the
extensions of both languages. Teachers with different seeds form an ensemble. Students
of the same sizes are trained on the true pairs, on the teachers' translations (Kim and
Rush, 2016), and on the hypotheses that are closest to the references (sequence-level
interpolation). The same command continues after an interruption. Results are printed
as Markdown, beside published figures of Marian's students.
"""

import argparse
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from machine import describe_machine

from commands import (
    bleu_table,
    call,
    corpus_parser,
    first_lines,
    table,
    train,
    translated,
)

STUDENT = ("model.decoder_layers=2",)
"""With the sizes of `multi30k`, a quarter of the parameters of `multi30k-big`."""
PUBLISHED = (
    "Published figures of Marian's students (browsermt/students), of other texts on "
    "another machine: tiny11 (256/1536, 6 + 2 layers with SSRU, 17 MB in 8 bits), "
    "greedy, batches of 32, with a shortlist, one thread of a Xeon Gold 6248 (VNNI): "
    "es-en 3,000 sentences in 15 s, about 3,700 source tokens/s; en-de newstest2019 in "
    "12.3 s, about 3,400 words/s, with 0.7 BLEU less than the teachers' 42.5."
)


def main() -> None:
    """Train teachers and students, and print their scores."""
    parser = corpus_parser(__doc__)
    parser.add_argument("--teacher", default="multi30k-big", help="preset")
    parser.add_argument("--student", default="multi30k", help="preset")
    parser.add_argument("--teacher-set", nargs="+", default=[], help="settings")
    parser.add_argument("--student-set", nargs="+", default=list(STUDENT))
    given = parser.parse_args()
    print(report(given))
    print(describe_machine())


def report(given: argparse.Namespace) -> str:
    """Train everything, and format the results."""
    languages = given.source, given.target
    pairs = [
        first_lines(
            given.data / f"train.{each}",
            given.pairs,
            given.out / "text" / f"all.{each}",
        )
        for each in languages
    ]
    dev = [given.data / f"val.{each}" for each in languages]
    devs = ("--dev-source", dev[0], "--dev-target", dev[1])
    teachers = [
        train(
            given.out / f"teacher-{seed}",
            *("--preset", given.teacher, *devs),
            *("--source", pairs[0], "--target", pairs[1]),
            *("--set", *given.teacher_set, f"training.seed={seed}"),
        )
        for seed in given.seeds
    ]
    students = {
        "true pairs": [
            train(
                given.out / f"alone-{seed}",
                *("--preset", given.student, *devs),
                *("--source", pairs[0], "--target", pairs[1]),
                *("--set", *given.student_set, f"training.seed={seed}"),
            )
            for seed in given.seeds
        ]
    }
    for name, reference in (
        ("translations", ()),
        ("closest to the references", ("--reference", pairs[1])),
    ):
        students[name] = [
            _distilled(given, name.split()[0], seed, teachers, (
                *("--source", pairs[0], *reference, *devs),
            )) / "student"
            for seed in given.seeds
        ]  # fmt: skip
    return "\n".join(
        [_quality(given, teachers, students), _costs(students), PUBLISHED, ""]
    )


def _distilled(
    given: argparse.Namespace,
    kind: str,
    seed: int,
    teachers: list[Path],
    text: tuple[object, ...],
) -> Path:
    """Distil with a seed; later seeds have the translations of the first."""
    out = given.out / f"{kind}-{seed}"
    first = given.out / f"{kind}-{given.seeds[0]}"
    if not out.exists() and first != out:
        out.mkdir()
        for name in ("settings.json", "translations.jsonl"):
            shutil.copyfile(first / name, out / name)
    tests = [
        given.data / f"{test}.{language}"
        for test in given.tests
        for language in (given.source, given.target)
    ]
    force = () if seed == given.seeds[0] else ("--force",)
    if not (out / "report" / "distillation.json").is_file():
        call(
            *("distill", *teachers, *text, "--out", out, "--test", *tests, *force),
            *("--preset", given.student),
            *("--set", *_own_settings(given), f"training.seed={seed}"),
        )
    return out


def _own_settings(given: argparse.Namespace) -> list[str]:
    """Return a student's settings, without those of the teachers' vocabulary."""
    return [each for each in given.student_set if not each.startswith("tokenizer.")]


def _quality(
    given: argparse.Namespace, teachers: list[Path], students: dict[str, list[Path]]
) -> str:
    names = {f"student of {name}": runs for name, runs in students.items()}

    def outputs(test: str, source: Path, number: int) -> Mapping[str, Path]:
        ensemble = translated(teachers, source, given.out / f"ensemble-{test}.out")
        return {
            **{
                name: translated([runs[number]], source, runs[number] / f"{test}.out")
                for name, runs in (names | {"a teacher": teachers}).items()
            },
            "all teachers": ensemble,
        }

    return (
        f"{bleu_table(given, 'model', 'gain', outputs)}\n"
        f"Seeds: {', '.join(map(str, given.seeds))}. The gain is "
        "over the student of true pairs; p is the larger of the paired bootstrap's and "
        "of approximate randomisation's.\n"
    )


def _costs(students: dict[str, list[Path]]) -> str:
    """Format sizes and speeds, the means over the seeds."""
    folders = [run.parent / "report" for run in students["translations"]]
    reports: list[dict[str, Any]] = [
        json.loads((each / "distillation.json").read_text()) for each in folders
    ]
    heads = ("model", "precision", "parameters", "MB", "beam size", "words/s of a core")
    rows = [
        (
            several[0]["name"],
            several[0]["precision"],
            f"{several[0]['parameters']:,}",
            f"{several[0]['megabytes']:.1f}",
            str(several[0]["beam_size"]),
            f"{fmean(each['words_per_second'] for each in several):,.0f}",
        )
        for several in zip(*(each["models"] for each in reports), strict=True)
    ]
    return table(heads, rows)


if __name__ == "__main__":
    main()
