//! Evaluations and forecasts that several ranks share: each computes a part, and all get the bits of one process.

use refrain::{Communicator, DType, Device, Precision, Profile, Simulator};
use refrain_forecast::data::dialect::Dialect;
use refrain_forecast::data::panel::{Change, Fold, LabelRule, Panel, PanelOptions};
use refrain_forecast::data::series::{MaxGap, Part, ReadOptions, Scaler, Series, TimeAxis, TimeStep};
use refrain_forecast::data::windows::Windows;
use refrain_forecast::models::cross_asset::CrossAssetConfig;
use refrain_forecast::models::patchtst::PatchTstConfig;
use refrain_forecast::models::{Forecaster, ModelConfig};
use refrain_forecast::tasks::classification::{ClassWeights, Classification};
use refrain_forecast::tasks::forecasting::conformal::{Calibration, Intervals};
use refrain_forecast::tasks::forecasting::{Levels, RecordedForecaster, evaluation};

const CONTEXT: usize = 12;
const HORIZON: usize = 3;

/// Runs `f` on each rank, in a thread of its own, and returns what it returns, by rank.
fn on_ranks<R: Send>(devices: &[Device], f: impl Fn(Communicator) -> R + Sync) -> Vec<R> {
    std::thread::scope(|scope| {
        let ranks = Communicator::in_process(devices).unwrap();
        let threads: Vec<_> = ranks.into_iter().map(|rank| scope.spawn(|| f(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Work of four batches: two ranks have two of them each, one of three ranks has two, and one of five has none.
fn groups() -> Vec<Vec<Device>> {
    let simulated = |rank| Simulator::new(Profile::Discrete).seed(rank).device();
    vec![vec![Device::cpu(); 2], vec![Device::cpu(); 5], (0..3).map(simulated).collect()]
}

/// What one process finds is what each rank finds, as numbers that are printed exactly: NaN is not equal to itself.
fn same_on_ranks<R: std::fmt::Debug>(find: impl Fn(&Device, Option<&Communicator>) -> R + Sync) {
    for devices in groups() {
        let alone = format!("{:?}", find(&devices[0], None));
        for found in on_ranks(&devices, |rank| format!("{:?}", find(rank.device(), Some(&rank)))) {
            assert!(found == alone, "{} ranks on {}: {found} and {alone}", devices.len(), devices[0]);
        }
    }
}

fn noise(i: usize) -> f64 {
    ((i * 7919 + i * i * 31) % 1009) as f64 / 1009.0 - 0.5
}

fn time() -> TimeAxis {
    TimeAxis::new(jiff::civil::date(2020, 1, 1).at(0, 0, 0, 0), TimeStep::seconds(3600), false)
}

/// A wave with noise, some of whose values are missing, in `channels` columns.
fn series(rows: usize, channels: usize) -> Series {
    let axis = time();
    let names: String = (0..channels).map(|channel| format!(",c{channel}")).collect();
    let row = |row: usize| {
        let cell = |channel: usize| match (row + channel) % 17 {
            3 => ",".to_owned(),
            _ => format!(",{}", (row as f64 * 0.3).sin() + noise(row * channels + channel)),
        };
        format!("{}{}\n", axis.format(row), (0..channels).map(cell).collect::<String>())
    };
    let text = format!("time{names}\n{}", (0..rows).map(row).collect::<String>());
    Series::from_csv(text.as_bytes(), "a.csv", &ReadOptions::default()).unwrap().0
}

fn levels() -> Levels {
    "80".parse().unwrap()
}

fn model(channels: usize, device: &Device) -> Box<dyn Forecaster> {
    let config = PatchTstConfig { channels, ..PatchTstConfig::small(CONTEXT, 4, 4, 8, 2, 1, 16, HORIZON) };
    ModelConfig::from(config).widened(levels().values()).build(DType::F32, device, 3).unwrap()
}

/// 1,786 windows of two channels, 512 in a batch.
fn of_windows<R>(device: &Device, find: impl FnOnce(&dyn Forecaster, &Scaler, &Windows, &Part) -> R) -> R {
    let series = series(1800, 2);
    let scaler = Scaler::fit(&series, 0..600).unwrap();
    let windows = Windows::new(&series.grid().standardised(&scaler), CONTEXT, HORIZON, device).unwrap();
    find(&*model(2, device), &scaler, &windows, &Part::all(0..1800, CONTEXT + HORIZON))
}

#[test]
fn errors_are_the_same_bits_on_all_ranks() {
    same_on_ranks(|device, ranks| {
        of_windows(device, |model, scaler, windows, part| {
            let (intervals, units) = (Intervals::learned(levels()), scaler.clone().into());
            let eager = evaluation::evaluate(model, &intervals, &units, windows, part, ranks).unwrap();
            let forecaster =
                RecordedForecaster::new(self::model(2, device), HORIZON, intervals, Precision::F32, 1)
                    .unwrap();
            let recorded = forecaster.evaluate(&units, windows, part, ranks).unwrap();
            assert_eq!(format!("{recorded:?}"), format!("{eager:?}"));
            eager
        })
    });
}

#[test]
fn calibrations_are_the_same_bits_on_all_ranks() {
    same_on_ranks(|device, ranks| {
        of_windows(device, |model, _, windows, part| {
            Calibration::fit(model, &Intervals::default(), &levels(), windows, part, ranks).unwrap()
        })
    });
}

#[test]
fn forecasts_of_many_series_are_the_same_bits_on_all_ranks() {
    let series = series(400, 1);
    // 1,024 in a batch.
    let origins: Vec<(&Series, usize)> = (0..3500).map(|n| (&series, 1 + n % 400)).collect();
    same_on_ranks(|device, ranks| {
        let (model, scaler) = (model(1, device), Scaler::unit(origins.len()));
        let intervals = Intervals::learned(levels());
        let forecaster = RecordedForecaster::new(model, HORIZON, intervals, Precision::F32, 1).unwrap();
        forecaster.forecast_independent(&origins, &scaler, ranks).unwrap()
    });
}

#[test]
fn classifications_are_the_same_bits_on_all_ranks() {
    let axis = time();
    let row = |row: usize| {
        let of = |source: usize| {
            let label = ["up", "down", "flat", ""][(row * 7 + source * 3 + row / 5) % 4];
            format!("{},S{source},{},{label}\n", axis.format(row), noise(row + 400 * source))
        };
        of(0) + &of(1)
    };
    let text = format!("time,source,f,label\n{}", (0..3500).map(row).collect::<String>());
    let rule = LabelRule { horizon: 1, threshold: 0.0, change: Change::Difference };
    let options = PanelOptions {
        price: "price".to_owned(),
        rule,
        max_gap: MaxGap::Season,
        dialect: Dialect::default(),
    };
    let panel = Panel::from_csv(text.as_bytes(), "a.csv", &options).unwrap().0;
    let fold = Fold { train: 0..100, validation: 102..120, test: 122..3500 };
    let small = CrossAssetConfig { sources: 2, features: 1, d_model: 8, heads: 2, ..Default::default() };
    let small = CrossAssetConfig { layers: 1, ffn: 16, ..small };
    same_on_ranks(|device, ranks| {
        let task =
            Classification::new(small.clone(), &panel, &fold, ClassWeights::Balanced, device, 5).unwrap();
        task.test(ranks).unwrap()
    });
}

#[test]
fn each_rank_computes_a_part() {
    let launches = |device: &Device, ranks: Option<&Communicator>| {
        of_windows(device, |model, scaler, windows, part| {
            let (intervals, units) = (Intervals::learned(levels()), scaler.clone().into());
            let before = device.stats().launches;
            evaluation::evaluate(model, &intervals, &units, windows, part, ranks).unwrap();
            device.stats().launches - before
        })
    };
    let simulated = |seed| Simulator::new(Profile::Discrete).seed(seed).device();
    let alone = launches(&simulated(0), None);
    for shared in on_ranks(&[simulated(1), simulated(2)], |rank| launches(rank.device(), Some(&rank))) {
        assert!(shared * 4 < alone * 3, "{shared} launches beside {alone}");
    }
}
