"""The tag of a corpus at translation: commands, Python and the server."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import transduce
from serving_client import running, served
from transduce.checkpoint import Checkpoint, save_model
from transduce.data.prepared_corpus import PairEncoder
from transduce.decoding.translations import encode_lines
from transduce.decoding.translator import Translator
from transduce.errors import RequestError
from transduce.text.corpus import SentencePair
from transduce.text.tokenizer import learn_tokenizer
from transduce.text.vocabulary import TokenizerConfig

LINE = b"one two three\n"


@pytest.fixture
def model(tagged_checkpoint: Checkpoint, tmp_path: Path) -> Path:
    save_model(tagged_checkpoint, tmp_path / "model")
    return tmp_path / "model"


def test_the_tags_are_those_of_training(tagged_checkpoint: Checkpoint) -> None:
    translator = Translator(tagged_checkpoint, "cpu")
    tokenizer = translator.tokenizer
    assert tokenizer.corpus_tags == ("<law>",)
    encoder = PairEncoder(
        tokenizer=tokenizer,
        tag=tokenizer.tag_id("<law>"),
        language=tokenizer.tag_id(">>fr<<"),
    )
    [pair] = encoder.encode([SentencePair(source="one two", target="un deux")])
    chosen = translator.with_tag("law").into("fr")
    assert chosen.source_ids(["one two", ""]) == [pair.source, []]
    assert translator.into("fr").with_tag("<law>").source_ids(["one two"]) == [
        pair.source
    ]
    # No text gives the tag.
    [without] = translator.into("fr").source_ids(["<law> one two"])
    assert tokenizer.tag_id("<law>") not in without


def test_commands_put_the_tag_before_each_line(
    model: Path, succeeds: Callable[..., str], tmp_path: Path
) -> None:
    translator = transduce.load(model, device="cpu", tag="law")
    for name, text in (("en", "one two three\n"), ("de", "eins zwei\n")):
        (tmp_path / name).write_text(text)
    options = ("--tag", "law", "--device", "cpu")
    files = ("--source", tmp_path / "en", "--target", tmp_path / "de")
    found = succeeds("translate", model, *options, "--jsonl", stdin=LINE)
    assert json.loads(found)["score"] == translator.translate("one two three").score
    without = succeeds("translate", model, "--device", "cpu", "--jsonl", stdin=LINE)
    assert without != found
    scored = succeeds("score", model, *files, *options).splitlines()[0]
    # As on the server, the source names the model's own language by default.
    german, french = (
        translator.into(language).score("one two three", "eins zwei").log_probability
        for language in ("de", "fr")
    )
    assert float(scored) == pytest.approx(german, abs=1e-5)
    into = ("--target-language", "fr")
    scored = succeeds("score", model, *files, *options, *into).splitlines()[0]
    assert float(scored) == pytest.approx(french, abs=1e-5)
    sampled = succeeds("sample", model, *options, stdin=LINE)
    assert sampled != succeeds("sample", model, "--device", "cpu", stdin=LINE)
    found = succeeds(
        "evaluate", model, "--source", tmp_path / "en", "--reference", tmp_path / "de",
        "--target-language", "de", *options,
    )  # fmt: skip
    assert "BLEU" in found


@pytest.mark.parametrize("command", ["translate", "sample", "score", "evaluate"])
def test_an_unknown_tag_is_refused_with_the_known_ones(
    model: Path, refuses: Callable[..., str], tmp_path: Path, command: str
) -> None:
    (tmp_path / "text").write_text("one\n")
    files = {
        "score": ("--source", tmp_path / "text", "--target", tmp_path / "text"),
        "evaluate": ("--source", tmp_path / "text", "--reference", tmp_path / "text"),
    }.get(command, ("--input", tmp_path / "text"))
    said = refuses(command, model, *files, "--tag", "med")
    assert said == "The tag must be one of the model's, but is 'med'; it has <law>."


def test_a_model_without_tags_is_named(
    trained_checkpoint: Checkpoint, tmp_path: Path, refuses: Callable[..., str]
) -> None:
    save_model(trained_checkpoint, tmp_path / "plain")
    said = refuses("translate", tmp_path / "plain", "--tag", "law", stdin=LINE)
    assert said.startswith("A tag must be one of the model's, but this model has none")


def test_an_output_is_not_resumed_with_another_tag(
    model: Path, tmp_path: Path, refuses: Callable[..., str],
    command: Callable[..., object], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    (tmp_path / "text").write_text("one\ntwo\n")
    whole = Translator.translate_stream

    def breaks_off(*given: object, **named: object) -> object:
        yield next(iter(whole(*given, **named)))  # type: ignore[arg-type]
        raise KeyboardInterrupt

    call = ("translate", model, "--input", tmp_path / "text", "--output")
    with monkeypatch.context() as patch:
        patch.setattr(Translator, "translate_stream", breaks_off)
        command(*call, tmp_path / "out", "--tag", "law")
    assert "tag" in refuses(*call, tmp_path / "out", "--resume")


@pytest.mark.parametrize("kind", ["bpe", "word"])
def test_each_part_of_a_long_line_has_the_tag(
    corpus: tuple[list[str], list[str]], kind: str
) -> None:
    config = TokenizerConfig(kind=kind, vocab_size=330 if kind == "bpe" else 40)
    tokenizer = learn_tokenizer(corpus[0], config, ("<law>",))
    tag = tokenizer.tag_id("<law>")
    lines = [(0, ("one two three. four five six. seven eight one.", ""))]
    [parts] = encode_lines(lines, tokenizer, "en", "<law>", max_tokens=8)
    [plain] = encode_lines(lines, tokenizer, "en", max_tokens=8)
    assert len(parts) == len(plain) > 1
    for part, other in zip(parts, plain, strict=True):
        assert part.source == [tag, *other.source]
        if kind == "word":
            assert part.source_words == ("<law>", *other.source_words)
            assert len(part.source_words) == len(part.source)


def test_the_server_has_a_tag_for_each_request(tagged_checkpoint: Checkpoint) -> None:
    translator = Translator(tagged_checkpoint, "cpu").into("de")
    law = translator.with_tag("law")
    texts = ["one two", "three four five"]
    pair = {"source": ["one"], "target": ["eins"]}
    with running([served(tagged_checkpoint, "many")]) as server:
        assert server.get("/v1/models").json[0]["tags"] == ["<law>"]
        body = {"q": texts, "source": "en", "target": "de"}
        for tag, expected in ((None, translator), ("law", law), ("<law>", law)):
            found = server.post("/translate", body | {"tag": tag}).json
            assert found["translatedText"] == [
                t.text for t in expected.translate(texts)
            ]
            lines = server.post("/v1/translate", {"q": texts[0], "tag": tag}).body
            score = json.loads(lines.splitlines()[0])["score"]
            assert score == expected.translate(texts[0], beam_size=2).score
            [found] = server.post("/v1/score", pair | {"tag": tag}).json
            total = expected.score("one", "eins").log_probability
            assert found["log_probability"] == pytest.approx(total)
        one = {"source": "one", "target": "eins", "tag": "law"}
        keys = server.post("/v1/attention", one).json["keys"]
        assert keys[:2] == ["<law>", ">>de<<"]
        for path, wrong in (("/translate", body), ("/v1/score", pair)):
            answer = server.post(path, wrong | {"tag": "med"})
            assert answer.status == 400
            assert answer.json["error"].endswith("but is 'med'; it has <law>.")


def test_python_refuses_an_unknown_tag(tagged_checkpoint: Checkpoint) -> None:
    with pytest.raises(RequestError, match="it has <law>"):
        Translator(tagged_checkpoint, "cpu").with_tag("<med>")


def test_html_is_translated_with_both_tags(tagged_checkpoint: Checkpoint) -> None:
    expected = Translator(tagged_checkpoint, "cpu").into("fr").with_tag("law")
    plain = expected.translate("one two").text
    with running([served(tagged_checkpoint, "many")]) as server:
        body = {"q": "<p>one <b>two</b></p>", "format": "html", "tag": "law"}
        found = server.post("/translate", body | {"source": "en", "target": "fr"}).json[
            "translatedText"
        ]
        assert re.sub("<[^>]*>", "", found) == plain
        lines = server.post("/v1/translate", body | {"target": "fr"}).body.splitlines()
        streamed = "".join(json.loads(line)["translation"] for line in lines)
        assert streamed == found
