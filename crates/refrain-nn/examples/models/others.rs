//! Models of tables, pairs, graphs, points, densities and decisions.

use refrain::{DType, Generator, IndexReduction, Tensor};
use refrain_nn::{BatchNorm, Conv1d, Dropout, Embedding, Init, Linear, Parameter, ParameterBuilder, Result};

use crate::{Loss, ids};

/// For tables: batch norm, ReLU and dropout behind each layer.
pub fn mlp(b: &ParameterBuilder, g: &Generator) -> Result<Loss> {
    let (batch, sizes, classes) = (1024, [100, 512, 512, 512], 10);
    let mut layers = Vec::new();
    for (i, pair) in sizes.windows(2).enumerate() {
        let b = b.scope("layers").scope(i);
        layers.push((
            Linear::new(&b, pair[0], pair[1])?,
            BatchNorm::new(&b.scope("norm"), pair[1], -1, 1e-5, 0.1)?,
        ));
    }
    let drop = Dropout::new(0.1)?;
    let head = Linear::new(&b.scope("head"), 512, classes)?;
    let table = g.normal([batch, sizes[0]], DType::F32)?;
    let labels = ids(g, classes, &[batch])?;
    Ok(Box::new(move |mode| {
        let mut x = table.clone();
        for (linear, norm) in &layers {
            x = drop.forward(&norm.forward(&linear.forward(&x)?, mode)?.relu()?, mode)?;
        }
        Ok(head.forward(&x)?.cross_entropy(&labels)?)
    }))
}

/// Ratings of items by users, each an embedding and an MLP.
pub fn two_towers(b: &ParameterBuilder, g: &Generator) -> Result<Loss> {
    let (batch, width) = (4096, 64);
    let mut towers = Vec::new();
    for (name, count) in [("users", 100_000), ("items", 20_000)] {
        let b = b.scope(name);
        let table = Embedding::new(&b.scope("table"), count, width)?;
        let layers =
            [Linear::new(&b.scope("first"), width, 128)?, Linear::new(&b.scope("second"), 128, width)?];
        towers.push((table, layers, ids(g, count, &[batch])?));
    }
    let ratings = g.normal([batch], DType::F32)?;
    Ok(Box::new(move |_| {
        let mut sides = Vec::with_capacity(2);
        for (table, [first, second], ids) in &towers {
            sides.push(second.forward(&first.forward(&table.forward(ids)?)?.relu()?)?);
        }
        Ok(sides[0].mul(&sides[1])?.sum(-1)?.mse_loss(&ratings)?)
    }))
}

/// Two nets whose results for the same pair shall lie close to each other, and far from those of other pairs (CLIP: Radford et
/// al., ICML 2021).
pub fn contrastive(b: &ParameterBuilder, g: &Generator) -> Result<Loss> {
    let (batch, width) = (2048, 256);
    let mut sides = Vec::new();
    for (name, features) in [("images", 512), ("texts", 384)] {
        let b = b.scope(name);
        let layers =
            [Linear::new(&b.scope("first"), features, 1024)?, Linear::new(&b.scope("second"), 1024, width)?];
        sides.push((layers, g.normal([batch, features], DType::F32)?));
    }
    let sharpness = b.parameter("sharpness", [1], Init::Constant(2.66))?;
    let same = Tensor::arange(0.0, batch as f64, 1.0, DType::I64, g.device())?;
    Ok(Box::new(move |_| {
        let mut unit = Vec::with_capacity(2);
        for ([first, second], x) in &sides {
            let y = second.forward(&first.forward(x)?.gelu()?)?;
            unit.push(y.l2_normalize(-1, 1e-12)?);
        }
        let scores = unit[0].matmul(&unit[1].transpose(0, 1)?)?;
        let scores = scores.mul(&sharpness.tensor()?.exp()?.to_dtype(scores.dtype())?)?;
        let (a, b) = (scores.cross_entropy(&same)?, scores.transpose(0, 1)?.cross_entropy(&same)?);
        Ok(a.add(&b)?.mul_scalar(0.5)?)
    }))
}

