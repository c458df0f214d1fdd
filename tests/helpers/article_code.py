"""The code of the five articles, rewritten from their texts in PyTorch and repaired where it cannot run.

The attributes have the articles' names, including ``layer_l`` and ``mhl`` with a letter l, so ``state_dict()`` has the
names that a reader gets who trains the article's code. Sizes that the articles hard-code are arguments. There is no
dropout.
"""

import math

import torch
from torch import nn

PAD = 2


def after(length):
    """Return (1, length, length), True where a key comes after its query."""
    return torch.ones(1, length, length, dtype=torch.bool).triu(1)


def attend(query, key, value, heads, hidden, fill):
    """Scaled dot-product attention, (B, T, D). ``hidden`` (B, 1 or T, S) is True where attention is hidden, or None."""
    rows, _, width = query.shape
    query, key, value = (x.view(rows, -1, heads, width // heads).transpose(1, 2) for x in (query, key, value))
    score = query @ key.transpose(-2, -1) / math.sqrt(width // heads)
    if hidden is not None:
        score = score.masked_fill(hidden[:, None], fill)
    return (torch.softmax(score, dim=-1) @ value).transpose(1, 2).reshape(rows, -1, width)


def position_table(length, width):
    """The float32 table of articles 002 and 003, with one angle for dimensions 2i and 2i + 1."""
    table = torch.zeros(length, width)
    position = torch.arange(0, length).unsqueeze(1)
    frequency = torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
    table[:, 0::2], table[:, 1::2] = torch.sin(position * frequency), torch.cos(position * frequency)
    return table.unsqueeze(0)


# Article 000


class MultiHead000(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.fc_Q, self.fc_K, self.fc_V = (nn.Linear(width, width) for _ in range(3))
        self.out_fc = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, query, key, value, hidden):
        residual = query
        query, key, value = (self.norm(x) for x in (query, key, value))
        query, key, value = self.fc_Q(query), self.fc_K(key), self.fc_V(value)
        return residual + self.out_fc(attend(query, key, value, self.heads, hidden, float("-inf")))


class FullyConnectedOutput(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.fc = nn.Sequential(nn.Linear(width, inner), nn.ReLU(), nn.Linear(inner, width), nn.Dropout(0.0))
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        return x + self.fc(self.norm(x))


class EncoderLayer000(nn.Module):
    def __init__(self, width, heads, inner):
        super().__init__()
        self.mh = MultiHead000(width, heads)
        self.fc = FullyConnectedOutput(width, inner)

    def forward(self, x, hidden):
        return self.fc(self.mh(x, x, x, hidden))


class DecoderLayer000(nn.Module):
    def __init__(self, width, heads, inner):
        super().__init__()
        self.mhl = MultiHead000(width, heads)
        self.mh2 = MultiHead000(width, heads)
        self.fc = FullyConnectedOutput(width, inner)

    def forward(self, x, y, source_hidden, target_hidden):
        y = self.mhl(y, y, y, target_hidden)
        return self.fc(self.mh2(y, x, x, source_hidden))


class Encoder000(nn.Module):
    def __init__(self, *sizes):
        super().__init__()
        self.layer_l = EncoderLayer000(*sizes)
        self.layer_2 = EncoderLayer000(*sizes)
        self.layer_3 = EncoderLayer000(*sizes)

    def forward(self, x, hidden):
        return self.layer_3(self.layer_2(self.layer_l(x, hidden), hidden), hidden)


class Decoder000(nn.Module):
    def __init__(self, *sizes):
        super().__init__()
        self.layer_1 = DecoderLayer000(*sizes)
        self.layer_2 = DecoderLayer000(*sizes)
        self.layer_3 = DecoderLayer000(*sizes)

    def forward(self, x, y, source_hidden, target_hidden):
        for layer in (self.layer_1, self.layer_2, self.layer_3):
            y = layer(x, y, source_hidden, target_hidden)
        return y


class PositionEmbedding(nn.Module):
    def __init__(self, vocabulary, length, width):
        super().__init__()
        table = torch.empty(length, width)
        for position in range(length):
            for i in range(width):
                angle = position / 1e4 ** (i / width)
                table[position, i] = math.cos(angle) if i % 2 else math.sin(angle)
        self.register_buffer("pe", table.unsqueeze(0))
        self.embed = nn.Embedding(vocabulary, width)

    def forward(self, x):
        return self.embed(x) + self.get_buffer("pe")[:, : x.shape[1]]


class Translation(nn.Module):
    def __init__(self, config):
        super().__init__()
        width = config.hidden_size
        self.embed_x = PositionEmbedding(config.source_vocabulary, config.source_max_length, width)
        self.embed_y = PositionEmbedding(config.target_vocabulary, config.target_max_length, width)
        self.encoder = Encoder000(width, config.heads, config.feed_forward_size)
        self.decoder = Decoder000(width, config.heads, config.feed_forward_size)
        self.fc_out = nn.Linear(width, config.target_vocabulary)

    def forward(self, source, target):
        source_hidden = (source == PAD)[:, None]
        target_hidden = (target == PAD)[:, None] | after(target.shape[1])
        x = self.encoder(self.embed_x(source), source_hidden)
        return self.fc_out(self.decoder(x, self.embed_y(target), source_hidden, target_hidden))


# Article 001, with the names of its parameters, in Paddle's layout (in, out)


class Dygraph:
    """The pre-norm encoder, which reads vectors. ``name`` is the name of the encoder."""

    def __init__(self, config, name=""):
        self.config, self.name = config, name
        width, inner = config.hidden_size, config.feed_forward_size
        keys, values = config.heads * config.key_size, config.heads * config.value_size
        self.parameters = {}
        for i in range(config.layers):
            layer = f"{name}_layer_{i}"
            self.linear(f"{layer}_multi_head_att_query_fc", width, keys)
            self.linear(f"{layer}_multi_head_att_key_fc", width, keys)
            self.linear(f"{layer}_multi_head_att_value_fc", width, values)
            self.linear(f"{layer}_multi_head_att_output_fc", values, width)
            self.linear(f"{layer}_ffn_fc_0", width, inner)
            self.linear(f"{layer}_ffn_fc_1", inner, width)
            self.norm(f"{layer}_pre_att_layer_norm", width)
            self.norm(f"{layer}_pre_ffn_layer_norm", width)
        self.norm("post_encoder_layer_norm", width)

    def linear(self, name, source, target):
        self.parameters[f"{name}.w_0"] = torch.empty(source, target)
        self.parameters[f"{name}.b_0"] = torch.empty(target)

    def norm(self, name, width):
        self.parameters[f"{name}_scale"], self.parameters[f"{name}_bias"] = torch.empty(width), torch.empty(width)

    def state_dict(self):
        return self.parameters

    def load_state_dict(self, tensors, strict=True):
        assert strict
        shapes = [{name: tensor.shape for name, tensor in given.items()} for given in (tensors, self.parameters)]
        assert shapes[0] == shapes[1]
        self.parameters = dict(tensors)

    def double(self):
        self.parameters = {name: tensor.double() for name, tensor in self.parameters.items()}
        return self

    def __call__(self, x, valid):
        """``x`` (B, S, D), ``valid`` (B, S)."""
        config = self.config

        def linear(x, name):
            return x @ self.parameters[f"{name}.w_0"] + self.parameters[f"{name}.b_0"]

        def norm(x, name):
            scale, bias = self.parameters[f"{name}_scale"], self.parameters[f"{name}_bias"]
            return nn.functional.layer_norm(x, scale.shape, scale, bias, 1e-5)

        def split(x, size):
            return x.view(*x.shape[:2], config.heads, size).transpose(1, 2)

        for i in range(config.layers):
            layer = f"{self.name}_layer_{i}"
            z = norm(x, f"{layer}_pre_att_layer_norm")
            query = split(linear(z, f"{layer}_multi_head_att_query_fc"), config.key_size) * config.key_size**-0.5
            key = split(linear(z, f"{layer}_multi_head_att_key_fc"), config.key_size)
            value = split(linear(z, f"{layer}_multi_head_att_value_fc"), config.value_size)
            score = query @ key.transpose(-2, -1) + (valid[:, None, None].to(x.dtype) - 1) * 10000
            context = (torch.softmax(score, dim=-1) @ value).transpose(1, 2).flatten(2)
            x = x + linear(context, f"{layer}_multi_head_att_output_fc")
            z = norm(x, f"{layer}_pre_ffn_layer_norm")
            x = x + linear(nn.functional.gelu(linear(z, f"{layer}_ffn_fc_0")), f"{layer}_ffn_fc_1")
        return norm(x, "post_encoder_layer_norm")


# Article 002


class MultiHeadAttention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.W_q, self.W_k, self.W_v, self.W_o = (nn.Linear(width, width) for _ in range(4))

    def forward(self, query, memory, hidden):
        context = attend(self.W_q(query), self.W_k(memory), self.W_v(memory), self.heads, hidden, -1e9)
        return torch.relu(self.W_o(context))


class LayerNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gamma, self.beta = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x):
        variance = x.var(-1, unbiased=False, keepdim=True)
        return self.gamma * (x - x.mean(-1, keepdim=True)) / torch.sqrt(variance + 1e-5) + self.beta


class FFN(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.layer_1, self.layer_2 = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x):
        return self.layer_2(torch.relu(self.layer_1(x)))


class EncoderLayer002(nn.Module):
    def __init__(self, width, heads, inner):
        super().__init__()
        self.attention = MultiHeadAttention(width, heads)
        self.FFN = FFN(width, inner)
        self.norm_1, self.norm_2 = LayerNorm(width), LayerNorm(width)

    def forward(self, x, hidden):
        z = self.norm_1(x)
        x = x + self.attention(z, z, hidden)
        return x + self.FFN(self.norm_2(x))


class DecoderLayer002(nn.Module):
    def __init__(self, width, heads, inner):
        super().__init__()
        self.attention_masked = MultiHeadAttention(width, heads)
        self.attention_nomask = MultiHeadAttention(width, heads)
        self.norm_1, self.norm_2, self.norm_3 = LayerNorm(width), LayerNorm(width), LayerNorm(width)
        self.ffn = FFN(width, inner)

    def forward(self, y, memory, source_hidden, target_hidden):
        z = self.norm_1(y)
        y = y + self.attention_masked(z, z, target_hidden)
        y = y + self.attention_nomask(self.norm_2(y), memory, source_hidden)
        return y + self.ffn(self.norm_3(y))


class Stack002(nn.Module):
    def __init__(self, layers, width):
        super().__init__()
        self.layers, self.norm = nn.ModuleList(layers), LayerNorm(width)

    def forward(self, x, *inputs):
        for layer in self.layers:
            x = layer(x, *inputs)
        return self.norm(x)


class PositionalEncoding(nn.Module):
    def __init__(self, length, width):
        super().__init__()
        self.register_buffer("pe", position_table(length, width))

    def forward(self, x):
        return x + self.get_buffer("pe")[:, : x.shape[1]]


class Prenorm(nn.Module):
    """The article calls its decoder without an input; this one has an input."""

    def __init__(self, config):
        super().__init__()
        width, sizes = config.hidden_size, (config.hidden_size, config.heads, config.feed_forward_size)
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(config.source_vocabulary, width),
                "wpe": PositionalEncoding(config.source_max_length, width),
                "drop": nn.Dropout(0.0),
                "encoder": Stack002([EncoderLayer002(*sizes) for _ in range(config.layers)], width),
                "decoder": Stack002([DecoderLayer002(*sizes) for _ in range(config.decoder_layers)], width),
            }
        )
        self.lm_head = nn.Linear(width, config.target_vocabulary)

    def forward(self, source, target, valid, target_valid):
        parts = self.transformer
        x, y = (parts["wpe"](parts["wte"](ids)) for ids in (source, target))
        hidden = ~valid[:, None]
        memory = parts["encoder"](x, hidden)
        return self.lm_head(parts["decoder"](y, memory, hidden, ~target_valid[:, None] | after(target.shape[1])))


# Article 003


class InputEmbedding(nn.Module):
    def __init__(self, width, vocabulary):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)

    def forward(self, x):
        return self.embedding(x) * math.sqrt(self.embedding.embedding_dim)


class MultiHeadAttentionBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.w_q, self.w_k, self.w_v, self.w_o = (nn.Linear(width, width) for _ in range(4))

    def forward(self, query, memory, hidden):
        return self.w_o(attend(self.w_q(query), self.w_k(memory), self.w_v(memory), self.heads, hidden, -1e9))


class LayerNormalization(nn.Module):
    def __init__(self):
        super().__init__()
        self.alpha, self.bias = nn.Parameter(torch.ones(1)), nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return self.alpha * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6) + self.bias


class ResidualConnection(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = LayerNormalization()

    def forward(self, x, sublayer):
        return x + sublayer(self.norm(x))


class FeedForwardBlock(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.linear_1, self.linear_2 = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x):
        return self.linear_2(torch.relu(self.linear_1(x)))


class EncoderBlock(nn.Module):
    def __init__(self, width, heads, inner):
        super().__init__()
        self.self_attention_block = MultiHeadAttentionBlock(width, heads)
        self.feed_forward_block = FeedForwardBlock(width, inner)
        self.residual_connections = nn.ModuleList([ResidualConnection() for _ in range(2)])

    def forward(self, x, hidden):
        x = self.residual_connections[0](x, lambda z: self.self_attention_block(z, z, hidden))
        return self.residual_connections[1](x, self.feed_forward_block)


class DecoderBlock(nn.Module):
    def __init__(self, width, heads, inner):
        super().__init__()
        self.self_attention_block = MultiHeadAttentionBlock(width, heads)
        self.cross_attention_block = MultiHeadAttentionBlock(width, heads)
        self.feed_forward_block = FeedForwardBlock(width, inner)
        self.residual_connections = nn.ModuleList([ResidualConnection() for _ in range(3)])

    def forward(self, y, memory, source_hidden, target_hidden):
        y = self.residual_connections[0](y, lambda z: self.self_attention_block(z, z, target_hidden))
        y = self.residual_connections[1](y, lambda z: self.cross_attention_block(z, memory, source_hidden))
        return self.residual_connections[2](y, self.feed_forward_block)


class Stack003(nn.Module):
    """The ``Encoder`` and ``Decoder`` that the article does not show: the layers, then one norm."""

    def __init__(self, layers):
        super().__init__()
        self.layers, self.norm = nn.ModuleList(layers), LayerNormalization()

    def forward(self, x, *inputs):
        for layer in self.layers:
            x = layer(x, *inputs)
        return self.norm(x)


class ProjectionLayer(nn.Module):
    def __init__(self, width, vocabulary):
        super().__init__()
        self.proj = nn.Linear(width, vocabulary)

    def forward(self, x):
        return torch.log_softmax(self.proj(x), dim=-1)


class Annotated(nn.Module):
    def __init__(self, config):
        super().__init__()
        width, sizes = config.hidden_size, (config.hidden_size, config.heads, config.feed_forward_size)
        self.encoder = Stack003([EncoderBlock(*sizes) for _ in range(config.layers)])
        self.decoder = Stack003([DecoderBlock(*sizes) for _ in range(config.decoder_layers)])
        self.src_embed = InputEmbedding(width, config.source_vocabulary)
        self.tgt_embed = InputEmbedding(width, config.target_vocabulary)
        self.src_pos = PositionalEncoding(config.source_max_length, width)
        self.tgt_pos = PositionalEncoding(config.target_max_length, width)
        self.projection_layer = ProjectionLayer(width, config.target_vocabulary)

    def forward(self, source, target, valid, target_valid):
        hidden, target_hidden = ~valid[:, None], ~target_valid[:, None] | after(target.shape[1])
        memory = self.encoder(self.src_pos(self.src_embed(source)), hidden)
        y = self.decoder(self.tgt_pos(self.tgt_embed(target)), memory, hidden, target_hidden)
        return self.projection_layer(y)


# Article 004


class Multihead(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.heads, width = config.heads, config.hidden_size
        self.q_proj_weight, self.k_proj_weight, self.v_proj_weight = (
            nn.Parameter(torch.empty(width, width)) for _ in range(3)
        )
        self.out_proj = nn.Linear(width, width)

    def forward(self, query, key, value, key_padding_mask):
        """``query`` (T, B, D), ``key`` and ``value`` (S, B, D), ``key_padding_mask`` (B, S): True for padding."""
        query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        query, key, value = query @ self.q_proj_weight.T, key @ self.k_proj_weight.T, value @ self.v_proj_weight.T
        context = attend(query, key, value, self.heads, key_padding_mask[:, None], float("-inf"))
        return self.out_proj(context).transpose(0, 1)
