//! Files of weights, byte by byte.

use std::path::Path;

use refrain::{DType, Device};
use refrain_forecast::models::{Forecaster, ModelConfig};
use refrain_nn::checkpoint::Checkpoint;
use refrain_nn::{LoadOptions, ModelSize};

use super::{message, run};
use crate::random::Random;

/// A model and a file of its weights.
pub struct Model {
    model: Box<dyn Forecaster>,
    size: ModelSize,
    file: Vec<u8>,
}

impl Model {
    /// That of a run.
    pub fn of(run: &run::Whole) -> Result<Model, String> {
        let config: ModelConfig =
            serde_json::from_value(run.config()["model"].clone()).map_err(|e| e.to_string())?;
        let model = config.build(DType::F32, &Device::cpu(), 1).map_err(|e| e.to_string())?;
        Ok(Model { size: config.size().map_err(|e| e.to_string())?, model, file: run.weights() })
    }

    /// The file with some changes: of bytes, of its length, of a number in its header, of the length of that.
    pub fn random(&self, random: &mut Random) -> Vec<u8> {
        let mut file = self.file.clone();
        let header = 8 + usize::from(u16::from_le_bytes([file[0], file[1]]));
        for _ in 0..1 + random.below(3) {
            let end = file.len().max(1);
            match random.below(8) {
                0 => file.truncate(random.below(end)),
                1 => file.extend(std::iter::repeat_n(0, random.below(64))),
                2 if file.len() > 8 => file[random.below(8)] = random.below(256) as u8,
                3 if file.len() > 8 => {
                    let at = random.below(header.min(file.len()));
                    file[at] = b"0123456789,:[]{}\"\\-eE ~\xff"[random.below(24)];
                }
                4 | 5 if file.len() > header => digits(&mut file, header, random),
                _ if !file.is_empty() => file[random.below(end)] ^= 1 << random.below(8),
                _ => {}
            }
        }
        file
    }

    /// Reads a file of weights into the model.
    pub fn check(&self, bytes: &[u8], place: &Path) -> Result<(), String> {
        let file = place.join("weights.safetensors");
        std::fs::write(&file, bytes).map_err(|e| e.to_string())?;
        let model = &self.model;
        let sum = || model.weights_sha256().map_err(|e| e.to_string());
        let before = sum()?;
        let checkpoint = match Checkpoint::open_file(&file) {
            Ok(checkpoint) => checkpoint,
            Err(error) => return message(&error.to_string()),
        };
        if checkpoint.unverified().is_none() && bytes != self.file {
            let tensors = |bytes| safetensors::SafeTensors::deserialize(bytes).map(|it| run::owned(&it)).ok();
            if tensors(bytes) != tensors(&self.file) {
                return Err("a changed file whose checksum is said to be right".to_owned());
            }
        }
        if let Err(error) = checkpoint.check_size(self.size) {
            message(&error.to_string())?;
        }
        let loaded = checkpoint.load(model.parameters());
        let after = sum()?;
        // By the door for other programs' weights, which takes no file that the first one refuses.
        match model.parameters().load_safetensors(&file, str::to_owned, LoadOptions::default()) {
            Ok(_) if loaded.is_err() => {
                return Err("weights that a checkpoint may not have were loaded".to_owned());
            }
            Ok(_) => {}
            Err(error) => message(&error.to_string())?,
        }
        if sum()? != after {
            return Err("two readers made different weights of a file".to_owned());
        }
        match loaded {
            Ok(()) => {
                let values = model.parameters().values().to_vec::<f32>().map_err(|e| e.to_string())?;
                match values.iter().find(|value| !value.is_finite()) {
                    Some(value) => Err(format!("a weight of {value} was loaded")),
                    None => Ok(()),
                }
            }
            Err(error) => match sum()? == before {
                true => message(&error.to_string()),
                false => Err(format!("weights were changed, and yet: {error}")),
            },
        }
    }
}

/// Another digit, or more of them, somewhere in the header.
fn digits(file: &mut Vec<u8>, header: usize, random: &mut Random) {
    let places: Vec<usize> = (8..header).filter(|&at| file[at].is_ascii_digit()).collect();
    if places.is_empty() {
        return;
    }
    let at = places[random.below(places.len())];
    let new = random.of(&["0", "9", "18446744073709551615", "9223372036854775807", "99999999999"]);
    file.splice(at..=at, new.bytes());
    // The header is as long as it says.
    let length = (header - 8 + new.len() - 1) as u64;
    file[..8].copy_from_slice(&length.to_le_bytes());
}
