//! Models of images that learn codes, fill gaps, look through windows or take noise away.

use refrain::{Conv2dOptions, ConvTranspose2dOptions, DType, Device, Generator, Reduction, Tensor, no_grad};
use refrain_nn::{
    AttentionContext, AttentionOptions, Conv2d, ConvTranspose2d, Embedding, Init, LayerNorm, Linear, Mode,
    MultiHeadAttention, Parameter, ParameterBuilder, Result,
};

use crate::text::encoder;
use crate::{Loss, ids};

fn conv(
    b: &ParameterBuilder,
    inputs: usize,
    outputs: usize,
    [kernel, stride, padding]: [usize; 3],
) -> Result<Conv2d> {
    let options = Conv2dOptions { stride: [stride; 2], padding: [padding; 2], ..Conv2dOptions::default() };
    Conv2d::new(b, inputs, outputs, [kernel; 2], options)
}

/// Residual blocks of [`vq_vae`], each ReLU, 3 x 3, ReLU, 1 x 1; and a ReLU behind them.
struct Residuals([[Conv2d; 2]; 2]);

impl Residuals {
    fn new(b: &ParameterBuilder, width: usize) -> Result<Residuals> {
        let block = |i: usize| -> Result<[Conv2d; 2]> {
            let b = b.scope(i);
            Ok([
                conv(&b.scope("first"), width, width, [3, 1, 1])?,
                conv(&b.scope("second"), width, width, [1, 1, 0])?,
            ])
        };
        Ok(Residuals([block(0)?, block(1)?]))
    }

    fn forward(&self, mut x: Tensor) -> Result<Tensor> {
        for [first, second] in &self.0 {
            let y = second.forward(&first.forward(&x.relu()?)?.relu()?)?;
            x = x.add(&y)?;
        }
        Ok(x.relu()?)
    }
}

/// An autoencoder whose code is, for each of 8 x 8 places, the nearest of 512 vectors (van den Oord et al., 2017).
pub fn vq_vae(b: &ParameterBuilder, g: &Generator) -> Result<Loss> {
    let (batch, width, codes, of_code) = (64, 128, 512, 64);
    let up = |name: &str, inputs, outputs| {
        let options =
            ConvTranspose2dOptions { stride: [2, 2], padding: [1, 1], ..ConvTranspose2dOptions::default() };
        ConvTranspose2d::new(&b.scope("up").scope(name), inputs, outputs, [4, 4], options)
    };
    let down = [
        conv(&b.scope("down").scope(0), 3, 64, [4, 2, 1])?,
        conv(&b.scope("down").scope(1), 64, width, [4, 2, 1])?,
        conv(&b.scope("down").scope(2), width, width, [3, 1, 1])?,
    ];
    let encoder = Residuals::new(&b.scope("encoder"), width)?;
    let to_code = conv(&b.scope("to_code"), width, of_code, [1, 1, 0])?;
    let bound = 1.0 / codes as f64;
    let codebook = b.parameter("codebook", [codes, of_code], Init::Uniform { low: -bound, high: bound })?;
    let from_code = conv(&b.scope("from_code"), of_code, width, [3, 1, 1])?;
    let decoder = Residuals::new(&b.scope("decoder"), width)?;
    let up = [up("0", width, 64)?, up("1", 64, 3)?];
    let images = g.normal([batch, 3, 32, 32], DType::F32)?;
    Ok(Box::new(move |_| {
        let x = down[1].forward(&down[0].forward(&images)?.relu()?)?.relu()?;
        let x = encoder.forward(down[2].forward(&x)?)?;
        let z = to_code.forward(&x)?.permute(&[0, 2, 3, 1])?.to_dtype(DType::F32)?; // [batch, 8, 8, of_code]
        let codebook = codebook.tensor()?;
        let nearest = no_grad(|| -> Result<Tensor> {
            let z = z.flatten(0, 2)?;
            let products = z.matmul(&codebook.transpose(0, 1)?)?.to_dtype(DType::F32)?;
            let squares = z.square()?.sum_keepdim(1)?.add(&codebook.square()?.sum(1)?)?;
            Ok(squares.sub(&products.mul_scalar(2.0)?)?.argmin(1)?.reshape([batch, 8, 8])?)
        })?;
        let q = codebook.embedding(&nearest)?;
        let (of_codes, of_encoder) = (q.mse_loss(&z.detach())?, z.mse_loss(&q.detach())?);
        // The gradient goes straight through to the encoder.
        let q = z.add(&q.sub(&z)?.detach())?.permute(&[0, 3, 1, 2])?;
        let x = decoder.forward(from_code.forward(&q)?)?;
        let x = up[1].forward(&up[0].forward(&x)?.relu()?)?;
        Ok(x.mse_loss(&images)?.add(&of_codes)?.add(&of_encoder.mul_scalar(0.25)?)?)
    }))
}

