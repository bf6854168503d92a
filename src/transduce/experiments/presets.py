"""Presets: settings of the paper's models, of every row of Table 3, and of small runs.

A preset is a literal `RunConfig`, most often BASE with a few values replaced.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Literal

from transduce.architectures.config import (
    ArchitectureConfig,
    ByteNetConfig,
    ConvolutionalConfig,
    DeepAttConfig,
    ExpertsConfig,
    MixtureRecurrentConfig,
    MixtureTransformerConfig,
    RecurrentConfig,
)
from transduce.data.batches import BatchingConfig
from transduce.data.corpus_files import EvaluationConfig
from transduce.data.corpus_mixture import CorpusConfig, StageConfig
from transduce.data.treebank import TreeAugmentationConfig, TreebankConfig
from transduce.errors import NAME_START, ConfigError, unknown_name
from transduce.model.config import ModelConfig
from transduce.search_config import NOT_GREEDY, SearchConfig
from transduce.settings import apply_mapping, convert_and_check
from transduce.text.languages import LanguagesConfig
from transduce.text.pair_changes import TextAugmentationConfig
from transduce.text.vocabulary import TokenizerConfig
from transduce.training.config import TrainingConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """All settings of a run."""

    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    """Sub-word vocabulary, learned from the training text (section 5.1)."""
    model: ArchitectureConfig = field(default_factory=ModelConfig)
    """Architecture and sizes of the model: a Transformer (section 3) or another."""
    batching: BatchingConfig = field(default_factory=BatchingConfig)
    """Sizes of updates and batches (section 5.1)."""
    training: TrainingConfig = field(default_factory=TrainingConfig)
    """Optimizer, learning rate, regularization and checkpoints (section 5)."""
    search: SearchConfig = field(default_factory=SearchConfig)
    """Beam search, kept in the model as its default (section 6.1)."""
    augmentation: TextAugmentationConfig = field(default_factory=TextAugmentationConfig)
    """Changes of the training pairs, new in each epoch; by default none."""
    treebank: TreebankConfig = field(default_factory=TreebankConfig)
    """Settings of a parser's training; not used for translation (section 6.3)."""
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    """Dev corpus and its scores."""
    languages: LanguagesConfig = field(default_factory=LanguagesConfig)
    """Languages of the corpus. By default they are guessed from the files' endings."""
    corpora: tuple[CorpusConfig, ...] = ()
    """Corpora of a mixture, each with its files; empty if the run has one corpus."""
    stages: tuple[StageConfig, ...] = ()
    """Stages of training, each with weights of the corpora; empty if the weights stay
    the same."""

    def __post_init__(self) -> None:
        convert_and_check(self)

    @property
    def sized_model(self) -> ArchitectureConfig:
        """Settings of the model with a vocabulary of the size set for the tokenizer.

        It is the largest that the model of a run can get.
        """
        return replace(self.model, vocab_size=self.tokenizer.vocab_size)


MODEL = ModelConfig(
    num_layers=6, d_model=512, d_ff=2048, num_heads=8, d_k=64, d_v=64, dropout=0.1
)
BIG_MODEL = ModelConfig(
    num_layers=6, d_model=1024, d_ff=4096, num_heads=16, d_k=64, d_v=64, dropout=0.3
)
TRAINING = TrainingConfig(
    steps=100_000,
    warmup_steps=4_000,
    label_smoothing=0.1,
    # Unlike the paper: a checkpoint is written every 1,500 updates (600 for the big
    # model), about as many as the paper's hardware made in its 10 minutes. On faster
    # hardware the last five checkpoints at 10 minutes each would span nearly the whole
    # training, and the average would include models that had learned much less. On by
    # default; `--set training.checkpoint_minutes=10` restores the paper's interval.
    checkpoint_steps=1_500,
    keep_checkpoints=5,
)
BIG_TRAINING = TrainingConfig(
    steps=300_000,
    warmup_steps=4_000,
    label_smoothing=0.1,
    checkpoint_steps=600,
    keep_checkpoints=20,
)
WORD_PIECES = TokenizerConfig(kind="word-piece", vocab_size=32_000)
SMALL_BATCHING = BatchingConfig(
    source_tokens=2_048, target_tokens=2_048, batch_tokens=1_024
)

