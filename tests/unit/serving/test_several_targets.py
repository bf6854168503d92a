"""A served model with several target languages."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from serving_client import RunningServer, running, served
from transduce.checkpoint import Checkpoint
from transduce.decoding.torch_model import TorchModel, prepare
from transduce.decoding.translator import Translator
from transduce.errors import RequestError
from transduce.model.config import ModelConfig
from transduce.model.transformer import Transformer
from transduce.search_config import SearchConfig
from transduce.serving.request_queue import RequestQueue
from transduce.serving.served_models import ModelName, ServedModel
from transduce.text.tokenizer import learn_tokenizer
from transduce.text.vocabulary import TokenizerConfig

TEXT = ["A man sleeps.", "Two men sleep."]


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    """Untrained model into German and French."""
    torch.manual_seed(1)
    config = TokenizerConfig(vocab_size=300)
    tokenizer = learn_tokenizer(TEXT * 5, config, [">>de<<", ">>fr<<"])
    model = Transformer(
        ModelConfig(
            vocab_size=tokenizer.vocab_size, num_layers=1, d_model=16, d_ff=16,
            num_heads=2, d_k=8, d_v=8,
        )
    )  # fmt: skip
    return Checkpoint(
        config=model.config,
        weights=model.state_dict(),
        tokenizer=tokenizer,
        step=1,
        search=SearchConfig(beam_size=1, extra_length=5),
        source_language="en",
        target_language="de",
    )


@pytest.fixture(scope="module")
def http(checkpoint: Checkpoint) -> Iterator[RunningServer]:
    with running([served(checkpoint, "many")]) as server:
        yield server


def test_the_target_of_a_request_chooses_the_language(
    http: RunningServer, checkpoint: Checkpoint
) -> None:
    translator = Translator(checkpoint, "cpu")
    for target, language in (("fr", "fr"), ("fr-CA", "fr"), ("de", "de")):
        body = {"q": TEXT[0], "source": "en", "target": target}
        found = http.post("/translate", body).json["translatedText"]
        assert found == translator.into(language).translate(TEXT[0]).text
    body = {"q": TEXT[0], "model": "many", "target": "fr"}
    line = http.post("/v1/translate", body).json
    assert line["translation"] == translator.into("fr").translate(TEXT[0]).text


def test_the_languages_are_listed(http: RunningServer) -> None:
    [english, *others] = http.get("/languages").json
    assert (english["code"], english["targets"]) == ("en", ["de", "fr"])
    assert [each["code"] for each in others] == ["de", "fr"]
    [model] = http.get("/v1/models").json
    assert (model["target"], model["targets"]) == ("de", ["de", "fr"])


def test_an_unknown_target_is_refused_with_those_there_are(http: RunningServer) -> None:
    answer = http.post("/translate", {"q": "A", "source": "en", "target": "nl"})
    assert answer.status == 400
    assert "(en to de or fr), but are 'en' and 'nl'" in answer.json["error"]


def test_an_unknown_language_of_a_translation_is_refused_by_its_field(
    http: RunningServer,
) -> None:
    pair = {"source": TEXT[0], "target": "Ein Mann."}
    score = {"source": [TEXT[0]], "target": ["Ein Mann."], "target_language": "es"}
    for path, body, field in (
        ("/v1/score", score, "target_language"),
        ("/v1/attention", {**pair, "target_language": "es"}, "target_language"),
        ("/v1/translate", {"q": TEXT[0], "target": "es"}, "target"),
    ):
        answer = http.post(path, body)
        assert (answer.status, answer.json["error"]) == (
            400,
            f"`{field}` must be a target language of the model (de, fr), but is 'es'.",
        )


def test_scores_have_the_language_of_the_model_unless_another_is_given(
    http: RunningServer, checkpoint: Checkpoint
) -> None:
    translator = Translator(checkpoint, "cpu")
    for given, language in (({}, "de"), ({"target_language": "fr"}, "fr")):
        body = {"source": [TEXT[0]], "target": [TEXT[1]], **given}
        [found] = http.post("/v1/score", body).json
        expected = translator.into(language).score(TEXT[0], TEXT[1])
        assert found["log_probability"] == pytest.approx(expected.log_probability)


def with_tags(checkpoint: Checkpoint, own: str | None, *tags: str) -> Checkpoint:
    """Untrained model with other target languages, of which one may be its own."""
    config = TokenizerConfig(vocab_size=300)
    tokenizer = learn_tokenizer(TEXT * 5, config, tags)
    model = Transformer(replace(checkpoint.config, vocab_size=tokenizer.vocab_size))
    return replace(
        checkpoint,
        config=model.config,
        weights=model.state_dict(),
        tokenizer=tokenizer,
        target_language=own,
    )


def test_requests_with_a_tag_share_the_model_in_pytorch(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = list[TorchModel]()

    def counted(*arguments: Any) -> TorchModel:
        prepared.append(prepare(*arguments))
        return prepared[-1]

    monkeypatch.setattr("transduce.decoding.torch_model.prepare", counted)
    body = {"source": TEXT[0], "target": TEXT[1], "target_language": "de"}
    model = served(with_tags(checkpoint, "de", ">>de<<", "<law>"), "many")
    with running([model]) as server:
        for tag in ("law", "<law>", None):
            answer = server.post("/v1/attention", body | {"tag": tag})
            assert answer.status == 200
        assert len(prepared) == 1
        assert server.post("/v1/attention", body | {"tag": "news"}).status == 400


@pytest.mark.parametrize(
    ("tags", "language", "expected"),
    [
        ((">>fas<<", ">>prs<<", ">>de<<"), "fa", ">>fas<<"),
        ((">>fas<<", ">>prs<<", ">>de<<"), "prs", ">>prs<<"),
        ((">>cmn<<", ">>zho<<"), "zh", ">>cmn<<"),
        ((">>pt_BR<<", ">>pt<<"), "pt-BR", ">>pt_BR<<"),
    ],
)
def test_a_server_chooses_the_tag_that_a_translator_chooses(
    checkpoint: Checkpoint, tags: tuple[str, ...], language: str, expected: str
) -> None:
    translator = Translator(with_tags(checkpoint, None, *tags), "cpu")
    with RequestQueue(translator) as queue:
        model = ServedModel.of(ModelName.parse("m"), queue)
    assert model.tag_for(language) == expected
    assert translator.into(language).language_tag == expected
    assert len(set(model.targets)) == len(model.targets)


def test_the_own_language_of_a_model_is_the_best_match_of_its_targets(
    checkpoint: Checkpoint,
) -> None:
    other = with_tags(checkpoint, "pt", ">>es<<", ">>pt_BR<<")
    with RequestQueue(Translator(other, "cpu")) as queue:
        model = ServedModel.of(ModelName.parse("m"), queue)
    assert (model.target, model.tag_for(model.target)) == ("pt-BR", ">>pt_BR<<")


def test_languages_stated_with_the_name_leave_one_target(
    checkpoint: Checkpoint,
) -> None:
    with RequestQueue(Translator(checkpoint, "cpu")) as queue:
        model = ServedModel.of(ModelName.parse("en:fra=m"), queue)
        assert (model.targets, model.tag_for("fr")) == (["fr"], ">>fr<<")
        with pytest.raises(RequestError, match="has de"):
            ServedModel.of(ModelName.parse("en:nl=m"), queue)
    brazilian = with_tags(checkpoint, None, ">>es<<", ">>pt_BR<<")
    with RequestQueue(Translator(brazilian, "cpu")) as queue:
        model = ServedModel.of(ModelName.parse("en:pt=m"), queue)
        assert (model.targets, model.tag_for("pt")) == (["pt"], ">>pt_BR<<")
    other = replace(checkpoint, target_language=None)
    with RequestQueue(Translator(other, "cpu")) as queue:
        model = ServedModel.of(ModelName.parse("m"), queue)
        assert (model.target, model.targets) == ("de", ["de", "fr"])