/// Classes of the nodes of a graph, each of which hears from its neighbours in three rounds (Kipf and Welling, ICLR 2017).
pub fn graph(b: &ParameterBuilder, g: &Generator) -> Result<Loss> {
    let (nodes, edges, features, hidden, classes) = (20_000, 120_000, 128, 128, 40);
    let sizes = [features, hidden, hidden, classes];
    let mut layers = Vec::new();
    for (i, pair) in sizes.windows(2).enumerate() {
        layers.push(Linear::new(&b.scope("layers").scope(i), pair[0], pair[1])?);
    }
    let drop = Dropout::new(0.5)?;
    let x = g.normal([nodes, features], DType::F32)?;
    let (from, to) = (ids(g, nodes, &[edges])?, ids(g, nodes, &[edges])?);
    let weights = g.uniform([edges, 1], DType::F32)?;
    let labels = ids(g, classes, &[nodes])?;
    Ok(Box::new(move |mode| {
        let mut x = x.clone();
        for (i, layer) in layers.iter().enumerate() {
            if i > 0 {
                x = drop.forward(&x.relu()?, mode)?;
            }
            let y = layer.forward(&x)?;
            let said = y.index_select(0, &from)?.mul(&weights.to_dtype(y.dtype())?)?;
            x = y.zeros_like()?.index_add(0, &to, &said)?;
        }
        Ok(x.cross_entropy(&labels)?)
    }))
}

/// Classes of clouds of points, by the largest of each feature of all points (Qi et al., CVPR 2017).
pub fn points(b: &ParameterBuilder, g: &Generator) -> Result<Loss> {
    let (batch, count, sizes, classes) = (32, 1024, [3, 64, 128, 1024], 40);
    let mut layers = Vec::new();
    for (i, pair) in sizes.windows(2).enumerate() {
        let b = b.scope("layers").scope(i);
        layers.push((
            Conv1d::new(&b, pair[0], pair[1], 1, Default::default())?,
            BatchNorm::new(&b.scope("norm"), pair[1], 1, 1e-5, 0.1)?,
        ));
    }
    let hidden = Linear::new(&b.scope("hidden"), sizes[3], 256)?;
    let (drop, head) = (Dropout::new(0.3)?, Linear::new(&b.scope("head"), 256, classes)?);
    let clouds = g.normal([batch, 3, count], DType::F32)?;
    let labels = ids(g, classes, &[batch])?;
    Ok(Box::new(move |mode| {
        let mut x = clouds.clone();
        for (conv, norm) in &layers {
            x = norm.forward(&conv.forward(&x)?, mode)?.relu()?;
        }
        let x = hidden.forward(&x.max(2)?)?.relu()?;
        Ok(head.forward(&drop.forward(&x, mode)?)?.cross_entropy(&labels)?)
    }))
}

