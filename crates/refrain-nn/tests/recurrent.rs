//! Recurrent layers, rotary positions and convolutions as layers: against PyTorch's values, and their own guarantees.

mod common;

use common::{Case, Reference, assert_close, device, values};
use refrain::{
    Conv1dOptions, Conv2dOptions, ConvTranspose2dOptions, DType, Generator, Pool2dOptions, Step, Tensor,
    no_grad,
};
use refrain_nn::{
    AvgPool2d, Conv1d, Conv2d, ConvTranspose2d, Gru, GruCell, Init, Lstm, LstmCell, LstmState, MaxPool2d,
    Mode, Module, ParameterBuilder, Parameters, Rotary, Sequential,
};

const DTYPES: [(DType, f64); 4] =
    [(DType::F64, 1e-12), (DType::F32, 1e-5), (DType::F16, 1e-2), (DType::BF16, 8e-2)];

fn reference() -> Reference {
    Reference::new(include_bytes!("reference/recurrent.safetensors"))
}

fn generator(seed: u64) -> Generator {
    Generator::new(&device(), seed).unwrap()
}

fn load(case: &Case<'_>, parameters: &Parameters, dtype: DType) {
    let names = case.keys("param/");
    assert_eq!(parameters.names().count(), names.len());
    no_grad(|| {
        for name in &names {
            let value = case.tensor(&format!("param/{name}"), dtype);
            parameters.get(name).unwrap().copy_from(&value).unwrap();
        }
    });
}

/// An operand that gets a gradient.
fn leaf(case: &Case<'_>, key: &str, dtype: DType) -> Tensor {
    let x = case.tensor(key, dtype);
    x.set_requires_grad(true).unwrap();
    x
}

/// The states of the layers, from `[layers, B, hidden]`.
fn layers(t: &Tensor) -> Vec<Tensor> {
    (0..t.dims()[0]).map(|layer| t.select(0, layer).unwrap()).collect()
}

/// The backward pass from the outputs and the last states.
fn backward(case: &Case<'_>, y: &Tensor, last: &[&Tensor]) {
    let cotangent = case.tensor("grad_out0", y.dtype());
    let mut total = y.mul(&cotangent).unwrap().sum(()).unwrap();
    for state in last {
        total = total.add(&state.sum(()).unwrap()).unwrap();
    }
    total.backward().unwrap();
}

fn check_gradients(case: &Case<'_>, x: &Tensor, h: &Tensor, parameters: &Parameters, bound: f64) {
    assert_close(
        &x.grad().unwrap(),
        &case.values("grad_in0"),
        bound,
        &format!("{} gradient of x", case.name),
    );
    assert_close(&h.grad().unwrap(), &case.values("grad_h0"), bound, &format!("{} gradient of h", case.name));
    for name in case.keys("grad/") {
        let gradient = parameters.get(&name).unwrap().grad().unwrap();
        let what = format!("{} gradient of {name}", case.name);
        assert_close(&gradient, &case.values(&format!("grad/{name}")), bound, &what);
    }
}

#[test]
fn a_gru_is_that_of_pytorch() {
    for case in reference().of("gru") {
        for (dtype, bound) in DTYPES {
            let builder = ParameterBuilder::new(&device(), dtype);
            let (inputs, hidden) = (case.count("inputs"), case.count("hidden"));
            let gru = Gru::new(&builder, inputs, hidden, case.count("layers")).unwrap();
            let parameters = builder.build(&generator(1)).unwrap();
            load(&case, &parameters, dtype);
            let (x, h) = (leaf(&case, "in0", dtype), leaf(&case, "h0", dtype));
            let (y, last) = gru.forward(&x, Some(&layers(&h))).unwrap();
            assert_close(&y, &case.values("out0"), bound, &case.name);
            let all = Tensor::stack(&last, 0).unwrap();
            assert_close(&all, &case.values("h1"), bound, &case.name);
            backward(&case, &y, &last.iter().collect::<Vec<_>>());
            check_gradients(&case, &x, &h, &parameters, bound);
        }
    }
}

#[test]
fn an_lstm_is_that_of_pytorch() {
    for case in reference().of("lstm") {
        for (dtype, bound) in DTYPES {
            let builder = ParameterBuilder::new(&device(), dtype);
            let (inputs, hidden) = (case.count("inputs"), case.count("hidden"));
            let lstm = Lstm::new(&builder, inputs, hidden, case.count("layers")).unwrap();
            let parameters = builder.build(&generator(1)).unwrap();
            load(&case, &parameters, dtype);
            let (x, h) = (leaf(&case, "in0", dtype), leaf(&case, "h0", dtype));
            let cells = layers(&case.tensor("c0", dtype));
            let states: Vec<LstmState> =
                layers(&h).into_iter().zip(cells).map(|(h, c)| LstmState { h, c }).collect();
            let (y, last) = lstm.forward(&x, Some(&states)).unwrap();
            assert_close(&y, &case.values("out0"), bound, &case.name);
            let cells = Tensor::stack(&last.iter().map(|s| &s.c).collect::<Vec<_>>(), 0).unwrap();
            assert_close(&cells, &case.values("c1"), bound, &case.name);
            backward(&case, &y, &last.iter().flat_map(|s| [&s.h, &s.c]).collect::<Vec<_>>());
            check_gradients(&case, &x, &h, &parameters, bound);
        }
    }
}

