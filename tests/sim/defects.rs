//! The program behind `scripts/defects`: planted bugs as data, and copies of the tree with the bugs.
//!
//! `tests/sim/defects/` mirrors the tree. `FILE.diff` lists the entries of `FILE`; other files exist only in
//! the copy. An entry looks like this:
//!
//! ```text
//! @@ DropForgets in drop
//! -if self.is_armed {
//! +if self.is_armed && !mutant!(DropForgets) {
//!      self.release();
//! ```
//!
//! The name is the switch in the entry's new lines. The other lines are the anchor: consecutive lines that
//! occur once in the functions of that name, or in the file if the header names no function. Blanks at line
//! ends do not count.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Folder of the entries.
const ENTRIES: &str = "tests/sim/defects";
/// The simulator's copy.
const COPY: &str = "target/defects/tree";
/// The copy that `edit` opens, and its original files.
const EDIT: &str = "target/defects/edit";
const BASE: &str = "target/defects/base";

#[allow(dead_code, reason = "the simulator has this file as a module, for its tests")]
fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["check"] => check(),
        ["edit"] => edit(),
        ["save"] => save(),
        ["apply"] => apply(),
        _ => Err("usage: scripts/defects check | edit | save | apply".to_owned()),
    };
    match done {
        Ok(said) => println!("defects: {said}"),
        Err(why) => {
            eprintln!("{why}");
            std::process::exit(1);
        }
    }
}

type Done = Result<String, String>;
/// Texts by path, which is the same in the tree and in a copy.
type Texts = BTreeMap<PathBuf, String>;

fn check() -> Done {
    let planted = Planted::read()?;
    planted.apply_to(&tree()?)?;
    Ok(planted.summary())
}

fn apply() -> Done {
    let planted = Planted::read()?;
    write_copy(Path::new(COPY), &planted.apply_to(&tree()?)?)?;
    Ok(format!("{}, in {COPY}", planted.summary()))
}

fn edit() -> Done {
    if Path::new(EDIT).exists() {
        return Err(format!("{EDIT} is open already: save it, or delete it"));
    }
    let (planted, tree) = (Planted::read()?, tree()?);
    let texts = planted.apply_to(&tree)?;
    for (path, text) in tree.iter().filter(|(path, _)| texts.contains_key(*path)) {
        write(&Path::new(BASE).join(path), text)?;
    }
    write_copy(Path::new(EDIT), &texts)?;
    Ok(format!("{EDIT} is open; change src there, and then: scripts/defects save"))
}

fn save() -> Done {
    let (before, planted) = (Planted::read()?, derive(Path::new(BASE), Path::new(EDIT))?);
    let after = planted.files();
    for path in before.files().keys().filter(|path| !after.contains_key(*path)) {
        remove(path)?;
    }
    after.iter().try_for_each(|(path, text)| write(path, text))?;
    // On an error, the copy stays for correction.
    let summary = check()?;
    remove(Path::new(BASE))?;
    remove(Path::new(EDIT))?;
    Ok(summary)
}

/// Contents of `tests/sim/defects/`.
#[derive(Debug, Default)]
struct Planted {
    /// By the file that they change.
    entries: BTreeMap<PathBuf, Vec<Entry>>,
    /// Files that exist only in the copy.
    added: Texts,
}

impl Planted {
    fn read() -> Result<Self, String> {
        let mut planted = Self::default();
        let folders = ["src", "tests"].map(|folder| Path::new(ENTRIES).join(folder));
        for (path, text) in folders.iter().try_fold(Texts::new(), |texts, folder| read_all(texts, folder))? {
            let target = path.strip_prefix(ENTRIES).expect("it was found there");
            match target.extension().is_some_and(|it| it == "diff") {
                true => planted.entries.insert(target.with_extension(""), parse(&path, &text)?).map(drop),
                false => planted.added.insert(target.to_owned(), text).map(drop),
            };
        }
        Ok(planted)
    }

