"""Marian's programs: which build counts, and the protocol of the decoder.

Stand-ins show the protocol; where Marian itself is on the PATH, it is tested too.
"""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from marian_npz import VARIANTS, write_folder
from marian_stand_in import NATIVE, VERSION, calls, write_programs, write_script
from transduce.checkpoint import Checkpoint, load_model
from transduce.errors import RequestError
from transduce.interop import marian_program
from transduce.interop.export import ProofError
from transduce.interop.marian_npz_export import require_weights
from transduce.interop.marian_npz_import import import_marian
from transduce.interop.marian_program import (
    ABSENT,
    NEVER,
    Decoder,
    Form,
    Programs,
    Search,
    export,
    find_programs,
    ids_of,
    line_of,
    quantize,
)
from transduce.text.shortlist import Shortlist, encode_pairs, learn_shortlist
from transduce.text.vocabulary import EOS
from waiting import runs, wait_until

GREEDY = Search(beam_size=1)
MARIAN = shutil.which("marian-decoder")
TEXTS = ["the dog runs", "a cat sees the old dog", "she sleeps"]


@pytest.fixture
def on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Put stand-ins on the PATH, and nothing else."""

    def put(*arguments: object, **settings: object) -> Path:
        folder = write_programs(tmp_path / "programs", *arguments, **settings)
        monkeypatch.setenv("PATH", str(folder))
        return folder

    return put


@pytest.fixture(params=["stand-in", "Marian itself"])
def programs(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    marian_checkpoint: Checkpoint,
    monkeypatch: pytest.MonkeyPatch,
) -> Programs:
    if request.param == "stand-in":
        folder = write_programs(tmp_path / "programs", marian_checkpoint)
        monkeypatch.setenv("PATH", str(folder))
    elif MARIAN is None:
        pytest.skip("Marian is not on the PATH")
    return find_programs()


def sources(checkpoint: Checkpoint, texts: list[str]) -> list[list[int]]:
    return checkpoint.tokenizer.encode_sources(texts)


# ---- Builds ----------------------------------------------------------------------


def test_programs_are_described_by_version_and_build(on_path):
    folder = on_path()
    found = find_programs()
    assert found.decoder == str(folder / "marian-decoder")
    assert found.converter == str(folder / "marian-conv")
    assert found.build == f"{VERSION}, built for native"
    assert found.has_scales


def test_programs_of_another_project_have_no_scales(on_path):
    on_path(help_text="marian: neural machine translation")
    assert not find_programs().has_scales


@pytest.mark.parametrize("missing", ["marian-decoder", "marian-conv"])
def test_a_missing_program_is_told(on_path, missing):
    (on_path() / missing).unlink()
    with pytest.raises(RequestError) as refusal:
        find_programs()
    assert (
        str(refusal.value)
        == ABSENT
        == (
            "Marian takes part if `marian-decoder` and `marian-conv`, built for this "
            "machine, are on the PATH."
        )
    )


@pytest.mark.parametrize(
    ("build", "told"),
    [
        ({"BUILD_ARCH": "x86-64"}, "built for x86-64, and is"),
        ({"BUILD_ARCH": "x86-64-v2"}, "built for x86-64-v2, and is"),
        ({}, "built for an unknown processor, and is"),
        ({**NATIVE, "AVX2_FOUND": "false"}, "built for native without avx2, and is"),
        ({"BUILD_ARCH": "native"}, "built for native without avx2 and avx512f, and"),
    ],
)
def test_a_build_for_other_machines_is_not_called_marian(
    on_path, monkeypatch, build, told
):
    flags = frozenset({"avx2", "avx512f"})
    monkeypatch.setattr(marian_program, "processor_flags", lambda: flags)
    folder = on_path(None, build)
    with pytest.raises(RequestError) as refusal:
        find_programs()
    start = f"Marian is left out: {folder}/marian-decoder ({VERSION}) is "
    assert str(refusal.value).startswith(start + told)
    assert str(refusal.value).endswith("`cmake -DBUILD_ARCH=native`.")


@pytest.mark.parametrize("architecture", ["x86-64-v4", "znver4", "armv8.2-a"])
def test_a_build_for_a_named_processor_takes_part(on_path, architecture):
    on_path(None, {"BUILD_ARCH": architecture})
    assert find_programs().build.endswith(f"built for {architecture}")


def test_a_program_that_does_not_run_is_told(on_path):
    (on_path() / "marian-decoder").write_text("no program")
    with pytest.raises(RequestError, match="did not run to its end: "):
        find_programs()


# ---- Lines -----------------------------------------------------------------------


def test_a_line_has_the_rows_of_its_pieces():
    ids = [EOS + 7, EOS + 1, EOS + 300]
    assert line_of(ids) == "7 <unk> 300"
    assert ids_of("7 <unk> 300\n") == ids
    assert line_of([EOS]) == "</s>"
    assert ids_of("") == []


# ---- Decoder ---------------------------------------------------------------------


def decoder_of(tmp_path: Path, content: str, batch_size: int = 1) -> Decoder:
    told = PID.format(path=tmp_path / "pid")
    write_script(tmp_path / "decoder", told + content)
    (tmp_path / "rows.txt").touch()
    programs = Programs(
        decoder=str(tmp_path / "decoder"), converter="", build="", has_scales=True
    )
    search = Search(beam_size=1, batch_size=batch_size)
    return Decoder(programs, tmp_path, Form(), search)


PID = """
import os
open("{path}", "w").write(str(os.getpid()) + "\\n")
"""
ECHO_THREE = """
import sys
while True:
    lines = [sys.stdin.readline() for _ in range(3)]
    print(*(line.strip()[::-1] for line in lines), sep="\\n", flush=True)
