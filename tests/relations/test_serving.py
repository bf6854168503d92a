"""Concurrent clients get the translations that each would get offline."""

import random
from concurrent.futures import ThreadPoolExecutor

import torch

from serving_client import running, served
from transduce.checkpoint import Checkpoint
from transduce.decoding.translator import Translator

NUM_CLIENTS, NUM_TEXTS = 64, 160
WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight"]


def test_concurrent_clients_get_the_translations_of_single_ones(
    trained_checkpoint: Checkpoint,
) -> None:
    chance = random.Random(1)
    lines = [
        [
            chance.choices(WORDS, k=chance.randint(1, 9))
            for _ in range(chance.randint(1, 3))
        ]
        for _ in range(NUM_TEXTS)
    ]
    texts = ["\n".join(map(" ".join, each)) for each in lines]
    translator = Translator(trained_checkpoint, torch.device("cpu"))
    sentences = [line for text in texts for line in text.split("\n")]
    expected = iter([each.text for each in translator.translate(sentences)])
    wanted = ["\n".join(next(expected) for _ in each) for each in lines]

    with (
        running([served(trained_checkpoint, "en-de")]) as server,
        ThreadPoolExecutor(NUM_CLIENTS) as clients,
    ):

        def ask(text: str) -> str:
            body = {"q": text, "source": "en", "target": "de"}
            return server.post("/translate", body).json["translatedText"]

        assert list(clients.map(ask, texts)) == wanted
