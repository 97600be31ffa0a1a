//! `redlatch fleet`: the settings that all clients of a fleet share, the start of a new fleet, and the
//! replacement of a master.

mod init;
mod replace;
mod status;

use super::exit::Exit;

/// Declare new masters as a fleet, replace one, or show its settings and clients.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    Init(init::Args),
    Replace(replace::Args),
    Status(status::Args),
}

pub(crate) fn execute(args: &Args) -> Result<u8, Exit> {
    match &args.command {
        Command::Init(args) => init::execute(args),
        Command::Replace(args) => replace::execute(args),
        Command::Status(args) => status::execute(args),
    }
}
