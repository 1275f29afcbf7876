//! Metrics of classifiers against counts by hand.

mod common;

use common::{device, turn};
use refrain::{DType, Generator, Step, Tensor};
use refrain_nn::{Confusion, ConfusionMatrix};

fn ids(seed: u64, classes: i64, count: usize) -> Tensor {
    Generator::new(&device(), seed).unwrap().randint(0, classes, count).unwrap()
}

#[test]
fn metrics_of_any_number_of_classes_are_their_definitions() {
    let _turn = turn();
    for classes in [1usize, 2, 3, 17] {
        let matrix = ConfusionMatrix::new(classes, &device()).unwrap();
        let (mut truth, mut predicted) = (Vec::new(), Vec::new());
        // The last class never occurs, and i32 ids count as well.
        for batch in 0..3 {
            let t = ids(batch, (classes as i64 - 1).max(1), 40);
            let p = ids(batch + 10, classes as i64, 40);
            // Half of the predictions are right.
            let p = (Tensor::arange(0.0, 40.0, 1.0, DType::I64, &device()).unwrap().lt_scalar(20.0).unwrap())
                .where_cond(&t, &p)
                .unwrap();
            truth.extend(t.to_vec::<i64>().unwrap());
            predicted.extend(p.to_vec::<i64>().unwrap());
            let dtype = if batch == 1 { DType::I32 } else { DType::I64 };
            let [t, p] = [t, p].map(|x| x.to_dtype(dtype).unwrap().reshape([4, 10]).unwrap());
            matrix.update(&t, &p).unwrap();
        }
        let found = matrix.read().unwrap();
        let pairs: Vec<(usize, usize)> =
            truth.iter().zip(&predicted).map(|(&t, &p)| (t as usize, p as usize)).collect();
        let count = |f: &dyn Fn(usize, usize) -> bool| pairs.iter().filter(|&&(t, p)| f(t, p)).count() as f64;
        let share = |part: f64, whole: f64| (whole > 0.0).then(|| part / whole);
        let mean = |x: Vec<f64>| x.iter().sum::<f64>() / x.len() as f64;
        assert_eq!(found.total(), 120);
        assert_eq!(found.accuracy(), count(&|t, p| t == p) / 120.0);
        let (mut recalls, mut scores) = (Vec::new(), Vec::new());
        for class in 0..classes {
            let right = count(&|t, p| t == class && p == class);
            let (occurs, told) = (count(&|t, _| t == class), count(&|_, p| p == class));
            assert_eq!((found.support(class) as f64, found.predicted(class) as f64), (occurs, told));
            assert_eq!(found.recall(class), share(right, occurs));
            assert_eq!(found.precision(class), share(right, told));
            let f1 = share(2.0 * right, 2.0 * right + (occurs - right) + (told - right));
            assert_eq!(found.f1(class), f1);
            recalls.extend(found.recall(class));
            scores.extend(f1);
            for other in 0..classes {
                assert_eq!(found.counts()[class][other] as f64, count(&|t, p| t == class && p == other));
            }
        }
        assert!((found.balanced_accuracy() - mean(recalls)).abs() < 1e-15);
        assert!((found.macro_f1() - mean(scores)).abs() < 1e-15);
        // The correlation of the indicators of all classes.
        let cov = |a: &dyn Fn((usize, usize)) -> usize, b: &dyn Fn((usize, usize)) -> usize| -> f64 {
            (0..classes)
                .map(|class| {
                    let one = |x: usize| f64::from(u8::from(x == class));
                    let (ma, mb) = (
                        mean(pairs.iter().map(|&x| one(a(x))).collect()),
                        mean(pairs.iter().map(|&x| one(b(x))).collect()),
                    );
                    pairs.iter().map(|&x| (one(a(x)) - ma) * (one(b(x)) - mb)).sum::<f64>()
                })
                .sum()
        };
        let expected = cov(&|x| x.0, &|x| x.1) / (cov(&|x| x.0, &|x| x.0) * cov(&|x| x.1, &|x| x.1)).sqrt();
        let expected = if expected.is_nan() { 0.0 } else { expected };
        assert!((found.matthews() - expected).abs() < 1e-12, "{} not {expected}", found.matthews());
        matrix.clear().unwrap();
        assert_eq!(matrix.read().unwrap().total(), 0);
        assert!(matrix.read().unwrap().accuracy().is_nan());
    }
}

#[test]
fn a_recorded_step_counts_as_eager_code_does() {
    let _turn = turn();
    let [eager, recorded] = [(); 2].map(|()| ConfusionMatrix::new(5, &device()).unwrap());
    let mut step = Step::new(&device(), |x: &[Tensor]| {
        recorded.update(&x[0], &x[1])?;
        Ok(vec![])
    });
    for seed in 0..5 {
        let pair = [ids(seed, 5, 33), ids(seed + 50, 5, 33)];
        step.call(&pair).unwrap();
        eager.update(&pair[0], &pair[1]).unwrap();
    }
    step.finish().unwrap();
    assert_eq!(eager.read().unwrap(), recorded.read().unwrap());
    assert_eq!(eager.read().unwrap().total(), 5 * 33);
}

#[test]
fn wrong_arguments_are_errors() {
    let _turn = turn();
    assert!(ConfusionMatrix::new(0, &device()).is_err());
    let matrix = ConfusionMatrix::new(3, &device()).unwrap();
    let error = matrix.update(&ids(1, 3, 4), &ids(1, 3, 5)).unwrap_err().to_string();
    assert!(error.contains("[4]") && error.contains("[5]"), "{error}");
    // A class that is too large is an error, and is not counted as another one.
    let wrong = Tensor::from_slice(&[0i64, 3], 2, &device()).unwrap();
    let right = Tensor::from_slice(&[0i64, 1], 2, &device()).unwrap();
    for (truth, predicted) in [(&wrong, &right), (&right, &wrong)] {
        let update = matrix.update(truth, predicted);
        assert!(update.is_err() || device().synchronize().is_err());
    }
    assert!(Confusion::of_counts(vec![vec![1, 2]]).is_err());
    assert!(Confusion::of_counts(Vec::new()).is_err());
    let counts = [[1, 2], [3, 4]];
    assert_eq!(Confusion::of_counts(counts.map(Vec::from).to_vec()).unwrap(), Confusion::from(counts));
}
