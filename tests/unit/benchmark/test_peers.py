"""With the same weights all systems have the same losses."""

import importlib.util
from collections.abc import Mapping
from dataclasses import replace
from functools import partialmethod

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

from transduce.benchmark import training
from transduce.benchmark.training import (
    COMPILED,
    HUGGING_FACE,
    OURS,
    PEERS,
    TORCH,
    HuggingFacePeer,
    PeerTrainer,
    TorchPeer,
    compiled_torch_peer,
    obstacle,
    our_trainer,
    peers_on,
    train_peer,
    work_of,
)
from transduce.model.config import ModelConfig
from transduce.model.embedding import sinusoids
from transduce.model.transformer import Transformer

Weights = Mapping[str, Tensor]
KINDS = ("weight", "bias")
SIDES = ("encoder", "decoder")
TORCH_NAMES = {
    "self_attention": "self_attn",
    "cross_attention": "multihead_attn",
    "feed_forward.inner": "linear1",
    "feed_forward.outer": "linear2",
}
TORCH_NORMS = {
    "encoder": ("after_self_attention", "after_feed_forward"),
    "decoder": ("after_self_attention", "after_cross_attention", "after_feed_forward"),
}
MARIAN_NAMES = {
    "self_attention": "self_attn",
    "cross_attention": "encoder_attn",
    "feed_forward.inner": "fc1",
    "feed_forward.outer": "fc2",
    "after_self_attention.norm": "self_attn_layer_norm",
    "after_cross_attention.norm": "encoder_attn_layer_norm",
    "after_feed_forward.norm": "final_layer_norm",
}


def attentions(side: str) -> list[str]:
    return ["self_attention", *(["cross_attention"] if side == "decoder" else [])]


def projections(ours: Weights, name: str, kind: str) -> dict[str, Tensor]:
    key, value = ours[f"{name}.project_key_value.{kind}"].chunk(2)
    return {"q": ours[f"{name}.project_query.{kind}"], "k": key, "v": value}


def torch_weights(ours: Weights, num_layers: int) -> dict[str, Tensor]:
    weights = {"embedding.weight": ours["embedding.weight"]}
    for side in SIDES:
        for layer in range(num_layers):
            for kind in KINDS:
                weights |= torch_layer(ours, side, layer, kind)
        if f"{side}_norm.weight" in ours:
            for kind in KINDS:
                norm = ours[f"{side}_norm.{kind}"]
                weights[f"transformer.{side}.norm.{kind}"] = norm
    return weights


def torch_layer(ours: Weights, side: str, layer: int, kind: str) -> dict[str, Tensor]:
    from_, to = f"{side}_layers.{layer}", f"transformer.{side}.layers.{layer}"
    weights = {}
    for name in attentions(side):
        theirs = f"{to}.{TORCH_NAMES[name]}"
        joined = projections(ours, f"{from_}.{name}", kind)
        weights[f"{theirs}.in_proj_{kind}"] = torch.cat(list(joined.values()))
        out = ours[f"{from_}.{name}.project_output.{kind}"]
        weights[f"{theirs}.out_proj.{kind}"] = out
    for name in ("feed_forward.inner", "feed_forward.outer"):
        weights[f"{to}.{TORCH_NAMES[name]}.{kind}"] = ours[f"{from_}.{name}.{kind}"]
    for number, name in enumerate(TORCH_NORMS[side], start=1):
        weights[f"{to}.norm{number}.{kind}"] = ours[f"{from_}.{name}.norm.{kind}"]
    return weights


def marian_weights(ours: Weights, num_layers: int) -> dict[str, Tensor]:
    weights = {"marian.model.shared.weight": ours["embedding.weight"]}
    for side in SIDES:
        for layer in range(num_layers):
            for kind in KINDS:
                weights |= marian_layer(ours, side, layer, kind)
    return weights


