//! What the derive writes.

#[cfg(test)]
mod tests;

use proc_macro2::TokenStream;
use quote::{format_ident, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Data, DeriveInput, Error, Fields, Ident, Index, Member, Result, Type, WhereClause, parse_quote};

/// What a field is in the tree.
#[derive(Clone, Copy, PartialEq)]
enum Role {
    /// A layer, a parameter, a list of them, or nothing.
    Part,
    /// In the parentheses behind the name of the layer.
    Setting,
}

/// A field that is in the tree.
struct Shown<'a> {
    member: Member,
    /// What the field is bound to.
    bound: Ident,
    ty: &'a Type,
    role: Role,
}

/// The implementations of `Layers`, and of `Display` by it.
pub fn layers(input: &DeriveInput) -> Result<TokenStream> {
    let name = &input.ident;
    let mut all = Vec::new();
    let tree = match &input.data {
        Data::Struct(data) => {
            let fields = shown(&data.fields)?;
            let (pattern, tree) = (pattern(&fields), tree(name, &fields));
            all.extend(fields);
            quote! { let Self #pattern = *self; #tree }
        }
        Data::Enum(data) => {
            let mut arms = Vec::new();
            for variant in &data.variants {
                let (variant_name, fields) = (&variant.ident, shown(&variant.fields)?);
                let tree = match (&variant.fields, &fields[..]) {
                    // A choice between layers is the layer that was chosen.
                    (Fields::Unnamed(_), [only]) if only.role == Role::Part => part_tree(only),
                    _ => tree(variant_name, &fields),
                };
                let pattern = pattern(&fields);
                arms.push(quote! { Self::#variant_name #pattern => #tree });
                all.extend(fields);
            }
            quote! { match *self { #(#arms),* } }
        }
        Data::Union(data) => {
            let message = "which field of a union is set is not known; implement `Layers` by hand";
            return Err(Error::new(data.union_token.span, message));
        }
    };
    let (parameters, arguments, bounds) = input.generics.split_for_impl();
    let bounds = with_bounds(bounds, input.generics.type_params().next().is_some(), &all);
    Ok(quote! {
        #[automatically_derived]
        impl #parameters ::refrain_nn::Layers for #name #arguments #bounds {
            fn layers(&self) -> ::refrain_nn::LayerTree {
                #tree
            }
        }

        #[automatically_derived]
        impl #parameters ::core::fmt::Display for #name #arguments #bounds {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                ::core::fmt::Display::fmt(&::refrain_nn::Layers::layers(self), f)
            }
        }
    })
}

/// The fields that are in the tree.
fn shown(fields: &Fields) -> Result<Vec<Shown<'_>>> {
    let mut all = Vec::new();
    for (i, field) in fields.iter().enumerate() {
        let mut role = Some(Role::Part);
        for attribute in field.attrs.iter().filter(|attribute| attribute.path().is_ident("layers")) {
            attribute.parse_nested_meta(|meta| {
                role = match () {
                    () if meta.path.is_ident("skip") => None,
                    () if meta.path.is_ident("show") => Some(Role::Setting),
                    () => {
                        let message = "use `skip` for a field that is not shown, or `show` for a setting";
                        return Err(meta.error(message));
                    }
                };
                Ok(())
            })?;
        }
        let Some(role) = role else { continue };
        let member = match &field.ident {
            Some(name) => Member::Named(name.clone()),
            None => Member::Unnamed(Index::from(i)),
        };
        all.push(Shown { member, bound: format_ident!("field_{i}"), ty: &field.ty, role });
    }
    Ok(all)
}

/// `{ name: ref field_0, .. }`, which is right for named fields, for numbered ones and for none.
fn pattern(fields: &[Shown<'_>]) -> TokenStream {
    let bindings = fields.iter().map(|Shown { member, bound, .. }| quote! { #member: ref #bound, });
    quote! { { #(#bindings)* .. } }
}

/// The tree of a struct or of a variant.
fn tree(name: &Ident, fields: &[Shown<'_>]) -> TokenStream {
    let kind = name.to_string();
    let calls = fields.iter().map(|field| {
        let Shown { member, bound, ty, role } = field;
        let name = match member {
            Member::Named(name) => name.to_string().trim_start_matches("r#").to_owned(),
            Member::Unnamed(index) => index.index.to_string(),
        };
        // The compiler shows the field if its type is not what it must be.
        match role {
            Role::Part => quote_spanned! { ty.span() => .part(#name, #bound) },
            Role::Setting => quote_spanned! { ty.span() => .setting(#name, #bound) },
        }
    });
    quote! { ::refrain_nn::LayerTree::new(#kind) #(#calls)* }
}

fn part_tree(field: &Shown<'_>) -> TokenStream {
    let bound = &field.bound;
    quote_spanned! { field.ty.span() => ::refrain_nn::Layers::layers(#bound) }
}

/// The bounds of the type. If it has type parameters, also those of its fields, which may be of these types.
fn with_bounds(bounds: Option<&WhereClause>, is_generic: bool, fields: &[Shown<'_>]) -> Option<WhereClause> {
    if !is_generic {
        return bounds.cloned();
    }
    let mut all = bounds.cloned().unwrap_or_else(|| parse_quote! { where });
    for Shown { ty, role, .. } in fields {
        all.predicates.push(match role {
            Role::Part => parse_quote! { #ty: ::refrain_nn::Layers },
            Role::Setting => parse_quote! { #ty: ::core::fmt::Display },
        });
    }
    Some(all)
}
