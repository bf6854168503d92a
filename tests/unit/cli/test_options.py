"""Settings of the command line: minutes asked for replace a preset's steps."""

from pathlib import Path

import pytest

from transduce.cli.options import run_config


@pytest.mark.parametrize(
    ("settings", "minutes", "steps"),
    [
        ((), 10.0, 1_500),
        (("training.checkpoint_minutes=10",), 10.0, None),
        (("training.checkpoint_minutes=2",), 2.0, None),
        (("training.checkpoint_steps=70",), 10.0, 70),
        (("training.checkpoint_steps=none",), 10.0, None),
        (("training.checkpoint_steps=1500",), 10.0, 1_500),
        (("training.checkpoint_minutes=5", "training.checkpoint_steps=7"), 5.0, 7),
    ],
    ids=str,
)
def test_given_minutes_replace_a_presets_steps(
    tmp_path: Path, settings: tuple[str, ...], minutes: float, steps: int | None
) -> None:
    table = tmp_path / "settings.toml"
    names = [each.removeprefix("training.") for each in settings]
    # TOML has no word for nothing.
    in_a_file = "\n".join(["[training]", *(n for n in names if "none" not in n)])
    table.write_text(in_a_file, encoding="utf-8")
    ways = [run_config("base", None, settings).training]
    if not any("none" in each for each in settings):
        ways.append(run_config("base", table, ()).training)
    for training in ways:
        assert (training.checkpoint_minutes, training.checkpoint_steps) == (
            minutes,
            steps,
        )