/// Sines and cosines of numbers `[n]` at `width / 2` rates: `[n, width]`.
fn sinusoids(x: &Tensor, width: usize) -> Result<Tensor> {
    let half = (width / 2) as f64;
    let rates = Tensor::arange(0.0, half, 1.0, DType::F32, x.device())?;
    let rates = rates.mul_scalar(-10000f64.ln() / half)?.exp()?;
    let angles = x.unsqueeze(1)?.mul(&rates)?;
    Ok(Tensor::concat(&[&angles.sin()?, &angles.cos()?], 1)?)
}

/// The positions of a square of patches, half of the features for columns and half for rows: `[side * side, width]`.
fn positions(side: usize, width: usize, device: &Device) -> Result<Tensor> {
    let along = Tensor::arange(0.0, side as f64, 1.0, DType::F32, device)?;
    let along = sinusoids(&along, width / 2)?;
    let shape = [side, side, width / 2];
    let columns = along.unsqueeze(0)?.broadcast_to(shape)?;
    let rows = along.unsqueeze(1)?.broadcast_to(shape)?;
    Ok(Tensor::concat(&[&columns, &rows], 2)?.flatten(0, 1)?)
}

/// Rows of `x` `[batch, n, width]` in the order `index` `[batch, m]`.
fn rows(x: &Tensor, index: &Tensor) -> Result<Tensor> {
    let shape = [x.size(0)?, index.size(1)?, x.size(2)?];
    Ok(x.gather(1, &index.unsqueeze(2)?.broadcast_to(shape)?)?)
}

/// Sees a quarter of the patches of an image and paints the others (He et al., CVPR 2022).
pub fn masked_autoencoder(b: &ParameterBuilder, g: &Generator) -> Result<Loss> {
    let (batch, patch, side, seen, width, narrow) = (128, 8, 8, 16, 192, 128);
    let count = side * side;
    let layers = |name: &str, count: usize, width: usize| -> Result<Vec<_>> {
        (0..count).map(|i| encoder(&b.scope(name).scope(i), width, false, 0.0)).collect()
    };
    let patches = conv(&b.scope("patches"), 3, width, [patch, patch, 0])?;
    let encoders = layers("encoder", 6, width)?;
    let norm = LayerNorm::new(&b.scope("norm"), width, 1e-5)?;
    let to_decoder = Linear::new(&b.scope("to_decoder"), width, narrow)?;
    let unseen = b.parameter("unseen", [1, 1, narrow], Init::Normal { mean: 0.0, std: 0.02 })?;
    let decoders = layers("decoder", 2, narrow)?;
    let last_norm = LayerNorm::new(&b.scope("last_norm"), narrow, 1e-5)?;
    let head = Linear::new(&b.scope("head"), narrow, 3 * patch * patch)?;
    let places = [positions(side, width, g.device())?, positions(side, narrow, g.device())?];
    let images = g.normal([batch, 3, side * patch, side * patch], DType::F32)?;
    let targets = images.reshape([batch, 3, side, patch, side, patch])?.permute(&[0, 2, 4, 3, 5, 1])?;
    let targets = targets.reshape([batch, count, 3 * patch * patch])?;
    Ok(Box::new(move |mode| {
        let random = mode.generator().expect("it is only trained");
        let order = random.uniform([batch, count], DType::F32)?.argsort(1, false)?;
        let inverse = order.argsort(1, false)?;

        let x = patches.forward(&images)?.flatten(2, 3)?.transpose(1, 2)?;
        let mut x = rows(&places[0].add(&x)?, &order.i((.., ..seen))?)?;
        for layer in &encoders {
            x = layer.forward(&x, mode)?;
        }
        let x = to_decoder.forward(&norm.forward(&x)?)?;
        let unseen = unseen.tensor()?.to_dtype(x.dtype())?.broadcast_to([batch, count - seen, narrow])?;
        let x = rows(&Tensor::concat(&[&x, &unseen], 1)?, &inverse)?;
        let mut x = places[1].add(&x)?;
        for layer in &decoders {
            x = layer.forward(&x, mode)?;
        }
        let y = head.forward(&last_norm.forward(&x)?)?;
        let losses = y.mse_loss_reduced(&targets, Reduction::None)?.mean(2)?;
        let masked = inverse.ge_scalar(seen as f64)?.to_dtype(losses.dtype())?;
        Ok(losses.mul(&masked)?.sum(())?.div_scalar((batch * (count - seen)) as f64)?)
    }))
}

