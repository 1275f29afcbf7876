//! What a user reads: an error names the operand that is meant and the conversion that helps.

mod common;

use std::process::Command;

use common::devices;
use refrain::{DType, Device, Error, Result, Step, Tensor};

#[track_caller]
fn says<T>(result: Result<T>, parts: &[&str]) {
    let error = result.err().expect("an error");
    let message = error.to_string();
    assert_eq!(format!("{error:?}"), message, "what `unwrap` prints");
    for part in parts {
        assert!(message.contains(part), "`{part}` is missing in: {message}");
    }
}

#[test]
fn a_mixture_of_dtypes_advises_the_conversion_that_keeps_the_values() {
    for device in devices() {
        let of = |dtype| Tensor::zeros([2], dtype, &device).unwrap();
        let (f, h, b, i) = (of(DType::F32), of(DType::F16), of(DType::BF16), of(DType::I64));
        let integer = "to_dtype(DType::F32) on the i64 tensor";
        says(f.add(&i), &["add: dtypes f32 and i64", integer]);
        says(i.add(&f), &["add: dtypes i64 and f32", integer]);
        says(f.add_assign(&i), &["add_assign", integer]);
        says(h.mul(&i), &["to_dtype(DType::F16) on the i64 tensor"]);
        says(b.add(&f), &["to_dtype(DType::F32) on the bf16 tensor"]);
        says(h.add(&b), &["to_dtype(DType::F32) on both"]);
        says(of(DType::I32).maximum(&i), &["to_dtype(DType::I64) on the i32 tensor"]);
        says(of(DType::Bool).eq(&i), &["to_dtype(DType::I64) on the bool tensor"]);
        says(f.exp_into(&h), &["exp", "the destination must have the dtype of the result; pass one of f32"]);
    }
}

#[test]
fn an_index_that_is_no_integer_is_named() {
    for device in devices() {
        let x = Tensor::zeros([2, 3], DType::F32, &device).unwrap();
        let ids = Tensor::zeros([2], DType::F32, &device).unwrap();
        let fix = "must be i64 or i32; convert with to_dtype(DType::I64) first";
        says(x.cross_entropy(&ids), &["cross_entropy", "the class ids (the second operand)", fix]);
        says(x.index_select(0, &ids), &["index_select", "the index (the second operand)", fix]);
        says(x.embedding(&ids), &["embedding", "the index (the second operand)", fix]);
        says(x.gather(0, &x), &["gather", "the index", fix]);
        says(ids.one_hot(3, DType::F32), &["one_hot", "the ids", fix]);
        says(x.where_cond(&x, &x), &["where_cond", "the condition (the tensor before the dot)", "ne_scalar"]);
    }
}

#[test]
fn reading_and_writing_with_another_type_names_the_type_that_fits() {
    for device in devices() {
        let x = Tensor::ones([2], DType::F32, &device).unwrap();
        says(x.to_vec::<f64>(), &["use to_vec::<f32>, or to_dtype(DType::F64) first"]);
        says(x.sum(()).unwrap().to_scalar::<i64>(), &["use to_scalar::<f32>, or to_dtype(DType::I64) first"]);
        says(x.read_into(&mut [0u8; 2]), &["read it into a slice of f32, or to_dtype(DType::U8) first"]);
        says(x.write_from(&[1.0f64, 2.0]), &["write_from", "pass values of f32"]);
    }
}

#[test]
fn an_operation_on_floats_names_the_cast() {
    for device in devices() {
        for dtype in [DType::Bool, DType::I64] {
            let x = Tensor::ones([2], dtype, &device).unwrap();
            says(x.mean(()), &["mean: not supported for", dtype.name(), "to_dtype(DType::F32)"]);
        }
    }
}

#[test]
fn a_step_names_the_method_that_uploads() {
    for device in devices() {
        let refused =
            |make: &dyn Fn() -> Result<Tensor>| Step::new(&device, |_| Ok(vec![make()?])).call(&[]).map(drop);
        let of_slice = refused(&|| Tensor::from_slice(&[1.0f32], [1], &device));
        assert!(matches!(of_slice, Err(Error::NotRecordable { op: "from_slice", .. })), "{of_slice:?}");
        let of_scalar = refused(&|| Tensor::scalar(1.0f32, &device));
        assert!(matches!(of_scalar, Err(Error::NotRecordable { op: "scalar", .. })), "{of_scalar:?}");
    }
}

/// Says to the test below, run as a process of its own, how to use a step.
const USE: &str = "REFRAIN_TEST_STEP_USE";

#[test]
fn a_step_that_is_dropped_unchecked_warns_once() {
    let device = Device::cpu();
    let ones = Tensor::ones([2], DType::F32, &device).unwrap();
    let call =
        |step: &mut Step<'_>, n: usize| (0..n).for_each(|_| step.call(&[ones.clone()]).map(drop).unwrap());
    let new = || Step::new(&device, |x| Ok(vec![x[0].sum(())?]));
    if let Ok(how) = std::env::var(USE) {
        let mut step = new();
        match how.as_str() {
            // The closure is recorded before the first call and the second; nothing checks the third to fifth.
            "dropped" => call(&mut step, 5),
            "finished" => {
                call(&mut step, 5);
                step.finish().unwrap();
                return;
            }
            "checked" => {
                call(&mut step, 5);
                step.check().unwrap();
            }
            "recorded" => call(&mut step, 1),
            "twice" => {
                let mut other = new();
                call(&mut other, 5);
                call(&mut step, 5);
            }
            "panicking" => {
                call(&mut step, 5);
                panic!("the test wants it");
            }
            other => panic!("{other}"),
        }
        return;
    }
    let warnings = |how: &str| {
        let test = "a_step_that_is_dropped_unchecked_warns_once";
        let mut program = Command::new(std::env::current_exe().unwrap());
        let output = program.args(["--exact", test, "--nocapture"]).env(USE, how).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        text.lines().filter(|line| line.contains("a step was dropped")).map(String::from).collect::<Vec<_>>()
    };
    // Strict steps are checked before every call.
    let expected = usize::from(!common::strict());
    for how in ["dropped", "twice"] {
        let lines = warnings(how);
        assert_eq!(lines.len(), expected, "{how}: {lines:?}");
        assert!(
            lines.iter().all(|line| line.contains("dropped 3 calls") && line.contains("finish()")),
            "{lines:?}"
        );
    }
    for how in ["finished", "checked", "recorded", "panicking"] {
        assert_eq!(warnings(how), [""; 0], "{how}");
    }
}
