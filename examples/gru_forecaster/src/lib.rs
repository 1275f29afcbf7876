//! A gated recurrent unit that forecasts the next values of a noisy wave, trained in a recorded step.

use refrain::optim::{AdamWOptions, Schedule};
use refrain::{DType, Device, Generator, Step, Tensor, no_grad};
use refrain_nn::{AdamW, Gru, Layers, Linear, Optimizer, ParameterBuilder, Parameters, Result};

/// Values that a forecast is made from.
pub const CONTEXT: usize = 20;

/// Values of a forecast.
pub const HORIZON: usize = 4;

/// The values of a wave of two periods, whose errors are small and always the same: `[count, 1]`.
fn wave(count: usize, device: &Device) -> Result<Tensor> {
    let value = |t: usize| {
        let (t, error) = (t as f64, (t as f64 * 0.618_034).fract() - 0.5);
        ((t * 0.55).sin() + 0.5 * (t * 0.21).cos() + 0.1 * error) as f32
    };
    let values: Vec<f32> = (0..count).map(value).collect();
    Ok(Tensor::from_slice(&values, [count, 1], device)?)
}

/// A GRU that reads the context, and a linear layer from its last hidden state to the forecast.
#[derive(Layers)]
pub struct Forecaster {
    gru: Gru,
    head: Linear,
}

impl Forecaster {
    /// The layers, of which the builder gets the parameters.
    ///
    /// # Errors
    /// If the names are used already in this scope.
    pub fn new(builder: &ParameterBuilder, hidden: usize) -> Result<Forecaster> {
        Ok(Forecaster {
            gru: Gru::new(&builder.scope("gru"), 1, hidden, 1)?,
            head: Linear::new(&builder.scope("head"), hidden, HORIZON)?,
        })
    }

    /// `[B, time]` to the next values, `[B, HORIZON]`.
    ///
    /// # Errors
    /// If the shape is another one, or the device fails.
    pub fn forward(&self, context: &Tensor) -> Result<Tensor> {
        let (_, last) = self.gru.forward(&context.unsqueeze(-1)?, None)?;
        self.head.forward(&last[0])
    }
}

/// A [`Forecaster`] in training.
pub struct Training {
    /// The forecaster.
    pub forecaster: Forecaster,
    /// Its parameters.
    pub parameters: Parameters,
    optimizer: AdamW,
    generator: Generator,
    wave: Tensor, // [count, 1]
    batch: usize,
}

impl Training {
    /// Begins. The last fifth of the wave is kept for the test.
    ///
    /// # Errors
    /// If the device has not enough memory.
    pub fn new(hidden: usize, batch: usize, device: &Device) -> Result<Training> {
        let builder = ParameterBuilder::new(device, DType::F32);
        let forecaster = Forecaster::new(&builder, hidden)?;
        let parameters = builder.build(&Generator::new(device, 1)?)?;
        let optimizer = AdamW::new(&parameters, AdamWOptions::default(), Schedule::Constant { lr: 1e-2 })?;
        let (generator, wave) = (Generator::new(device, 2)?, wave(1000, device)?);
        Ok(Training { forecaster, parameters, optimizer, generator, wave, batch })
    }

    /// Where the test begins.
    fn split(&self) -> usize {
        self.wave.numel() / 5 * 4
    }

    /// The windows that begin at these places, as contexts `[B, CONTEXT]` and what follows, `[B, HORIZON]`.
    fn windows(&self, starts: &Tensor) -> Result<(Tensor, Tensor)> {
        let windows = self.wave.windows(starts, CONTEXT + HORIZON)?.squeeze(1)?;
        Ok((windows.i((.., ..CONTEXT))?, windows.i((.., CONTEXT..))?))
    }

    /// One step. Returns the loss.
    ///
    /// # Errors
    /// If the device fails.
    pub fn step(&self) -> Result<Tensor> {
        let end = (self.split() - CONTEXT - HORIZON) as i64;
        let (context, target) = self.windows(&self.generator.randint(0, end, self.batch)?)?;
        let loss = self.forecaster.forward(&context)?.mse_loss(&target)?;
        loss.backward()?;
        self.optimizer.step()?;
        Ok(loss.detach())
    }

    /// Trains with a recorded step, or with eager code. Returns the losses.
    ///
    /// # Errors
    /// If the device fails.
    pub fn run(&self, steps: usize, recorded: bool) -> Result<Vec<f32>> {
        let mut step = Step::new(self.wave.device(), |_| Ok(vec![self.step()?]));
        let mut losses = Vec::with_capacity(steps);
        for _ in 0..steps {
            losses.push(match recorded {
                true => step.call(&[])?.to_scalar::<f32>(0)?,
                false => self.step()?.to_scalar::<f32>()?,
            });
        }
        step.finish()?;
        Ok(losses)
    }

    /// The mean squared errors on the test: of the forecasts, and of forecasts that repeat the last value.
    ///
    /// # Errors
    /// If the device fails.
    pub fn test(&self) -> Result<(f32, f32)> {
        no_grad(|| {
            let end = self.wave.numel() - CONTEXT - HORIZON;
            let starts =
                Tensor::arange(self.split() as f64, end as f64, 1.0, DType::I64, self.wave.device())?;
            let (context, target) = self.windows(&starts)?;
            let last = context.i((.., CONTEXT - 1..))?.broadcast_to(target.shape())?;
            let error = self.forecaster.forward(&context)?.mse_loss(&target)?;
            Ok((error.to_scalar()?, last.mse_loss(&target)?.to_scalar()?))
        })
    }
}