/// The side of a window of [`swin`].
const WINDOW: usize = 4;
/// Tokens in a window.
const TOKENS: usize = WINDOW * WINDOW;
const SHIFT: isize = (WINDOW / 2) as isize;

/// `[batch, side, side, width]` to `[batch * windows, TOKENS, width]`.
fn in_windows(x: &Tensor) -> Result<Tensor> {
    let &[batch, side, _, width] = x.dims() else { unreachable!("images") };
    let n = side / WINDOW;
    let x = x.reshape([batch, n, WINDOW, n, WINDOW, width])?.permute(&[0, 1, 3, 2, 4, 5])?;
    Ok(x.reshape([batch * n * n, TOKENS, width])?)
}

/// The inverse of [`in_windows`].
fn from_windows(x: &Tensor, shape: &[usize]) -> Result<Tensor> {
    let &[batch, side, _, width] = shape else { unreachable!("images") };
    let n = side / WINDOW;
    let x = x.reshape([batch, n, n, WINDOW, WINDOW, width])?.permute(&[0, 1, 3, 2, 4, 5])?;
    Ok(x.reshape(shape)?)
}

/// What is added to the scores in shifted windows `[windows, 1, TOKENS, TOKENS]`: tokens from opposite sides of the image do not see
/// each other.
fn shifted_mask(side: usize, device: &Device) -> Result<Tensor> {
    let part = |i: usize| usize::from(i >= side - WINDOW) + usize::from(i >= side - WINDOW / 2);
    let regions: Vec<i64> = (0..side * side).map(|i| (3 * part(i / side) + part(i % side)) as i64).collect();
    let regions = in_windows(&Tensor::from_slice(&regions, [1, side, side, 1], device)?)?;
    let differ = regions.ne(&regions.transpose(1, 2)?)?.unsqueeze(1)?;
    Ok(differ.to_dtype(DType::F32)?.mul_scalar(-100.0)?)
}

/// For each query and key of a window, the place of their distance in the table of biases: `[TOKENS * TOKENS]`.
fn relative_places(device: &Device) -> Result<Tensor> {
    let along = |i: usize, j: usize| i + WINDOW - 1 - j;
    let place =
        |q: usize, k: usize| along(q / WINDOW, k / WINDOW) * (2 * WINDOW - 1) + along(q % WINDOW, k % WINDOW);
    let places: Vec<i64> = (0..TOKENS * TOKENS).map(|i| place(i / TOKENS, i % TOKENS) as i64).collect();
    Ok(Tensor::from_slice(&places, [places.len()], device)?)
}

/// A block of [`swin`]: attention within windows, and a feed-forward net.
struct WindowBlock {
    norms: [LayerNorm; 2],
    attention: MultiHeadAttention,
    biases: Parameter,
    ffn: [Linear; 2],
    heads: usize,
}

impl WindowBlock {
    fn new(b: &ParameterBuilder, width: usize) -> Result<WindowBlock> {
        let heads = width / 32;
        let distances = (2 * WINDOW - 1) * (2 * WINDOW - 1);
        Ok(WindowBlock {
            norms: [
                LayerNorm::new(&b.scope("norm1"), width, 1e-5)?,
                LayerNorm::new(&b.scope("norm2"), width, 1e-5)?,
            ],
            attention: MultiHeadAttention::new(&b.scope("attention"), &AttentionOptions::new(width, heads))?,
            biases: b.parameter("biases", [distances, heads], Init::Normal { mean: 0.0, std: 0.02 })?,
            ffn: [
                Linear::new(&b.scope("up"), width, 4 * width)?,
                Linear::new(&b.scope("down"), 4 * width, width)?,
            ],
            heads,
        })
    }

