//! Attention with all of its options: the public methods that the plain ones call.

use smallvec::SmallVec;

use super::Attention;
use super::dropout::KeptWeights;
use crate::device::OPERANDS;
use crate::error::{Error, Result};
use crate::ops::dropout::check_probability;
use crate::ops::random::Generator;
use crate::ops::{Op, apply, apply_all, check_dtypes};
use crate::precision::precision;
use crate::tensor::{DType, Shape, Tensor};

/// The options of [`Tensor::scaled_dot_product_attention_with`]. The default is plain attention.
///
/// ```
/// use refrain::SdpaOptions;
/// let options = SdpaOptions { causal: true, ..SdpaOptions::default() };
/// assert!(options.dropout.is_none() && options.scores.is_none());
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct SdpaOptions<'a> {
    /// The factor of the products of queries and keys. `None`: `1 / sqrt(dim)`.
    pub scale: Option<f64>,
    /// Whether query `i` sees only the keys `0..=i + past`.
    pub causal: bool,
    /// How many keys are ahead of the first query, for the causal mask. With a key-value cache, these are the keys of the
    /// tokens that came before: `keys - queries` aligns the mask to the end.
    pub past: usize,
    /// Which keys a query sees. Bool: `true` where it does. Float: added to the scores before the softmax, minus infinity
    /// where it does not see a key; it gets a gradient, so it may be learned, as a bias of relative positions is. It is broadcast
    /// to `[batch, heads, queries, keys]` (without heads if the queries have none). [`Tensor::sequence_mask`] makes one from the
    /// lengths of padded sequences.
    pub mask: Option<&'a Tensor>,
    /// Dropout of the softmax weights: the probability, and the generator of the mask.
    pub dropout: Option<(f64, &'a Generator)>,
    /// Scores that are added before the softmax, usually those of the layer before (RealFormer: He et al., Findings of
    /// ACL 2021).
    pub scores: Option<&'a Tensor>,
    /// Whether to return the scores, for the next layer.
    pub returns_scores: bool,
}

impl Attention {
    /// Attention by these options.
    fn new(options: &SdpaOptions<'_>, dim: usize, packed: bool) -> Attention {
        Attention {
            scale: options.scale.unwrap_or(1.0 / (dim as f64).sqrt()),
            causal: options.causal,
            past: options.past,
            packed,
            precision: precision(),
            adds_scores: options.scores.is_some() || options.mask.is_some(),
            returns_scores: options.returns_scores,
            dropout: None,
        }
    }

    /// Runs the operation on queries, keys and values whose scores have the shape `shape`. Returns the output and the
    /// scores.
    fn run(
        self,
        op: &'static str,
        qkv: &[&Tensor],
        shape: [usize; 4],
        options: &SdpaOptions<'_>,
    ) -> Result<(Tensor, Option<Tensor>)> {
        if (self.adds_scores || self.returns_scores) && qkv[0].dims()[qkv[0].rank() - 1] == 0 {
            return Err(Error::invalid(op, "heads of no numbers have no scores; pass heads of at least one"));
        }
        let scores = added(op, qkv[0], shape, options)?;
        let operands: SmallVec<[&Tensor; OPERANDS]> = qkv.iter().copied().chain(&scores).collect();
        let results = match options.dropout {
            Some((p, generator)) if p != 0.0 => {
                check_probability(op, p)?;
                generator.draw(&shape, 1, |place| {
                    let kept = apply(KeptWeights { p, place, shape }, &[generator.state_tensor()])?;
                    let operands: SmallVec<[&Tensor; OPERANDS]> =
                        operands.iter().copied().chain([&kept]).collect();
                    apply_all(Attention { dropout: Some(p), ..self }, &operands)
                })?
            }
            _ => apply_all(self, &operands)?,
        };
        let result =
            |o: usize| results.get(o).cloned().ok_or_else(|| Error::internal(op, "a result is missing"));
        Ok((result(0)?, self.scores().map(result).transpose()?))
    }
}