/// Classes of the nodes of a graph, whose edges have learned weights: a softmax over those that lead to a node (Velickovic et al., ICLR
/// 2018).
pub fn graph_attention(b: &ParameterBuilder, g: &Generator) -> Result<Loss> {
    let (nodes, edges, features, classes) = (20_000, 120_000, 128, 40);
    let layers = [
        EdgeAttention::new(&b.scope("first"), features, 8, 16)?,
        EdgeAttention::new(&b.scope("second"), 128, 1, classes)?,
    ];
    let drop = Dropout::new(0.6)?;
    let x = g.normal([nodes, features], DType::F32)?;
    let (from, to) = (ids(g, nodes, &[edges])?, ids(g, nodes, &[edges])?);
    let labels = ids(g, classes, &[nodes])?;
    Ok(Box::new(move |mode| {
        let mut x = x.clone();
        for (i, layer) in layers.iter().enumerate() {
            let h = layer.transform.forward(&drop.forward(&x, mode)?)?.reshape((nodes, layer.heads, -1))?;
            let score = |of: &Parameter| -> Result<Tensor> {
                Ok(h.to_dtype(DType::F32)?.mul(of.tensor()?)?.sum(-1)?)
            };
            let scores = score(&layer.from)?.index_select(0, &from)?;
            let scores = scores.add(&score(&layer.to)?.index_select(0, &to)?)?.leaky_relu(0.2)?;
            let lowest = Tensor::full([nodes, layer.heads], f64::NEG_INFINITY, DType::F32, h.device())?;
            let largest = lowest.index_reduce(0, &to, &scores.detach(), IndexReduction::Amax, true)?;
            let e = scores.sub(&largest.index_select(0, &to)?)?.exp()?;
            let sums = largest.zeros_like()?.index_add(0, &to, &e)?;
            let weights = drop.forward(&e.div(&sums.index_select(0, &to)?)?, mode)?;
            let said = h.index_select(0, &from)?.mul(&weights.unsqueeze(2)?.to_dtype(h.dtype())?)?;
            x = h.zeros_like()?.index_add(0, &to, &said)?.flatten(1, 2)?;
            if i == 0 {
                x = x.elu(1.0)?;
            }
        }
        Ok(x.cross_entropy(&labels)?)
    }))
}

struct EdgeAttention {
    heads: usize,
    transform: Linear,
    from: Parameter,
    to: Parameter,
}

impl EdgeAttention {
    fn new(b: &ParameterBuilder, inputs: usize, heads: usize, width: usize) -> Result<EdgeAttention> {
        let init = Init::Normal { mean: 0.0, std: 0.1 };
        Ok(EdgeAttention {
            heads,
            transform: Linear::without_bias(&b.scope("transform"), inputs, heads * width)?,
            from: b.parameter("from", [heads, width], init)?,
            to: b.parameter("to", [heads, width], init)?,
        })
    }
}

/// Whether a user clicks, by 13 numbers and 26 categories, of which each pair is multiplied (DLRM: Naumov et al., 2019).
pub fn clicks(b: &ParameterBuilder, g: &Generator) -> Result<Loss> {
    let (batch, numbers, tables, rows, width) = (2048, 13, 26, 10_000, 16);
    let mlp = |name: &str, sizes: &[usize]| -> Result<Vec<Linear>> {
        let b = b.scope(name);
        sizes.windows(2).enumerate().map(|(i, pair)| Linear::new(&b.scope(i), pair[0], pair[1])).collect()
    };
    let bottom = mlp("bottom", &[numbers, 512, 256, width])?;
    let pairs = tables * (tables + 1) / 2;
    let top = mlp("top", &[pairs + width, 512, 256, 1])?;
    let categories = (0..tables)
        .map(|i| Ok((Embedding::new(&b.scope("tables").scope(i), rows, width)?, ids(g, rows, &[batch])?)))
        .collect::<Result<Vec<_>>>()?;
    let table = g.normal([batch, numbers], DType::F32)?;
    let clicked = ids(g, 2, &[batch, 1])?.to_dtype(DType::F32)?;
    let lower: Vec<i64> =
        (0..tables + 1).flat_map(|i| (0..i).map(move |j| (i * (tables + 1) + j) as i64)).collect();
    let lower = Tensor::from_slice(&lower, [pairs], g.device())?;
    Ok(Box::new(move |_| {
        let mut x = table.clone();
        for layer in &bottom {
            x = layer.forward(&x)?.relu()?;
        }
        let mut vectors = vec![x.to_dtype(DType::F32)?];
        for (table, ids) in &categories {
            vectors.push(table.forward(ids)?);
        }
        let vectors = Tensor::stack(&vectors, 1)?;
        let products = vectors.matmul(&vectors.transpose(1, 2)?)?.flatten(1, 2)?.index_select(1, &lower)?;
        let mut y = Tensor::concat(&[&x, &products.to_dtype(x.dtype())?], 1)?;
        for (i, layer) in top.iter().enumerate() {
            y = layer.forward(&y)?;
            if i < 2 {
                y = y.relu()?;
            }
        }
        Ok(y.to_dtype(DType::F32)?.bce_with_logits(&clicked)?)
    }))
}

