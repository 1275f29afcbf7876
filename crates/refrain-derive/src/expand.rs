//! What the derive writes.

#[cfg(test)]
mod tests;

use proc_macro2::{TokenStream, TokenTree};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{
    Attribute, Data, DeriveInput, Error, Fields, Ident, Index, Member, Path, Result, Type, WhereClause,
    WherePredicate, parse_quote,
};

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
    let nn = of_crate(&input.attrs)?;
    let mut all = Vec::new();
    let tree = match &input.data {
        Data::Struct(data) => {
            let fields = shown(&data.fields)?;
            let (pattern, tree) = (pattern(&fields), tree(&nn, name, &fields));
            all.extend(fields);
            quote! { let Self #pattern = *self; #tree }
        }
        Data::Enum(data) => {
            let mut arms = Vec::new();
            for variant in &data.variants {
                if let Some(attribute) = of_layers(&variant.attrs).next() {
                    let message =
                        "a variant has no options; put `#[layers(skip)]` on the field that is not shown";
                    return Err(Error::new(attribute.span(), message));
                }
                let (variant_name, fields) = (&variant.ident, shown(&variant.fields)?);
                let tree = match (&variant.fields, &fields[..]) {
                    // A choice between layers is the layer that was chosen.
                    (Fields::Unnamed(_), [only]) if only.role == Role::Part => part_tree(&nn, only),
                    _ => tree(&nn, variant_name, &fields),
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
    let (parameters, arguments, _) = input.generics.split_for_impl();
    let bounds = with_bounds(&nn, input, &all);
    Ok(quote! {
        #[automatically_derived]
        impl #parameters #nn::Layers for #name #arguments #bounds {
            fn layers(&self) -> #nn::LayerTree {
                #tree
            }
        }

        #[automatically_derived]
        impl #parameters ::core::fmt::Display for #name #arguments #bounds {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                ::core::fmt::Display::fmt(&#nn::Layers::layers(self), f)
            }
        }
    })
}

fn of_layers(attributes: &[Attribute]) -> impl Iterator<Item = &Attribute> {
    attributes.iter().filter(|attribute| attribute.path().is_ident("layers"))
}

/// Where `refrain_nn` is: `#[layers(crate = path)]` on the type says so if it has another name.
fn of_crate(attributes: &[Attribute]) -> Result<Path> {
    let mut nn = parse_quote! { ::refrain_nn };
    for attribute in of_layers(attributes) {
        attribute.parse_nested_meta(|meta| {
            if !meta.path.is_ident("crate") {
                let message = "on a type, use `crate = path` to say where `refrain_nn` is; `skip` and `show` are for fields";
                return Err(meta.error(message));
            }
            nn = meta.value()?.call(Path::parse_mod_style)?;
            Ok(())
        })?;
    }
    Ok(nn)
}

/// The fields that are in the tree.
fn shown(fields: &Fields) -> Result<Vec<Shown<'_>>> {
    let mut all = Vec::new();
    for (i, field) in fields.iter().enumerate() {
        let mut role = Some(Role::Part);
        let mut is_said = false;
        for attribute in of_layers(&field.attrs) {
            const WORDS: &str = "use `skip` for a field that is not shown, or `show` for a setting";
            attribute.parse_nested_meta(|meta| {
                role = match () {
                    () if std::mem::replace(&mut is_said, true) => return Err(meta.error(WORDS)),
                    () if meta.path.is_ident("skip") => None,
                    () if meta.path.is_ident("show") => Some(Role::Setting),
                    () => return Err(meta.error(WORDS)),
                };
                Ok(())
            })?;
            if !is_said {
                return Err(Error::new(attribute.span(), WORDS));
            }
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
fn tree(nn: &Path, name: &Ident, fields: &[Shown<'_>]) -> TokenStream {
    let kind = name.unraw().to_string();
    let calls = fields.iter().map(|field| {
        let Shown { member, bound, ty, role } = field;
        let name = match member {
            Member::Named(name) => name.unraw().to_string(),
            Member::Unnamed(index) => index.index.to_string(),
        };
        // The compiler shows the field if its type is not what it must be.
        match role {
            Role::Part => quote_spanned! { ty.span() => .part(#name, #bound) },
            Role::Setting => quote_spanned! { ty.span() => .setting(#name, #bound) },
        }
    });
    quote! { #nn::LayerTree::new(#kind) #(#calls)* }
}

fn part_tree(nn: &Path, field: &Shown<'_>) -> TokenStream {
    let bound = &field.bound;
    quote_spanned! { field.ty.span() => #nn::Layers::layers(#bound) }
}

/// The bounds of the type, and those of the fields whose types depend on a type parameter. A field whose type has the type itself
/// in it gets none, because it would be its own condition; then the type parameters in it are layers.
fn with_bounds(nn: &Path, input: &DeriveInput, fields: &[Shown<'_>]) -> Option<WhereClause> {
    let parameters: Vec<&Ident> = input.generics.type_params().map(|parameter| &parameter.ident).collect();
    let mut all = input.generics.where_clause.clone().unwrap_or_else(|| parse_quote! { where });
    for Shown { ty, role, .. } in fields {
        let used = parameters.iter().filter(|parameter| mentions(ty.to_token_stream(), parameter));
        let mut used = used.peekable();
        if used.peek().is_none() {
            continue;
        }
        let of: Path = match role {
            Role::Part => parse_quote! { #nn::Layers },
            Role::Setting => parse_quote! { ::core::fmt::Display },
        };
        match mentions(ty.to_token_stream(), &input.ident) {
            false => all.predicates.push(parse_quote! { #ty: #of }),
            true => all.predicates.extend(used.map(|parameter| -> WherePredicate {
                parse_quote! { #parameter: #of }
            })),
        }
    }
    (!all.predicates.is_empty()).then_some(all)
}

/// Whether a name is in a type.
fn mentions(ty: TokenStream, name: &Ident) -> bool {
    ty.into_iter().any(|token| match token {
        TokenTree::Ident(ident) => ident == *name,
        TokenTree::Group(group) => mentions(group.stream(), name),
        TokenTree::Punct(_) | TokenTree::Literal(_) => false,
    })
}