#[test]
fn a_layer_repeats_its_cell_and_begins_with_zeros() {
    let builder = ParameterBuilder::new(&device(), DType::F32);
    let gru = Gru::new(&builder.scope("gru"), 3, 4, 1).unwrap();
    let cell = GruCell::new(&builder.scope("cell"), 3, 4).unwrap();
    let lstm = Lstm::new(&builder.scope("lstm"), 3, 4, 1).unwrap();
    let lstm_cell = LstmCell::new(&builder.scope("lstm_cell"), 3, 4).unwrap();
    let parameters = builder.build(&generator(2)).unwrap();
    no_grad(|| {
        for (layer, cell) in [("gru", "cell"), ("lstm", "lstm_cell")] {
            for name in ["weight_ih", "weight_hh", "bias_ih", "bias_hh"] {
                let from = parameters.get(&format!("{layer}.{name}_l0")).unwrap();
                parameters.get(&format!("{cell}.{name}")).unwrap().copy_from(from).unwrap();
            }
        }
    });
    let x = generator(3).normal([2, 5, 3], DType::F32).unwrap();
    let mut h = Tensor::zeros([2, 4], DType::F32, &device()).unwrap();
    let mut state = LstmState { h: h.clone(), c: h.clone() };
    for t in 0..5 {
        h = cell.forward(&x.select(1, t).unwrap(), &h).unwrap();
        state = lstm_cell.forward(&x.select(1, t).unwrap(), &state).unwrap();
    }
    let last = &gru.forward(&x, None).unwrap().1[0];
    assert_close(last, &values(&h), 1e-6, "gru");
    let last = &lstm.forward(&x, None).unwrap().1[0];
    assert_close(&last.c, &values(&state.c), 1e-6, "lstm");
    let flat = x.select(0, 0).unwrap();
    assert!(gru.forward(&flat, None).unwrap_err().to_string().contains("[batch, time, features]"));
    assert!(gru.forward(&x, Some(&[])).unwrap_err().to_string().contains("a state each"));
    for failure in [cell.forward(&x, &h).err(), lstm_cell.forward(&x, &state).err()] {
        assert!(failure.unwrap().to_string().contains("[batch, features]"));
    }
    assert!(Gru::new(&builder.scope("none"), 3, 4, 0).err().unwrap().to_string().contains("0 layers"));
}

#[test]
fn gradients_of_the_last_state_flow_into_the_first_one() {
    let builder = ParameterBuilder::new(&device(), DType::F32);
    let lstm = Lstm::new(&builder, 3, 4, 2).unwrap();
    builder.build(&generator(2)).unwrap();
    let x = generator(3).normal([2, 5, 3], DType::F32).unwrap();
    let leaf = |seed| {
        let t = generator(seed).normal([2, 4], DType::F32).unwrap();
        t.set_requires_grad(true).unwrap();
        t
    };
    let first = [4, 6].map(|seed| LstmState { h: leaf(seed), c: leaf(seed + 1) });
    // Of the second layer only the cell state counts. On the way, the states are handed on.
    let (_, middle) = lstm.forward(&x.narrow(1, 0, 2).unwrap(), Some(&first)).unwrap();
    let (_, last) = lstm.forward(&x.narrow(1, 2, 3).unwrap(), Some(&middle)).unwrap();
    last[1].c.sum(()).unwrap().backward().unwrap();
    let in_two = first.each_ref().map(|s| [&s.h, &s.c].map(|t| values(&t.grad().unwrap())));
    first.iter().for_each(|s| [&s.h, &s.c].into_iter().for_each(|t| t.zero_grad().unwrap()));
    let (_, last) = lstm.forward(&x, Some(&first)).unwrap();
    last[1].c.sum(()).unwrap().backward().unwrap();
    for (state, in_two) in first.iter().zip(&in_two) {
        for (t, in_two) in [&state.h, &state.c].into_iter().zip(in_two) {
            assert!(in_two.iter().any(|g| g.abs() > 1e-4));
            assert_close(&t.grad().unwrap(), in_two, 1e-5, "lstm");
        }
    }
}