/// What is added to scores of the shape `shape`: the mask, the scores of the layer before, or their sum.
fn added(
    op: &'static str,
    queries: &Tensor,
    shape: [usize; 4],
    options: &SdpaOptions<'_>,
) -> Result<Option<Tensor>> {
    let dtype = queries.dtype();
    let converted = |t: &Tensor| {
        if t.dtype() != dtype && precision().result(t.dtype()) == dtype {
            return t.to_dtype(dtype);
        }
        check_dtypes(op, queries, t)?;
        Ok(t.clone())
    };
    let scores = match options.scores {
        Some(scores) if scores.dims() != shape => {
            let hint =
                "scores must be [batch, heads, queries, keys] (without heads if the queries have none)";
            return Err(Error::shapes(op, scores.shape(), &Shape::from(shape), hint));
        }
        scores => scores.map(converted).transpose()?,
    };
    let Some(mask) = options.mask else { return Ok(scores) };
    let offset = shape.len().wrapping_sub(mask.rank());
    if mask.rank() > shape.len() || mask.dims().iter().zip(&shape[offset..]).any(|(&m, &n)| m != n && m != 1)
    {
        let hint =
            "a mask must broadcast to [batch, heads, queries, keys] (without heads if the queries have none)";
        return Err(Error::shapes(op, mask.shape(), &Shape::from(shape), hint));
    }
    let mask = match mask.dtype() {
        DType::Bool => {
            Tensor::full(mask.shape(), f64::NEG_INFINITY, dtype, mask.device())?.masked_fill(mask, 0.0)?
        }
        _ => converted(mask)?,
    };
    match scores {
        Some(scores) => Ok(Some((scores + mask)?)),
        None => Ok(Some(mask.broadcast_to(shape)?)),
    }
}