def marian_layer(ours: Weights, side: str, layer: int, kind: str) -> dict[str, Tensor]:
    from_, to = f"{side}_layers.{layer}", f"marian.model.{side}.layers.{layer}"
    weights = {}
    for name in attentions(side):
        theirs = f"{to}.{MARIAN_NAMES[name]}"
        for letter, part in projections(ours, f"{from_}.{name}", kind).items():
            weights[f"{theirs}.{letter}_proj.{kind}"] = part
        out = ours[f"{from_}.{name}.project_output.{kind}"]
        weights[f"{theirs}.out_proj.{kind}"] = out
    for name, theirs in MARIAN_NAMES.items():
        if f"{from_}.{name}.{kind}" in ours:
            weights[f"{to}.{theirs}.{kind}"] = ours[f"{from_}.{name}.{kind}"]
    return weights


def torch_like(ours: Transformer) -> TorchPeer:
    """Copy our weights into a peer, all of them and no others."""
    peer = TorchPeer(ours.config, max_length=256)
    peer.load_state_dict(torch_weights(ours.state_dict(), ours.config.num_layers))
    return peer


def marian_like(ours: Transformer) -> HuggingFacePeer:
    peer = HuggingFacePeer(ours.config, max_length=256)
    weights = marian_weights(ours.state_dict(), ours.config.num_layers)
    for side in SIDES:
        # Marian has all sines before all cosines.
        name = f"marian.model.{side}.embed_positions.weight"
        weights[name] = sinusoids(256, ours.config.d_model)
    missing, unexpected = peer.load_state_dict(weights, strict=False)
    assert unexpected == []
    assert {name.rpartition(".")[0] or name for name in missing} <= {
        "marian",
        "marian.lm_head",
        "marian.model.encoder.embed_tokens",
        "marian.model.decoder.embed_tokens",
    }
    return peer


@pytest.fixture(params=[TORCH, HUGGING_FACE])
def peer_like(request):
    """Make a peer with our weights."""
    if request.param == HUGGING_FACE:
        return marian_like
    return torch_like


def our_losses(trainer) -> list[tuple[int, float]]:
    reports = []
    trainer.train(on_step=reports.append)
    return [(report.num_target_tokens, report.loss) for report in reports]


def peer_losses(trainer: PeerTrainer) -> list[tuple[int, float]]:
    losses = []
    trainer.train(lambda update, loss: losses.append((update.num_target_tokens, loss)))
    return losses


def test_a_peer_of_the_same_weights_has_the_same_losses(task, peer_like):
    trainer = our_trainer(task)
    peer = PeerTrainer(peer_like(trainer.model), task)
    ours, theirs = our_losses(trainer), peer_losses(peer)
    assert len(ours) == 3
    # Later losses agree too, and with them gradients, optimizer and schedule.
    for (num_tokens, loss), (their_tokens, their_loss) in zip(
        ours, theirs, strict=True
    ):
        assert num_tokens == their_tokens
        assert loss == pytest.approx(their_loss, abs=1e-4)
    assert ours[0][1] != pytest.approx(ours[2][1], abs=1e-3)


def test_our_training_leaves_out_what_peers_lack(task):
    training = replace(
        task.run.training, optimizer="muon", cooldown_share=1.0, weight_decay=9.0,
        consistency=5.0, clip_norm=1e-3, reward="gleu", reward_steps=1,
        sgd_from_step=2, sgd_learning_rate=9.0,
    )  # fmt: skip
    changed = replace(task, run=replace(task.run, training=training))
    losses = []
    for each in (task, changed):
        torch.manual_seed(1)
        losses.append(our_losses(our_trainer(each)))
    assert losses[0] == losses[1]


def test_a_pre_norm_peer_has_the_same_losses_as_well(task):
    pre_norm = replace(task.run, model=replace(task.run.model, norm="pre"))
    changed = replace(task, run=pre_norm)
    trainer = our_trainer(changed)
    peer = PeerTrainer(torch_like(trainer.model), changed)
    losses = [loss for _, loss in our_losses(trainer)]
    assert [loss for _, loss in peer_losses(peer)] == pytest.approx(losses, abs=1e-4)


