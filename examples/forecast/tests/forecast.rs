//! The model learns, its intervals cover what they promise, the predictor of its folder forecasts series that it has not seen,
//! and all of it has the same bits on the CPU and on simulated GPUs.

use std::path::{Path, PathBuf};

use forecast::{CONTEXT, HORIZON, WEEK, example_file, fine_tune, read, sold, train};
use refrain_forecast::data::series::{Layout, ReadOptions, SeriesSet};
use refrain_forecast::tasks::forecasting::Predictor;
use refrain_test::devices_of_equal_bits as devices;

#[test]
fn a_trained_folder_forecasts_a_new_shop() {
    let set = read(example_file().as_bytes(), "example").unwrap();
    assert!(set.is_independent() && set.series().len() == 60);
    let mut all = Vec::new();
    for device in devices() {
        let folder = tempfile::tempdir().unwrap();
        let errors = train(&set, &device, folder.path()).unwrap();
        // The week before has noise of its own; the model must do better than that.
        assert!(errors.model.mse < 0.8 * errors.naive.mse, "{errors:?} on {device}");
        let coverage = errors.model.intervals[0].coverage;
        assert!((65.0..95.0).contains(&coverage), "{coverage} on {device}");

        let predictor = Predictor::load(folder.path(), &device, 2).unwrap();
        let known: Vec<f64> = (0..CONTEXT + 2 * WEEK).map(|day| sold(107, day)).collect();
        let next = predictor.forecast_series(&known).unwrap();
        let size = sold(107, 0) / sold(0, 0);
        for (step, value) in next.values.iter().enumerate() {
            let truth = sold(107, known.len() + step);
            assert!(
                (value - truth).abs() < 1.2 * size,
                "{value} for {truth}, {step} days after, on {device}"
            );
            let (low, high) = (next.intervals[0].low[step], next.intervals[0].high[step]);
            assert!(low < *value && *value < high && high - low < 2.0 * size, "{low} to {high} on {device}");
        }
        // From several threads at once it is the same.
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| assert_eq!(predictor.forecast_series(&known).unwrap(), next));
            }
        });
        assert_eq!(next.values.len(), HORIZON);
        all.push((errors.model.mse.to_bits(), next));
    }
    assert!(all.iter().all(|other| *other == all[0]), "devices differ");
}

/// The checkpoint that the tests of the command have, too.
fn checkpoint() -> PathBuf {
    let folder = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    Path::new(&folder).join("../../crates/refrain-cli/tests/hugging_face/checkpoint")
}

#[test]
fn a_checkpoint_of_hugging_face_learns_another_series() {
    let wave = |hour: usize, every: f64| (hour as f64 * std::f64::consts::TAU / every).sin();
    let row = |hour: usize| {
        format!("2024-01-{:02} {:02}:00,{},{}\n", 1 + hour / 24, hour % 24, wave(hour, 24.0), wave(hour, 8.0))
    };
    let text = "time,a,b\n".to_owned() + &(0..480).map(row).collect::<String>();
    let options = ReadOptions::default();
    let (set, _) = SeriesSet::from_csv(text.as_bytes(), "waves", &options, Layout::Auto).unwrap();
    let mut all = Vec::new();
    for device in devices() {
        let errors = fine_tune(&checkpoint(), &set, 8, &device).unwrap();
        assert!(errors[8] < 0.3 * errors[0], "{errors:?} on {device}");
        all.push(errors.into_iter().map(f64::to_bits).collect::<Vec<_>>());
    }
    assert!(all.iter().all(|other| *other == all[0]), "devices differ");
}
