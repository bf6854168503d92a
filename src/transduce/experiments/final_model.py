"""A run's model at its end: the average of its last checkpoints (section 6.1)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from transduce.checkpoint import (
    Checkpoint,
    average,
    load_model,
    save_model,
    with_search_and_shortlist_of,
)
from transduce.errors import CheckpointError
from transduce.experiments.dev_corpus import DevScore, DevScoring
from transduce.experiments.presets import RunConfig
from transduce.experiments.run_folder import START, RunFolder
from transduce.experiments.start_model import first_weights
from transduce.files import remove_folder
from transduce.model_folder import AVERAGED, BEST
from transduce.training.trainer import Trainer


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalModel:
    """Saved model of a finished run."""

    path: Path
    """Folder of the average, or of the best checkpoint."""
    num_averaged: int
    """Number of checkpoints in the average; 1 for the best checkpoint."""
    scores: list[DevScore]
    """Scores by beam search on the dev sets, the main one first."""


class FinalModelChoice:
    """Choice between the average of a run's last checkpoints and its best one."""

    def __init__(
        self,
        folder: RunFolder,
        config: RunConfig,
        scoring: DevScoring,
        trainer: Trainer,
        warn: Callable[[str], None],
    ) -> None:
        """The trainer's model takes the weights of each model that is scored."""
        self._folder = folder
        self._config = config
        self._scoring = scoring
        self._trainer = trainer
        self._warn = warn

    def save(self, members: Sequence[Checkpoint]) -> FinalModel:
        """Save the average of checkpoints, or keep the best checkpoint alone.

        The run's model before, if there is one, passes on its search and its shortlist.
        """
        scoring, best_folder = self._scoring, self._folder.path / BEST
        averaged, older = self._folder.path / AVERAGED, self._folder.last_model
        mean = average(members)
        scores = scoring.search(self._trainer, mean, scoring.dev_sets, len(members))
        best = self._best_alone(members) if scores else None
        # Unlike the paper: the best checkpoint becomes the model if it is better on the
        # dev corpus than the average, by its score and clearly by its loss. On by
        # default; `--no-dev` turns it off.
        if best and scoring.is_chosen(best, scores[0]):
            self._warn(scores[0].dropped_for(best))
            model = load_model(best_folder)
            further = scoring.search(self._trainer, model, scoring.dev_sets[1:])
            if averaged.exists():
                save_model(with_search_and_shortlist_of(model, averaged), best_folder)
                remove_folder(averaged)
            return FinalModel(path=best_folder, num_averaged=1, scores=[best, *further])
        if best and (message := scoring.kept_despite(best, scores[0])):
            self._warn(message)
        save_model(with_search_and_shortlist_of(mean, older), averaged)
        return FinalModel(path=averaged, num_averaged=len(members), scores=scores)

    def _best_alone(self, averaged: Sequence[Checkpoint]) -> DevScore | None:
        """Score the best checkpoint by beam search, to compare it with the average.

        Returns None if it is damaged, if it alone was averaged, or if one of the two is
        from updates by reward and the other is not.
        """
        try:
            best = load_model(self._folder.path / BEST)
        except CheckpointError as error:
            self._warn(
                f"{error} Keeping the average: the best checkpoint could not be read."
            )
            return None
        if [best.step] == [member.step for member in averaged]:
            return None
        is_by_reward = self._config.training.is_by_reward
        if is_by_reward(best.step) != is_by_reward(averaged[-1].step):
            return None
        main, *_ = self._scoring.search(self._trainer, best, self._scoring.dev_sets[:1])
        return main

    def scores_of_start(self) -> list[DevScore]:
        """Score the model that the run started from by beam search, if there is one.

        The run's settings apply to it, as they do for its loss.
        """
        if not self._folder.start or not self._scoring.dev_sets:
            return []
        try:
            start = load_model(self._folder.path / START)
        except CheckpointError as error:
            self._warn(f"{error} The model that the run started from is not scored.")
            return []
        config = self._config.model
        weights = first_weights(start, config)
        # Without a shortlist, as the run's own models have none to be compared with.
        model = replace(start, step=0, config=config, weights=weights, shortlist=None)
        return self._scoring.search(self._trainer, model, self._scoring.dev_sets)
