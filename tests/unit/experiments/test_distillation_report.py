"""Report on teacher and student."""

from dataclasses import replace
from pathlib import Path

import pytest

from transduce.checkpoint import Checkpoint, save_model
from transduce.experiments.distillation_report import (
    ComparedSystem,
    DistillationReport,
    ModelFigures,
    TextScore,
    as_report,
    measure_models,
)
from transduce.experiments.experiment import EvaluationText
from transduce.report.report import as_markdown
from transduce.search_config import SearchConfig

TEACHER = ModelFigures(
    name="teacher",
    precision="fp32",
    parameters=4_000,
    megabytes=16.04,
    beam_size=4,
    words_per_second=100.0,
    scores=(TextScore(text="dev", bleu=30.0, chrf=50.0),),
)
REPORT = DistillationReport(
    models=(
        TEACHER,
        replace(TEACHER, precision="int8", scores=(), words_per_second=150.0),
        replace(TEACHER, name="student", words_per_second=1_000.0),
    ),
    num_teachers=3,
    signatures=("BLEU: tok:13a",),
    unit="words",
    num_timed=100,
    processor="1 x CPU",
    notes=("The student is not measured in 8 bits: because.",),
)


def test_a_row_has_quality_size_and_speed_of_a_model() -> None:
    text = as_markdown(as_report(REPORT))
    assert "an ensemble of 3 models" in text
    assert "| teacher | 30.00 | 50.00 | 4,000 | 16.0 | 4 | 100 | 1.0 |" in text
    assert "| teacher int8 |  |  | 4,000 | 16.0 | 4 | 150 | 1.5 |" in text
    assert "| student | 30.00 | 50.00 | 4,000 | 16.0 | 4 | 1,000 | 10.0 |" in text
    assert "The student is not measured in 8 bits" in text


def test_without_a_text_the_report_says_that_quality_is_not_measured() -> None:
    report = replace(REPORT, models=(replace(TEACHER, scores=()),), num_teachers=1)
    text = as_markdown(as_report(report))
    assert "| teacher | 4,000 | 16.0 | 4 | 100 | 1.0 |" in text
    assert "Quality is not measured" in text


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("a/test.en", "test"),
        ("test.2017.en.gz", "test.2017"),
        ("test.en.xz", "test"),
        ("test", "test"),
    ],
)
def test_a_text_is_named_after_its_source(source: str, name: str) -> None:
    assert EvaluationText.of(Path(source), Path("other")).name == name


def test_speed_is_in_characters_where_words_have_no_spaces(
    trained_checkpoint: Checkpoint, tmp_path: Path
) -> None:
    chinese = replace(trained_checkpoint, source_language="zh", target_language="de")
    save_model(chinese, tmp_path / "model")
    text = tmp_path / "text.zh"
    text.write_text("你好，世界。\n\n你好。\n")
    system = ComparedSystem(
        name="teacher",
        folders=(tmp_path / "model",),
        search=SearchConfig(beam_size=1, max_length=3),
    )
    report, translations = measure_models(
        system,
        replace(system, name="student"),
        [],
        lambda _: None,
        source=text,
        device="cpu",
    )
    assert report.unit == "characters"
    assert report.num_timed == 2
    assert [each.name for each in report.models] == ["teacher"] * 2 + ["student"] * 2
    assert translations == {}
