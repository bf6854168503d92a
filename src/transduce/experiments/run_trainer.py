"""Trainer of a run: its batches, augmentation and losses, by the run's settings."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from transduce.architectures.interface import TransductionModel
from transduce.checkpoint import Checkpoint
from transduce.data.augmentation import (
    Augmentation,
    PairAugmenter,
    largest_length,
    processes_per_training,
)
from transduce.data.batches import Batcher
from transduce.data.corpus_mixture import CorpusMixture
from transduce.data.dataset import Dataset, open_dataset, require_ids_below
from transduce.data.prepared_corpus import corpus_sizes
from transduce.decoding.torch_decoder import ModelSampler
from transduce.device import Hardware
from transduce.experiments.presets import RunConfig
from transduce.experiments.run_folder import RunFolder
from transduce.model_folder import load_dictionary
from transduce.search_config import SamplingConfig
from transduce.text.alignment import WordDictionary
from transduce.text.tokenizer import (
    TOKENIZER_FILE,
    Tokenizer,
    load_tokenizer,
    own_target_size,
)
from transduce.training.config import TrainingConfig
from transduce.training.data_parallel import ProcessGroup
from transduce.training.loss import (
    REWARDS,
    GuidedAttention,
    Refinement,
    word_beginnings,
)
from transduce.training.trainer import Trainer
from transduce.trees.linearization import SymbolVocabulary


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedRun:
    """Folder of a run, with its settings and vocabularies."""

    folder: RunFolder
    config: RunConfig
    """Settings with the sizes of the vocabularies."""
    tokenizer: Tokenizer
    symbols: SymbolVocabulary | None
    """Symbols of a parser's linearized trees; None for translation."""
    dictionary: WordDictionary | None
    """Dictionary of the model that the run started from, if that has one."""

    @classmethod
    def of(cls, folder: RunFolder, config: RunConfig) -> "LoadedRun":
        """Load the vocabularies of a run with these settings."""
        tokenizer = load_tokenizer(folder.path / TOKENIZER_FILE)
        symbols = folder.symbols()
        target_size = symbols.vocab_size if symbols else own_target_size(tokenizer)
        model = replace(
            config.model,
            vocab_size=tokenizer.vocab_size,
            target_vocab_size=target_size,
        )
        return cls(
            folder=folder,
            config=replace(config, model=model),
            tokenizer=tokenizer,
            symbols=symbols,
            dictionary=load_dictionary(folder.path),
        )

    def checkpoint(self, model: TransductionModel, step: int) -> Checkpoint:
        """Return a model with the weights after an update as a checkpoint."""
        return Checkpoint(
            config=self.config.model,
            weights={name: w.detach() for name, w in model.state_dict().items()},
            tokenizer=self.tokenizer,
            step=step,
            symbols=self.symbols,
            run=self.folder.id,
            search=self.config.search,
            source_language=self.config.languages.source,
            target_language=self.config.languages.target,
            dictionary=self.dictionary,
        )


def open_training_set(run: LoadedRun) -> Dataset:
    """Open the encoded training pairs.

    Raises `DataError` if they are damaged, and `AccessError` as `access_errors` does.
    """
    dataset = open_dataset(run.folder.corpus)
    model = run.config.model
    target_size = model.target_vocab_size or model.vocab_size
    require_ids_below(dataset, run.folder.corpus, model.vocab_size, target_size)
    return dataset


def new_trainer(
    run: LoadedRun,
    model: TransductionModel,
    dataset: Dataset,
    augmentation: Augmentation | None,
    hardware: Hardware,
    processes: ProcessGroup,
) -> Trainer:
    """Return a trainer of a model on the pairs of a run, before its first update."""
    config = run.config
    mixture = _mixture(run, len(dataset))
    batcher = Batcher(
        dataset, config.batching, config.training.seed, mixture, augmentation
    )
    return Trainer(
        model,
        batcher,
        config.training,
        hardware,
        processes,
        _guided_attention(run, hardware.device),
        refinement_of(config.training),
    )


def augmentation_of(
    run: LoadedRun,
    dataset: Dataset,
    processes: ProcessGroup,
    warn: Callable[[str], None],
) -> Augmentation | None:
    """Return the augmentation of a run's training pairs, if the run has one."""
    config = run.config
    if not config.augmentation.used:
        return None
    augment = PairAugmenter(
        config.augmentation,
        run.tokenizer,
        config.languages,
        largest_length(dataset, config.batching.max_length),
    )
    return Augmentation(
        augment, processes_per_training(processes.local_world_size), warn
    )


def _mixture(run: LoadedRun, num_pairs: int) -> CorpusMixture | None:
    """Return the mixture of a run's corpora; None for a single corpus."""
    corpora = run.config.corpora
    if not corpora:
        return None
    names = [corpus.name for corpus in corpora]
    sizes = corpus_sizes(run.folder.path, names, num_pairs)
    return CorpusMixture(corpora, run.config.stages, sizes)


def _guided_attention(run: LoadedRun, device: torch.device) -> GuidedAttention | None:
    """Return the guided attention of a parser, if its weight is not 0."""
    weight = run.config.treebank.guidance
    if run.symbols is None or weight == 0:
        return None
    pieces = run.tokenizer.pieces(range(run.tokenizer.vocab_size))
    return GuidedAttention(
        weight=weight,
        begins_word=word_beginnings(pieces).to(device),
        takes_word=torch.tensor(run.symbols.takes_word, device=device),
    )


def refinement_of(config: TrainingConfig) -> Refinement | None:
    """Return how a run's updates by reward sample and reward; None without them."""
    if config.reward == "none":
        return None
    sampling = SamplingConfig(number=config.reward_samples, seed=config.seed)
    return Refinement(
        sampler=ModelSampler(sampling),
        reward=REWARDS[config.reward],
        likelihood_weight=config.likelihood_weight,
    )
