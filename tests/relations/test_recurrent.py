"""Recurrent models in translation, scoring and training."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from transduce.architectures.config import RecurrentConfig
from transduce.architectures.recurrent import initialize_uniform
from transduce.checkpoint import Checkpoint, build
from transduce.data.tensors import Batch, pad_rows
from transduce.decoding.translator import Translator
from transduce.device import Hardware
from transduce.search_config import SearchConfig
from transduce.text.tokenizer import Tokenizer
from transduce.text.vocabulary import BOS, EOS
from transduce.training.loss import BatchLoss, GuidedAttention

CPU = torch.device("cpu")
SOURCES = ["one two three", "four", "eight seven six five four three two one", "two"]
GNMT = RecurrentConfig(
    encoder_layers=3, decoder_layers=3, d_model=16, residual_from=3, dropout=0.0
)
RNNSEARCH = RecurrentConfig(
    cell="gru",
    encoder_layers=1,
    decoder_layers=1,
    d_model=16,
    readout="maxout",
    initial_state="projected",
    dropout=0.0,
)
CONFIGS = {
    "gnmt": GNMT,
    "gnmt-v2": replace(GNMT, attention_query="current"),
    "luong": replace(
        GNMT,
        attention="general",
        attention_query="current",
        readout="attentional",
        initial_state="encoder",
    ),
    "rnnsearch": RNNSEARCH,
}


@pytest.fixture(params=CONFIGS, name="checkpoint")
def _checkpoint(request: pytest.FixtureRequest, tokenizer: Tokenizer) -> Checkpoint:
    """Random model whose weights are large enough that translations differ."""
    config = replace(CONFIGS[request.param], vocab_size=tokenizer.vocab_size)
    model = build(config)
    initialize_uniform(model, 1.0)
    return Checkpoint(
        config=config, weights=model.state_dict(), tokenizer=tokenizer, step=1
    )


def test_sentences_are_translated_together_as_alone(checkpoint: Checkpoint) -> None:
    config = SearchConfig(beam_size=3, num_best=3, extra_length=5)
    translator = Translator(checkpoint, CPU)
    together = list(translator.translate_stream(SOURCES, config))
    # Small batches are refilled while they are decoded: their states are joined.
    translator.batch_positions = 20
    refilled = list(translator.translate_stream(SOURCES * 2, config))
    for text, *found in zip(SOURCES, together, refilled[:4], strict=True):
        [alone] = translator.translate_stream([text], config)
        for each in found:
            for one, other in zip(each.hypotheses, alone.hypotheses, strict=True):
                assert one.tokens == other.tokens
                expected = pytest.approx(other.log_probability, abs=1e-4)
                assert one.log_probability == expected


def test_scores_and_coverage_are_those_of_a_pass_over_the_whole_target(
    checkpoint: Checkpoint,
) -> None:
    translator = Translator(checkpoint, CPU)
    config = SearchConfig(beam_size=3, num_best=3, extra_length=5, coverage_penalty=2.0)
    pieces = translator.tokenizer.pieces(range(translator.tokenizer.vocab_size))
    ids = {piece: i for i, piece in enumerate(pieces)}
    model = checkpoint.build()
    seen: list[Tensor] = []
    [tap] = model.cross_attention_taps
    tap.register_forward_hook(lambda *call: seen.append(call[-1]))
    for text in SOURCES:
        [found] = translator.translate_stream([text], config)
        source = [*translator.tokenizer.encode(text), EOS]
        for each in found.hypotheses:
            # Cut off at the length limit, it has no end token.
            count = len(each.token_log_probabilities)
            target = [*(ids[piece] for piece in each.tokens), EOS][:count]
            with torch.no_grad():
                logits = model(
                    torch.tensor([source]), torch.tensor([[BOS, *target[:-1]]])
                )
            log_probs = logits[0].log_softmax(-1)
            rows = zip(log_probs, target, strict=True)
            total = sum(float(row[token]) for row, token in rows)
            assert each.log_probability == pytest.approx(total, abs=1e-3)
            received = seen.pop()[0, 0].sum(dim=0)
            coverage = float(received.clamp(max=1).log().sum())
            norm = ((5 + count) / 6) ** config.length_penalty
            expected = total / norm + config.coverage_penalty * coverage
            assert each.score == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("name", ["gnmt", "gnmt-v2"])
def test_attention_of_a_recurrent_model_can_be_guided(name: str, cpu: Hardware) -> None:
    torch.manual_seed(1)
    model = build(replace(CONFIGS[name], vocab_size=20))
    begins_word = torch.ones(20, dtype=torch.bool)
    takes_word = begins_word.clone()
    takes_word[BOS] = False
    guidance = GuidedAttention(
        weight=5.0, begins_word=begins_word, takes_word=takes_word
    )
    source = pad_rows([[5, 6, 7, EOS], [8, 9, EOS]])
    target_in = pad_rows([[BOS, 5, 6, 7], [BOS, 8, 9]])
    target_out = pad_rows([[5, 6, 7, EOS], [8, 9, EOS]])
    batch = Batch(source=source, target_in=target_in, target_out=target_out)
    loss = BatchLoss(model, 0.0, cpu, guidance)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    loss.train()
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        smoothed = loss(batch).smoothed
        smoothed.backward()
        optimizer.step()
        losses.append(smoothed.item())
    assert losses[-1] < 0.3 * losses[0]
