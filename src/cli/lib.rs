//! The command line of redlatch, and [`doctor::examine`] for other programs, which says what is wrong with a fleet and
//! what to do about it. The lock itself is the crate [`redlatch`].
//!
//! This file chooses the subcommand and sets the exit code; each subcommand is a file beside it.

#![warn(missing_docs, unreachable_pub)]

pub mod doctor;

mod bench;
mod drill;
mod examine;
mod exit;
mod fleet;
mod generate;
mod handle;
mod inspect;
mod interrupt;
mod list;
mod message;
mod options;
mod output;
mod run;
mod scan;
mod watch;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser};

use exit::{Exit, code};
use message::Message;

/// Locks across independent Redis or Valkey masters (Redlock).
#[derive(Parser)]
#[command(name = "redlatch", version, after_help = EXAMPLES, max_term_width = WIDTH_MAX)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    Run(run::Args),
    Elect(run::elect::Args),
    Acquire(run::pass::Args),
    Release(handle::Args),
    Ls(list::Args),
    Inspect(inspect::InspectArgs),
    Unlock(inspect::UnlockArgs),
    Doctor(examine::Args),
    Drill(drill::Args),
    Bench(bench::Args),
    Fleet(fleet::Args),
    Generate(generate::Args),
}

/// Width of the help on a wider terminal.
const WIDTH_MAX: usize = 100;

const EXAMPLES: &str = "\
Examples:
  export REDLATCH_MASTERS=redis://10.0.0.1,redis://10.0.0.2,redis://10.0.0.3
  redlatch run --wait 1min nightly-report -- ./report.sh
      one report at a time, whichever machine starts it
  redlatch elect scheduler -- ./scheduler
      one leader at a time, and another one when it ends
  redlatch acquire --handle /run/lock/a deploy
      a lock for several steps; then: redlatch release --handle FILE
  redlatch ls 'orders:*'
      which locks there are
  redlatch inspect nightly-report
      who holds it, and for how long
  redlatch doctor
      what is wrong with these masters, and what to do
  redlatch drill --pause
      whether they keep the promise under faults
  redlatch bench --time 5s
      how fast these masters grant and release locks
  redlatch fleet init
      new masters: a first lock need not wait
  redlatch fleet replace redis://10.0.0.3 redis://10.0.0.4
      a new master in the place of another one

`redlatch run --help` and the like say more, exit codes included.";

/// Runs the program.
#[doc(hidden)] // For `main.rs`: the program is no part of the library's API.
pub fn run() -> ExitCode {
    if let Some(code) = run::stage::enter() {
        return ExitCode::from(code);
    }
    if let Err(error) = output::start() {
        // Nothing runs yet that a slow reader could delay.
        let _ = writeln!(io::stderr(), "redlatch: {error}");
        return ExitCode::from(code::INTERNAL);
    }
    std::panic::set_hook(Box::new(|panic| output::say(panic)));
    // A panic ends the command before the program waits for a reader.
    let code = std::panic::catch_unwind(execute).unwrap_or(code::PANIC);
    output::finish();
    ExitCode::from(code)
}

/// Runs the subcommand, and returns the program's exit code.
fn execute() -> u8 {
    let result = match Cli::try_parse() {
        Ok(Cli { command: Command::Run(args) }) => run::execute(&args),
        Ok(Cli { command: Command::Elect(args) }) => run::elect::execute(&args),
        Ok(Cli { command: Command::Acquire(args) }) => run::pass::execute(&args),
        Ok(Cli { command: Command::Release(args) }) => handle::release(&args),
        Ok(Cli { command: Command::Ls(args) }) => list::execute(&args),
        Ok(Cli { command: Command::Inspect(args) }) => inspect::inspect(&args),
        Ok(Cli { command: Command::Unlock(args) }) => inspect::unlock(&args),
        Ok(Cli { command: Command::Doctor(args) }) => examine::execute(&args),
        Ok(Cli { command: Command::Drill(args) }) => drill::execute(&args),
        Ok(Cli { command: Command::Bench(args) }) => bench::execute(&args),
        Ok(Cli { command: Command::Fleet(args) }) => fleet::execute(&args),
        Ok(Cli { command: Command::Generate(args) }) => generate::execute(&args, Cli::command()),
        Err(error) => refuse(&error),
    };
    result.unwrap_or_else(|Exit { code, why }| {
        output::say(&why);
        code
    })
}

