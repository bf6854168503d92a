"""Marian in the benchmark of decoding, by stand-ins for its programs."""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from marian_stand_in import VERSION, calls, write_programs, write_script
from transduce.benchmark import peers
from transduce.benchmark.decoding import measure_decoding
from transduce.benchmark.peers import DecodingTask, Setting, marian
from transduce.checkpoint import Checkpoint, save_model
from transduce.errors import RequestError
from transduce.interop.marian_program import Form, export, find_programs
from transduce.text.shortlist import encode_pairs, learn_shortlist

CPU = torch.device("cpu")
GREEDY = Setting(batch_size=4, beam_size=1)
FORCED = Setting(batch_size=5, beam_size=3, forced_length=12)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def stand_in(
    tmp_path: Path, marian_checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> Path:
    folder = write_programs(tmp_path / "programs", marian_checkpoint)
    monkeypatch.setenv("PATH", str(folder))
    return folder


@pytest.fixture
def task(stand_in: Path, marian_checkpoint: Checkpoint, corpus, tmp_path: Path):
    """Task with the model of ours and of Marian."""
    models = tmp_path / "models"
    save_model(marian_checkpoint, models / "ours")
    programs = find_programs()
    export(programs, marian_checkpoint, models / "marian", corpus[0][:1], endless=True)
    (stand_in / "calls.txt").unlink()
    return DecodingTask(
        models=models,
        sentences=tuple(corpus[0]),
        settings=(GREEDY, FORCED),
        rounds=1,
        device=CPU,
    )


@pytest.mark.parametrize("num_workers", [1, 2])
def test_workers_share_a_batch(task, stand_in, num_workers, corpus, stack):
    system = marian(find_programs(), Form(), num_workers, task)
    stack.enter_context(closing(system))
    [loading] = calls(stand_in)
    assert "--mini-batch 1 " in loading
    ours = peers.ours("fp32", False, task)
    for setting, texts in ((GREEDY, corpus[0][:4]), (FORCED, corpus[0][4:9])):
        before = len(calls(stand_in))
        system.get_ready(texts, setting)
        started = calls(stand_in)[before:]
        sizes = [len(texts[i::num_workers]) for i in range(num_workers)]
        for size, call in zip(sizes, started, strict=True):
            assert f"--beam-size {setting.beam_size} " in call
            assert f"--mini-batch {size} " in call
            assert ("model_endless.npz" in call) == (setting is FORCED)
        found = system.translate(texts, setting)
        assert calls(stand_in)[before:] == started  # none is started while measured
        expected = ours.translate(texts, setting)
        if setting is FORCED:
            assert [len(ids) for ids in found] == [12] * 5
            found = [ids[:11] for ids in found]
            expected = [ids[:11] for ids in expected]
        assert found == expected
        # Fewer sentences, as in a warm-up.
        assert system.translate(texts[:1], setting)[0][:11] == expected[0]


def test_large_parts_are_cut_into_mini_batches(
    task, stand_in, corpus, stack, monkeypatch
):
    monkeypatch.setattr(peers, "MARIAN_BATCH", 2)
    system = marian(find_programs(), Form(), 1, task)
    stack.enter_context(closing(system))
    ours = peers.ours("fp32", False, task)
    before = len(calls(stand_in))
    texts = corpus[0][:4]
    assert system.translate(texts, GREEDY) == ours.translate(texts, GREEDY)
    [started] = calls(stand_in)[before:]
    assert "--mini-batch 2 " in started
    # Mini-batches of other lengths need programs with limits of their own.
    by_length = {len(text.split()): text for text in corpus[0]}
    texts = [by_length[length] for length in (1, 6, 3, 1, 3)]
    system.get_ready(texts, FORCED)
    started = calls(stand_in)[before + 1 :]
    assert len(set(started)) == len(started) == 3
    found, expected = system.translate(texts, FORCED), ours.translate(texts, FORCED)
    assert [ids[:11] for ids in found] == [ids[:11] for ids in expected]
    assert [len(ids) for ids in found] == [12] * 5


def test_the_death_of_a_program_ends_a_turn_with_its_reason(task, stand_in, stack):
    system = marian(find_programs(), Form(), 1, task)
    stack.enter_context(closing(system))
    write_script(
        stand_in / "marian-decoder", "raise SystemExit('[!] Error: out of memory.')"
    )
    with pytest.raises(RequestError, match="exit code 1; its message: out of memory."):
        system.get_ready(["one", "two"], GREEDY)


@pytest.mark.slow
@pytest.mark.usefixtures("forked_workers")
def test_marian_is_measured_beside_the_others(
    stand_in, marian_checkpoint, corpus, monkeypatch
):
    monkeypatch.setattr(peers, "default_processes", lambda _: 2)
    pairs = encode_pairs(zip(*corpus, strict=True), marian_checkpoint.tokenizer)
    shortlist = learn_shortlist(pairs, marian_checkpoint.tokenizer)
    checkpoint = replace(marian_checkpoint, shortlist=shortlist)
    shutil.rmtree(stand_in / "model")
    save_model(checkpoint, stand_in / "model")
    names = {"Marian fp32, 2 workers", "Marian int8, 2 workers, shortlist"}
    at_once = Setting(batch_size=200, beam_size=1, forced_length=12)
    # One length, so that each worker has one program.
    encode = checkpoint.tokenizer.encode
    texts = [
        text for text in corpus[0] if len(encode(text)) == len(encode(corpus[0][0]))
    ]
    speed = measure_decoding(checkpoint, texts, [at_once], 1, CPU, print, names)
    measured = {d.name: d for d in speed.decoders}
    assert measured.keys() == {"transduce fp32", *names}
    for name in names:
        assert measured[name].library == "Marian"
        assert measured[name].has_shortlist == name.endswith("shortlist")
        assert not measured[name].is_ours
        assert measured[name].peak_bytes > 10**7
    assert measured["Marian fp32, 2 workers"].greedy_agreement == 1
    of_marian = [proof for proof in speed.proofs if proof.startswith("Marian")]
    assert of_marian[0].startswith(f"Marian: {VERSION}, built for native: ")
    assert of_marian[1].startswith("Marian int8: converted by `marian-conv` (int8shift")
    assert not [reason for reason in speed.left_out if reason.startswith("Marian")]