BASE = RunConfig(
    tokenizer=TokenizerConfig(kind="bpe", vocab_size=37_000),
    model=MODEL,
    batching=BatchingConfig(source_tokens=25_000, target_tokens=25_000),
    training=TRAINING,
    search=SearchConfig(beam_size=4, length_penalty=0.6, extra_length=50),
)
BIG = replace(BASE, model=BIG_MODEL, training=BIG_TRAINING)

TABLE_3_MODELS = {
    "A-h1": replace(MODEL, num_heads=1, d_k=512, d_v=512),
    "A-h4": replace(MODEL, num_heads=4, d_k=128, d_v=128),
    "A-h16": replace(MODEL, num_heads=16, d_k=32, d_v=32),
    "A-h32": replace(MODEL, num_heads=32, d_k=16, d_v=16),
    "B-dk16": replace(MODEL, d_k=16),
    "B-dk32": replace(MODEL, d_k=32),
    "C-N2": replace(MODEL, num_layers=2),
    "C-N4": replace(MODEL, num_layers=4),
    "C-N8": replace(MODEL, num_layers=8),
    "C-d256": replace(MODEL, d_model=256, d_k=32, d_v=32),
    "C-d1024": replace(MODEL, d_model=1024, d_k=128, d_v=128),
    "C-ff1024": replace(MODEL, d_ff=1024),
    "C-ff4096": replace(MODEL, d_ff=4096),
    "D-drop0": replace(MODEL, dropout=0.0),
    "D-drop0.2": replace(MODEL, dropout=0.2),
    "E-learned": replace(MODEL, positions="learned"),
}
TABLE_3 = {
    "base": BASE,
    **{row: replace(BASE, model=model) for row, model in TABLE_3_MODELS.items()},
    "D-smooth0": replace(BASE, training=replace(TRAINING, label_smoothing=0.0)),
    "D-smooth0.2": replace(BASE, training=replace(TRAINING, label_smoothing=0.2)),
    "big": BIG,
}
"""Rows of Table 3 by their letter, all for English to German."""

SMALL_MODEL = ModelConfig(
    num_layers=4, d_model=128, d_ff=256, num_heads=4, d_k=32, d_v=32, dropout=0.25
)

# For 29,000 image captions: the sizes of Wu et al. (2021), with less dropout and
# smaller updates, which learn more in an hour on two cores.
MULTI30K = RunConfig(
    tokenizer=TokenizerConfig(vocab_size=6_000),
    model=SMALL_MODEL,
    batching=SMALL_BATCHING,
    training=TrainingConfig(
        steps=11_000,
        warmup_steps=1_500,
        learning_rate_scale=1.77,
        optimizer="muon",
        cooldown_share=0.36,
        weight_decay=0.1,
        checkpoint_steps=250,
        keep_checkpoints=10,
    ),
    search=SearchConfig(beam_size=5, length_penalty=1.2),
)

PARSING_MODEL = replace(MODEL, num_layers=4, d_model=1024, d_k=128, d_v=128)
PARSING = RunConfig(
    tokenizer=TokenizerConfig(kind="bpe", vocab_size=16_000),
    # The paper gives neither the dropout rates (of sub-layers and of attention) nor the
    # learning rate; these are those of its code, tensor2tensor 1.0.6
    # (`transformer_parsing_base`).
    model=replace(PARSING_MODEL, dropout=0.2, attention_dropout=0.2),
    batching=BatchingConfig(source_tokens=25_000, target_tokens=25_000, max_length=512),
    training=replace(
        TRAINING, warmup_steps=16_000, learning_rate_scale=0.5, best_by="f1"
    ),
    search=SearchConfig(beam_size=21, length_penalty=0.3, extra_length=300),
    treebank=TreebankConfig(style="xx"),
)

