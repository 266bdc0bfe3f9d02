"""The weights and caches of a decoder, put together part by part as the model card lists them."""

from __future__ import annotations

from collections.abc import Callable

from capplan.models.fields import MAX_LAYERS, Fields, show
from capplan.models.spec import Attention, Layer, Weight

# Fields of how tokens find their experts, and of training them: they change no weight and no cache.
ROUTING = (
    *("norm_topk_prob", "n_group", "topk_group", "topk_method", "scoring_func", "score_func", "routed_scaling_factor"),
    *("output_router_logits", "router_aux_loss_coef", "router_jitter_noise", "router_z_loss_coef", "seq_aux"),
    *("aux_loss_alpha", "aux_loss_coef", "moe_router_dtype", "ep_size", "expert_dropout", "input_jitter_noise"),
    *("router_scaling_factor", "moe_router_scaling_factor", "moe_routed_scaling_factor", "route_scale", "route_norm"),
    *("moe_router_enable_expert_bias", "moe_router_use_sigmoid", "router_dtype", "score_function"),
)  # fmt: skip


def _every(layer: int) -> bool:
    return True


class Decoder:
    """A decoder in the making. `layer` is what the names of a layer's weights begin with.

    Args:
        kv_heads: the class's default of num_key_value_heads; None: as many as query heads.
        head_dim: the class's default of head_dim; None: hidden_size / heads.
        grouped: False in a family whose config has neither field.
        heads: query heads, of a family that does not name them.
        layers: how many there are, in a family that counts them in another way.
    """

    def __init__(
        self,
        fields: Fields,
        layer: str = "model.layers.N.",
        *,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        grouped: bool = True,
        heads: int = 0,
        layers: int = 0,
    ) -> None:
        self.fields, self.layer = fields, layer
        self.weights: list[Weight] = []
        self.hidden = fields.count("hidden_size", "n_embd", "n_embed", "d_model")
        names = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
        self.layers = layers or fields.count(*names, most=MAX_LAYERS)
        self.heads = heads or fields.count("num_attention_heads", "n_head", "n_heads")
        self.kv_heads = self._kv_heads(kv_heads) if grouped else self.heads
        self.head_dim = self._head_dim(head_dim, grouped)
        self.vocab = fields.count("vocab_size", "padded_vocab_size")
        self.context = fields.maybe("max_position_embeddings", "n_positions", "seq_length", most=10**9)
        self.windows: list[int | None] = [None] * self.layers
        self.mixers: list[Layer] | None = None  # where a layer is not attention over a window or everything
        self.draft_mixers: list[Layer] = []
        self.draft_weights: list[Weight] = []

    def _kv_heads(self, default: int | None) -> int:
        names = "num_key_value_heads", "num_attention_groups"
        name = next((name for name in names if name in self.fields.config), None)
        if name is None:
            kv_heads = self.fields.assume(names[0], default or self.heads)
        else:
            kv_heads = self.fields.maybe(*names) or self.heads  # null: every query head has its own
        return self.checked_kv_heads(kv_heads, name or names[0])

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

    # --- what each layer caches ---------------------------------------------------------------------------

    @property
    def full_attention(self) -> Attention:
        return Attention(self.heads, self.kv_heads, self.head_dim, self.head_dim)

    @property
    def layout(self) -> list[Layer]:
        """What every layer caches."""
        full = self.full_attention
        return self.mixers or [(full._replace(window=window),) for window in self.windows]

    def layer_types(
        self, *accepted: str, name: str = "layer_types", length: int | None = None
    ) -> list[str] | None:
        """The kind of every layer, where the config lists them."""
        _, kinds = self.fields.find(name)
        if kinds is None:
            return None
        length = self.layers if length is None else length
        if type(kinds) is not list or len(kinds) != length:
            raise self.fields.error(
                f"field '{name}' is {show(kinds)}; a list of {length:,} kinds, one a layer, is accepted"
            )
        for kind in kinds:
            if kind not in accepted:
                raise self.fields.error(
                    f"field '{name}' has {show(kind)} (layers of more than one kind); "
                    f"{' or '.join(map(repr, accepted))} is supported"
                )
        return kinds

    def window(
        self,
        default: int | None = None,
        *,
        switch: bool = False,
        slides: Callable[[int], bool] = _every,
    ) -> None:
        """Let layers slide: those that layer_types says, else those for which `slides` is true.

        Args:
            default: the class's window when sliding_window is absent.
            switch: the family has use_sliding_window, off by default, and layers from max_window_layers on slide.
        """
        fields, name = self.fields, "sliding_window"
        kinds = self.layer_types("full_attention", "sliding_attention")
        on = not switch or fields.flag("use_sliding_window")
        first = fields.maybe_zero("max_window_layers") if switch else 0
        if not on:
            fields.ignore(name)
            window = None
        elif name in fields.config:
            window = fields.maybe(name, most=10**9)
        else:
            window = fields.assume(name, default) if default else None
        if kinds and "sliding_attention" in kinds and not window:
            off = "'use_sliding_window' is off" if not on else f"field '{name}' has no window"
            raise fields.error(f"field 'layer_types' has 'sliding_attention', and {off}")
        if not window:
            if on and not kinds and slides is not _every:
                raise fields.error(
                    f"field '{name}' is {show(fields.config[name])}, and layers of this family slide"
                )
            return
        told = "sliding_window_pattern" in fields.config or "no_rope_layers" in fields.config
        if not kinds and slides is not _every and not told:
            fields.assumptions.append("field 'layer_types' is absent; the class's order of layers is taken")
        if not kinds and first is None:
            first = fields.assume("max_window_layers", 28)
        slid = [
            kinds[i] == "sliding_attention" if kinds else slides(i) and i >= (first or 0)
            for i in range(self.layers)
        ]
        self.windows = [window if slides_here else None for slides_here in slid]

    # --- weights -----------------------------------------------------------------------------------------

    @property
    def q_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_dim

    def add(self, name: str, shape: tuple[int, ...], bucket: str, copies: int = 1) -> None:
        self.weights.append(Weight(name, shape, bucket, copies))

    def linear(
        self, name: str, out: int, into: int, bucket: str, *, bias: bool = False, layers: int | None = None
    ) -> None:
        """A matrix of every layer, or of so many layers, with its bias."""
        layers = self.layers if layers is None else layers
        if not layers:
            return
        self.add(f"{self.layer}{name}.weight", (out, into), bucket, layers)
        if bias:
            self.add(f"{self.layer}{name}.bias", (out,), bucket, layers)

    def norm(
        self, *names: str, width: int = 0, bias: bool = False, copies: int = 1, layers: int | None = None
    ) -> None:
        """Norms of every layer, or of so many layers, over the hidden state unless a width is given."""
        layers = self.layers if layers is None else layers
        for name in names if layers else ():
            for part in ("weight", "bias") if bias else ("weight",):
                self.add(f"{self.layer}{name}.{part}", (width or self.hidden,), "norm", layers * copies)

    def experts(
        self,
        count: int,
        chosen: int,
        width: int,
        *,
        layers: int,
        into: int = 0,
        gated: bool = True,
        router: str = "mlp.gate",
        name: str = "mlp.experts",
        bias: bool = False,
    ) -> None:
        """A mixture of experts in so many layers: a router, and experts in two tensors as transformers stacks them.

        `into` is the width the experts work at where it is not the hidden size; `router` is empty where the
        family names it in its own way.
        """
        self.fields.ignore(*ROUTING)
        into = into or self.hidden
        if router:
            self.linear(router, count, self.hidden, "router", bias=bias, layers=layers)
        up, wide = ("gate_up_proj", 2 * width) if gated else ("up_proj", width)
        for part, shape in ((up, (wide, into)), ("down_proj", (into, width))):
            self.expert(f"{name}.{part}", (count, *shape), count, chosen, layers)
            if bias:
                self.expert(f"{name}.{part}_bias", (count, shape[0]), count, chosen, layers)

    def expert(self, name: str, shape: tuple[int, ...], count: int, chosen: int, layers: int) -> None:
        """A tensor of all the experts of a layer, in so many layers."""
        if layers and count:
            self.weights.append(Weight(f"{self.layer}{name}", shape, "experts", layers, count, chosen))

    def drafts(self, count: int, cached: Layer, block: Callable[[], None]) -> None:
        """MTP layers: two norms and a projection, a layer such as `block` adds to the weights, and a norm."""

        def weights() -> None:
            block()
            self.layer = "mtp.layers.N."
            self.norm("enorm", "hnorm", "post_norm")
            self.linear("eh_proj", self.hidden, 2 * self.hidden, "mlp")

        self.draft_layers(count, cached, weights)

    def draft_layers(self, count: int, cached: Layer, weights: Callable[[], None]) -> None:
        """Layers that draft tokens: what `weights` adds is theirs."""
        if not count:
            return
        model = self.weights, self.layer, self.layers
        self.weights, self.layer, self.layers = self.draft_weights, "mtp.layers.N.mtp_block.", count
        weights()
        self.weights, self.layer, self.layers = model
        self.draft_mixers += [cached] * count

    def embedding(self, name: str = "model.embed_tokens", width: int = 0) -> None:
        self.add(f"{name}.weight", (self.vocab, width or self.hidden), "embedding")

    def positions(self, name: str, rows: int) -> None:
        self.add(f"{name}.weight", (rows, self.hidden), "position")

    def ngram_table(self, name: str, rows: int, width: int, *, read: int) -> None:
        """A table of hashed n-grams, of which a token reads so many rows: it is active as experts are."""
        shape = rows, width
        self.weights.append(Weight(f"{self.layer}{name}.weight", shape, "lookup", experts=rows, chosen=read))

    def attention(
        self,
        *,
        bias: bool = False,
        out_bias: bool = False,
        out: str = "o_proj",
        layers: int | None = None,
        like: Attention | None = None,
    ) -> None:
        """Separate query, key, value and output projections, named as most checkpoints name them.

        `like` has the heads and widths where they are not the same in all layers.
        """
        heads, kv_heads, key, value = (like or self.full_attention)[:4]
        for name, width in (
            ("q_proj", heads * key),
            ("k_proj", kv_heads * key),
            ("v_proj", kv_heads * value),
        ):
            self.linear(f"self_attn.{name}", width, self.hidden, "attention", bias=bias, layers=layers)
        self.linear(f"self_attn.{out}", self.hidden, heads * value, "attention", bias=out_bias, layers=layers)

    def sinks(self, *, heads: int = 0, layers: int | None = None) -> None:
        """A logit of each head that takes attention from all tokens."""
        layers = self.layers if layers is None else layers
        if layers:
            self.add(f"{self.layer}self_attn.sinks", (heads or self.heads,), "attention", layers)

    def fused_attention(self, qkv: str, out: str, *, bias: bool = False, out_bias: bool = False) -> None:
        """Query, key and value in one matrix."""
        self.linear(qkv, self.q_width + 2 * self.kv_width, self.hidden, "attention", bias=bias)
        self.linear(out, self.hidden, self.q_width, "attention", bias=out_bias)

    def mlp(
        self,
        up: str,
        down: str,
        width: int,
        *,
        bias: bool = True,
        gated: bool = False,
        bucket: str = "mlp",
        layers: int | None = None,
    ) -> None:
        """Two matrices; gated: the first holds the gate as well."""
        self.linear(up, width * (2 if gated else 1), self.hidden, bucket, bias=bias, layers=layers)
        self.linear(down, self.hidden, width, bucket, bias=bias, layers=layers)

    def gated_mlp(
        self,
        width: int = 0,
        *,
        bias: bool = False,
        name: str = "mlp",
        bucket: str = "mlp",
        layers: int | None = None,
    ) -> None:
        """Gate, up and down projections, of intermediate_size unless a width is given."""
        width = width or self.fields.count("intermediate_size")
        self.linear(f"{name}.gate_proj", width, self.hidden, bucket, bias=bias, layers=layers)
        self.mlp(f"{name}.up_proj", f"{name}.down_proj", width, bias=bias, bucket=bucket, layers=layers)

    def last_norm(self, name: str = "model.norm", *, bias: bool = False) -> None:
        for part in ("weight", "bias") if bias else ("weight",):
            self.add(f"{name}.{part}", (self.hidden,), "norm")

    def head(self, name: str = "lm_head", *, tied: bool, bias: bool = False, width: int = 0) -> None:
        """The output projection: no tensor of its own when it is the embedding matrix; a bias always is."""
        if not self.fields.tied(tied):
            self.add(f"{name}.weight", (self.vocab, width or self.hidden), "head")
        if bias:
            self.add(f"{name}.bias", (self.vocab,), "head")
