use super::layers;

/// The message of the compiler.
fn refused(text: &str) -> String {
    layers(&syn::parse_str(text).unwrap()).unwrap_err().to_string()
}

#[test]
fn what_has_no_layers_is_refused_with_what_to_do() {
    assert!(refused("union U { a: f32, b: u32 }").contains("implement `Layers` by hand"));
    let unknown = refused("struct S { #[layers(hide)] a: f32 }");
    assert!(unknown.contains("`skip`") && unknown.contains("`show`"), "{unknown}");
    let in_a_variant = refused("enum E { A { #[layers(skip, shown)] a: f32 } }");
    assert_eq!(in_a_variant, unknown);
}

#[test]
fn bounds_are_added_for_types_that_are_chosen_later_alone() {
    let written = |text: &str| layers(&syn::parse_str(text).unwrap()).unwrap().to_string();
    assert!(!written("struct S { a: Linear }").contains("where"));
    let generic = written("struct S<M> where M: Clone { a: Vec<M>, #[layers(skip)] b: Other<M> }");
    assert!(generic.contains("M : Clone , Vec < M > : :: refrain_nn :: Layers"), "{generic}");
    assert!(!generic.contains("Other"), "{generic}");
}