# The presets of the other architectures count updates in tokens, not sentences, and
# train in one process.
GNMT = RunConfig(
    tokenizer=WORD_PIECES,
    # Wu et al. (2016), sections 3 and 8.3: 8 layers of 1,024, weights in +-0.04,
    # dropout 0.3 (English-German) and 0.2 (English-French). Normed attention is that of
    # tensorflow/nmt; the source has a network with one hidden layer. It gives neither
    # the decoder's first state nor whether embeddings are shared.
    model=RecurrentConfig(
        encoder_layers=8,
        decoder_layers=8,
        d_model=1024,
        attention="normed-additive",
        attention_query="previous",
        residual_from=3,
        initial_range=0.04,
        dropout=0.3,
    ),
    # 128 pairs are about 4,000 tokens of each language.
    batching=BatchingConfig(source_tokens=4_000, target_tokens=4_000),
    # Section 8.3: 60,000 updates by Adam, then SGD, whose rate is halved after 1.2
    # million updates and three times more, every 200,000 (for English-French; the
    # numbers for English-German are not given). The source's loss is
    # a sum over a sentence (its equation 7), ours a mean over tokens: for sentences of
    # 27 tokens its SGD rate of 0.5 is 13.5 here, and its clipping norm of 5 is 0.185.
    training=TrainingConfig(
        steps=2_000_000,
        warmup_steps=1,
        schedule="halving",
        learning_rate=2e-4,
        beta2=0.999,
        epsilon=1e-8,
        sgd_from_step=60_001,
        sgd_learning_rate=13.5,
        decay_from=1_200_001,
        decay_steps=200_000,
        clip_norm=0.185,
        label_smoothing=0.0,
        checkpoint_steps=10_000,
    ),
    # Section 7: alpha and beta 0.2, beams of 8 to 12.
    search=SearchConfig(beam_size=8, length_penalty=0.2, coverage_penalty=0.2),
)

RNNSEARCH = RunConfig(
    # Bahdanau et al. (2015) have the 30,000 most frequent words of each language.
    tokenizer=TokenizerConfig(vocab_size=30_000),
    # Section 4.2 and appendix A: 1,000 units in each direction, embeddings of 620, a
    # maxout layer of 500, no dropout.
    model=RecurrentConfig(
        cell="gru",
        encoder_layers=1,
        decoder_layers=1,
        d_model=1000,
        embedding_width=620,
        readout_width=500,
        readout="maxout",
        initial_state="projected",
        initial_weights="orthogonal",
        dropout=0.0,
    ),
    # 80 pairs of at most 50 words; 667,000 updates (Table 2), gradients clipped to a
    # norm of 1, that of a sentence's loss: for sentences of 27 tokens it is 0.037 here.
    # Adam and its rate are this project's choice, in place of Adadelta.
    batching=BatchingConfig(
        source_tokens=2_000, target_tokens=2_000, batch_tokens=1_000, max_length=50
    ),
    training=TrainingConfig(
        steps=667_000,
        warmup_steps=1,
        schedule="constant",
        learning_rate=2e-4,
        beta2=0.999,
        epsilon=1e-8,
        clip_norm=0.037,
        label_smoothing=0.0,
        checkpoint_steps=10_000,
    ),
    search=SearchConfig(beam_size=12, length_penalty=0.0),
)


# The sizes of Zhou et al. (2016). Unlike theirs: one vocabulary for both languages,
# whose size is this project's choice, as are the number of updates, the learning rate
# and clipping, which is GNMT's; batches of 20,000 tokens are about the paper's 500 to
# 800 sentences.
DEEP_ATT = RunConfig(
    tokenizer=TokenizerConfig(kind="word", vocab_size=80_000),
    model=DeepAttConfig(),
    batching=BatchingConfig(source_tokens=20_000, target_tokens=20_000),
    training=TrainingConfig(
        steps=300_000,
        warmup_steps=4_000,
        learning_rate_scale=0.5,
        clip_norm=0.185,
        label_smoothing=0.0,
        checkpoint_steps=1_500,
        keep_checkpoints=5,
    ),
    search=SearchConfig(beam_size=10, length_penalty=1.0),
)