"""


def test_a_decoder_answers_whole_batches(tmp_path):
    with decoder_of(tmp_path, ECHO_THREE, 3) as decoder:
        assert decoder.translate(["ab", "cd", "ef"]) == ["ba\n", "dc\n", "fe\n"]
        # A smaller batch is filled by its own lines.
        assert decoder.translate(["gh"]) == ["hg\n"]
        assert decoder.translate(["ij", "kl"]) == ["ji\n", "lk\n"]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (
            "import sys\nsys.stdin.readline()\nsys.exit('[x] Error: no memory.\\nat')",
            "ended with exit code 1; its message: no memory.",
        ),
        (
            "import sys\nsys.exit('usage')",
            "ended with exit code 1; its message: usage.",
        ),
        ("raise SystemExit(3)", "ended with exit code 3; its message: none."),
        (
            "import sys\nsys.stdin.readline()\nprint('7 8', end='')",
            "ended with exit code 0; its message: none.",
        ),
    ],
)
def test_the_death_of_a_decoder_is_one_sentence(tmp_path, content, told):
    with decoder_of(tmp_path, content) as decoder, pytest.raises(RequestError) as end:
        decoder.translate(["1 2 3"])
    assert str(end.value) == f"{tmp_path / 'decoder'} {told}"
    assert not runs(pid_in(tmp_path))


def test_a_closed_decoder_has_ended(tmp_path):
    with decoder_of(tmp_path, "import time\ntime.sleep(600)"):
        pid = pid_in(tmp_path)
        assert runs(pid)
    assert not runs(pid)


def pid_in(tmp_path: Path) -> int:
    """Number of the program, once it has written it."""
    path = tmp_path / "pid"
    wait_until(lambda: path.exists() and path.read_text().endswith("\n"))
    return int(path.read_text())


# ---- Models ----------------------------------------------------------------------


def test_the_exported_model_translates_alike(
    programs, marian_checkpoint, corpus, tmp_path
):
    folder = tmp_path / "marian"
    proof = export(programs, marian_checkpoint, folder, corpus[0][:4], endless=True)
    assert proof.startswith(f"{programs.build}: ")
    assert proof.endswith(" tokens of 4 sentences are the same by greedy search")
    told = quantize(programs, folder, marian_checkpoint.tokenizer, corpus[0])
    assert told.startswith("converted by `marian-conv` (int8")
    lines = [line_of(ids) for ids in sources(marian_checkpoint, corpus[0][:3])]
    for is_int8 in (False, True):
        form = Form(is_int8=is_int8, may_end=False)
        width = max(len(line.split()) for line in lines) + 1
        search = replace(GREEDY, batch_size=3, length_factor=10.5 / width)
        with Decoder(programs, folder, form, search) as decoder:
            found = decoder.translate(lines)
        assert [len(line.split()) for line in found] == [11] * 3
        assert not any(EOS in ids_of(line) for line in found)


def test_other_translations_are_no_proof(on_path, marian_checkpoint, corpus, tmp_path):
    folder = on_path(marian_checkpoint)
    write_script(
        folder / "marian-decoder",
        "import sys\nfor line in sys.stdin:\n    print('5 5 5', flush=True)\n",
    )
    programs = Programs(
        decoder=str(folder / "marian-decoder"), converter="", build="", has_scales=True
    )
    with pytest.raises(ProofError, match="Both models must choose the same tokens"):
        export(
            programs, marian_checkpoint, tmp_path / "out", corpus[0][:2], endless=False
        )


@pytest.mark.skipif(MARIAN is None, reason="Marian is not on the PATH")
@pytest.mark.parametrize("name", VARIANTS)
def test_marian_itself_translates_all_kinds_of_models_alike(name, tmp_path):
    vocabularies, options = VARIANTS[name]
    changed = {option.replace("-", "_"): value for option, value in options.items()}
    write_folder(tmp_path / "theirs", vocabularies, **changed)
    import_marian(tmp_path / "theirs", tmp_path / "model", TEXTS)
    checkpoint = load_model(tmp_path / "model")

    def exported() -> str:
        return export(
            find_programs(), checkpoint, tmp_path / "out", TEXTS, endless=False
        )

    if name.endswith("norms first"):
        with pytest.raises(RequestError, match='must have `model.norm` = "post", but'):
            exported()
    else:
        assert exported().endswith("of 3 sentences are the same by greedy search")


def test_rows_are_filled_up_to_a_multiple_of_eight(
    on_path, marian_checkpoint, corpus, tmp_path
):
    on_path(marian_checkpoint)
    folder = tmp_path / "marian"
    export(find_programs(), marian_checkpoint, folder, corpus[0][:1], endless=True)
    names = (folder / "rows.txt").read_text().split()
    size = marian_checkpoint.tokenizer.vocab_size - EOS
    assert 0 <= len(names) - size < 8
    assert len(names) % 8 == 0
    assert names[:3] == ["</s>", "<unk>", "2"]
    with np.load(folder / "model.npz") as arrays:
        assert arrays["Wemb"].shape == (len(names), 64)
        bias = arrays["decoder_ff_logit_out_b"][0]
        assert (bias[size:] == np.float32(NEVER)).all()
        assert not (bias[:size] == np.float32(NEVER)).any()
        text = arrays["special:model.yml"].tobytes().decode()
        assert f"dim-vocabs: [{len(names)}, {len(names)}]\n" in text
    with np.load(folder / "model_endless.npz") as arrays:
        assert arrays["decoder_ff_logit_out_b"][0, 0] == np.float32(NEVER)


def test_activations_are_scaled_by_what_the_decoder_tells(
    on_path, marian_checkpoint, corpus, tmp_path
):
    programs_folder = on_path(marian_checkpoint)
    folder = tmp_path / "marian"
    export(find_programs(), marian_checkpoint, folder, corpus[0][:1], endless=False)
    quantize(find_programs(), folder, marian_checkpoint.tokenizer, corpus[0])
    with np.load(folder / "model.bin") as arrays:  # the stand-in copies
        scale = 127 / (3 + 1.1 * 1)
        for name in ("Wemb", "none", "decoder_Wemb"):
            assert arrays[f"{name}_QuantMultA"] == pytest.approx([scale])
    assert not (folder / "model_endless.bin").exists()
    assert "--gemm-precision int8shiftAlphaAll" in calls(programs_folder)[-1]


def test_a_decoder_that_cannot_run_8_bits_is_told(
    on_path, marian_checkpoint, corpus, tmp_path
):
    folder = tmp_path / "marian"
    on_path(marian_checkpoint)
    programs = find_programs()
    export(programs, marian_checkpoint, folder, corpus[0][:1], endless=False)
    Path(programs.converter).write_text("#!/bin/sh\necho Error: no such type; exit 1\n")
    with pytest.raises(RequestError, match="exit code 1; its message: no such type."):
        quantize(programs, folder, marian_checkpoint.tokenizer, corpus[0])


def test_a_shortlist_has_the_same_candidates(
    programs, marian_checkpoint, corpus, tmp_path
):
    checkpoint = replace(
        marian_checkpoint, shortlist=small_shortlist(marian_checkpoint, corpus)
    )
    folder = tmp_path / "marian"
    if programs.build.startswith(VERSION):  # the stand-in
        write_programs(tmp_path / "others", checkpoint)
        decoder = str(tmp_path / "others" / "marian-decoder")
        programs = replace(programs, decoder=decoder)
    export(programs, checkpoint, folder, corpus[0][:4], endless=False)
    lines = (folder / "shortlist.txt").read_text().splitlines()
    of_all = {int(i) for i in (*checkpoint.shortlist.frequent, EOS)}
    assert {ids_of(line.split()[0])[0] for line in lines if "</s> 1" in line} == of_all


@pytest.mark.parametrize("targets", [[], [4, 7]])
def test_the_last_piece_keeps_its_candidates_where_no_row_is_filled_up(
    on_path, tmp_path, targets
):
    on_path()
    size = EOS + 8
    shortlist = Shortlist(
        frequent=np.array([3], dtype=np.int32),
        always=np.array([EOS], dtype=np.int32),
        ends=np.array([0] * (size - 1) + [len(targets)]),
        target_vocab_size=size,
        targets=np.array(targets, dtype=np.int32),
        tokenizer="",
    )
    marian_program.write_shortlist(find_programs(), shortlist, tmp_path)
    lines = (tmp_path / "shortlist.txt").read_text().splitlines()
    last = [line.split()[0] for line in lines if line.split()[1] == "7"]
    assert [ids_of(name)[0] for name in last] == (targets or [EOS])


def small_shortlist(
    checkpoint: Checkpoint, corpus: tuple[list[str], list[str]]
) -> Shortlist:
    pairs = encode_pairs(zip(*corpus, strict=True), checkpoint.tokenizer)
    return learn_shortlist(pairs, checkpoint.tokenizer, frequent=2, per_piece=3)


def test_weights_are_refused_for_other_positions(trained_checkpoint):
    with pytest.raises(RequestError) as refusal:
        require_weights(trained_checkpoint)
    assert str(refusal.value) == (
        "A model for Marian must be trained with Marian's sinusoids, whose base is "
        "18478.49797 at this width, but has the base 10000; train a model with the "
        "settings `model.position_base=18478.49797` and `model.learned_start=false`."
    )
