//! A task whose gradients are known.

use refrain::{DType, Device, Generator, Tensor};
use refrain_forecast::Result;
use refrain_forecast::training::Task;
use refrain_nn::{BatchNorm, Init, Mode, Parameter, ParameterBuilder, Parameters};
use serde::{Deserialize, Serialize};

/// A parameter that each sample moves up or down: the loss is its sum times the mean of the samples' numbers. With a norm, these
/// are normalised before.
pub struct Pull {
    parameters: Parameters,
    weight: Parameter,
    numbers: Tensor,
    dropout: f64,
    norm: Option<BatchNorm>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Nothing {}

impl Pull {
    /// A parameter of `size` elements, all 0.5 at first.
    pub fn new(device: &Device, size: usize, numbers: &[f32], dropout: f64) -> Pull {
        Pull::with(device, size, numbers, |_| None, dropout)
    }

    /// The same with a norm of one channel, without dropout.
    pub fn with_norm(device: &Device, size: usize, numbers: &[f32]) -> Pull {
        let norm = |builder: &ParameterBuilder| BatchNorm::new(&builder.scope("norm"), 1, 1, 1e-5, 0.1).ok();
        Pull::with(device, size, numbers, norm, 0.0)
    }

    fn with(
        device: &Device,
        size: usize,
        numbers: &[f32],
        norm: impl FnOnce(&ParameterBuilder) -> Option<BatchNorm>,
        dropout: f64,
    ) -> Pull {
        let builder = ParameterBuilder::new(device, DType::F32);
        let weight = builder.parameter("weight", size, Init::Constant(0.5)).unwrap();
        let norm = norm(&builder);
        let parameters = builder.build(&Generator::new(device, 1).unwrap()).unwrap();
        let numbers = Tensor::from_slice(numbers, [numbers.len()], device).unwrap();
        Pull { parameters, weight, numbers, dropout, norm }
    }

    /// The elements of the parameter.
    pub fn values(&self) -> Vec<f32> {
        self.weight.tensor().unwrap().detach().to_vec().unwrap()
    }
}

impl Task for Pull {
    type Validation = Nothing;

    fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    fn parameters_mut(&mut self) -> &mut Parameters {
        &mut self.parameters
    }

    fn device(&self) -> &Device {
        self.numbers.device()
    }

    fn samples(&self) -> Vec<i64> {
        (0..self.numbers.numel() as i64).collect()
    }

    fn data(&self) -> Vec<&Tensor> {
        vec![&self.numbers]
    }

    fn loss(&self, samples: &Tensor, mode: Mode<'_>) -> Result<Tensor> {
        let weight = self.weight.tensor()?;
        let weight = match mode {
            // The weights are no part of the batch.
            Mode::Train(generator) if self.dropout > 0.0 => {
                weight.dropout(self.dropout, &generator.whole())?
            }
            _ => weight.clone(),
        };
        let mut numbers = self.numbers.index_select(0, samples)?;
        if let Some(norm) = &self.norm {
            numbers = norm.forward(&numbers.unsqueeze(1)?, mode)?;
        }
        Ok(weight.sum(())?.mul(&numbers.mean(())?)?)
    }

    fn validation(&self, _: &[f64]) -> Nothing {
        Nothing {}
    }

    fn error(_: &Nothing) -> f64 {
        0.0
    }
}
