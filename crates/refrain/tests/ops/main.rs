//! The tests of operations. Those of an operation are in its folder, `src/ops/NAME/tests.rs`, and have a line here. They use the
//! library as other crates do, so that it is not compiled a second time for them.

#[path = "../../src/ops/attention/tests.rs"]
mod attention;
#[path = "../../src/ops/batch_norm/tests.rs"]
mod batch_norm;
#[path = "../../src/ops/binary/tests.rs"]
mod binary;
#[path = "../../src/ops/channels_last/tests.rs"]
mod channels_last;
#[path = "../../src/ops/checksum/tests.rs"]
mod checksum;
#[path = "../../src/ops/collective/tests.rs"]
mod collective;
#[path = "../../src/ops/concat/tests.rs"]
mod concat;
#[path = "../../src/ops/conv/tests.rs"]
mod conv;
#[path = "../../src/ops/dropout/tests.rs"]
mod dropout;
mod faults;
#[path = "../../src/ops/fft/tests.rs"]
mod fft;
#[path = "../../src/ops/flip/tests.rs"]
mod flip;
#[path = "../../src/ops/gather/tests.rs"]
mod gather;
#[path = "../../src/ops/gru/tests.rs"]
mod gru;
#[path = "../../src/ops/hadamard/tests.rs"]
mod hadamard;
#[path = "../../src/ops/index_select/tests.rs"]
mod index_select;
#[path = "../../src/ops/interpolate/tests.rs"]
mod interpolate;
#[path = "../../src/ops/l2_normalize/tests.rs"]
mod l2_normalize;
#[path = "../../src/ops/layer_norm/tests.rs"]
mod layer_norm;
#[path = "../../src/ops/linalg/tests.rs"]
mod linalg;
#[path = "../../src/ops/linear/tests.rs"]
mod linear;
#[path = "../../src/ops/logsumexp/tests.rs"]
mod logsumexp;
#[path = "../../src/ops/loss/tests.rs"]
mod loss;
#[path = "../../src/ops/lstm/tests.rs"]
mod lstm;
#[path = "../../src/ops/matmul/tests.rs"]
mod matmul;
#[path = "../../src/ops/one_hot/tests.rs"]
mod one_hot;
#[path = "../../src/ops/optim/tests.rs"]
mod optim;
#[path = "../../src/ops/pad/tests.rs"]
mod pad;
#[path = "../../src/ops/pool/tests.rs"]
mod pool;
#[path = "../../src/ops/qk_norm/tests.rs"]
mod qk_norm;
#[path = "../../src/ops/random/tests.rs"]
mod random;
#[path = "../../src/ops/reduce/tests.rs"]
mod reduce;
#[path = "../../src/ops/repeat/tests.rs"]
mod repeat;
#[path = "../../src/ops/scan/tests.rs"]
mod scan;
#[path = "../../src/ops/softmax/tests.rs"]
mod softmax;
#[path = "../../src/ops/sort/tests.rs"]
mod sort;
#[path = "../common/stream.rs"]
mod stream;
mod testing;
#[path = "../../src/ops/tril/tests.rs"]
mod tril;
#[path = "../../src/ops/unary/tests.rs"]
mod unary;
#[path = "../../src/ops/where_cond/tests.rs"]
mod where_cond;
#[path = "../../src/ops/windows/tests.rs"]
mod windows;

/// A file that is not named here would not be compiled.
#[test]
fn the_tests_of_every_operation_are_part_of_this_program() {
    let folder = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    let Ok(entries) = std::fs::read_dir(std::path::Path::new(&folder).join("src/ops")) else {
        // The program runs on another machine, without the sources.
        return;
    };
    let own = include_str!("main.rs");
    let mut found = 0;
    for folder in entries.map(|entry| entry.unwrap().path()).filter(|path| path.join("tests.rs").exists()) {
        let name = folder.file_name().unwrap().to_str().unwrap();
        let line = format!("#[path = \"../../src/ops/{name}/tests.rs\"]\nmod {name};\n");
        assert!(own.contains(&line), "add to tests/ops/main.rs:\n{line}");
        found += 1;
    }
    assert!(found > 30, "{found}");
}