impl Tensor {
    /// [`Tensor::scaled_dot_product_attention`] with all of its options. Returns the output and, if
    /// [`SdpaOptions::returns_scores`], the scores:
    ///
    /// ```text
    /// s = scale q k^T + mask + scores        y = dropout(softmax(s)) v
    /// ```
    ///
    /// Scores have the dtype of the operands, and the shape `[batch, heads, n, m]` (`[batch, n, m]` if the operands lack
    /// `heads`). The result `s` is 0 where a query does not see a key. Gradients go back through the scores on both
    /// sides. The weights themselves are not stored. The mask of the dropout is the one that [`Tensor::dropout`] of the
    /// weights would draw. It takes a bit for each weight, in whole words of 64 for each query, until the backward pass.
    ///
    /// A query that a mask lets see no key at all has output 0, and no gradient goes through it. `s` contains the mask, so
    /// the next layer needs no mask if it adds `s`.
    ///
    /// ```
    /// use refrain::{Device, SdpaOptions, Tensor};
    /// let x = Tensor::from_slice(&[1.0f32, 2.0], [1, 2, 1], &Device::cpu())?;
    /// let options = SdpaOptions { returns_scores: true, ..SdpaOptions::default() };
    /// let (_, scores) = x.scaled_dot_product_attention_with(&x, &x, &options)?;
    /// assert_eq!(scores.as_ref().unwrap().to_vec::<f32>()?, [1.0, 2.0, 2.0, 4.0]);
    /// // The next layer adds them to its own.
    /// let options = SdpaOptions { scores: scores.as_ref(), ..options };
    /// let (_, sum) = x.scaled_dot_product_attention_with(&x, &x, &options)?;
    /// assert_eq!(sum.unwrap().to_vec::<f32>()?, [2.0, 4.0, 4.0, 8.0]);
    /// # Ok::<(), refrain::Error>(())
    /// ```
    ///
    /// A mask for sequences of different lengths, in a batch that is padded to the longest:
    ///
    /// ```
    /// use refrain::{Device, SdpaOptions, Tensor};
    /// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [2, 2, 1], &Device::cpu())?; // two sequences of two tokens
    /// let lengths = Tensor::from_slice(&[2i64, 1], 2, &Device::cpu())?;
    /// let mask = lengths.sequence_mask(2)?.unsqueeze(1)?; // [2, 1, 2], for all queries of a sequence
    /// let options = SdpaOptions { mask: Some(&mask), scale: Some(0.0), ..SdpaOptions::default() };
    /// let (y, _) = x.scaled_dot_product_attention_with(&x, &x, &options)?;
    /// // The mean of the tokens that are there.
    /// assert_eq!(y.to_vec::<f32>()?, [1.5, 1.5, 3.0, 3.0]);
    /// # Ok::<(), refrain::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for the plain method; if the mask does not broadcast to the scores or is neither bool nor of the dtype of the
    /// operands; if the scores have another shape or dtype, if the probability of the dropout is not in
    /// `[0, 1)`, or if the generator is on another device.
    pub fn scaled_dot_product_attention_with(
        &self,
        key: &Tensor,
        value: &Tensor,
        options: &SdpaOptions<'_>,
    ) -> Result<(Tensor, Option<Tensor>)> {
        const OP: &str = Attention::NAME;
        self.require_float(OP)?;
        let dtype = precision().result(self.dtype());
        for other in [key, value] {
            if precision().result(other.dtype()) != dtype {
                check_dtypes(OP, self, other)?;
            }
        }
        if [self, key, value].iter().any(|t| t.dtype() != dtype) {
            let (q, k, v) = (self.to_dtype(dtype)?, key.to_dtype(dtype)?, value.to_dtype(dtype)?);
            return q.scaled_dot_product_attention_with(&k, &v, options);
        }
        if key.shape() != value.shape() {
            return Err(Error::shapes(
                OP,
                key.shape(),
                value.shape(),
                "keys and values must have the same shape",
            ));
        }
        let r = self.rank();
        let fits = (r == 3 || r == 4)
            && key.rank() == r
            && (0..r).all(|i| i == r - 2 || self.dims()[i] == key.dims()[i]);
        if !fits {
            let hint = "queries must be [batch, heads, n, dim], keys and values [batch, heads, m, dim] (heads may be absent)";
            return Err(Error::shapes(OP, self.shape(), key.shape(), hint));
        }
        if key.dims()[r - 2] == 0 && self.numel() > 0 {
            return Err(Error::invalid(OP, "there are no keys to attend to; pass at least one"));
        }
        let tokens_first = |t: &Tensor| if r == 4 { t.transpose(1, 2) } else { t.unsqueeze(2) };
        let (q, k, v) = (tokens_first(self)?, tokens_first(key)?, tokens_first(value)?);
        let shape = [q.dims()[0], q.dims()[2], q.dims()[1], k.dims()[1]];
        let scores =
            options.scores.filter(|t| r == 3 && t.rank() == 3).map(|t| t.unsqueeze(1)).transpose()?;
        let mask = options.mask.filter(|t| r == 3 && t.rank() == 3).map(|t| t.unsqueeze(1)).transpose()?;
        let options = SdpaOptions {
            scores: scores.as_ref().or(options.scores),
            mask: mask.as_ref().or(options.mask),
            ..*options
        };
        let op = Attention::new(&options, self.dims()[r - 1], false);
        let (out, scores) = op.run(OP, &[&q, &k, &v], shape, &options)?;
        if r == 4 {
            return Ok((out.transpose(1, 2)?, scores));
        }
        Ok((out.squeeze(2)?, scores.map(|t| t.squeeze(1)).transpose()?))
    }

    /// [`Tensor::scaled_dot_product_attention_qkvpacked`] with the options of
    /// [`Tensor::scaled_dot_product_attention_with`].
    ///
    /// # Errors
    /// As for the two.
    pub fn scaled_dot_product_attention_qkvpacked_with(
        &self,
        options: &SdpaOptions<'_>,
    ) -> Result<(Tensor, Option<Tensor>)> {
        const OP: &str = "scaled_dot_product_attention_qkvpacked";
        self.require_float(OP)?;
        let &[batch, tokens, 3, heads, dim] = self.dims() else {
            let message = format!("the shape is {}; it must be [batch, tokens, 3, heads, dim]", self.shape());
            return Err(Error::invalid(OP, message));
        };
        let dtype = precision().result(self.dtype());
        if self.dtype() != dtype {
            return self.to_dtype(dtype)?.scaled_dot_product_attention_qkvpacked_with(options);
        }
        Attention::new(options, dim, true).run(OP, &[self], [batch, heads, tokens, tokens], options)
    }
}
