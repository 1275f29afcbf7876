//! `cargo xtask bundle` puts the release command, all test programs and their data into one folder. The folder runs
//! on a bare Linux machine with NVIDIA's driver and NVRTC, so the build machine need not have a GPU.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use crate::root;

/// Files that the tests read at run time.
const DATA: &[&str] = &[
    "crates/refrain/src",
    "crates/refrain/tests/reference",
    "crates/refrain-forecast/tests/reference",
    "crates/refrain-cli/tests/hugging_face",
    "crates/refrain-cli/tests/old_runs",
    "crates/refrain-forecast/data",
    "docs",
    "examples/fine_tune/data",
];

/// A test program.
struct Test {
    /// Its folder in the repository.
    package: PathBuf,
    name: String,
    file: PathBuf,
}

/// Makes the bundle and its archive.
pub fn make(out: &Path) -> anyhow::Result<()> {
    let out = if out.is_absolute() { out.to_owned() } else { root().join(out) };
    if out.exists() {
        if !out.join("run-tests").exists() && fs::read_dir(&out)?.next().is_some() {
            bail!("{} exists and is not a bundle; choose another folder with --out", out.display());
        }
        fs::remove_dir_all(&out)?;
    }
    let command = executables(&["build", "--release", "--package", "refrain-cli"])?;
    let command = command.iter().find(|t| t.name == "refrain").context("cargo built no command")?;
    let tests = executables(&["test", "--no-run"])?;
    strip(&command.file, &out.join("bin/refrain"))?;
    let mut lines = String::new();
    for test in tests.iter().filter(|t| t.file != command.file) {
        let to = PathBuf::from("tests")
            .join(test.package.file_name().context("a package's folder")?)
            .join(&test.name);
        strip(&test.file, &out.join(&to))?;
        lines += &format!("run {} {}\n", test.package.display(), to.display());
        fs::create_dir_all(out.join(&test.package))?;
    }
    for folder in DATA {
        copy(&root().join(folder), &out.join(folder))?;
    }
    let script = out.join("run-tests");
    fs::write(&script, RUN_TESTS.replace("# TESTS\n", &lines))?;
    executable(&script)?;
    let archive = out.with_extension("tar.xz");
    let parent = out.parent().context("a folder for the archive")?;
    let name = out.file_name().context("a name for the archive")?;
    run(Command::new("tar").arg("-C").arg(parent).arg("-cJf").arg(&archive).arg(name))?;
    println!("{} ({} MiB)", out.display(), size(&out)? >> 20);
    println!("{} ({} MiB)", archive.display(), fs::metadata(&archive)?.len() >> 20);
    Ok(())
}

/// The script that runs all tests of a bundle; its arguments are passed to every test program.
const RUN_TESTS: &str = r#"#!/bin/sh
# Runs every test program of the bundle, on the processor and on the GPU. REFRAIN_REQUIRE_CUDA=1 makes a missing
# GPU a failure. Arguments are passed on: ./run-tests --test-threads 4. RUN_WITH is what each program is run with:
# RUN_WITH="compute-sanitizer --tool memcheck --error-exitcode 9 --require-cuda-init=no" ./run-tests
# REFRAIN_SANITIZER=1, which that implies, skips tests that break memory on purpose.
case ${RUN_WITH:-} in
*compute-sanitizer*) export REFRAIN_SANITIZER=1 ;;
esac
here=$(cd "$(dirname "$0")" && pwd)
failed=""
run() {
    package=$1
    program=$here/$2
    shift 2
    echo "== $package ${program##*/}"
    CARGO_MANIFEST_DIR=$here/$package CARGO_BIN_EXE_refrain=$here/bin/refrain \
        sh -c 'cd "$CARGO_MANIFEST_DIR" && exec $RUN_WITH "$@"' sh "$program" $ARGUMENTS || failed="$failed $package/${program##*/}"
}
ARGUMENTS=$*
# TESTS
if [ -n "$failed" ]; then
    echo "failed:$failed"
    exit 1
fi
echo "all tests passed"
"#;

fn run(command: &mut Command) -> anyhow::Result<()> {
    let status = command.status().with_context(|| format!("running {command:?}"))?;
    if !status.success() {
        bail!("{command:?} ended with {status}");
    }
    Ok(())
}

/// Runs cargo and returns the programs it built.
fn executables(arguments: &[&str]) -> anyhow::Result<Vec<Test>> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    cargo.current_dir(root()).args(arguments).args(["--message-format", "json-render-diagnostics"]);
    let output = cargo.stderr(std::process::Stdio::inherit()).output().context("running cargo")?;
    if !output.status.success() {
        bail!("cargo {} ended with {}", arguments.join(" "), output.status);
    }
    let mut found = Vec::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let Ok(message) = serde_json::from_str::<serde_json::Value>(line) else { continue };
        let Some(file) = message["executable"].as_str() else { continue };
        let manifest = message["manifest_path"].as_str().map(Path::new).and_then(Path::parent);
        let package = manifest.and_then(|p| p.strip_prefix(root()).ok()).context("a package's folder")?;
        let name = message["target"]["name"].as_str().context("a target's name")?;
        let kind = message["target"]["kind"][0].as_str().unwrap_or_default();
        let name = match kind {
            // A library and a program may have the same name, so their unit tests get distinct ones.
            "lib" => format!("{name}-unit"),
            // Its tests load libraries of the compiler.
            "proc-macro" => continue,
            "bin" if arguments[0] == "test" && message["profile"]["test"] == true => {
                format!("{name}-bin-unit")
            }
            _ => name.to_owned(),
        };
        let helper = arguments[0] == "test" && (kind == "example" || message["profile"]["test"] != true);
        if !helper {
            found.push(Test { package: package.to_owned(), name, file: file.into() });
        }
    }
    Ok(found)
}

/// Copies a program without its symbols.
fn strip(from: &Path, to: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(to.parent().context("a folder")?)?;
    fs::copy(from, to).with_context(|| format!("copying {}", from.display()))?;
    run(Command::new("strip").arg(to))
}

fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from).with_context(|| format!("reading {}", from.display()))? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        match entry.file_type()?.is_dir() {
            true => copy(&entry.path(), &target)?,
            false => drop(fs::copy(entry.path(), target)?),
        }
    }
    Ok(())
}

fn size(folder: &Path) -> anyhow::Result<u64> {
    let mut total = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        total += if entry.file_type()?.is_dir() { size(&entry.path())? } else { entry.metadata()?.len() };
    }
    Ok(total)
}

#[cfg(unix)]
fn executable(file: &Path) -> anyhow::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    Ok(fs::set_permissions(file, fs::Permissions::from_mode(0o755))?)
}

#[cfg(not(unix))]
fn executable(_: &Path) -> anyhow::Result<()> {
    Ok(())
}
