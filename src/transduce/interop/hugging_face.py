"""Hugging Face Marian folders, run by their own library for a proof."""

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoTokenizer, GenerationConfig, MarianMTModel
from transformers.utils import logging

from transduce.interop.proof import GreedyOutput
from transduce.text.vocabulary import BOS, EOS, PAD


class HuggingFaceModel:
    """`MarianMTModel` of a folder; `ids` maps this package's ids to its own."""

    def __init__(self, folder: Path, ids: Sequence[int]) -> None:
        logging.disable_progress_bar()
        self._model = MarianMTModel.from_pretrained(
            folder, dtype=torch.float32, use_safetensors=True, local_files_only=True
        ).eval()
        self._ids = torch.tensor(ids)
        self._model.generation_config = GenerationConfig(
            pad_token_id=ids[PAD],
            eos_token_id=ids[EOS],
            decoder_start_token_id=ids[BOS],
            bad_words_ids=[[i] for i in sorted({ids[PAD], ids[BOS]} - {ids[EOS]})],
        )

    def greedy(self, source: list[int], max_length: int) -> GreedyOutput:
        output = self._model.generate(
            self._ids[[*source, EOS]][None],
            max_new_tokens=min(max_length, self._model.config.max_position_embeddings),
            return_dict_in_generate=True,
            output_logits=True,
        )
        ours = {theirs: i for i, theirs in enumerate(self._ids.tolist())}
        return GreedyOutput(
            ids=[ours[i] for i in output.sequences[0, 1:].tolist()],
            logits=torch.cat(output.logits)[:, self._ids],
        )


class HuggingFaceTokenizer:
    """Tokenizer of a folder; `ids` maps this package's ids to its own."""

    def __init__(self, folder: Path, ids: Sequence[int]) -> None:
        self._tokenizer = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
        self._ids = ids
        self._ours = {theirs: i for i, theirs in enumerate(ids)}

    def encode_source(self, text: str) -> list[int]:
        return self._encode(text=text)

    def encode_target(self, text: str) -> list[int]:
        return self._encode(text_target=text)

    def decode(self, ids: list[int]) -> str:
        text = self._tokenizer.decode(
            [self._ids[i] for i in ids],
            skip_special_tokens=True,
            clean_up_tokenization_spaces=False,
        )
        return " ".join(text.split())

    def _encode(self, **text: str) -> list[int]:
        found = self._tokenizer(
            **text, add_special_tokens=False, split_special_tokens=True
        )
        return [self._ours[i] for i in found["input_ids"]]