def test_a_peer_has_the_same_gradients(task, peer_like):
    torch.manual_seed(3)
    ours = Transformer(task.model)
    peer = peer_like(ours)
    source = torch.tensor([[5, 6, 7, 2], [8, 2, 0, 0]])
    target_in = torch.tensor([[1, 9, 10], [1, 11, 0]])
    is_token = target_in != 0
    for model in (ours, peer):
        model(source, target_in)[is_token].logsumexp(-1).sum().backward()
    embedding = next(
        p for p in peer.parameters() if p.shape == ours.embedding.weight.shape
    )
    torch.testing.assert_close(
        embedding.grad, ours.embedding.weight.grad, atol=1e-5, rtol=1e-4
    )


def test_a_peer_has_as_many_parameters(task, peer_like):
    ours = Transformer(task.model)
    theirs = [p for p in peer_like(ours).parameters() if p.requires_grad]
    assert sum(p.numel() for p in theirs) == ours.num_parameters()


def test_a_compiled_peer_is_measured_on_a_gpu():
    assert peers_on(torch.device("cuda", 0)) == [HUGGING_FACE, TORCH, COMPILED]
    assert peers_on(torch.device("cpu")) == [HUGGING_FACE, TORCH]


@pytest.mark.usefixtures("unchecked_types")
@pytest.mark.filterwarnings(
    "ignore"
)  # the compiler calls functions of which PyTorch warns
def test_a_compiled_peer_computes_the_same(task, monkeypatch):
    # Compiling to machine code would take a minute.
    compile_ = partialmethod(nn.Module.compile, backend="eager")
    monkeypatch.setattr(nn.Module, "compile", compile_)
    compiled = compiled_torch_peer(task.model, 256)
    plain = TorchPeer(task.model, 256)
    plain.load_state_dict(compiled.state_dict())
    source = torch.tensor([[5, 6, 7, 2], [8, 2, 0, 0]])
    target_in = torch.tensor([[1, 9, 10], [1, 11, 0]])
    counters.clear()
    logits = compiled(source, target_in)
    assert counters["stats"]["unique_graphs"] > 0
    torch.testing.assert_close(logits, plain(source, target_in))


@pytest.mark.parametrize("name", [HUGGING_FACE, TORCH])
def test_a_peer_computes_in_bf16_where_ours_does(task, name):
    hardware = replace(task.hardware, dtype=torch.bfloat16)
    half = replace(task, hardware=hardware, steps=1)
    torch.manual_seed(4)
    peer = PEERS[name](task.model, 256)
    trainer = PeerTrainer(peer, half)
    dtypes = set()
    for module in peer.modules():
        if isinstance(module, nn.Linear):
            module.register_forward_hook(lambda *of: dtypes.add(of[2].dtype))
    [(_, loss)] = peer_losses(trainer)
    assert dtypes == {torch.bfloat16}
    torch.manual_seed(4)
    whole = PeerTrainer(PEERS[name](task.model, 256), replace(task, steps=1))
    assert loss == pytest.approx(peer_losses(whole)[0][1], rel=0.02)
    assert loss != peer_losses(whole)[0][1]


def test_marian_uses_fused_attention(task):
    config = HuggingFacePeer(task.model, 10).marian.config
    assert config._attn_implementation == "sdpa"


def rates_of_dropout(model: nn.Module) -> list[float]:
    return [m.p for m in model.modules() if isinstance(m, nn.Dropout)]


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_torch_drops_only_what_the_paper_drops(task, norm):
    peer = TorchPeer(replace(task.model, dropout=0.25, norm=norm), 10)
    # Two sub-layers of the encoder, three of the decoder, two layers, the embeddings.
    assert rates_of_dropout(peer) == [0.25] * (2 * (2 + 3) + 1)
    attentions = [m for m in peer.modules() if isinstance(m, nn.MultiheadAttention)]
    assert [m.dropout for m in attentions] == [0.0] * 6


def test_marian_drops_only_what_the_paper_drops(task):
    config = HuggingFacePeer(replace(task.model, dropout=0.25), 10).marian.config
    assert config.dropout == 0.25
    rest = ("attention_dropout", "activation_dropout", "encoder_layerdrop")
    assert [getattr(config, name) for name in rest] == [0.0] * 3


