//! The program `redlatch`.

fn main() -> std::process::ExitCode {
    redlatch_cli::run()
}
