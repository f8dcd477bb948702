"""transformers: mixtures of experts. Which expert takes which token depends on values, the shapes mostly do not."""
from __future__ import annotations

from typing import Any

from .hf_encoder_decoders import two_sides
from .hugging_face import add_model


def _add(name: str, kind: str, settings: dict[str, Any], batch: int = 1, seq: int = 512, layers: int | None = None,
         head: str = "ForCausalLM", **more: Any) -> None:
    trace = {"batch": 1, "seq": 256, "layers": layers} if layers else None
    add_model(name, "moe", kind + head, kind + "Config", settings, batch, seq, **{"trace": trace, **more})


_add("mixtral-8x7b", "Mixtral", {"num_hidden_layers": 32}, layers=2)
_add("qwen1.5-moe-a2.7b", "Qwen2Moe", dict(
    num_hidden_layers=24, rope_parameters={"rope_type": "default", "rope_theta": 1e6}),
     note="60 experts and a shared one")
_add("qwen1.5-moe-short", "Qwen2Moe", dict(
    num_hidden_layers=2, rope_parameters={"rope_type": "default", "rope_theta": 1e6}), note="2 of the 24 layers")
_add("qwen3-30b-a3b", "Qwen3Moe", dict(
    hidden_size=2048, num_hidden_layers=48, num_attention_heads=32, num_key_value_heads=4, head_dim=128,
    intermediate_size=6144, moe_intermediate_size=768, num_experts=128, num_experts_per_tok=8, norm_topk_prob=True,
    rope_parameters={"rope_type": "default", "rope_theta": 1e6}), layers=2)
_add("olmoe-1b-7b", "Olmoe", dict(intermediate_size=1024), layers=2)
_add("olmoe-short", "Olmoe", dict(intermediate_size=1024, num_hidden_layers=3), note="3 of the 16 layers")
_add("deepseek-v3", "DeepseekV3", {"num_hidden_layers": 61}, note="671 billion parameters; no trace")
_add("deepseek-v3-short", "DeepseekV3", {"num_hidden_layers": 5},
     note="5 of the 61 layers: 3 dense and 2 of experts")
_add("deepseek-v2-lite", "DeepseekV2", dict(
    hidden_size=2048, num_hidden_layers=27, num_attention_heads=16, num_key_value_heads=16, intermediate_size=10944,
    moe_intermediate_size=1408, n_routed_experts=64, n_shared_experts=2, num_experts_per_tok=6, first_k_dense_replace=1,
    kv_lora_rank=512, q_lora_rank=None, qk_rope_head_dim=64, qk_nope_head_dim=128, v_head_dim=128, vocab_size=102400,
    topk_method="greedy", n_group=1, topk_group=1), layers=2, small={"head_dim": 64, "num_key_value_heads": 4},
     note="latent attention; first layer dense")
_add("gpt-oss-20b", "GptOss", dict(num_hidden_layers=24, num_local_experts=32),
     note="attention sinks, experts with biases")
_add("phi-mini-moe-short", "Phimoe", dict(
    intermediate_size=960, num_hidden_layers=3, max_position_embeddings=4096, attention_bias=True, lm_head_bias=True,
    rope_parameters={"rope_type": "default", "rope_theta": 1e4}),
     note="3 layers of Phi-mini's width: two of 16 experts, layer norms")
_add("granite-moe-1b", "GraniteMoe", dict(
    hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, num_key_value_heads=8, intermediate_size=512,
    num_local_experts=32, num_experts_per_tok=8, vocab_size=49155, tie_word_embeddings=True))
_add("switch-base-8", "SwitchTransformers", dict(
    d_model=768, d_kv=64, d_ff=3072, num_layers=12, num_decoder_layers=12, num_heads=12, num_experts=8,
    num_sparse_encoder_layers=6, num_sparse_decoder_layers=6,
    decoder_start_token_id=0, pad_token_id=0), head="ForConditionalGeneration", batch=4, seq=128,
     inputs=two_sides, note="top-1 routing with a capacity")