/// Prints help or version if asked for. Any other error of clap is bad usage.
fn refuse(error: &clap::Error) -> Result<u8, Exit> {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // A closed pipe is no error.
            let _ = error.print();
            Ok(0)
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            Ok(code::USAGE)
        }
        ErrorKind::UnknownArgument if is_command_without_dashes(error) => Err(Exit::usage(Message::NoDashes)),
        // clap would suggest `unlock`.
        ErrorKind::InvalidSubcommand if is_lock(error) => Err(Exit::usage(Message::NoLockCommand)),
        _ => {
            // Not printed by clap: the text repeats the arguments, which may contain a password.
            let text = error.to_string();
            Err(Exit::usage(text.strip_prefix("error: ").unwrap_or(&text).trim_end()))
        }
    }
}

/// Whether the missing subcommand is `lock`.
fn is_lock(error: &clap::Error) -> bool {
    matches!(error.get(ContextKind::InvalidSubcommand), Some(ContextValue::String(word)) if word == "lock")
}

/// Whether the `--` is missing in `redlatch run NAME COMMAND` or `redlatch elect NAME COMMAND`.
fn is_command_without_dashes(error: &clap::Error) -> bool {
    let mut words = std::env::args_os().skip(1);
    let is_run =
        words.next().is_some_and(|word| word == "run" || word == "elect") && !words.any(|word| word == "--");
    let unknown = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(word)) => word.as_str(),
        _ => "-",
    };
    is_run && !unknown.starts_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All but the quarantine, which has two options without a value.
    #[test]
    fn each_shared_setting_is_an_option_of_each_subcommand() {
        use redlatch::env;
        for subcommand in ["run", "elect", "bench", "inspect", "unlock", "doctor", "acquire", "release"] {
            let program = Cli::command();
            let command = program.find_subcommand(subcommand).expect("a subcommand");
            for variable in env::variables().filter(|variable| *variable != env::QUARANTINE) {
                let is_option =
                    command.get_arguments().any(|arg| arg.get_env().is_some_and(|env| env == variable));
                assert!(is_option, "{subcommand} has no option for {variable}");
            }
        }
    }

    /// Names, defaults, bounds and exit codes of all subcommands.
    #[test]
    fn help_matches_its_golden_file() {
        fn add(page: &mut String, path: &str, command: clap::Command) {
            let path = format!("{path}{}", command.get_name());
            let is_shared = |heading: &str| heading == "Masters" || heading.starts_with("TLS");
            // Values of variables are not part of the help. Shared options are shown once.
            let mut command = command.term_width(0).mut_args(|arg| {
                let is_seen = path != "redlatch run" && arg.get_help_heading().is_some_and(is_shared);
                arg.hide_env_values(true).hide(is_seen)
            });
            *page += &format!("# {path}\n{}\n", command.render_long_help());
            for subcommand in command.get_subcommands().filter(|it| it.get_name() != "help") {
                add(page, &format!("{path} "), subcommand.clone());
            }
        }
        let mut page = String::new();
        let mut program = Cli::command();
        program.build();
        add(&mut page, "", program);
        redlatch_support::assert_golden("help", &page);
    }

    /// Longer words, such as the form of a URL, cannot be broken.
    #[test]
    fn help_fits_into_80_columns() {
        fn check(command: &mut clap::Command) {
            let help = command.clone().term_width(80).render_long_help().to_string();
            for line in help.lines().filter(|line| line.chars().count() > 80) {
                assert!(line.split_whitespace().count() == 1, "{line}");
            }
            command.get_subcommands_mut().for_each(check);
        }
        let mut program = Cli::command();
        program.build();
        check(&mut program);
    }

    #[test]
    fn the_arguments_are_consistent() {
        Cli::command().debug_assert();
    }
}