@pytest.mark.parametrize("name", [OURS, HUGGING_FACE, TORCH])
def test_a_system_makes_one_update_at_each_turn(task, name, take_all_turns):
    turns = take_all_turns(work_of(name, task), 3)
    tokens = [update.num_target_tokens for update in task.updates(task.dataset())]
    assert [turn.outcome.num_target_tokens for turn in turns] == tokens
    assert all(2 < turn.outcome.loss < 7 for turn in turns)


def test_a_system_stops_where_turns_do(task, take_all_turns):
    turns = take_all_turns(lambda turns: train_peer(TORCH, task, turns), 1)
    assert len(turns) == 1


@pytest.mark.parametrize("is_plain", [True, False])
def test_peers_keep_freed_memory_unless_they_are_plain(
    task, take_all_turns, is_plain, monkeypatch
):
    kept: list[str] = []
    monkeypatch.setattr(training, "keep_freed_memory", lambda: kept.append("kept"))
    peers = replace(task, are_peers_plain=is_plain)
    take_all_turns(lambda turns: train_peer(TORCH, peers, turns), 1)
    assert kept == ([] if is_plain else ["kept"])


@pytest.fixture
def with_transformers(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        "transduce.benchmark.training.find_spec",
        lambda name: True if name == "transformers" else find(name),
    )


@pytest.mark.parametrize(
    ("name", "changes", "setting"),
    [
        (TORCH, {"d_k": 32}, "`model.d_k` = 32"),
        (TORCH, {"d_v": 32}, "`model.d_v` = 32"),
        (TORCH, {"num_heads": 8}, "`model.d_k` = 16"),
        (TORCH, {"scores": "additive"}, "`model.scores` = additive"),
        (TORCH, {"neighbourhood": 3}, "`model.neighbourhood` = 3"),
        (TORCH, {"positions": "learned"}, "`model.positions` = learned"),
        (HUGGING_FACE, {"positions": "learned"}, "`model.positions` = learned"),
        (HUGGING_FACE, {"norm": "pre"}, "`model.norm` = pre"),
        (HUGGING_FACE, {"output_bias": True}, "`model.output_bias` = True"),
        (TORCH, {"activation": "silu"}, "`model.activation` = silu"),
        (TORCH, {"tied_output": False}, "`model.tied_output` = False"),
        (TORCH, {"attention_dropout": 0.1}, "`model.attention_dropout` = 0.1"),
        (TORCH, {"relu_dropout": 0.1}, "`model.relu_dropout` = 0.1"),
    ],
    ids=str,
)
@pytest.mark.usefixtures("with_transformers")
def test_a_peer_that_does_not_support_the_same_model_is_left_out(
    task, name, changes, setting
):
    sentence = f"{name} is left out, as it lacks {setting}."
    assert obstacle(name, replace(task.model, **changes)) == sentence


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        (TORCH, {}),
        (HUGGING_FACE, {}),
        (TORCH, {"norm": "pre"}),
        (HUGGING_FACE, {"activation": "silu"}),
        (HUGGING_FACE, {"tied_output": False, "relu_dropout": 0.1}),
        (TORCH, {"decoder_layers": 1}),
    ],
    ids=str,
)
@pytest.mark.usefixtures("with_transformers")
def test_a_peer_that_supports_the_same_model_is_measured(task, name, changes):
    assert obstacle(name, replace(task.model, **changes)) is None
    assert obstacle(name, ModelConfig(**changes)) is None


def test_a_missing_package_is_named(task, monkeypatch):
    monkeypatch.setattr("transduce.benchmark.training.find_spec", lambda name: None)
    assert obstacle(HUGGING_FACE, task.model) == (
        "Hugging Face Marian is left out. It needs the package `transformers`, which "
        "is not installed; install it by pip install '.[benchmark]' in the folder of "
        "transduce's source."
    )
    assert obstacle(TORCH, task.model) is None


@pytest.mark.parametrize(("found", "is_left_out"), [(None, True), ("spec", False)])
def test_a_compiled_peer_needs_the_compiler_for_gpus(
    task, monkeypatch, found, is_left_out
):
    monkeypatch.setattr("transduce.benchmark.training.find_spec", {"triton": found}.get)
    reason = obstacle(COMPILED, task.model)
    assert (reason is not None) == is_left_out
    assert reason is None or "Triton" in reason