    /// The files that represent this value.
    fn files(&self) -> Texts {
        let entries = self.entries.iter().map(|(path, entries)| (diff_of(path), print(entries)));
        let added = self.added.iter().map(|(path, text)| (Path::new(ENTRIES).join(path), text.clone()));
        entries.chain(added).collect()
    }

    /// The changed and added files, or all faults of the entries.
    fn apply_to(&self, tree: &Texts) -> Result<Texts, String> {
        let (mut texts, mut wrong) = (self.added.clone(), String::new());
        for (path, entries) in &self.entries {
            match tree.get(path) {
                Some(text) => match apply_entries(&diff_of(path), text, entries) {
                    Ok(text) => drop(texts.insert(path.clone(), text)),
                    Err(why) => wrong += &why,
                },
                None => _ = writeln!(wrong, "{}: there is no {}", diff_of(path).display(), path.display()),
            }
        }
        let rest = tree.iter().filter(|(path, _)| path.starts_with("src"));
        rest.for_each(|(path, text)| _ = texts.entry(path.clone()).or_insert_with(|| text.clone()));
        if wrong.is_empty() { Ok(texts) } else { Err(wrong) }
    }

    fn summary(&self) -> String {
        let entries = || self.entries.values().flatten();
        let names: BTreeSet<String> = entries().flat_map(Entry::names).collect();
        format!("{} planted bugs, {} entries in {} files", names.len(), entries().count(), self.entries.len())
    }
}

/// One place of a planted bug.
#[derive(Debug)]
struct Entry {
    /// Line of its header, in its file.
    line: usize,
    function: Option<String>,
    lines: Vec<Line>,
}

#[derive(Debug, Clone, PartialEq)]
enum Line {
    Kept(String),
    Old(String),
    New(String),
}

impl Entry {
    /// Switches in its new lines.
    fn names(&self) -> Vec<String> {
        let new = self.lines.iter().filter_map(|line| match line {
            Line::New(text) => Some(text),
            Line::Kept(_) | Line::Old(_) => None,
        });
        let mut names: Vec<String> = Vec::new();
        for piece in new.flat_map(|text| text.split("mutant!(").skip(1)) {
            let name = piece.split(')').next().unwrap_or_default().to_owned();
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }

    fn header(&self) -> String {
        let function = self.function.iter().map(|name| format!("in {name}"));
        let names = Some(self.names().join(", ")).filter(|it| !it.is_empty());
        names.into_iter().chain(function).collect::<Vec<_>>().join(" ")
    }

    fn anchor(&self) -> Vec<&str> {
        let old = self.lines.iter().filter_map(|line| match line {
            Line::Kept(text) | Line::Old(text) => Some(text.trim()),
            Line::New(_) => None,
        });
        old.collect()
    }

    /// Lines of a text that match the anchor; the error names its first line.
    fn find(&self, text: &str) -> Result<Range<usize>, String> {
        let (lines, anchor) = (text.lines().collect::<Vec<_>>(), self.anchor());
        let Some(first) = anchor.first() else { return Err("has no anchor".to_owned()) };
        let scopes = scopes(&lines, self.function.as_deref());
        let places: Vec<usize> = places(&lines, &scopes, &anchor).into_iter().collect();
        match places[..] {
            [place] => Ok(place..place + anchor.len()),
            [] if scopes.is_empty() => Err("there is no such function".to_owned()),
            [] => Err(format!("the anchor is not there: {first}")),
            [one, other, ..] => Err(format!("the anchor is at {} and at {}: {first}", one + 1, other + 1)),
        }
    }

    /// Replacement of the anchor's lines, with new lines indented like the first of them.
    fn replace(&self, found: &[&str]) -> Vec<String> {
        let own = self.lines.iter().find_map(|line| match line {
            Line::Kept(text) | Line::Old(text) => Some(indent(text)),
            Line::New(_) => None,
        });
        let shift = indent(found[0]).saturating_sub(own.unwrap_or_default());
        let mut found = found.iter();
        let mut lines = Vec::new();
        for line in &self.lines {
            match line {
                Line::Kept(_) => lines.extend(found.next().map(|it| (*it).to_owned())),
                Line::Old(_) => drop(found.next()),
                Line::New(text) if text.is_empty() => lines.push(String::new()),
                Line::New(text) => lines.push(" ".repeat(shift) + text),
            }
        }
        lines
    }
}

fn parse(path: &Path, text: &str) -> Result<Vec<Entry>, String> {
    let place = |line: usize| format!("{}:{line}", path.display());
    let mut entries: Vec<(Entry, &str)> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if let Some(header) = line.strip_prefix("@@") {
            let function = header.rsplit_once(" in ").map(|(_, name)| name.to_owned());
            entries.push((Entry { line: index + 1, function, lines: Vec::new() }, header.trim()));
            continue;
        }
        let line = match (line.get(..1), line.get(1..)) {
            (Some(" "), Some(text)) => Line::Kept(text.to_owned()),
            (Some("-"), Some(text)) => Line::Old(text.to_owned()),
            (Some("+"), Some(text)) => Line::New(text.to_owned()),
            (None, _) => Line::Kept(String::new()),
            _ => return Err(format!("{}: begins with none of @@, -, +, blank\n", place(index + 1))),
        };
        let Some((entry, _)) = entries.last_mut() else {
            return Err(format!("{}: belongs to no entry\n", place(index + 1)));
        };
        entry.lines.push(line);
    }
    for (entry, header) in &mut entries {
        while entry.lines.pop_if(|line| *line == Line::Kept(String::new())).is_some() {}
        if entry.header() != *header {
            return Err(format!("{}: the header must be: @@ {}\n", place(entry.line), entry.header()));
        }
    }
    Ok(entries.into_iter().map(|(entry, _)| entry).collect())
}