/// The density of 64 numbers, by 8 invertible layers (RealNVP: Dinh et al., ICLR 2017).
pub fn flow(b: &ParameterBuilder, g: &Generator) -> Result<Loss> {
    let (batch, half, hidden) = (4096, 32, 256);
    let mut couplings = Vec::new();
    for i in 0..8 {
        let b = b.scope("couplings").scope(i);
        couplings.push([
            Linear::new(&b.scope(0), half, hidden)?,
            Linear::new(&b.scope(1), hidden, hidden)?,
            Linear::new(&b.scope(2), hidden, 2 * half)?,
        ]);
    }
    let data = g.normal([batch, 2 * half], DType::F32)?;
    Ok(Box::new(move |_| {
        let parts = data.chunk(2, 1)?;
        let (mut a, mut b) = (parts[0].clone(), parts[1].clone());
        let mut log_det = Tensor::zeros([batch], DType::F32, data.device())?;
        for [first, second, third] in &couplings {
            let y =
                third.forward(&second.forward(&first.forward(&a)?.relu()?)?.relu()?)?.to_dtype(DType::F32)?;
            let parts = y.chunk(2, 1)?;
            let scale = parts[0].tanh()?;
            let turned = b.mul(&scale.exp()?)?.add(&parts[1])?;
            log_det = log_det.add(&scale.sum(1)?)?;
            (a, b) = (turned, a);
        }
        let square = a.square()?.sum(1)?.add(&b.square()?.sum(1)?)?;
        Ok(square.mul_scalar(0.5)?.sub(&log_det)?.mean(())?)
    }))
}

/// A policy and a value of 18 actions by 64 numbers, updated by a clipped ratio (PPO: Schulman et al., 2017).
pub fn policy(b: &ParameterBuilder, g: &Generator) -> Result<Loss> {
    let (batch, observed, hidden, actions) = (8192, 64, 256, 18);
    let net = |name: &str, outputs| -> Result<[Linear; 3]> {
        let b = b.scope(name);
        Ok([
            Linear::new(&b.scope(0), observed, hidden)?,
            Linear::new(&b.scope(1), hidden, hidden)?,
            Linear::new(&b.scope(2), hidden, outputs)?,
        ])
    };
    let (policy, value) = (net("policy", actions)?, net("value", 1)?);
    let seen = g.normal([batch, observed], DType::F32)?;
    let taken = ids(g, actions, &[batch, 1])?;
    let before = g.normal([batch], DType::F32)?.mul_scalar(0.1)?.add_scalar(-2.9)?;
    let (advantage, returns) = (g.normal([batch], DType::F32)?, g.normal([batch], DType::F32)?);
    Ok(Box::new(move |_| {
        let run = |[first, second, third]: &[Linear; 3]| {
            third
                .forward(&second.forward(&first.forward(&seen)?.tanh()?)?.tanh()?)?
                .to_dtype(DType::F32)
                .map_err(refrain_nn::Error::from)
        };
        let chances = run(&policy)?.log_softmax(-1)?;
        let advantage = advantage.sub(&advantage.mean(())?)?.div(&advantage.std((), 1)?.add_scalar(1e-8)?)?;
        let ratio = chances.gather(1, &taken)?.squeeze(1)?.sub(&before)?.exp()?;
        let gain = ratio.mul(&advantage)?.minimum(&ratio.clamp(0.8, 1.2)?.mul(&advantage)?)?.mean(())?;
        let entropy = chances.mul(&chances.exp()?)?.sum(-1)?.neg()?.mean(())?;
        let error = run(&value)?.squeeze(1)?.mse_loss(&returns)?;
        Ok(error.mul_scalar(0.5)?.sub(&gain)?.sub(&entropy.mul_scalar(0.01)?)?)
    }))
}
