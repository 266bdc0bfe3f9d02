"""MiniMax M2 and M3: mixtures of experts over full attention, and over blocks of it.

Defaults are those of the family's class in transformers.
"""

from __future__ import annotations

from capplan.models.decoder import Decoder
from capplan.models.families.experts import (
    DRAFTS,
    NORMS,
    around,
    ends,
    head_norms,
    routed,
    sparse_by_kind,
    wide_norms,
)
from capplan.models.families.experts_kinds import attend
from capplan.models.fields import Fields


def minimax_m2(f: Fields) -> Decoder:
    """Mixtral with query and key norms."""
    d = Decoder(f, kv_heads=8, head_dim=128)
    kinds = f.numbers("attn_type_list", length=d.layers)
    if kinds and 0 in kinds:
        raise f.error("field 'attn_type_list' has 0 (linear attention); 1, full attention, is supported")
    f.ignore("use_qk_norm", "qk_norm_type", "use_routing_bias", "shared_intermediate_size")
    f.ignore("mtp_transformer_layers", "shared_moe_mode", "moe_intermediate_size")
    f.ignore("mlp_intermediate_size", "layernorm_linear_attention_beta", "layernorm_full_attention_beta")
    f.ignore("layernorm_mlp_beta")
    drafts = f.maybe_zero("num_mtp_modules", *DRAFTS) or 0
    d.draft_mixers += [(d.full_attention,)] * (drafts if f.flag("use_mtp", default=True) else 0)
    d.experts(*routed(f, 256, 8), f.count_or(1536, "intermediate_size"), layers=d.layers)
    wide_norms(d)
    return around(d)


def minimax_m3_vl_text(f: Fields) -> Decoder:
    """Most layers attend to blocks of tokens that an index picks; its keys are cached beside keys and values."""
    d = Decoder(f, kv_heads=4, head_dim=128)
    f.ignore(
        "swiglu_alpha", "swiglu_limit", "use_qk_norm", "qk_norm_type", "use_gemma_norm", "use_routing_bias"
    )
    f.ignore(
        "attention_output_gate",
        "moe_intermediate_size",
        "first_k_dense_replace",
        "num_mtp_modules",
        "n_shared_experts",
    )
    kinds, heads, width = _blocks(d)
    sparse_attention = kinds.count("minimax_m3_sparse")
    full = d.full_attention
    attend(d, [full._replace(index_dim=width if kind == "minimax_m3_sparse" else 0) for kind in kinds])
    d.linear("self_attn.indexer.q_proj", heads * width, d.hidden, "index", layers=sparse_attention)
    d.linear("self_attn.indexer.k_proj", width, d.hidden, "index", layers=sparse_attention)
    d.norm("self_attn.indexer.q_norm", "self_attn.indexer.k_norm", width=width, layers=sparse_attention)
    head_norms(d)
    sparse = sparse_by_kind(d, dense=0, flags="moe_layer_freq")
    d.experts(*routed(f, 128, 4), f.count_or(3072, "intermediate_size"), layers=sparse)
    shared, dense = f.count_or(3072, "shared_intermediate_size"), f.count_or(12288, "dense_intermediate_size")
    for name, wide, bucket, layers in (
        ("mlp.shared_experts", shared, "shared", sparse),
        ("mlp", dense, "mlp", d.layers - sparse),
    ):
        d.mlp(
            f"{name}.gate_up_proj",
            f"{name}.down_proj",
            wide,
            gated=True,
            bias=False,
            bucket=bucket,
            layers=layers,
        )
    d.draft_mixers += [(full,)] * (f.maybe_zero(*DRAFTS) or 0)
    d.norm(*NORMS)
    return ends(d)


def _blocks(d: Decoder) -> tuple[list[str], int, int]:
    """The kind of each layer, and the index's heads and width; a file may have them in an object of their own."""
    f, kinds = d.fields, d.layer_types("full_attention", "minimax_m3_sparse")
    f.ignore("index_block_size", "index_topk_blocks", "index_local_blocks", "index_n_heads", "index_head_dim")
    old = f.part("sparse_attention_config") if f.find("sparse_attention_config")[1] else Fields({})
    old.ignore(*old.config)
    heads = old.maybe("sparse_num_index_heads") or f.count_or(4, "index_n_heads")
    width = old.maybe("sparse_index_dim") or f.count_or(128, "index_head_dim")
    flags = old.numbers("sparse_attention_freq", length=d.layers)
    if kinds is None and flags and old.flag("use_sparse_attention", default=True):
        kinds = ["minimax_m3_sparse" if flag else "full_attention" for flag in flags]
    return kinds or ["full_attention"] * d.layers, heads, width
