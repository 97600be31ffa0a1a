//! `redlatch fleet`: the settings that all clients of these masters share, and the start of a new fleet.

mod init;
mod status;

use super::exit::Exit;

/// Declare new masters as a fleet, or show its settings and clients.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    Init(init::Args),
    Status(status::Args),
}

/// Runs `fleet`; the result is the program's exit code.
pub(crate) fn execute(args: &Args) -> Result<u8, Exit> {
    match &args.command {
        Command::Init(args) => init::execute(args),
        Command::Status(args) => status::execute(args),
    }
}
