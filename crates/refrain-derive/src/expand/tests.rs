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
    for words in ["shown", "skip, show", "show, show", ""] {
        assert_eq!(refused(&format!("enum E {{ A {{ #[layers({words})] a: f32 }} }}")), unknown, "{words}");
    }
    let on_a_variant = refused("enum E { #[layers(skip)] A(Config) }");
    assert!(on_a_variant.contains("on the field"), "{on_a_variant}");
    let on_a_type = refused("#[layers(skip)] struct S { a: f32 }");
    assert!(on_a_type.contains("are for fields"), "{on_a_type}");
}

#[test]
fn bounds_are_added_for_types_that_are_chosen_later_alone() {
    let written = |text: &str| layers(&syn::parse_str(text).unwrap()).unwrap().to_string();
    assert!(!written("struct S { a: Linear }").contains("where"));
    let generic = written("struct S<M> where M: Clone { a: Vec<M>, #[layers(skip)] b: Other<M> }");
    assert!(generic.contains("M : Clone , Vec < M > : :: refrain_nn :: Layers"), "{generic}");
    assert!(!generic.contains("Other"), "{generic}");
    let partly = written("struct S<M> { a: M, b: Linear }");
    assert!(!partly.contains("Linear :"), "{partly}");
    let recursive = written("struct S<M> { a: Vec<M>, next: Option<Box<S<M>>> }");
    assert!(
        recursive.contains("where Vec < M > : :: refrain_nn :: Layers , M : :: refrain_nn :: Layers {"),
        "{recursive}"
    );
}

#[test]
fn the_crate_may_have_another_name() {
    let text = "#[layers(crate = my::nn)] enum E<M> { A(M), B { b: M } }";
    let written = layers(&syn::parse_str(text).unwrap()).unwrap().to_string();
    assert!(written.contains("impl < M > my :: nn :: Layers for E < M >"), "{written}");
    assert!(!written.contains("refrain_nn"), "{written}");
}