# The blocks and embeddings are those of the authors' code, fairseq (`fconv_wmt_en_de`);
# Gehring et al. (2017) state 10 blocks of width 512 and 3 of 768 before the last two.
# The optimizer is theirs. The numbers of updates are this project's choice, as theirs
# end on a plateau of the dev loss, which is measured about once an epoch.
CONVS2S = RunConfig(
    tokenizer=TokenizerConfig(kind="bpe", vocab_size=40_000),
    model=ConvolutionalConfig(
        encoder_blocks="9x512k3,4x1024k3,2x2048k1",
        d_embedding=768,
        d_output=512,
        dropout=0.2,  # that of fairseq's instructions; the paper states none
    ),
    # Batch sizes of fairseq's instructions; the paper has 48 sentences.
    batching=BatchingConfig(source_tokens=4_000, target_tokens=4_000),
    training=TrainingConfig(
        steps=900_000,
        warmup_steps=1,
        schedule="plateau",
        learning_rate=0.25,
        optimizer="nesterov",
        momentum=0.99,
        clip_norm=0.1,
        label_smoothing=0.0,
        checkpoint_steps=30_000,
        keep_checkpoints=1,
        best_by="loss",
    ),
    search=SearchConfig(
        beam_size=5, length_penalty=1.0, penalty="power", extra_length=50
    ),
)

# The sizes, Adam's rate and the search of Kalchbrenner et al. (2016). The vocabulary
# holds the paper's 296 and 323 characters, and bytes for all others. The paper gives
# neither the size of updates nor their number.
BYTENET = RunConfig(
    tokenizer=TokenizerConfig(kind="character", vocab_size=700),
    model=ByteNetConfig(num_blocks=30, d_hidden=800, kernel=3, largest_dilation=16),
    batching=BatchingConfig(
        source_tokens=25_000, target_tokens=25_000, batch_tokens=6_250, max_length=600
    ),
    training=TrainingConfig(
        steps=500_000,
        warmup_steps=1,
        schedule="constant",
        learning_rate=3e-4,
        beta2=0.999,
        epsilon=1e-8,
        label_smoothing=0.0,
        checkpoint_steps=5_000,
        keep_checkpoints=1,
    ),
    # Characters: the unfolded length of the longest sources, and more.
    search=SearchConfig(beam_size=12, length_penalty=0.0, extra_length=300),
)

MOE = RunConfig(
    tokenizer=WORD_PIECES,
    # Shazeer et al. (2017), appendix E, with 2,048 experts. The appendix gives neither
    # the number of groups (as many as GPUs here) nor the initial weights (those of
    # GNMT), nor whether embeddings are shared.
    model=MixtureRecurrentConfig(
        d_model=512,
        cells=2048,
        encoder_layers=3,
        decoder_layers=2,
        dropout=0.4,
        experts=ExpertsConfig(
            num_experts=2048,
            num_groups=64,
            top_k=2,
            d_ff=2048,
            gating="batchwise",
            importance_weight=0.01,
            load_weight=0.01,
        ),
    ),
    # 16,000 words for each of 64 GPUs, in all sentences of both languages. Gates of a
    # batch choose among the tokens of one.
    batching=BatchingConfig(
        source_tokens=500_000, target_tokens=500_000, batch_tokens=16_000
    ),
    # The learning rate and the number of updates are not given. This number is that of
    # the FLOPs in Table 2 of Vaswani et al. (2017), at six for each of 85 million
    # operations and each target token.
    training=TrainingConfig(
        steps=78_000,
        warmup_steps=2_000,
        schedule="warm-hold-decay",
        learning_rate=1e-3,
        hold_steps=8_000,
        beta2=0.999,
        epsilon=1e-8,
        label_smoothing=0.0,
        checkpoint_steps=1_000,
    ),
    # As in GNMT.
    search=SearchConfig(beam_size=8, length_penalty=0.2, coverage_penalty=0.2),
)

