//! Attention by groups of warps (GPUs of compute capability 9.0) has the bits of attention by warps that work alone, as other GPUs
//! run it. Elsewhere there is nothing to compare.

mod common;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::process::Command;

use common::{devices, sanitized};
use refrain::{DType, Device, DeviceKind, Generator, SdpaOptions};

/// Tells a child process to print its digests.
const CHILD: &str = "REFRAIN_TEST_DIGESTS";

/// The bits of the output and of all gradients, for lengths and heads that blocks of 64 rows of 64 numbers do and do not fill.
fn digests(device: &Device) -> Vec<String> {
    let cases = [
        ([2, 3, 63, 63, 64], false, 0.0),
        ([2, 2, 64, 50, 48], true, 0.25),
        ([1, 2, 200, 200, 64], true, 0.0),
        ([1, 2, 70, 150, 40], false, 0.25),
        ([1, 1, 30, 300, 64], false, 0.0),
        // Blocks of both have other rows, which see other tiles.
        ([1, 2, 80, 80, 64], true, 0.0),
        ([1, 2, 20, 50, 64], false, 0.25),
    ];
    let digest = |([batch, heads, queries, keys, dim], causal, dropout): ([usize; 5], bool, f64)| {
        let draws = Generator::new(device, 7).unwrap();
        let leaf = |tokens: usize| {
            let x =
                draws.normal([batch, heads, tokens, dim], DType::F32).unwrap().to_dtype(DType::BF16).unwrap();
            x.set_requires_grad(true).unwrap();
            x
        };
        let [q, k, v, weight] = [queries, keys, keys, queries].map(leaf);
        let options = SdpaOptions { causal, dropout: Some((dropout, &draws)), ..SdpaOptions::default() };
        let (o, _) = q.scaled_dot_product_attention_with(&k, &v, &options).unwrap();
        o.mul(&weight.detach()).unwrap().sum(()).unwrap().backward().unwrap();
        let mut hash = DefaultHasher::new();
        for x in [o.detach(), q.grad().unwrap(), k.grad().unwrap(), v.grad().unwrap()] {
            let values = x.contiguous().unwrap().to_dtype(DType::F32).unwrap().to_vec::<f32>().unwrap();
            assert!(values.iter().all(|x| x.is_finite()), "{batch} {heads} {queries} {keys} {dim}");
            values.iter().for_each(|x| x.to_bits().hash(&mut hash));
        }
        format!("digest of {queries} x {keys} of {dim}: {:016x}", hash.finish())
    };
    cases.map(digest).into()
}

#[test]
fn groups_of_warps_compute_the_bits_of_warps_alone() {
    for device in devices().filter(|d| d.kind() == DeviceKind::Cuda) {
        let found = digests(&device);
        if std::env::var_os(CHILD).is_some() {
            println!("\n{}", found.join("\n"));
        } else if !sanitized() {
            let mut child = Command::new(std::env::current_exe().unwrap());
            child.args(["--exact", "groups_of_warps_compute_the_bits_of_warps_alone", "--nocapture"]);
            let output = child.env("REFRAIN_MMA", "warp").env(CHILD, "1").output().unwrap();
            let printed = String::from_utf8_lossy(&output.stdout);
            let alone: Vec<&str> = printed.lines().filter(|line| line.starts_with("digest")).collect();
            assert_eq!(alone, found, "{}", String::from_utf8_lossy(&output.stderr));
        }
    }
}