fn print(entries: &[Entry]) -> String {
    let mut text = String::new();
    for entry in entries {
        let blank = if text.is_empty() { "" } else { "\n" };
        _ = writeln!(text, "{blank}{}", format!("@@ {}", entry.header()).trim_end());
        for line in &entry.lines {
            let (sign, line) = match line {
                Line::Kept(line) if line.is_empty() => ("", line),
                Line::Kept(line) => (" ", line),
                Line::Old(line) => ("-", line),
                Line::New(line) => ("+", line),
            };
            _ = writeln!(text, "{sign}{line}");
        }
    }
    text
}

/// Applies all entries of a file to its text. The file's name is for errors.
fn apply_entries(file: &Path, text: &str, entries: &[Entry]) -> Result<String, String> {
    let (mut found, mut wrong) = (Vec::new(), String::new());
    for entry in entries {
        match entry.find(text) {
            Ok(range) => found.push((range, entry)),
            Err(why) => _ = writeln!(wrong, "{}:{}: {}: {why}", file.display(), entry.line, entry.header()),
        }
    }
    found.sort_by_key(|(range, _)| range.start);
    for pair in found.windows(2).filter(|pair| pair[0].0.end > pair[1].0.start) {
        let (one, other) = (pair[0].1, pair[1].1);
        let place = format!("{}:{}", file.display(), other.line);
        _ = writeln!(wrong, "{place}: {}: shares lines with the entry at {}", other.header(), one.line);
    }
    if !wrong.is_empty() {
        return Err(wrong);
    }
    let lines: Vec<&str> = text.lines().collect();
    let (mut out, mut next) = (Vec::new(), 0);
    for (range, entry) in found {
        out.extend(lines[next..range.start].iter().map(|line| (*line).to_owned()));
        out.extend(entry.replace(&lines[range.clone()]));
        next = range.end;
    }
    out.extend(lines[next..].iter().map(|line| (*line).to_owned()));
    Ok(out.join("\n") + "\n")
}

// ---- Rust, as rustfmt writes it ----

fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// All functions with their lines. A function ends at the first brace with its head's indentation.
fn functions(lines: &[&str]) -> Vec<(String, Range<usize>)> {
    let head = |(index, line): (usize, &&str)| {
        let name = function_name(line)?;
        let is_end = |it: &&str| it.trim().starts_with('}') && indent(it) == indent(line);
        let is_whole = line.ends_with('}') || line.ends_with(';');
        let end = if is_whole { Some(0) } else { lines[index..].iter().position(is_end) };
        Some((name.to_owned(), index..index + end? + 1))
    };
    lines.iter().enumerate().filter_map(head).collect()
}

fn function_name(line: &str) -> Option<&str> {
    let (before, after) = line.split_once("fn ")?;
    let is_head = |word: &str| {
        matches!(word, "pub" | "const" | "async" | "unsafe" | "in")
            || word.starts_with("pub(")
            || word.ends_with(')')
    };
    let end = after.find(|it: char| !it.is_alphanumeric() && it != '_')?;
    (before.split_whitespace().all(is_head) && end > 0).then(|| &after[..end])
}

/// Where an anchor may match: in functions of this name, or in the whole file.
fn scopes(lines: &[&str], function: Option<&str>) -> Vec<Range<usize>> {
    match function {
        Some(name) => functions(lines).into_iter().filter(|it| it.0 == name).map(|it| it.1).collect(),
        None => std::iter::once(0..lines.len()).collect(),
    }
}

/// Each place where an anchor matches, once.
fn places(lines: &[&str], scopes: &[Range<usize>], anchor: &[&str]) -> BTreeSet<usize> {
    let is_there =
        |at: &usize| anchor.iter().zip(&lines[*at..]).all(|(wanted, line)| wanted.trim() == line.trim());
    let starts = |scope: &Range<usize>| scope.start..(scope.end + 1).saturating_sub(anchor.len());
    scopes.iter().flat_map(starts).filter(is_there).collect()
}

// ---- entries from a difference ----

fn derive(base: &Path, copy: &Path) -> Result<Planted, String> {
    let [before, after] = [base, copy].map(|root| {
        let folders = ["src", "tests"].map(|folder| root.join(folder));
        folders
            .iter()
            .filter(|folder| folder.exists())
            .try_fold(Texts::new(), |texts, it| read_all(texts, it))
    });
    let (before, after) = (before?, after?);
    let mut planted = Planted::default();
    for (path, text) in &after {
        let target = path.strip_prefix(copy).expect("it was found there").to_owned();
        match before.get(&base.join(&target)) {
            None => drop(planted.added.insert(target, text.clone())),
            Some(old) if old == text => {}
            Some(old) => drop(planted.entries.insert(target.clone(), derive_entries(&target, old, text)?)),
        }
    }
    Ok(planted)
}

/// A change: old lines, and the new lines that replace them.
type Change = (Range<usize>, Range<usize>);

fn derive_entries(path: &Path, old: &str, new: &str) -> Result<Vec<Entry>, String> {
    let (old, new): (Vec<&str>, Vec<&str>) = (old.lines().collect(), new.lines().collect());
    let functions = functions(&old);
    let mut groups: Vec<(Range<usize>, Option<String>, Vec<Change>)> = Vec::new();
    for change in changes(&old, &new) {
        let mut group = (change.0.clone(), vec![change]);
        loop {
            let (anchor, function) = anchor(&old, &functions, &group.0).ok_or_else(|| {
                format!("{}:{}: no lines here are unique", path.display(), group.0.start + 1)
            })?;
            // Changes that share anchor lines become one.
            match groups.pop_if(|it| it.0.end > anchor.start) {
                Some((range, _, mut changes)) => {
                    changes.append(&mut group.1);
                    group = (range.start..group.0.end.max(range.end), changes);
                }
                None => break groups.push((anchor, function, group.1)),
            }
        }
    }
    let entry = |(range, function, changes): (Range<usize>, _, Vec<Change>)| Entry {
        line: 0,
        function,
        lines: entry_lines(&old, &new, &range, &changes),
    };
    Ok(groups.into_iter().map(entry).collect())
}