GNMT_MULTI30K = replace(
    MULTI30K,
    model=RecurrentConfig(
        encoder_layers=3,
        decoder_layers=3,
        d_model=128,
        attention="normed-additive",
        attention_query="current",
        residual_from=3,
        initial_range=0.2,
        dropout=0.3,
        shared_embedding=True,
        tied_output=True,
    ),
    training=TrainingConfig(
        steps=11_000,
        warmup_steps=500,
        learning_rate_scale=1.77,
        cooldown_share=0.36,
        clip_norm=5.0,
        checkpoint_steps=250,
        keep_checkpoints=10,
    ),
)
RIVALS = {
    "bytenet-en-de": BYTENET,
    "deep-att-en-de": DEEP_ATT,
    "deep-att-en-fr": DEEP_ATT,
    "rnnsearch-en-fr": RNNSEARCH,
    "gnmt-en-de": GNMT,
    "gnmt-en-fr": replace(GNMT, model=replace(GNMT.model, dropout=0.2)),
    # Wu et al. (2016), section 8.3: about 400,000 updates by reward. They have the rate
    # of the last update by likelihood, after four halvings.
    "gnmt-rl-en-de": replace(
        GNMT,
        training=replace(
            GNMT.training, steps=2_400_000, reward="gleu", reward_steps=400_000
        ),
    ),
    "convs2s-en-de": CONVS2S,
    "convs2s-en-fr": replace(
        CONVS2S,
        # The paper's 15 blocks. It counts 14, with 5 of width 512; fairseq has 6.
        model=replace(
            CONVS2S.model,
            encoder_blocks="6x512k3,4x768k3,3x1024k3,1x2048k1,1x4096k1",
            dropout=0.1,
        ),
        # 8 workers of 32 sentences each.
        batching=BatchingConfig(source_tokens=8_000, target_tokens=8_000),
        training=replace(CONVS2S.training, checkpoint_steps=100_000),
    ),
    "moe-en-de": MOE,
    "moe-en-fr": replace(MOE, training=replace(MOE.training, steps=470_000)),
    # About as many sentences in an update as in `multi30k`, and as many updates.
    "bytenet-multi30k": RunConfig(
        tokenizer=TokenizerConfig(kind="character", vocab_size=400),
        model=ByteNetConfig(num_blocks=8, d_hidden=128, dropout=0.2),
        batching=BatchingConfig(
            source_tokens=8_192,
            target_tokens=8_192,
            batch_tokens=4_096,
            max_length=400,
        ),
        training=TrainingConfig(
            steps=11_000,
            warmup_steps=1_000,
            learning_rate_scale=1.0,
            label_smoothing=0.0,
            cooldown_share=0.3,
            checkpoint_steps=500,
            keep_checkpoints=5,
        ),
        # Without a penalty, translations of the dev text have three quarters of the
        # words of their references.
        search=SearchConfig(beam_size=12, length_penalty=1.0, extra_length=150),
    ),
    # As many parameters as `multi30k`: 4 + 3 layers, of 80 cells because the word
    # vocabulary takes over half of the parameters.
    "deep-att-multi30k": replace(
        MULTI30K,
        tokenizer=TokenizerConfig(kind="word", vocab_size=6_000),
        model=DeepAttConfig(
            embedding_width=64,
            d_model=80,
            encoder_layers=4,
            decoder_layers=3,
            dropout=0.25,
        ),
        training=replace(GNMT_MULTI30K.training, learning_rate_scale=0.885),
    ),
    # For the same captions, about as many parameters: GNMT with the query current
    # (gnmt_v2 of tensorflow/nmt), and RNNsearch.
    "rnnsearch-multi30k": replace(
        MULTI30K,
        model=RecurrentConfig(
            cell="gru",
            encoder_layers=1,
            decoder_layers=1,
            d_model=192,
            embedding_width=128,
            readout_width=128,
            readout="maxout",
            initial_state="projected",
            initial_range=0.2,
            dropout=0.3,
            shared_embedding=True,
            tied_output=True,
        ),
        training=TrainingConfig(
            steps=11_000,
            warmup_steps=500,
            clip_norm=1.0,
            checkpoint_steps=250,
            keep_checkpoints=10,
        ),
    ),
    "gnmt-multi30k": GNMT_MULTI30K,
    # The updates by reward come last in the cooldown, where the rate falls from 1.8e-4
    # to nearly 0: they refine a trained model.
    "gnmt-rl-multi30k": replace(
        GNMT_MULTI30K,
        training=replace(
            GNMT_MULTI30K.training,
            steps=GNMT_MULTI30K.training.steps + 500,
            reward="gleu",
            reward_steps=500,
        ),
    ),
    "convs2s-multi30k": replace(
        MULTI30K,
        model=ConvolutionalConfig(
            encoder_blocks="6x128k3",
            decoder_blocks="5x128k3",
            d_embedding=128,
            d_output=None,
            shared_embedding=True,
            max_positions=256,
            dropout=0.25,
        ),
        training=replace(MULTI30K.training, weight_decay=0.0),
        search=SearchConfig(beam_size=5, length_penalty=1.0, penalty="power"),
    ),
    # The same layers, with about as many parameters as multi30k beside the experts.
    "moe-multi30k": replace(
        MULTI30K,
        model=MixtureRecurrentConfig(
            d_model=128,
            cells=192,
            dropout=0.3,
            shared_embedding=True,
            tied_output=True,
            initial_range=0.15,
            experts=ExpertsConfig(num_experts=8, top_k=2, d_ff=128, gating="batchwise"),
        ),
        training=GNMT_MULTI30K.training,
    ),
    # As multi30k, with eight experts in place of each feed-forward network. A token
    # goes to two of half the size, so it costs as much.
    "moe-ffn-multi30k": replace(
        MULTI30K,
        model=MixtureTransformerConfig(
            num_layers=4,
            d_model=128,
            num_heads=4,
            d_k=32,
            d_v=32,
            dropout=0.25,
            experts=ExpertsConfig(num_experts=8, top_k=2, d_ff=128),
        ),
    ),
}
"""Presets of the other architectures: the systems that Table 2 compares the Transformer
with, and RNNsearch, at the sizes of their papers, and small ones for Multi30k."""