    /// With a mask, the windows are shifted.
    fn forward(&self, x: &Tensor, places: &Tensor, mask: Option<&Tensor>, mode: Mode<'_>) -> Result<Tensor> {
        let bias = self.biases.tensor()?.index_select(0, places)?;
        let mut bias = bias.reshape([TOKENS, TOKENS, self.heads])?.permute(&[2, 0, 1])?;
        let mut y = self.norms[0].forward(x)?;
        if let Some(mask) = mask {
            let (batch, windows) = (x.size(0)?, mask.size(0)?);
            bias =
                bias.add(mask)?.broadcast_to([batch, windows, self.heads, TOKENS, TOKENS])?.flatten(0, 1)?;
            y = y.roll(&[-SHIFT, -SHIFT], &[1, 2])?;
        }
        let context = AttentionContext { mask: Some(&bias), ..AttentionContext::default() };
        let y = self.attention.forward_with(&in_windows(&y)?, context, mode)?;
        let mut y = from_windows(&y, x.dims())?;
        if mask.is_some() {
            y = y.roll(&[SHIFT, SHIFT], &[1, 2])?;
        }
        let x = x.add(&y)?;
        let y = self.ffn[0].forward(&self.norms[1].forward(&x)?)?.gelu()?;
        Ok(x.add(&self.ffn[1].forward(&y)?)?)
    }
}

/// Attention within windows of 4 x 4 patches, of which every other block shifts them (Liu et al., ICCV 2021).
pub fn swin(b: &ParameterBuilder, g: &Generator) -> Result<Loss> {
    let (batch, width, classes, sides) = (128, 96, 10, [16, 8]);
    let blocks = |stage: usize, width: usize| -> Result<[WindowBlock; 2]> {
        let b = b.scope("stages").scope(stage);
        Ok([WindowBlock::new(&b.scope(0), width)?, WindowBlock::new(&b.scope(1), width)?])
    };
    let patches = conv(&b.scope("patches"), 3, width, [2, 2, 0])?;
    let first_norm = LayerNorm::new(&b.scope("first_norm"), width, 1e-5)?;
    let stages = [blocks(0, width)?, blocks(1, 2 * width)?];
    let merge_norm = LayerNorm::new(&b.scope("merge_norm"), 4 * width, 1e-5)?;
    let merge = Linear::without_bias(&b.scope("merge"), 4 * width, 2 * width)?;
    let norm = LayerNorm::new(&b.scope("norm"), 2 * width, 1e-5)?;
    let head = Linear::new(&b.scope("head"), 2 * width, classes)?;
    let places = relative_places(g.device())?;
    let masks = [shifted_mask(sides[0], g.device())?, shifted_mask(sides[1], g.device())?];
    let images = g.normal([batch, 3, 32, 32], DType::F32)?;
    let labels = ids(g, classes, &[batch])?;
    Ok(Box::new(move |mode| {
        let mut x = first_norm.forward(&patches.forward(&images)?.permute(&[0, 2, 3, 1])?)?;
        for (i, ([block, shifted], mask)) in stages.iter().zip(&masks).enumerate() {
            if i > 0 {
                // Four neighbours become one token.
                let side = sides[i];
                let y = x.reshape([batch, side, 2, side, 2, width])?.permute(&[0, 1, 3, 4, 2, 5])?;
                x = merge.forward(&merge_norm.forward(&y.flatten(3, 5)?)?)?;
            }
            x = block.forward(&x, &places, None, mode)?;
            x = shifted.forward(&x, &places, Some(mask), mode)?;
        }
        Ok(head.forward(&norm.forward(&x)?.mean([1, 2])?)?.cross_entropy(&labels)?)
    }))
}

/// Layer norm without parameters, then a scale and a shift of each image `[batch, 1, width]`.
fn modulated(norm: &LayerNorm, x: &Tensor, shift: &Tensor, scale: &Tensor) -> Result<Tensor> {
    Ok(norm.forward(x)?.mul(&scale.add_scalar(1.0)?)?.add(shift)?)
}

/// A linear layer that begins with zeros.
fn zero_linear(b: &ParameterBuilder, inputs: usize, outputs: usize) -> Result<Linear> {
    let zero = Init::Constant(0.0);
    Linear::with_init(b, inputs, outputs, zero, Some(zero))
}

/// What a layer makes of the conditions `[batch, width]`: `count` parts of f32 `[batch, 1, width]`.
fn modulation(layer: &Linear, conditions: &Tensor, count: usize) -> Result<Vec<Tensor>> {
    Ok(layer.forward(conditions)?.to_dtype(DType::F32)?.unsqueeze(1)?.chunk(count, 2)?)
}