/// The fewest lines around a change that occur once in its function, or else in the file.
fn anchor(
    lines: &[&str],
    functions: &[(String, Range<usize>)],
    change: &Range<usize>,
) -> Option<(Range<usize>, Option<String>)> {
    // An insertion needs a line of its function on both sides.
    let (first, end) =
        (change.start.saturating_sub(usize::from(change.is_empty())), change.end.max(change.start + 1));
    let is_around = |it: &&(String, Range<usize>)| it.1.start <= first && end <= it.1.end;
    let function = functions.iter().filter(is_around).min_by_key(|it| it.1.len());
    let bounds = function.map_or(0..lines.len(), |it| it.1.clone());
    let scopes = scopes(lines, function.map(|it| it.0.as_str()));
    let least = change.len().max(1);
    for size in least..=bounds.len() {
        let first = (change.end.saturating_sub(size)).max(bounds.start);
        // The line after an insertion is a better anchor than the line before it.
        for start in (first..=change.start).rev() {
            let range = start..start + size;
            if range.end < change.end || range.end > bounds.end {
                continue;
            }
            let anchor = &lines[range.clone()];
            let is_edge_blank =
                [anchor.first(), anchor.last()].iter().flatten().any(|it| it.trim().is_empty());
            let says_something = anchor.iter().any(|line| line.contains(char::is_alphanumeric));
            if !is_edge_blank && says_something && places(lines, &scopes, anchor).len() == 1 {
                return Some((range, function.map(|it| it.0.clone())));
            }
        }
    }
    None
}

fn entry_lines(old: &[&str], new: &[&str], range: &Range<usize>, changes: &[Change]) -> Vec<Line> {
    let (mut lines, mut next) = (Vec::new(), range.start);
    for (from, to) in changes {
        lines.extend(old[next..from.start].iter().map(|it| Line::Kept((*it).to_owned())));
        lines.extend(old[from.clone()].iter().map(|it| Line::Old((*it).to_owned())));
        lines.extend(new[to.clone()].iter().map(|it| Line::New((*it).to_owned())));
        next = from.end;
    }
    lines.extend(old[next..range.end].iter().map(|it| Line::Kept((*it).to_owned())));
    let text = |line: &Line| match line {
        Line::Kept(text) | Line::Old(text) | Line::New(text) => text.clone(),
    };
    let texts = lines.iter().map(text).filter(|it| !it.trim().is_empty());
    let margin = texts.map(|it| indent(&it)).min().unwrap_or_default();
    for line in &mut lines {
        let (Line::Kept(text) | Line::Old(text) | Line::New(text)) = line;
        *text = text.get(margin..).unwrap_or_default().to_owned();
    }
    lines
}

/// Differences between old and new lines.
fn changes(old: &[&str], new: &[&str]) -> Vec<Change> {
    let is_same = |i: usize, j: usize| old[i] == new[j];
    // Length of the longest common rest for each pair of places.
    let mut common = vec![vec![0_u32; new.len() + 1]; old.len() + 1];
    for i in (0..old.len()).rev() {
        for j in (0..new.len()).rev() {
            common[i][j] = match is_same(i, j) {
                true => common[i + 1][j + 1] + 1,
                false => common[i + 1][j].max(common[i][j + 1]),
            };
        }
    }
    let (mut i, mut j, mut changes) = (0, 0, Vec::new());
    while i < old.len() || j < new.len() {
        let start = (i, j);
        while !(i < old.len() && j < new.len() && is_same(i, j)) && (i < old.len() || j < new.len()) {
            if j == new.len() || i < old.len() && common[i + 1][j] >= common[i][j + 1] {
                i += 1
            } else {
                j += 1
            }
        }
        if start != (i, j) {
            changes.push((start.0..i, start.1..j));
        }
        while i < old.len() && j < new.len() && is_same(i, j) {
            (i, j) = (i + 1, j + 1);
        }
    }
    changes
}