STUDENT = RunConfig(
    tokenizer=TokenizerConfig(vocab_size=32_000),
    model=ModelConfig(
        num_layers=6,
        decoder_layers=2,
        d_model=256,
        d_ff=1536,
        num_heads=8,
        d_k=32,
        d_v=32,
        dropout=0.0,
    ),
    batching=BASE.batching,
    training=replace(TRAINING, label_smoothing=0.0),
    search=SearchConfig(beam_size=1),
)

PRESETS = {
    **TABLE_3,
    **RIVALS,
    "base-en-fr": replace(BASE, tokenizer=WORD_PIECES),
    "big-en-fr": replace(
        BASE,
        tokenizer=WORD_PIECES,
        model=replace(BIG_MODEL, dropout=0.1),
        training=BIG_TRAINING,
    ),
    "multi30k": MULTI30K,
    # The changes of big to base, on that scale: twice the widths and heads, and more
    # dropout.
    "multi30k-big": replace(
        MULTI30K,
        model=replace(SMALL_MODEL, d_model=256, d_ff=512, num_heads=8, dropout=0.3),
    ),
    # For a student of a large model (`transduce distill`): the sizes of the students
    # "tiny11" of browsermt/students, with attention in the decoder, so that it can be
    # exported to any library. Like theirs, it has neither dropout nor smoothing, since
    # text to translate is plentiful and the teacher's output is regular, and search is
    # greedy.
    "student-tiny": STUDENT,
    # The same with their decoder, a recurrent unit in place of self-attention.
    "student-tiny-ssru": replace(
        STUDENT, model=replace(STUDENT.model, decoder_self_attention="ssru")
    ),
    # For the built-in corpus, in minutes on two cores.
    "quickstart": RunConfig(
        tokenizer=TokenizerConfig(vocab_size=2_000),
        # The grammar gives enough sentences that the model cannot overfit and needs no
        # dropout.
        model=replace(SMALL_MODEL, num_layers=2, dropout=0.0),
        batching=SMALL_BATCHING,
        training=TrainingConfig(
            steps=900,
            warmup_steps=200,
            checkpoint_steps=150,
            keep_checkpoints=3,
        ),
    ),
    # Section 6.3: 40,000 sentences of the Wall Street Journal alone, or together with
    # 17 million automatically parsed ones.
    "parsing-wsj": PARSING,
    "parsing-semi": replace(
        PARSING,
        tokenizer=TokenizerConfig(kind="bpe", vocab_size=32_000),
        # As in the same code for such a corpus (`transformer_parsing_big`).
        model=replace(PARSING_MODEL, dropout=0.1),
        training=replace(PARSING.training, warmup_steps=4_000),
    ),
    # For thousands of trees.
    "parsing-small": RunConfig(
        tokenizer=TokenizerConfig(vocab_size=3_000),
        model=replace(SMALL_MODEL, num_layers=3, dropout=0.1),
        batching=BatchingConfig(
            source_tokens=2_048, target_tokens=2_048, batch_tokens=1_024, max_length=300
        ),
        training=TrainingConfig(
            steps=10_500,
            warmup_steps=600,
            learning_rate_scale=1.77,
            optimizer="muon",
            checkpoint_steps=500,
            keep_checkpoints=5,
            best_by="f1",
        ),
        search=PARSING.search,
        treebank=TreebankConfig(
            style="in-order-pos",
            guidance=0.5,
            augmentation=TreeAugmentationConfig(copies=8, cut=0.4),
        ),
    ),
    # For the built-in grammar's trees, in minutes on two cores.
    "parsing-quickstart": RunConfig(
        tokenizer=TokenizerConfig(vocab_size=1_000),
        model=replace(SMALL_MODEL, num_layers=2, dropout=0.0),
        batching=SMALL_BATCHING,
        training=TrainingConfig(
            steps=800,
            warmup_steps=150,
            optimizer="muon",
            checkpoint_steps=200,
            keep_checkpoints=2,
            best_by="f1",
        ),
        search=PARSING.search,
        treebank=TreebankConfig(style="in-order", guidance=0.5),
    ),
    # For a trained model and a corpus of another kind, from hundreds of pairs on: the
    # model, tokenizer and search are those of --from. The rate is for a width of 512,
    # a seventh of the peak of base, and in inverse proportion to the width
    # (`settings_from`). The patience ends the training of small corpora early.
    "adapt": RunConfig(
        batching=SMALL_BATCHING,
        training=TrainingConfig(
            steps=2_000,
            warmup_steps=100,
            schedule="constant",
            learning_rate=1e-4,
            clip_norm=1.0,
            checkpoint_steps=100,
            keep_checkpoints=4,
            patience=5,
        ),
    ),
    # For trying commands out: trains in seconds, learns nothing useful.
    "tiny": RunConfig(
        tokenizer=TokenizerConfig(vocab_size=400),
        model=ModelConfig(
            num_layers=1, d_model=32, d_ff=64, num_heads=2, d_k=16, d_v=16
        ),
        batching=BatchingConfig(source_tokens=512, target_tokens=512, batch_tokens=512),
        training=TrainingConfig(
            steps=20, warmup_steps=10, checkpoint_steps=10, keep_checkpoints=2
        ),
    ),
}

