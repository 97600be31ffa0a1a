//! `redlatch generate`: manual pages and shell completions, made from the options.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::{Command, Subcommand};
use clap_complete::Shell;
use clap_mangen::Man;

use super::exit::Exit;
use super::message::Message;
use super::output::print;

/// Print a manual page, or completions for a shell.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Print a manual page, for man(1).
    Man {
        /// The page of this subcommand [default: the program's own].
        subcommand: Option<String>,

        /// Write the pages of the program and of all subcommands into this directory.
        #[arg(long, value_name = "DIR", conflicts_with = "subcommand")]
        all: Option<PathBuf>,
    },
    /// Print completions for a shell.
    Completions {
        /// The shell.
        shell: Shell,
    },
}

const AFTER_HELP: &str = "\
Examples:
  redlatch generate man > /usr/local/share/man/man1/redlatch.1
  redlatch generate man --all /usr/local/share/man/man1
  redlatch generate completions bash > /etc/bash_completion.d/redlatch
  redlatch generate completions zsh > /usr/local/share/zsh/site-functions/_redlatch";

/// Returns the program's exit code. `program` is the whole command line.
pub(crate) fn execute(args: &Args, mut program: Command) -> Result<u8, Exit> {
    let text = match &args.what {
        What::Man { all: Some(dir), .. } => {
            let mut program = program.disable_help_subcommand(true);
            program.build();
            let failed = |error| Exit::usage(Message::HandleFile { file: &dir.display(), error: &error });
            write_pages(dir, &program, "redlatch").map_err(failed)?;
            return Ok(0);
        }
        What::Man { subcommand, all: None } => man(program, subcommand.as_deref())?,
        What::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(*shell, &mut program, "redlatch", &mut text);
            text
        }
    };
    print(&String::from_utf8_lossy(&text))?;
    Ok(0)
}

/// Page of one command, in roff.
fn man(program: Command, subcommand: Option<&str>) -> Result<Vec<u8>, Exit> {
    let mut program = program.disable_help_subcommand(true);
    program.build();
    let command = match subcommand {
        None => program,
        Some(name) => program.find_subcommand(name).cloned().ok_or_else(|| unknown_page(&program))?,
    };
    Ok(page(&command)?)
}

/// Writes the pages of a command and of its subcommands, under the names that man(1) expects.
fn write_pages(dir: &Path, command: &Command, name: &str) -> io::Result<()> {
    fs::write(dir.join(format!("{name}.1")), page(command)?)?;
    let mut below = command.get_subcommands();
    below.try_for_each(|it| write_pages(dir, it, &format!("{name}-{}", it.get_name())))
}

fn page(command: &Command) -> io::Result<Vec<u8>> {
    let help = command.get_after_long_help().or(command.get_after_help()).map(ToString::to_string);
    let page = Man::new(command.clone());
    let mut text = Vec::new();
    page.render_title(&mut text)?;
    page.render_name_section(&mut text)?;
    page.render_synopsis_section(&mut text)?;
    page.render_description_section(&mut text)?;
    page.render_options_section(&mut text)?;
    if command.has_subcommands() {
        page.render_subcommands_section(&mut text)?;
    }
    if let Some(help) = help {
        notes(&help, &mut text)?;
    }
    Ok(text)
}

/// Writes the text after the options, line by line as in a terminal. A line that ends with a colon and is not
/// indented is a heading.
fn notes(help: &str, out: &mut impl io::Write) -> io::Result<()> {
    for line in help.lines() {
        match line.strip_suffix(':').filter(|heading| !heading.starts_with(' ')) {
            Some(heading) => writeln!(out, ".SH {}\n.nf", escaped(&heading.to_uppercase()))?,
            None => writeln!(out, "{}", escaped(line))?,
        }
    }
    writeln!(out, ".fi")
}

/// Escapes text for roff.
fn escaped(line: &str) -> String {
    let line = line.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq");
    if line.starts_with('.') { format!("\\&{line}") } else { line }
}

fn unknown_page(program: &Command) -> Exit {
    let names: Vec<&str> = program.get_subcommands().map(Command::get_name).collect();
    Exit::usage(Message::UnknownPage { names: &names.join(", ") })
}
