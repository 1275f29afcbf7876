//! The command `refrain`.
fn main() {}
