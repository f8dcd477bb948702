"""transformers: causal language models. Sizes of 7 billion and more are listed for capture; their traces are short."""
from __future__ import annotations

from typing import Any

from .hugging_face import add_model


def _add(name: str, kind: str, settings: dict[str, Any], batch: int = 2, seq: int = 512, layers: int | None = None,
         trace_seq: int = 256, head: str = "ForCausalLM", config: str | None = None, **more: Any) -> None:
    """`layers` asks for a trace of that depth."""
    trace = {"batch": 2, "seq": trace_seq, "layers": layers} if layers else None
    add_model(name, "decoder", kind + head, (config or kind) + "Config", settings, batch, seq, trace=trace, **more)


def _shape(hidden: int, depth: int, heads: int, kv_heads: int | None, inner: int, words: int,
           **more: Any) -> dict[str, Any]:
    shape = dict(hidden_size=hidden, num_hidden_layers=depth, num_attention_heads=heads, intermediate_size=inner,
                 vocab_size=words, **more)
    return shape if kv_heads is None else dict(shape, num_key_value_heads=kv_heads)


def _rope(theta: float, **more: Any) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": theta, **more}


LLAMA_3 = dict(max_position_embeddings=8192, rms_norm_eps=1e-5, rope_parameters=_rope(5e5))
LLAMA_32_1B = _shape(2048, 16, 32, 8, 8192, 128256, head_dim=64, tie_word_embeddings=True, **LLAMA_3)

_add("gpt2", "GPT2", {}, head="LMHeadModel", layers=2)
_add("gpt2-xl", "GPT2", dict(n_layer=48, n_embd=1600, n_head=25), head="LMHeadModel")
_add("gpt-neo-1.3b", "GPTNeo", dict(hidden_size=2048, num_layers=24, num_heads=16,
                                         attention_types=[[["global", "local"], 12]]),
     note="global and local attention alternate; fixed depth")
_add("gpt-j-6b", "GPTJ", {}, note="attention beside the MLP")
_add("pythia-410m", "GPTNeoX", _shape(1024, 24, 16, None, 4096, 50304), layers=2)
_add("gpt-neox-20b", "GPTNeoX", {})
_add("opt-125m", "OPT", {}, layers=2)
_add("opt-6.7b", "OPT", dict(hidden_size=4096, num_hidden_layers=32, ffn_dim=16384, num_attention_heads=32,
                             word_embed_proj_dim=4096))
_add("bloom-560m", "Bloom", dict(hidden_size=1024, n_layer=24, n_head=16), layers=2, small={"hidden_size": 64},
     note="ALiBi positions")
_add("falcon-7b", "Falcon", dict(num_hidden_layers=32), note="one key-value head, parallel blocks")
_add("gpt-bigcode-1b", "GPTBigCode", dict(n_embd=2048, n_layer=24, n_head=16, n_inner=8192, vocab_size=49280,
                                          multi_query=True), note="santacoder/starcoder style multi-query attention")
_add("llama2-7b", "Llama", _shape(4096, 32, 32, 32, 11008, 32000, max_position_embeddings=4096, rms_norm_eps=1e-5))
_add("llama3-8b", "Llama", _shape(4096, 32, 32, 8, 14336, 128256, **LLAMA_3), layers=2)
_add("llama3-70b", "Llama", _shape(8192, 80, 64, 8, 28672, 128256, **LLAMA_3), batch=1)
_add("llama3.1-405b", "Llama", _shape(16384, 126, 128, 8, 53248, 128256, **LLAMA_3), batch=1)
_add("llama3.2-1b", "Llama", LLAMA_32_1B, layers=2)
_add("mistral-7b", "Mistral", _shape(4096, 32, 32, 8, 14336, 32000, sliding_window=4096, rms_norm_eps=1e-5), layers=2)
_add("qwen2.5-0.5b", "Qwen2", _shape(896, 24, 14, 2, 4864, 151936, tie_word_embeddings=True, rms_norm_eps=1e-6,
                                     rope_parameters=_rope(1e6)), layers=2)
_add("qwen2.5-7b", "Qwen2", _shape(3584, 28, 28, 4, 18944, 152064, rms_norm_eps=1e-6, rope_parameters=_rope(1e6)))
_add("qwen3-0.6b", "Qwen3", _shape(1024, 28, 16, 8, 3072, 151936, head_dim=128, tie_word_embeddings=True,
                                   rope_parameters=_rope(1e6)), layers=2)
_add("qwen3-8b", "Qwen3", _shape(4096, 36, 32, 8, 12288, 151936, head_dim=128, rope_parameters=_rope(1e6)))
_add("gemma-2b", "Gemma", _shape(2048, 18, 8, 1, 16384, 256000, head_dim=256), layers=2, batch=1)
_add("gemma2-2b", "Gemma2", {}, layers=2, batch=1, note="soft-capped logits, local and global layers")
_add("gemma3-1b", "Gemma3", _shape(1152, 26, 4, 1, 6912, 262144, head_dim=256, sliding_window=512,
                                   query_pre_attn_scalar=256), config="Gemma3Text", batch=1, layers=6,
     note="every sixth layer is global")
