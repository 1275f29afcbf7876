//! Models of images.

use refrain::{Conv2dOptions, ConvTranspose2dOptions, DType, Generator, Tensor};
use refrain_nn::{
    BatchNorm, Conv2d, ConvTranspose2d, GroupNorm, Init, LayerNorm, Linear, Mode, Parameter,
    ParameterBuilder, Result,
};

use crate::text::encoder;
use crate::{Loss, ids};

/// Patches of 4 x 4 of small images, and a token for the class before them.
pub fn vision_transformer(b: &ParameterBuilder, g: &Generator) -> Result<Loss> {
    let (batch, width, classes) = (128, 192, 10);
    let options = Conv2dOptions { stride: [4, 4], ..Conv2dOptions::default() };
    let patches = Conv2d::new(&b.scope("patches"), 3, width, [4, 4], options)?;
    let small = Init::Normal { mean: 0.0, std: 0.02 };
    let class = b.parameter("class", [1, 1, width], small)?;
    let places = b.parameter("places", [65, width], small)?;
    let layers = (0..6)
        .map(|i| encoder(&b.scope("layers").scope(i), width, false, 0.0))
        .collect::<Result<Vec<_>>>()?;
    let norm = LayerNorm::new(&b.scope("norm"), width, 1e-5)?;
    let head = Linear::new(&b.scope("head"), width, classes)?;
    let images = g.normal([batch, 3, 32, 32], DType::F32)?;
    let labels = ids(g, classes, &[batch])?;
    Ok(Box::new(move |mode| {
        let x = patches.forward(&images)?.flatten(2, 3)?.transpose(1, 2)?;
        let class = class.tensor()?.broadcast_to([batch, 1, width])?;
        let mut x = Tensor::concat(&[&class, &x.to_dtype(class.dtype())?], 1)?.add(places.tensor()?)?;
        for layer in &layers {
            x = layer.forward(&x, mode)?;
        }
        let first = norm.forward(&x)?.i((.., 0))?;
        Ok(head.forward(&first)?.cross_entropy(&labels)?)
    }))
}

/// A convolution of 3 x 3 or 1 x 1 without bias, and batch norm.
struct ConvNorm(Conv2d, BatchNorm);

impl ConvNorm {
    fn new(
        b: &ParameterBuilder,
        inputs: usize,
        outputs: usize,
        kernel: usize,
        stride: usize,
    ) -> Result<ConvNorm> {
        let options =
            Conv2dOptions { stride: [stride; 2], padding: [kernel / 2; 2], ..Conv2dOptions::default() };
        let conv = Conv2d::without_bias(b, inputs, outputs, [kernel; 2], options)?;
        Ok(ConvNorm(conv, BatchNorm::new(&b.scope("norm"), outputs, 1, 1e-5, 0.1)?))
    }

    fn forward(&self, x: &Tensor, mode: Mode<'_>) -> Result<Tensor> {
        self.1.forward(&self.0.forward(x)?, mode)
    }
}

/// The residual network of eighteen layers, for images of 32 x 32.
pub fn resnet(b: &ParameterBuilder, g: &Generator) -> Result<Loss> {
    let (batch, classes) = (128, 10);
    let stem = ConvNorm::new(&b.scope("stem"), 3, 64, 3, 1)?;
    let mut blocks = Vec::new();
    let mut inputs = 64;
    for (i, outputs) in [64, 64, 128, 128, 256, 256, 512, 512].into_iter().enumerate() {
        let b = b.scope("blocks").scope(i);
        let stride = if outputs == inputs { 1 } else { 2 };
        let shortcut = (stride == 2).then(|| ConvNorm::new(&b.scope("shortcut"), inputs, outputs, 1, 2));
        let first = ConvNorm::new(&b.scope("first"), inputs, outputs, 3, stride)?;
        let second = ConvNorm::new(&b.scope("second"), outputs, outputs, 3, 1)?;
        blocks.push((first, second, shortcut.transpose()?));
        inputs = outputs;
    }
    let head = Linear::new(&b.scope("head"), 512, classes)?;
    let images = g.normal([batch, 3, 32, 32], DType::F32)?.channels_last()?;
    let labels = ids(g, classes, &[batch])?;
    Ok(Box::new(move |mode| {
        let mut x = stem.forward(&images, mode)?.relu()?;
        for (first, second, shortcut) in &blocks {
            let y = second.forward(&first.forward(&x, mode)?.relu()?, mode)?;
            let residual = match shortcut {
                Some(shortcut) => shortcut.forward(&x, mode)?,
                None => x,
            };
            x = residual.add(&y)?.relu()?;
        }
        Ok(head.forward(&x.mean([2, 3])?)?.cross_entropy(&labels)?)
    }))
}

