"""A batch of n lines equals n batches of one line, in fp32."""

from dataclasses import replace

import pytest
import torch

from transduce.checkpoint import Checkpoint
from transduce.decoding.translations import Translation
from transduce.decoding.translator import Translator
from transduce.model.config import ModelConfig
from transduce.model.transformer import Transformer
from transduce.text.tokenizer import Tokenizer

CPU = torch.device("cpu")
LINES = [
    "",
    "three",
    " ".join(["one two three four five six seven eight"]),
    "",
    "two one",
    "Grüße, 東京! \u2028 \x85 <s> </s>",
    "   ",
    "eight seven six five four three",
    "four",
    " ".join(["eight"] * 12),
    "",
]
IS_EMPTY = [not line.strip() for line in LINES]
LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"


def untrained(tokenizer: Tokenizer, config: ModelConfig, seed: int = 1) -> Checkpoint:
    torch.manual_seed(seed)
    config = replace(config, num_layers=1, vocab_size=tokenizer.vocab_size)
    weights = Transformer(config).state_dict()
    return Checkpoint(config=config, weights=weights, tokenizer=tokenizer, step=0)


@pytest.fixture(params=["trained", "learned positions"])
def translator(
    request: pytest.FixtureRequest,
    trained_checkpoint: Checkpoint,
    tokenizer: Tokenizer,
    tiny: ModelConfig,
) -> Translator:
    """Translators, one of which has fewer positions than the lines have tokens."""
    checkpoints = {
        "trained": trained_checkpoint,
        "learned positions": untrained(
            tokenizer, replace(tiny, positions="learned", max_positions=8)
        ),
    }
    return Translator(checkpoints[request.param], CPU)


def translate(
    translator: Translator, lines: list[str], beam_size: int
) -> list[Translation]:
    return translator.translate(lines, beam_size=beam_size, extra_length=2)


@pytest.mark.parametrize("beam_size", [1, 3])
def test_the_translation_of_a_line_does_not_depend_on_its_batch(
    translator: Translator, beam_size: int
) -> None:
    together = translate(translator, LINES, beam_size)
    alone = [translate(translator, [line], beam_size)[0] for line in LINES]
    # Small enough for several batches, so that the order of lines changes.
    translator.batch_positions = 30
    in_pieces = translate(translator, LINES, beam_size)
    assert [t.text for t in together] == [t.text for t in alone]
    assert [t.text for t in in_pieces] == [t.text for t in alone]
    assert [t.score for t in together] == pytest.approx(
        [t.score for t in alone], abs=1e-5
    )


def test_the_order_of_lines_is_kept(trained_checkpoint: Checkpoint) -> None:
    translator = Translator(trained_checkpoint, CPU)
    forward = translate(translator, LINES, 2)
    backward = translate(translator, LINES[::-1], 2)
    assert [t.text for t in forward] == [t.text for t in backward[::-1]]
    assert len({t.score for t in forward}) > 4


def test_only_empty_lines_have_no_hypotheses(translator: Translator) -> None:
    translations = translate(translator, LINES, 2)
    assert [t.hypotheses == () for t in translations] == IS_EMPTY


def test_a_line_far_longer_than_training_has_one_translation(
    translator: Translator,
) -> None:
    [translation] = translate(translator, [" ".join(["one"] * 30)], 2)
    assert translation.hypotheses


def test_no_output_holds_a_line_end(translator: Translator) -> None:
    texts = [h.text for t in translate(translator, LINES, 3) for h in t.hypotheses]
    assert not [text for text in texts if set(text) & set(LINE_ENDS)]


@pytest.mark.parametrize("line_end", LINE_ENDS[:7], ids=repr)
def test_line_ends_from_the_model_are_removed(
    tokenizer: Tokenizer, tiny: ModelConfig, line_end: str
) -> None:
    checkpoint = untrained(tokenizer, tiny)
    pieces = tokenizer.pieces(range(tokenizer.vocab_size))
    newline = pieces.index(f"<0x{ord(line_end):02X}>")
    model = Transformer(checkpoint.config)
    direction = torch.full((tiny.d_model,), tiny.d_model**-0.5)
    with torch.no_grad():
        last_norm = model.decoder_layers[-1].after_feed_forward.norm
        last_norm.weight.zero_()
        last_norm.bias.copy_(5 * direction)
        model.embedding.weight[newline] = 4 * direction
    weights = model.state_dict()
    translator = Translator(replace(checkpoint, weights=weights), CPU)
    [translation] = translator.translate(["one"], beam_size=1, extra_length=5)
    assert translation.hypotheses[0].log_probability > -5
    assert translation.text == ""