/// A block of [`diffusion_transformer`], which begins as the identity (adaLN-zero).
struct DiffusionBlock {
    attention: MultiHeadAttention,
    ffn: [Linear; 2],
    modulation: Linear,
}

impl DiffusionBlock {
    fn new(b: &ParameterBuilder, width: usize) -> Result<DiffusionBlock> {
        let options = AttentionOptions::new(width, width / 64);
        Ok(DiffusionBlock {
            attention: MultiHeadAttention::new(&b.scope("attention"), &options)?,
            ffn: [
                Linear::new(&b.scope("up"), width, 4 * width)?,
                Linear::new(&b.scope("down"), 4 * width, width)?,
            ],
            modulation: zero_linear(&b.scope("modulation"), width, 6 * width)?,
        })
    }

    fn forward(&self, x: &Tensor, conditions: &Tensor, norm: &LayerNorm, mode: Mode<'_>) -> Result<Tensor> {
        let parts = modulation(&self.modulation, conditions, 6)?;
        let y = self.attention.forward(&modulated(norm, x, &parts[0], &parts[1])?, mode)?;
        let x = x.add(&y.mul(&parts[2])?)?;
        let y = self.ffn[0].forward(&modulated(norm, &x, &parts[3], &parts[4])?)?.gelu_tanh()?;
        let y = self.ffn[1].forward(&y)?;
        Ok(x.add(&y.mul(&parts[5])?)?)
    }
}

/// Finds the noise in latent images of a class (Peebles and Xie, ICCV 2023).
pub fn diffusion_transformer(b: &ParameterBuilder, g: &Generator) -> Result<Loss> {
    let (batch, channels, side, width, waves) = (16, 4, 16, 384, 256);
    let (classes, times, shape) = (1000, 1000, [batch, channels, 2 * side, 2 * side]);
    let patches = conv(&b.scope("patches"), channels, width, [2, 2, 0])?;
    let time = [
        Linear::new(&b.scope("time").scope(0), waves, width)?,
        Linear::new(&b.scope("time").scope(1), width, width)?,
    ];
    // One more for an unknown class.
    let small = Init::Normal { mean: 0.0, std: 0.02 };
    let table = Embedding::with_init(&b.scope("classes"), classes + 1, width, small)?;
    let blocks = (0..6)
        .map(|i| DiffusionBlock::new(&b.scope("blocks").scope(i), width))
        .collect::<Result<Vec<_>>>()?;
    let last_modulation = zero_linear(&b.scope("last_modulation"), width, 2 * width)?;
    let head = zero_linear(&b.scope("head"), width, 2 * 2 * channels)?;
    let norm = LayerNorm::without_parameters(b, width, 1e-6)?;
    let places = positions(side, width, g.device())?;
    // The part of the image's variance that is left at each time.
    let betas = Tensor::linspace(1e-4, 0.02, times, DType::F32, g.device())?;
    let left = betas.scalar_sub(1.0)?.cumprod(0)?;
    let latents = g.normal(shape, DType::F32)?;
    let labels = ids(g, classes, &[batch])?;
    Ok(Box::new(move |mode| {
        let random = mode.generator().expect("it is only trained");
        let when = random.randint(0, times as i64, [batch])?;
        let noise = random.normal(shape, DType::F32)?;
        let left = left.index_select(0, &when)?.reshape([batch, 1, 1, 1])?;
        let noisy = latents.mul(&left.sqrt()?)?.add(&noise.mul(&left.scalar_sub(1.0)?.sqrt()?)?)?;
        let unknown = random.uniform([batch], DType::F32)?.lt_scalar(0.1)?;
        let labels = labels.masked_fill(&unknown, classes as f64)?;

        let when = time[0].forward(&sinusoids(&when.to_dtype(DType::F32)?, waves)?)?.silu()?;
        let conditions = table.forward(&labels)?.add(&time[1].forward(&when)?)?.silu()?;
        let x = patches.forward(&noisy)?.flatten(2, 3)?.transpose(1, 2)?;
        let mut x = places.add(&x)?;
        for block in &blocks {
            x = block.forward(&x, &conditions, &norm, mode)?;
        }
        let parts = modulation(&last_modulation, &conditions, 2)?;
        let y = head.forward(&modulated(&norm, &x, &parts[0], &parts[1])?)?;
        let y = y.reshape([batch, side, side, 2, 2, channels])?.permute(&[0, 5, 1, 3, 2, 4])?;
        Ok(y.reshape(shape)?.mse_loss(&noise)?)
    }))
}
