//! The command `refrain`.

fn main() -> std::process::ExitCode {
    refrain_cli::main()
}