/// Convolutions with strides, and transposed ones back to images of 64 x 64.
pub fn autoencoder(b: &ParameterBuilder, g: &Generator) -> Result<Loss> {
    const CHANNELS: [usize; 4] = [3, 32, 64, 128];
    let (mut down, mut up) = (Vec::new(), Vec::new());
    for (i, pair) in CHANNELS.windows(2).enumerate() {
        let options = Conv2dOptions { stride: [2, 2], padding: [1, 1], ..Conv2dOptions::default() };
        down.push(Conv2d::new(&b.scope("down").scope(i), pair[0], pair[1], [4, 4], options)?);
        let options =
            ConvTranspose2dOptions { stride: [2, 2], padding: [1, 1], ..ConvTranspose2dOptions::default() };
        up.push(ConvTranspose2d::new(&b.scope("up").scope(i), pair[1], pair[0], [4, 4], options)?);
    }
    let images = g.normal([64, 3, 64, 64], DType::F32)?;
    Ok(Box::new(move |_| {
        let mut x = images.clone();
        for conv in &down {
            x = conv.forward(&x)?.relu()?;
        }
        for (i, conv) in up.iter().enumerate().rev() {
            x = conv.forward(&x)?;
            if i > 0 {
                x = x.relu()?;
            }
        }
        Ok(x.mse_loss(&images)?)
    }))
}

fn conv(
    b: &ParameterBuilder,
    inputs: usize,
    outputs: usize,
    kernel: usize,
    stride: usize,
    groups: usize,
) -> Result<Conv2d> {
    // A patch of its own for each result needs no padding.
    let padding = if kernel == stride { 0 } else { kernel / 2 };
    let options =
        Conv2dOptions { stride: [stride; 2], padding: [padding; 2], groups, ..Conv2dOptions::default() };
    Conv2d::new(b, inputs, outputs, [kernel; 2], options)
}

/// A half of a residual block of [`unet`]: group norm, SiLU, a convolution.
struct NormConv(GroupNorm, Conv2d);

impl NormConv {
    fn new(b: &ParameterBuilder, inputs: usize, outputs: usize) -> Result<NormConv> {
        let norm = GroupNorm::new(&b.scope("norm"), 8, inputs, 1e-5)?;
        Ok(NormConv(norm, conv(&b.scope("conv"), inputs, outputs, 3, 1, 1)?))
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.1.forward(&self.0.forward(x)?.silu()?)
    }
}

/// A residual block of [`unet`], which is told the time.
struct TimedBlock {
    halves: [NormConv; 2],
    time: Linear,
    shortcut: Option<Conv2d>,
}

impl TimedBlock {
    fn new(b: &ParameterBuilder, inputs: usize, outputs: usize) -> Result<TimedBlock> {
        let shortcut = (inputs != outputs).then(|| conv(&b.scope("shortcut"), inputs, outputs, 1, 1, 1));
        Ok(TimedBlock {
            halves: [
                NormConv::new(&b.scope("first"), inputs, outputs)?,
                NormConv::new(&b.scope("second"), outputs, outputs)?,
            ],
            time: Linear::new(&b.scope("time"), 256, outputs)?,
            shortcut: shortcut.transpose()?,
        })
    }

    fn forward(&self, x: &Tensor, time: &Tensor) -> Result<Tensor> {
        let y = self.halves[0].forward(x)?;
        let time = self.time.forward(time)?.unsqueeze(-1)?.unsqueeze(-1)?;
        let y = self.halves[1].forward(&y.add(&time.to_dtype(y.dtype())?)?)?;
        match &self.shortcut {
            Some(shortcut) => Ok(shortcut.forward(x)?.add(&y)?),
            None => Ok(x.add(&y)?),
        }
    }
}

/// Each pixel twice in both directions.
fn twice_as_large(x: &Tensor) -> Result<Tensor> {
    let &[n, c, h, w] = x.dims() else { unreachable!("images") };
    let wide = x.reshape([n, c, h, 1, w, 1])?.broadcast_to([n, c, h, 2, w, 2])?;
    Ok(wide.reshape([n, c, 2 * h, 2 * w])?)
}