Task = Literal["translation", "parsing"]
FITTING: dict[Task, tuple[str, str]] = {
    "translation": ("base", "multi30k"),
    "parsing": ("parsing-wsj", "parsing-small"),
}
"""Presets of each task for a large and for a small corpus."""
SMALL_RIVAL = "-multi30k"
"""End of the names of the other architectures' presets for a small corpus."""
MAX_EPOCHS = 500
"""Epochs above which a preset counts as made for much larger corpora."""
ADAPT = "adapt"
"""Preset of a run from a trained model, whose sizes are the model's."""
MOMENT_SETTINGS = ("optimizer", "momentum")
"""Settings that determine which moments an optimizer has."""
OPTIMIZER_SETTINGS = (*MOMENT_SETTINGS, "beta1", "beta2", "epsilon", "weight_decay")
"""Settings that a continued optimizer has from its run."""
FROM_MODEL = (
    "tokenizer",
    "model",
    "batching.max_length",
    *(f"training.{name}" for name in OPTIMIZER_SETTINGS),
    "training.learning_rate",
    "search",
    "treebank.style",
)
"""Tables and settings in which a run of `ADAPT` follows the model it starts from: those
that `settings_from` changes."""
FOR_BOTH = ("tiny", ADAPT)
"""Presets for translation and parsing."""


def fitting_preset(num_target_tokens: int, task: Task) -> str:
    """Preset that fits a corpus with this number of target tokens."""
    large, small = FITTING[task]
    config = PRESETS[large]
    tokens = config.training.steps * config.batching.target_tokens
    return large if tokens <= MAX_EPOCHS * num_target_tokens else small


