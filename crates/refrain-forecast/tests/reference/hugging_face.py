"""Makes the references of Hugging Face's PatchTST, in float64: random models of transformers, their forecasts and gradients.

    pip install torch transformers safetensors && python hugging_face.py

hugging_face.safetensors holds, for each case, `<case>/weight/<name>` of the model's state (F64, and I64 counters),
`<case>/x` [B, L, C], with a mask also `<case>/observed` [B, L, C], `<case>/forecast` [B, H, C], and `<case>/gradient/<name>`, the
gradient of the sum of the forecast times `<case>/seed` [B, H, C]. Its metadata has, under `<case>`, the JSON of `config.json` and
under `<case>/train` whether the model was in training mode (without dropout: batch norm by the batch's statistics), and under
`<case>/narrow` how far forecast and gradients of the same model in float32 are from those in float64 at most, relative to the
largest value of each tensor, for weights that differ by rounding.

    python hugging_face.py --count 200 --seed 1 --out FILE    makes other random cases, to compare by hand:
    REFRAIN_HUGGING_FACE=FILE cargo test --test hugging_face -- --nocapture

    python hugging_face.py --student-t    makes hugging_face_student_t.safetensors:

random models whose head forecasts Student's t distribution. Their forecast, its seed and gradients are of [B, 3 H, C]: the
location, the location plus the scale, and the location plus the scale times the degrees of freedom above 2, all in the units of `x`.
A case also has `<case>/truth` [B, H, C] and `<case>/nll` [], the mean of -log p(truth) over all values, which is the loss of
transformers divided by the number of channels, over which it sums.

    python hugging_face.py --pretraining    makes hugging_face_pretraining.safetensors:

random models of PatchTSTForPretraining, whose patches do not overlap. A case has its weights and its `x`, `<case>/hidden` [B C, N],
which is 1 where a patch is hidden, `<case>/errors` [B, C, N, P], the squared errors of all values in units of the window's
deviation, `<case>/loss`, their mean over the hidden patches, and the gradients of this loss.

transformers (5.23) cannot run a model with `share_projection` false: its head takes the forecast of one channel for the input
of the next. The reference of those is the head that is meant, a projection for each channel.
"""

import argparse
import json
import random
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import PatchTSTConfig, PatchTSTForPrediction, PatchTSTForPretraining

BATCH = 3


class ChannelHead(torch.nn.Module):
    """The head of `share_projection` false, as it is meant."""

    def __init__(self, head):
        super().__init__()
        self.projections = head.projections
        self.use_cls_token, self.pooling_type = head.use_cls_token, head.pooling_type

    def forward(self, embedding):
        if self.use_cls_token:
            pooled = embedding[:, :, 0, :]
        elif self.pooling_type == "mean":
            pooled = embedding.mean(dim=2)
        elif self.pooling_type == "max":
            pooled = embedding.max(dim=2).values
        else:
            pooled = embedding
        outputs = [p(pooled[:, c].flatten(start_dim=1)) for c, p in enumerate(self.projections)]
        return torch.stack(outputs, dim=2)


def random_config(rng):
    heads = rng.choice([1, 2, 3])
    patch = rng.randint(1, 6)
    return dict(
        num_input_channels=rng.randint(1, 4),
        context_length=patch + rng.randint(1, 18),
        prediction_length=rng.randint(1, 6),
        patch_length=patch,
        patch_stride=rng.randint(1, 7),
        num_hidden_layers=rng.randint(1, 2),
        d_model=heads * rng.choice([2, 4]),
        num_attention_heads=heads,
        ffn_dim=rng.randint(1, 9),
        share_embedding=rng.random() < 0.7,
        channel_attention=rng.random() < 0.4,
        norm_type=rng.choice(["batchnorm", "layernorm"]),
        norm_eps=rng.choice([1e-5, 1e-3, 1e-12]),
        bias=rng.random() < 0.7,
        activation_function=rng.choice(["gelu", "relu", "silu", "gelu_new", "gelu_pytorch_tanh"]),
        pre_norm=rng.random() < 0.5,
        positional_encoding_type=rng.choice(["sincos", "random"]),
        use_cls_token=rng.random() < 0.3,
        pooling_type=rng.choice(["mean", "max", None]),
        share_projection=rng.random() < 0.7,
        scaling=rng.choice(["std", "mean", True, None]),
        attention_dropout=0.0,
        ff_dropout=0.0,
    )


def results(model, x, observed, seed):
    """The forecast, and the gradients of all parameters."""
    model.zero_grad()
    outputs = model(past_values=x, past_observed_mask=observed)
    forecast = outputs.prediction_outputs
    if model.distribution_output:
        freedom, location, scale = forecast
        location, scale = location * outputs.scale + outputs.loc, scale * outputs.scale
        forecast = torch.cat([location, location + scale, location + scale * (freedom - 2.0)], dim=1)
    (forecast * seed).sum().backward()
    found = {"forecast": forecast.detach()}
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return found | {f"gradient/{name}": gradient.clone() for name, gradient in gradients.items()}


def apart(narrow, wide):
    """How far forecast and gradients are apart, as the test measures it."""
    gradients = [name for name in wide if name.startswith("gradient/")]
    largest = max(wide[name].abs().max().item() for name in gradients)

    def of(name, least):
        scale = max(wide[name].abs().max().item(), least)
        return (narrow[name].double() - wide[name]).abs().max().item() / scale

    return [of("forecast", 1e-300), max(of(name, 0.01 * largest) for name in gradients)]


