//! `#[derive(Layers)]`, which `refrain-nn` re-exports and documents.

mod expand;

use proc_macro::TokenStream;
use syn::{DeriveInput, parse_macro_input};

/// Implements `refrain_nn::Layers`, and `Display` by it. See the trait `refrain_nn::Layers`.
#[proc_macro_derive(Layers, attributes(layers))]
pub fn layers(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    expand::layers(&input).unwrap_or_else(|error| error.to_compile_error()).into()
}