/// Finds the noise of images of 32 x 32, as a diffusion model does.
pub fn unet(b: &ParameterBuilder, g: &Generator) -> Result<Loss> {
    const CHANNELS: [usize; 3] = [64, 128, 256];
    let batch = 64;
    let times = [
        Linear::new(&b.scope("times").scope(0), 64, 256)?,
        Linear::new(&b.scope("times").scope(1), 256, 256)?,
    ];
    let stem = conv(&b.scope("stem"), 3, CHANNELS[0], 3, 1, 1)?;
    let (mut down, mut up) = (Vec::new(), Vec::new());
    for (i, &channels) in CHANNELS.iter().enumerate() {
        let b = b.scope("down").scope(i);
        let before = CHANNELS[i.saturating_sub(1)];
        let block = TimedBlock::new(&b.scope("block"), before, channels)?;
        let smaller = (i < 2).then(|| conv(&b.scope("smaller"), channels, channels, 3, 2, 1));
        down.push((block, smaller.transpose()?));
    }
    let middle = TimedBlock::new(&b.scope("middle"), CHANNELS[2], CHANNELS[2])?;
    for i in (0..2).rev() {
        let b = b.scope("up").scope(i);
        let (from, to) = (CHANNELS[i + 1], CHANNELS[i]);
        up.push((
            conv(&b.scope("larger"), from, to, 3, 1, 1)?,
            TimedBlock::new(&b.scope("block"), 2 * to, to)?,
        ));
    }
    let last = NormConv::new(&b.scope("last"), CHANNELS[0], 3)?;
    let images = g.normal([batch, 3, 32, 32], DType::F32)?;
    let noise = g.normal([batch, 3, 32, 32], DType::F32)?;
    let waves = g.normal([batch, 64], DType::F32)?;
    Ok(Box::new(move |_| {
        let time = times[1].forward(&times[0].forward(&waves)?.silu()?)?.silu()?;
        let mut x = stem.forward(&images.add(&noise)?)?;
        let mut kept = Vec::new();
        for (block, smaller) in &down {
            x = block.forward(&x, &time)?;
            if let Some(smaller) = smaller {
                kept.push(x.clone());
                x = smaller.forward(&x)?;
            }
        }
        x = middle.forward(&x, &time)?;
        for (larger, block) in &up {
            let y = larger.forward(&twice_as_large(&x)?)?;
            let kept = kept.pop().expect("as many as levels");
            x = block.forward(&Tensor::concat(&[&kept.to_dtype(y.dtype())?, &y], 1)?, &time)?;
        }
        Ok(last.forward(&x)?.mse_loss(&noise)?)
    }))
}

/// A block of [`convnext`]: a convolution of each channel by itself, then a feed-forward net of each pixel.
struct ConvNextBlock {
    conv: Conv2d,
    norm: LayerNorm,
    ffn: [Linear; 2],
    scale: Parameter,
}

