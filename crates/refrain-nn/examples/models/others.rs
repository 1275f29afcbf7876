//! Models of tables, pairs, graphs and points.

use refrain::{DType, Generator, Tensor};
use refrain_nn::{BatchNorm, Conv1d, Dropout, Embedding, Init, Linear, ParameterBuilder, Result};

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
