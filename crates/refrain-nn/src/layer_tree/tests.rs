use std::marker::PhantomData;

use refrain::{DType, Device, Generator, Tensor};

use super::{LayerTree, Layers};
use crate::{Dropout, Init, Linear, Parameter, ParameterBuilder, part_of};

fn builder() -> ParameterBuilder {
    ParameterBuilder::new(&Device::cpu(), DType::F32)
}

fn parameter(builder: &ParameterBuilder, name: &str, size: usize) -> Parameter {
    builder.parameter(name, size, Init::Constant(0.0)).unwrap()
}

#[test]
fn fields_without_layers_are_not_shown() {
    let tensor = Tensor::zeros(3, DType::F32, &Device::cpu()).unwrap();
    let tree = LayerTree::new("Model")
        .part("number", &3usize)
        .part("numbers", &vec![1.0, 2.0])
        .part("text", "text")
        .part("tensor", &tensor)
        .part("dtype", &PhantomData::<u8>)
        .part("absent", &None::<Dropout>)
        .part("pair", &(1, [true; 2]));
    assert_eq!(tree.to_string(), "Model()");
    assert!(tree.parameters().is_empty());
}

#[test]
fn a_shared_parameter_is_counted_once_and_a_buffer_not_at_all() {
    let builder = builder();
    let (tied, other) = (parameter(&builder, "tied", 5), parameter(&builder, "other", 2));
    let buffer = builder.buffer("mean", 7, Init::Constant(0.0)).unwrap();
    let tree = LayerTree::new("Model")
        .part("first", &tied)
        .part("both", &(tied.clone(), other))
        .part("mean", &Box::new(buffer));
    assert_eq!(
        tree.to_string(),
        "\
Model(  # 7 parameters
  (first): Parameter([5])  # 5
  (both): Tuple(  # 7
    (0): Parameter([5])  # 5
    (1): Parameter([2])  # 2
  )
  (mean): Buffer([7])
)"
    );
    let names = |all: Vec<Parameter>| all.iter().map(|p| p.name().to_owned()).collect::<Vec<_>>();
    assert_eq!(names(tree.parameters()), ["tied", "other"]);
    assert_eq!(names(tree.buffers()), ["mean"]);
}

#[test]
fn only_neighbours_that_look_alike_are_printed_together() {
    let layer = |p: f64| Some(Dropout::new(p).unwrap());
    let list = vec![layer(0.1), layer(0.1), layer(0.2), layer(0.1), None, layer(0.1)];
    let printed = "\
List(
  (0-1): 2 x Dropout(p=0.1)
  (2): Dropout(p=0.2)
  (3): Dropout(p=0.1)
  (5): Dropout(p=0.1)
)";
    assert_eq!(list.layers().to_string(), printed);
    // Names that are no numbers stay.
    let p = layer(0.1);
    let named = LayerTree::new("Model").part("hidden", &p).part("output", &p);
    assert_eq!(named.to_string(), "Model(\n  (hidden): Dropout(p=0.1)\n  (output): Dropout(p=0.1)\n)");
}

#[test]
fn a_part_is_picked_by_its_memory_not_only_by_its_names() {
    let [own, other] = [1, 2].map(|seed| {
        let builder = builder();
        let layer = Linear::new(&builder.scope("body"), 3, 2).unwrap();
        Linear::new(&builder.scope("head"), 2, 1).unwrap();
        let before = part_of(&layer);
        let mut parameters = builder.build(&Generator::new(&Device::cpu(), seed).unwrap()).unwrap();
        // There is memory now, for handles that were made before, too.
        assert_eq!(parameters.set_group(before, |group| group.rate_factor = 0.5).unwrap(), 2);
        (layer, parameters)
    });
    let (layer, mut parameters) = own;
    let mut freeze = |layer: &Linear| parameters.set_group(part_of(layer), |group| group.trainable = false);
    assert_eq!(freeze(&other.0).unwrap(), 0);
    assert_eq!(freeze(&layer).unwrap(), 2);
    assert!(parameters.group("head.weight").unwrap().trainable);
    assert!(!parameters.group("body.bias").unwrap().trainable);
}
