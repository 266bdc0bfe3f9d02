"""The weights and caches of a decoder, put together part by part as the model card lists them."""

from __future__ import annotations

from capplan.models.fields import MAX_LAYERS, Fields, show
from capplan.models.spec import FullAttention, Weight


class Decoder:
    """A decoder in the making. `layer` is what the names of a layer's weights begin with.

    Args:
        kv_heads: the class's default of num_key_value_heads; None: as many as query heads.
        head_dim: the class's default of head_dim; None: hidden_size / heads.
        grouped: False in a family whose config has neither field.
    """

    def __init__(
        self,
        fields: Fields,
        layer: str = "model.layers.N.",
        *,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        grouped: bool = True,
    ) -> None:
        self.fields, self.layer = fields, layer
        self.weights: list[Weight] = []
        self.hidden = fields.count("hidden_size", "n_embd", "n_embed", "d_model")
        self.layers = fields.count("num_hidden_layers", "n_layer", "num_layers", most=MAX_LAYERS)
        self.heads = fields.count("num_attention_heads", "n_head")
        self.kv_heads = self._kv_heads(kv_heads) if grouped else self.heads
        self.head_dim = self._head_dim(head_dim, grouped)
        self.vocab = fields.count("vocab_size", "padded_vocab_size")
        self.context = fields.maybe("max_position_embeddings", "n_positions", "seq_length", most=10**9)
        self._full_attention_only()

    def _kv_heads(self, default: int | None) -> int:
        name = "num_key_value_heads"
        if name not in self.fields.config:
            kv_heads = self.fields.assume(name, default or self.heads)
        else:
            kv_heads = self.fields.maybe(name) or self.heads  # null: every query head has its own
        return self.checked_kv_heads(kv_heads, name)

    def checked_kv_heads(self, kv_heads: int, name: str) -> int:
        if self.heads % kv_heads:
            raise self.fields.error(
                f"field '{name}' is {kv_heads}, which does not divide the {self.heads} attention heads"
            )
        return kv_heads

    def _head_dim(self, default: int | None, grouped: bool) -> int:
        if grouped and (given := self.fields.maybe("head_dim")):
            return given
        if default and "head_dim" not in self.fields.config:
            return self.fields.assume("head_dim", default)
        if self.hidden % self.heads:
            raise self.fields.error(
                f"the hidden size {self.hidden} is not a multiple of the {self.heads} attention heads, "
                "and field 'head_dim' is missing"
            )
        return self.hidden // self.heads

    # --- which layers cache what -------------------------------------------------------------------------

    def _full_attention_only(self) -> None:
        """Refuse a list of layer kinds that has another kind than full attention."""
        _, kinds = self.fields.find("layer_types")
        if kinds is None:
            return
        if type(kinds) is not list or len(kinds) != self.layers:
            raise self.fields.error(
                f"field 'layer_types' is {show(kinds)}; a list of {self.layers:,} kinds, one a layer, is accepted"
            )
        for kind in kinds:
            if kind != "full_attention":
                raise self.fields.error(
                    f"field 'layer_types' has {show(kind)} (layers of more than one kind); "
                    "'full_attention' is supported"
                )

    def window(self, default: int | None = None, *, switch: bool = False) -> None:
        """Refuse a sliding window that is in use: one shorter than the context and not switched off.

        Args:
            default: the class's window when sliding_window is absent.
            switch: the family has use_sliding_window, off by default, and max_window_layers.
        """
        fields = self.fields
        if switch:
            fields.ignore("max_window_layers")
            if not fields.flag("use_sliding_window") or fields.config.get("layer_types"):
                fields.ignore("sliding_window")
                return
        name = "sliding_window"
        absent = name not in fields.config
        window = fields.maybe(name, most=10**9)
        if absent and default:
            window = fields.assume(name, default)
        if window and not (self.context and window >= self.context):
            taken = f"absent and {default:,} by default" if absent else f"{window:,}"
            context = f"{self.context:,}" if self.context else "unknown"
            raise fields.error(
                f"field '{name}' is {taken}: sliding windows are not supported; null, or a window of at least "
                f"the context ({context}), is accepted"
            )

    @property
    def caches(self) -> tuple[FullAttention, ...]:
        layer = FullAttention(self.heads, self.kv_heads, self.head_dim, self.head_dim)
        return (layer,) * self.layers

    # --- weights -----------------------------------------------------------------------------------------

    @property
    def q_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_dim

    def add(self, name: str, shape: tuple[int, ...], bucket: str, copies: int = 1) -> None:
        self.weights.append(Weight(name, shape, bucket, copies))

    def linear(self, name: str, out: int, into: int, bucket: str, *, bias: bool = False) -> None:
        """A matrix of every layer, with its bias."""
        self.add(f"{self.layer}{name}.weight", (out, into), bucket, self.layers)
        if bias:
            self.add(f"{self.layer}{name}.bias", (out,), bucket, self.layers)

    def norm(self, *names: str, width: int = 0, bias: bool = False, copies: int = 1) -> None:
        """Norms of every layer, over the hidden state unless a width is given."""
        for name in names:
            for part in ("weight", "bias") if bias else ("weight",):
                shape, copies_ = (width or self.hidden,), self.layers * copies
                self.add(f"{self.layer}{name}.{part}", shape, "norm", copies_)

    def embedding(self, name: str = "model.embed_tokens", width: int = 0) -> None:
        self.add(f"{name}.weight", (self.vocab, width or self.hidden), "embedding")

    def positions(self, name: str, rows: int) -> None:
        self.add(f"{name}.weight", (rows, self.hidden), "position")

    def attention(self, *, bias: bool = False, out_bias: bool = False, out: str = "o_proj") -> None:
        """Separate query, key, value and output projections, named as most checkpoints name them."""
        self.linear("self_attn.q_proj", self.q_width, self.hidden, "attention", bias=bias)
        self.linear("self_attn.k_proj", self.kv_width, self.hidden, "attention", bias=bias)
        self.linear("self_attn.v_proj", self.kv_width, self.hidden, "attention", bias=bias)
        self.linear(f"self_attn.{out}", self.hidden, self.q_width, "attention", bias=out_bias)

    def fused_attention(self, qkv: str, out: str, *, bias: bool = False, out_bias: bool = False) -> None:
        """Query, key and value in one matrix."""
        self.linear(qkv, self.q_width + 2 * self.kv_width, self.hidden, "attention", bias=bias)
        self.linear(out, self.hidden, self.q_width, "attention", bias=out_bias)

    def mlp(self, up: str, down: str, width: int, *, bias: bool = True, gated: bool = False) -> None:
        """Two matrices; gated: the first holds the gate as well."""
        self.linear(up, width * (2 if gated else 1), self.hidden, "mlp", bias=bias)
        self.linear(down, self.hidden, width, "mlp", bias=bias)

    def gated_mlp(self, *, bias: bool = False) -> None:
        width = self.fields.count("intermediate_size")
        self.linear("mlp.gate_proj", width, self.hidden, "mlp", bias=bias)
        self.mlp("mlp.up_proj", "mlp.down_proj", width, bias=bias)

    def last_norm(self, name: str = "model.norm", *, bias: bool = False) -> None:
        for part in ("weight", "bias") if bias else ("weight",):
            self.add(f"{name}.{part}", (self.hidden,), "norm")

    def head(self, name: str = "lm_head", *, tied: bool, bias: bool = False, width: int = 0) -> None:
        """The output projection: no tensor of its own when it is the embedding matrix; a bias always is."""
        if not self.fields.tied(tied):
            self.add(f"{name}.weight", (self.vocab, width or self.hidden), "head")
        if bias:
            self.add(f"{name}.bias", (self.vocab,), "head")
