//! Pages with figures. A line `<!-- KIND: NAME -->` begins a table, and `<!-- end -->` ends it. A run of this
//! kind writes the lines in between, and leaves the rest alone.

use std::fs;
use std::path::Path;

/// Pages with tables, from the root of the repository.
const PAGES: [&str; 3] = ["README.md", "docs/dev/peers.md", "docs/dev/speed.md"];
const END: &str = "<!-- end -->";

/// The measuring program: `benches/scripts/bench` or `benches/scripts/bench --family`.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    Bench,
    Family,
}

impl Kind {
    const fn marker(self) -> &'static str {
        match self {
            Self::Bench => "<!-- bench: ",
            Self::Family => "<!-- family: ",
        }
    }
}

/// Writes the tables of this kind into each page below `root`. `table` returns them by name.
///
/// # Errors
/// The page that cannot be read or written, or the table that is unknown or has no end.
pub fn write(root: &Path, kind: Kind, table: impl Fn(&str) -> Option<String>) -> Result<(), String> {
    for page in PAGES {
        let file = root.join(page);
        let failed = |error| format!("{}: {error}", file.display());
        let old = fs::read_to_string(&file).map_err(|error| failed(error.to_string()))?;
        let new = with_tables(&old, kind, &table).map_err(failed)?;
        if new != old {
            super::write(&file, &new);
        }
    }
    Ok(())
}

fn with_tables(page: &str, kind: Kind, table: &impl Fn(&str) -> Option<String>) -> Result<String, String> {
    let mut text = String::with_capacity(page.len());
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        text.push_str(line);
        text.push('\n');
        let Some(name) = line.strip_prefix(kind.marker()).and_then(|rest| rest.strip_suffix(" -->")) else {
            continue;
        };
        let table = table(name).ok_or(format!("no table is called {name}"))?;
        lines.find(|line| *line == END).ok_or(format!("the table {name} has no line {END}"))?;
        text.push_str(table.trim_end());
        text.push('\n');
        text.push_str(END);
        text.push('\n');
    }
    Ok(text)
}