impl ConvNextBlock {
    fn new(b: &ParameterBuilder, width: usize) -> Result<ConvNextBlock> {
        Ok(ConvNextBlock {
            conv: conv(&b.scope("conv"), width, width, 7, 1, width)?,
            norm: LayerNorm::new(&b.scope("norm"), width, 1e-6)?,
            ffn: [
                Linear::new(&b.scope("up"), width, 4 * width)?,
                Linear::new(&b.scope("down"), 4 * width, width)?,
            ],
            scale: b.parameter("scale", [width], Init::Constant(1e-6))?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let y = self.conv.forward(x)?.permute(&[0, 2, 3, 1])?;
        let y = self.ffn[0].forward(&self.norm.forward(&y)?)?.gelu()?;
        let y = self.ffn[1].forward(&y)?;
        let y = y.mul(&self.scale.tensor()?.to_dtype(y.dtype())?)?.permute(&[0, 3, 1, 2])?;
        Ok(x.add(&y)?)
    }
}

/// Convolutions in the manner of a transformer (Liu et al., CVPR 2022), for images of 32 x 32.
pub fn convnext(b: &ParameterBuilder, g: &Generator) -> Result<Loss> {
    const WIDTHS: [usize; 3] = [96, 192, 384];
    let (batch, classes) = (128, 10);
    let mut stages = Vec::new();
    for (i, &width) in WIDTHS.iter().enumerate() {
        let b = b.scope("stages").scope(i);
        let before = if i == 0 { 3 } else { WIDTHS[i - 1] };
        let smaller = conv(&b.scope("smaller"), before, width, 2, 2, 1)?;
        let norm = LayerNorm::new(&b.scope("norm"), if i == 0 { width } else { before }, 1e-6)?;
        let blocks = (0..2)
            .map(|j| ConvNextBlock::new(&b.scope("blocks").scope(j), width))
            .collect::<Result<Vec<_>>>()?;
        stages.push((smaller, norm, blocks));
    }
    let norm = LayerNorm::new(&b.scope("norm"), WIDTHS[2], 1e-6)?;
    let head = Linear::new(&b.scope("head"), WIDTHS[2], classes)?;
    let images = g.normal([batch, 3, 32, 32], DType::F32)?;
    let labels = ids(g, classes, &[batch])?;
    let of_pixels = |norm: &LayerNorm, x: &Tensor| -> Result<Tensor> {
        Ok(norm.forward(&x.permute(&[0, 2, 3, 1])?)?.permute(&[0, 3, 1, 2])?)
    };
    Ok(Box::new(move |_| {
        let mut x = images.clone();
        for (i, (smaller, norm, blocks)) in stages.iter().enumerate() {
            x = if i == 0 {
                of_pixels(norm, &smaller.forward(&x)?)?
            } else {
                smaller.forward(&of_pixels(norm, &x)?)?
            };
            for block in blocks {
                x = block.forward(&x)?;
            }
        }
        Ok(head.forward(&norm.forward(&x.mean([2, 3])?)?)?.cross_entropy(&labels)?)
    }))
}

/// A convolution and batch norm, and a ReLU up to 6 where there is one.
struct Bounded(Conv2d, BatchNorm, bool);

impl Bounded {
    fn new(
        b: &ParameterBuilder,
        [inputs, outputs]: [usize; 2],
        [kernel, stride, groups]: [usize; 3],
        bounded: bool,
    ) -> Result<Bounded> {
        let norm = BatchNorm::new(&b.scope("norm"), outputs, 1, 1e-5, 0.1)?;
        Ok(Bounded(conv(b, inputs, outputs, kernel, stride, groups)?, norm, bounded))
    }

    fn forward(&self, x: &Tensor, mode: Mode<'_>) -> Result<Tensor> {
        let y = self.1.forward(&self.0.forward(x)?, mode)?;
        if self.2 { Ok(y.clamp(0.0, 6.0)?) } else { Ok(y) }
    }
}

/// Inverted residuals (Sandler et al., CVPR 2018): 1 x 1 to six times as many channels, 3 x 3 of each by itself, 1 x 1 back.
pub fn mobilenet(b: &ParameterBuilder, g: &Generator) -> Result<Loss> {
    const BLOCKS: [[usize; 2]; 8] = [[16, 1], [24, 1], [24, 1], [32, 2], [32, 1], [64, 2], [64, 1], [96, 1]];
    let (batch, classes) = (128, 10);
    let stem = Bounded::new(&b.scope("stem"), [3, 32], [3, 1, 1], true)?;
    let mut blocks = Vec::new();
    let mut before = 32;
    for (i, [channels, stride]) in BLOCKS.into_iter().enumerate() {
        let (b, wide) = (b.scope("blocks").scope(i), 6 * before);
        let parts = [
            Bounded::new(&b.scope("up"), [before, wide], [1, 1, 1], true)?,
            Bounded::new(&b.scope("depth"), [wide, wide], [3, stride, wide], true)?,
            Bounded::new(&b.scope("down"), [wide, channels], [1, 1, 1], false)?,
        ];
        blocks.push((parts, stride == 1 && before == channels));
        before = channels;
    }
    let last = Bounded::new(&b.scope("last"), [before, 640], [1, 1, 1], true)?;
    let head = Linear::new(&b.scope("head"), 640, classes)?;
    let images = g.normal([batch, 3, 32, 32], DType::F32)?;
    let labels = ids(g, classes, &[batch])?;
    Ok(Box::new(move |mode| {
        let mut x = stem.forward(&images, mode)?;
        for (parts, residual) in &blocks {
            let mut y = x.clone();
            for part in parts {
                y = part.forward(&y, mode)?;
            }
            x = if *residual { x.add(&y)? } else { y };
        }
        let x = last.forward(&x, mode)?.mean([2, 3])?;
        Ok(head.forward(&x)?.cross_entropy(&labels)?)
    }))
}