def randomise(model, draw):
    """Gives a model random weights. Returns them."""
    state = model.state_dict()
    for name, value in state.items():
        if name.endswith("running_var"):
            value.copy_(0.3 + draw(*value.shape).square())
        elif value.is_floating_point() and not name.endswith("position_enc"):
            value.copy_(0.4 * draw(*value.shape) + (1.0 if "norm" in name and name.endswith("weight") else 0.0))
    return {name: value.clone() for name, value in state.items()}


def pretraining_case(rng, generator):
    """The tensors of a random case of masked pretraining, its configuration, and whether it trains."""
    options = random_config(rng)
    patch = options["patch_length"]
    options["patch_stride"] = patch + rng.choice([0, 0, 1])
    options["context_length"] = patch + options["patch_stride"] * rng.randint(1, 4) + rng.randint(0, 2)
    config = PatchTSTConfig(**options, random_mask_ratio=rng.choice([0.3, 0.5]), mask_type="random")
    torch.manual_seed(rng.randrange(2**31))
    model, train = PatchTSTForPretraining(config).double(), rng.random() < 0.5

    def draw(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    weights = randomise(model, draw)
    model.train(train)
    x = 2.0 * draw(BATCH, config.context_length, config.num_input_channels) + 3.0
    seed = rng.randrange(2**31)
    torch.manual_seed(seed)
    inner = model.model(past_values=x)
    errors = (model.head(inner.last_hidden_state) - inner.patch_input).square()
    # The statistics of a batch norm that trains have moved.
    model.load_state_dict(weights)
    torch.manual_seed(seed)
    loss = model(past_values=x).loss
    loss.backward()
    hidden = inner.mask.double()
    assert torch.allclose(loss, (errors.mean(-1) * hidden).sum() / hidden.sum())
    tensors = {"x": x, "hidden": hidden.flatten(0, 1), "errors": errors.detach(), "loss": loss.detach()}
    tensors |= {f"weight/{name}": value for name, value in weights.items()}
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    tensors |= {f"gradient/{name}": gradient for name, gradient in gradients.items()}
    options = json.loads(config.to_json_string(use_diff=False))
    options["architectures"] = ["PatchTSTForPretraining"]
    return tensors, options, train


def case(rng, generator, student_t=False):
    """The tensors of a random case, its configuration, whether it trains, and how far float32 is."""
    options = random_config(rng)
    if student_t:
        # transformers (5.23) cannot run such a head for a horizon of one row.
        options |= dict(share_projection=True, loss="nll", distribution_output="student_t")
        options["prediction_length"] += 1
    config = PatchTSTConfig(**options)
    torch.manual_seed(rng.randrange(2**31))
    model = PatchTSTForPrediction(config).double()
    train = rng.random() < 0.5

    def draw(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    weights = randomise(model, draw)
    model.train(train)
    if not config.share_projection:
        model.head = ChannelHead(model.head)
        weights = {name: weights[name] for name in model.state_dict()}
    shape = (BATCH, config.context_length, config.num_input_channels)
    x = 2.0 * draw(*shape) + 3.0 * draw(1, 1, config.num_input_channels)
    tensors = {"x": x}
    if rng.random() < 0.4:
        observed = (torch.rand(shape, generator=generator) < 0.7).double()
        # A window without any observed value.
        observed[0, :, 0] = 0.0
        tensors["observed"] = observed
        x *= observed
    values = 3 if student_t else 1
    seed = draw(BATCH, values * config.prediction_length, config.num_input_channels)
    observed = tensors.get("observed")
    wide = results(model, x, observed, seed)
    if student_t:
        tensors |= likelihood(model, x, observed, draw)
    # In float32 several times, with weights that are moved by about half a unit in the last place.
    model, nudge = model.float(), torch.Generator().manual_seed(0)
    narrow = [0.0, 0.0]
    for _ in range(5):
        for name, value in model.state_dict().items():
            if value.is_floating_point():
                moved = 1.0 + 2.0**-25 * torch.randn(value.shape, generator=nudge, dtype=torch.float64)
                value.copy_(weights[name] * moved)
        mask = observed if observed is None else observed.float()
        found = apart(results(model, x.float(), mask, seed.float()), wide)
        narrow = [max(pair) for pair in zip(narrow, found)]
    tensors |= {"seed": seed} | wide
    tensors |= {f"weight/{name}": value for name, value in weights.items()}
    options = json.loads(config.to_json_string(use_diff=False))
    options["architectures"] = ["PatchTSTForPrediction"]
    return tensors, options, train, narrow


def likelihood(model, x, observed, draw):
    """The true values of a case, and their mean negative logarithm of the density."""
    truth = 2.0 * draw(BATCH, model.config.prediction_length, model.config.num_input_channels)
    loss = model(past_values=x, past_observed_mask=observed, future_values=truth).loss
    return {"truth": truth, "nll": loss.detach() / model.config.num_input_channels}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--pretraining", action="store_true")
    kind.add_argument("--student-t", action="store_true")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    name = "hugging_face" + ("_pretraining" if args.pretraining else "_student_t" if args.student_t else "")
    args.out = args.out or Path(__file__).with_name(f"{name}.safetensors")
    rng, generator = random.Random(args.seed), torch.Generator().manual_seed(args.seed)
    tensors, metadata = {}, {}
    for number in range(args.count):
        if args.pretraining:
            of_case, options, train = pretraining_case(rng, generator)
            narrow = None
        else:
            of_case, options, train, narrow = case(rng, generator, args.student_t)
        tensors |= {f"{number}/{name}": tensor.contiguous().clone() for name, tensor in of_case.items()}
        metadata |= {f"{number}": json.dumps(options), f"{number}/train": json.dumps(train)}
        if narrow is not None:
            metadata[f"{number}/narrow"] = json.dumps(narrow)
    save_file(tensors, args.out, metadata)
    print(f"{args.out}: {args.count} cases, {args.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