#[test]
fn a_recorded_recurrent_layer_has_the_bits_of_the_eager_one() {
    let builder = ParameterBuilder::new(&device(), DType::F32);
    let gru = Gru::new(&builder.scope("gru"), 3, 4, 2).unwrap();
    let lstm = Lstm::new(&builder.scope("lstm"), 4, 4, 1).unwrap();
    builder.build(&generator(2)).unwrap();
    let forward = |x: &Tensor| {
        let y = gru.forward(x, None)?.0;
        Ok::<_, refrain_nn::Error>(lstm.forward(&y, None)?.0.detach())
    };
    let mut step = Step::new(&device(), |x: &[Tensor]| Ok(vec![forward(&x[0])?]));
    for seed in 0..3 {
        let x = generator(seed).normal([2, 5, 3], DType::F32).unwrap();
        let recorded = step.call(&[x.clone()]).unwrap().to_vec::<f32>(0).unwrap();
        assert_eq!(recorded, forward(&x).unwrap().to_vec::<f32>().unwrap());
    }
    step.finish().unwrap();
}

#[test]
fn rotary_positions_turn_pairs_by_their_angle() {
    for case in reference().of("rotary") {
        for (dtype, bound) in DTYPES {
            let (width, start) = (case.count("width"), case.count("start"));
            let rotary = Rotary::new(width, 10, case.number("base"), dtype, &device()).unwrap();
            let y = rotary.forward(&case.tensor("in0", dtype), start).unwrap();
            assert_close(&y, &case.values("out0"), bound, &case.name);
        }
    }
    assert!(Rotary::new(5, 4, 10.0, DType::F32, &device()).err().unwrap().to_string().contains("even"));
    let rotary = Rotary::new(4, 3, 10.0, DType::F32, &device()).unwrap();
    let x = Tensor::ones([2, 3, 4], DType::F32, &device()).unwrap();
    assert!(rotary.forward(&x, 1).unwrap_err().to_string().contains("3 positions"));
    assert!(
        rotary.forward(&x.narrow(2, 0, 2).unwrap(), 0).unwrap_err().to_string().contains("[.., time, 4]")
    );
}

#[test]
fn convolutions_as_layers_have_the_parameters_of_pytorch() {
    let builder = ParameterBuilder::new(&device(), DType::F32);
    let grouped = Conv2dOptions { groups: 2, padding: [1, 1], ..Conv2dOptions::default() };
    let wide = ConvTranspose2dOptions { stride: [2, 2], ..ConvTranspose2dOptions::default() };
    let model = Sequential::new()
        .then(Conv2d::new(&builder.scope(0), 4, 6, [3, 3], grouped).unwrap())
        .then(MaxPool2d(Pool2dOptions::new([2, 2])))
        .then(ConvTranspose2d::new(&builder.scope(2), 6, 5, [2, 2], wide).unwrap())
        .then(AvgPool2d(Pool2dOptions::new([4, 4])));
    let series = Conv1d::new(&builder.scope("series"), 4, 2, 3, Conv1dOptions::default()).unwrap();
    let (weight, options) = (Init::Constant(2.0), Conv1dOptions::default());
    let plain = Conv1d::with_init(&builder.scope("plain"), 1, 1, 3, options, weight, None).unwrap();
    let parameters = builder.build(&generator(1)).unwrap();
    let shape = |name: &str| parameters.get(name).unwrap().dims().to_vec();
    assert!(plain.bias().is_none() && parameters.get("plain.bias").is_err());
    let ones = Tensor::ones([1, 1, 4], DType::F32, &device()).unwrap();
    assert_eq!(values(&plain.forward(&ones).unwrap()), [6.0, 6.0]);
    assert_eq!([shape("0.weight"), shape("2.weight")], [[6, 2, 3, 3], [6, 5, 2, 2]]);
    assert_eq!([shape("0.bias"), shape("2.bias")], [[6], [5]]);
    let within = |name: &str, bound: f64| {
        let numbers = values(parameters.get(name).unwrap());
        assert!(
            numbers.iter().all(|v| v.abs() <= bound) && numbers.iter().any(|v| v.abs() > 0.5 * bound),
            "{name}"
        );
    };
    within("0.weight", (1.0 / 18.0f64).sqrt());
    within("0.bias", (1.0 / 18.0f64).sqrt());
    within("2.weight", (1.0 / 20.0f64).sqrt());
    let x = generator(2).normal([3, 4, 8, 8], DType::F32).unwrap();
    assert_eq!(model.forward(&x, Mode::Eval).unwrap().dims(), [3, 5, 2, 2]);
    assert_eq!(series.forward(&x.select(2, 0).unwrap()).unwrap().dims(), [3, 2, 6]);
    assert!(
        Conv2d::new(&builder.scope("odd"), 3, 4, [1, 1], grouped)
            .err()
            .unwrap()
            .to_string()
            .contains("2 groups")
    );
}