def small_rival(config: RunConfig) -> str:
    """Preset for tens of thousands of pairs with the architecture of a run's model.

    The architecture must be another one than the Transformer. Among several such
    presets it is the one with the same reward and most equal choices, such as that of
    the recurrent cell.
    """
    like = [
        name
        for name, rival in RIVALS.items()
        if name.endswith(SMALL_RIVAL) and type(rival.model) is type(config.model)
    ]
    return max(like, key=lambda name: _likeness(config, RIVALS[name]))


def _likeness(one: RunConfig, other: RunConfig) -> tuple[bool, int]:
    """Whether two runs have the same reward, and their number of equal choices."""
    ours, theirs = (
        {name: each for name, each in asdict(run.model).items() if type(each) is str}
        for run in (one, other)
    )
    return one.training.reward == other.training.reward, len(
        ours.items() & theirs.items()
    )


def require_task(name: str, task: Task) -> None:
    """Raise `ConfigError` if a preset is for the other task."""
    preset(name)  # an unknown name raises
    is_for_parsing = name.startswith("parsing-")
    if name in FOR_BOTH or is_for_parsing == (task == "parsing"):
        return
    large, small = FITTING[task]
    if task == "parsing":
        raise ConfigError(
            f"The preset {name} is for text, but the corpus has trees; use {small}, "
            f"for thousands of trees, or {large}, for tens of thousands."
        )
    raise ConfigError(
        f"The preset {name} is for trees, but the corpus has text; use {small}, for "
        f"tens of thousands of pairs, or {large}, for millions."
    )


def require_start(name: str, *, has_start: bool) -> None:
    """Raise `ConfigError` if a preset needs a trained model, but there is none."""
    if name == ADAPT and not has_start:
        raise ConfigError(
            f"The preset {ADAPT} trains a trained model further; {NAME_START}, or "
            "choose another preset."
        )


def preset(name: str) -> RunConfig:
    """Preset of that name; `ConfigError` suggests the nearest if there is none."""
    if name not in PRESETS:
        listing = "`transduce presets` lists all."
        raise ConfigError(unknown_name("preset", name, PRESETS, listing))
    return PRESETS[name]


def changed(config: RunConfig, change: Callable[[RunConfig], RunConfig]) -> RunConfig:
    """Return settings after a user's change.

    A change that sets `checkpoint_minutes` alone replaces `checkpoint_steps`, and one
    that makes the search greedy drops the earlier settings of a beam. Raises
    `ConfigError` if it sets sizes that follow from the tokenizer and the trees.
    """
    result = change(config)
    if result.search.beam_size == 1 < config.search.beam_size:
        search = _without_earlier_beam(result.search, change, config)
        result = replace(result, search=search)
    if _sets(change, "training", "checkpoint_minutes", config) and not _sets(
        change, "training", "checkpoint_steps", config
    ):
        training = replace(result.training, checkpoint_steps=None)
        result = replace(result, training=training)
    for name in ("vocab_size", "target_vocab_size"):
        if getattr(result.model, name) != getattr(config.model, name):
            raise ConfigError(
                "`model.vocab_size` and `model.target_vocab_size` must be left to the "
                "tokenizer and the trees, but one is set; set `tokenizer.vocab_size` "
                "instead."
            )
    return result


def _without_earlier_beam(
    search: SearchConfig, change: Callable[[RunConfig], RunConfig], config: RunConfig
) -> SearchConfig:
    """Return the greedy search of a change without the settings of a beam before it."""
    greedy = search.greedy()
    unused = {
        name: getattr(greedy, name)
        for name in NOT_GREEDY
        if getattr(search, name) != getattr(greedy, name)
        and not _sets(change, "search", name, config)
    }
    return replace(search, **unused)


def _sets(
    change: Callable[[RunConfig], RunConfig], part: str, name: str, config: RunConfig
) -> bool:
    """Return whether a change sets a setting of a part, such as `training`, whatever
    its value before."""
    found = set()
    for probe in (1, 2):
        probed = apply_mapping(config, {part: {name: probe}}, where="")
        found.add(getattr(getattr(change(probed), part), name))
    return len(found) == 1