// ---- files ----

fn diff_of(path: &Path) -> PathBuf {
    Path::new(ENTRIES).join(format!("{}.diff", path.display()))
}

fn failed(path: &Path) -> impl Fn(io::Error) -> String {
    move |error| format!("{}: {error}", path.display())
}

/// Files of the tree that may have entries.
fn tree() -> Result<Texts, String> {
    let texts = read_all(Texts::new(), Path::new("src"))?;
    read_all(texts, Path::new("tests/sim"))
}

/// All files below a folder, except links.
fn read_all(mut texts: Texts, folder: &Path) -> Result<Texts, String> {
    for name in names(folder)? {
        let path = folder.join(name);
        let kind = fs::symlink_metadata(&path).map_err(failed(&path))?.file_type();
        if kind.is_dir() {
            texts = read_all(texts, &path)?;
        } else if kind.is_file() {
            drop(texts.insert(path.clone(), fs::read_to_string(&path).map_err(failed(&path))?));
        }
    }
    Ok(texts)
}

fn names(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = fs::read_dir(folder).map_err(failed(folder))?;
    let names = entries.map(|entry| entry.map(|it| it.file_name().into()));
    names.collect::<Result<_, _>>().map_err(failed(folder))
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    if fs::read_to_string(path).is_ok_and(|it| it == text) {
        return Ok(());
    }
    path.parent().map_or(Ok(()), fs::create_dir_all).map_err(failed(path))?;
    fs::write(path, text).map_err(failed(path))
}

fn remove(path: &Path) -> Result<(), String> {
    let is_dir = fs::symlink_metadata(path).map_err(failed(path))?.is_dir();
    if is_dir { fs::remove_dir_all(path) } else { fs::remove_file(path) }.map_err(failed(path))
}

/// Makes the folder a copy of the tree with these texts. Folders without texts are links. Unchanged files are
/// not written, so that Cargo rebuilds little.
fn write_copy(to: &Path, texts: &Texts) -> Result<(), String> {
    let root = std::env::current_dir().map_err(failed(to))?;
    mirror(&root, to, Path::new(""), texts)
}

/// Mirrors one folder: a link, unless the folder contains copied files or tests, which Cargo does not find
/// through links.
fn mirror(root: &Path, to: &Path, folder: &Path, texts: &Texts) -> Result<(), String> {
    fs::create_dir_all(to.join(folder)).map_err(failed(to))?;
    let below = |path: &Path| texts.keys().any(|it| it != path && it.starts_with(path));
    let own = texts.keys().filter_map(|path| path.strip_prefix(folder).ok()?.iter().next());
    let mut wanted: BTreeSet<PathBuf> = own.map(PathBuf::from).collect();
    if !folder.starts_with("src") {
        wanted.extend(names(&root.join(folder))?);
    }
    if folder == Path::new("") {
        wanted.remove(Path::new(".git"));
        wanted.remove(Path::new("target"));
    }
    for name in names(&to.join(folder))?.iter().filter(|name| !wanted.contains(*name)) {
        remove(&to.join(folder).join(name))?;
    }
    for name in wanted {
        let path = folder.join(name);
        let (source, copy) = (root.join(&path), to.join(&path));
        let is_test = folder == Path::new("tests") && source.is_dir();
        let is_link = !texts.contains_key(&path) && !below(&path) && !is_test;
        let link = fs::read_link(&copy).ok();
        if is_link && link.as_deref() == Some(&*source) {
            continue;
        }
        if link.is_some() || (is_link && copy.exists()) {
            remove(&copy)?;
        }
        match texts.get(&path) {
            Some(text) => write(&copy, text)?,
            None if is_link => std::os::unix::fs::symlink(&source, &copy).map_err(failed(&copy))?,
            None => mirror(root, to, &path, texts)?,
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "defects/tests.rs"]
mod tests;