_add("phi-2", "Phi", _shape(2560, 32, 32, 32, 10240, 51200, resid_pdrop=0.1,
                            rope_parameters=_rope(1e4, partial_rotary_factor=0.4)), layers=2)
_add("phi3-mini", "Phi3", {}, layers=2)
_add("olmo2-7b", "Olmo2", _shape(4096, 32, 32, 32, 11008, 100352, rms_norm_eps=1e-6, rope_parameters=_rope(5e5)))
_add("stablelm2-1.6b", "StableLm", _shape(2048, 24, 32, 32, 5632, 100352, use_qkv_bias=True,
                                          rope_parameters=_rope(1e4, partial_rotary_factor=0.25)), layers=2)
_add("starcoder2-3b", "Starcoder2", dict(sliding_window=4096, attention_dropout=0.1, residual_dropout=0.1,
                                         embedding_dropout=0.1, bos_token_id=0, eos_token_id=0), layers=2)
_add("granite3-2b", "Granite", _shape(2048, 40, 32, 8, 8192, 49155, embedding_multiplier=12.0,
                                      residual_multiplier=0.22, attention_multiplier=0.015625, logits_scaling=8.0,
                                      attention_dropout=0.1, tie_word_embeddings=True), layers=2)
_add("aya-23-8b", "Cohere", _shape(4096, 32, 32, 8, 14336, 256000, logit_scale=0.0625), batch=1)
_add("glm4-9b", "Glm", {}, batch=1)
_add("smollm3-3b", "SmolLM3", {}, note="every fourth layer without rotary positions")
_add("smollm2-360m", "Llama", _shape(960, 32, 15, 5, 2560, 49152, tie_word_embeddings=True, rms_norm_eps=1e-5,
                                     rope_parameters=_rope(1e5)), note="deep and narrow")
_add("codegen-350m", "CodeGen", dict(n_embd=1024, n_layer=20, n_head=16, rotary_dim=32, vocab_size=51200),
     small={"n_head": 4, "rotary_dim": 8}, note="attention beside the MLP, scores in fp32")
_add("olmo2-1b", "Olmo2", _shape(2048, 16, 16, 16, 8192, 100352, rms_norm_eps=1e-6, rope_parameters=_rope(5e5)),
     note="norms behind the layers, of queries and keys too")
_add("lfm2-350m", "Lfm2", dict(
    hidden_size=1024, num_hidden_layers=16, num_attention_heads=16, num_key_value_heads=8, intermediate_size=6656,
    vocab_size=65536, layer_types=["full_attention" if at in (2, 5, 8, 10, 12, 14) else "conv" for at in range(16)]),
     depth=(), small={"layer_types": ["conv", "full_attention"]}, note="gated short convolutions, some layers of attention; fixed depth")
_add("falcon-h1-short", "FalconH1", dict(
    hidden_size=1024, num_hidden_layers=8, num_attention_heads=8, num_key_value_heads=2, head_dim=64,
    intermediate_size=2048, vocab_size=32784, mamba_d_ssm=1536, mamba_n_heads=24, mamba_d_head=64, mamba_d_state=128,
    mamba_n_groups=1, mamba_chunk_size=128, tie_word_embeddings=True), batch=1, seq=256,
     note="8 of the 0.5B's 36 layers: attention beside a state-space mixer, its slow path in plain PyTorch")
_add("mistral-7b-short", "Mistral", _shape(4096, 3, 32, 8, 14336, 32000, sliding_window=4096, rms_norm_eps=1e-5),
     note="3 of the 32 layers")
_add("phi3-mini-short", "Phi3", dict(num_hidden_layers=6), note="6 of the 32 layers")
_add("ernie4.5-0.3b", "Ernie4_5", {}, note="two key-value heads")
_add("xglm-564m", "XGLM", {}, note="sinusoidal positions, 256008 words")
_add("apertus-short", "Apertus", dict(num_hidden_layers=2), note="2 of the 8B's 32 layers; xIELU, norms of queries and keys")
_add("diffllama", "DiffLlama", {}, note="the difference of two attentions")
_add("gemma4-text-short", "Gemma4Unified", dict(num_hidden_layers=11), config="Gemma4UnifiedText", batch=1,
     note="11 of the 30 layers, every sixth is global with wider heads")
_add("doge", "Doge", {}, note="a mask from the values")
_add("nemotron-4b", "Nemotron", _shape(3072, 32, 24, 8, 9216, 256000, head_dim=128), batch=1, note="squared ReLU")
_add("mamba-130m", "Mamba", dict(hidden_size=768, num_hidden_layers=24, vocab_size=50280, state_size=16), batch=1,
     seq=64, layers=2, trace_seq=32, note="the slow path: a Python loop over the sequence")
_add("mamba2-130m", "Mamba2", dict(hidden_size=768, num_hidden_layers=24, num_heads=24, head_dim=64, vocab_size=50288,
                                   n_groups=1, tie_word_embeddings=True), batch=1, seq=256,
     note="the slow path: chunks in plain PyTorch")
_add("rwkv-169m", "Rwkv", dict(hidden_size=768, num_hidden_layers=12, vocab_size=50277), batch=1, seq=64,
     note="the slow path: a Python loop over the sequence")
