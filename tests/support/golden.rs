//! Golden texts in `tests/golden/`, one file for each subject. `REDLATCH_GOLDEN=write` accepts the program's
//! present output; review the difference in the commit.

use std::path::{Path, PathBuf};

/// The workspace's folder: this package's, or a parent.
pub fn root() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let has_pages = |folder: &&Path| folder.join("tests/golden").is_dir();
    package.ancestors().find(has_pages).expect("a folder with tests").to_owned()
}

/// Compares a text with its golden file.
#[track_caller]
pub fn assert_golden(file: &str, text: &str) {
    let path = root().join("tests/golden").join(file);
    if std::env::var_os("REDLATCH_GOLDEN").is_some_and(|mode| mode == "write") {
        return std::fs::write(&path, text).expect("the file can be written");
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    if expected != text {
        let difference = difference(&expected, text);
        panic!("{} differs; REDLATCH_GOLDEN=write accepts it:\n{difference}", path.display());
    }
}

/// The lines that differ, without the common lines at the beginning and the end.
fn difference(expected: &str, found: &str) -> String {
    let (old, new): (Vec<_>, Vec<_>) = (expected.lines().collect(), found.lines().collect());
    let same = old.iter().zip(&new).take_while(|(old, new)| old == new).count();
    let (old, new) = (&old[same..], &new[same..]);
    let end = old.iter().rev().zip(new.iter().rev()).take_while(|(old, new)| old == new).count();
    let lines = |sign: char, lines: &[&str]| {
        lines[..lines.len() - end].iter().map(|line| format!("{sign}{line}\n")).collect::<String>()
    };
    format!("@ line {}\n{}{}", same + 1, lines('-', old), lines('+', new))
}

#[test]
fn each_page_is_held_by_a_test() {
    let root = root();
    let mut sources = String::new();
    let mut folders = vec![root.join("src"), root.join("tests")];
    while let Some(folder) = folders.pop() {
        for entry in
            std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("it is there").path())
        {
            if entry.is_dir() {
                folders.push(entry);
            } else if entry.extension().is_some_and(|end| end == "rs") {
                sources += &std::fs::read_to_string(entry).expect("text");
            }
        }
    }
    let pages = std::fs::read_dir(root.join("tests/golden")).expect("a folder");
    for page in pages.map(|page| page.expect("it is there").path()).filter(|page| page.extension().is_none())
    {
        // Tests of a folder count its pages themselves.
        let name = page.file_name().and_then(|name| name.to_str()).expect("a name");
        let call =
            if page.is_dir() { format!("\"{name}/{{}}\"") } else { format!("assert_golden(\"{name}\"") };
        assert!(sources.contains(&call), "no test holds tests/golden/{name}");
    }
}

#[test]
fn a_difference_shows_the_lines_that_differ() {
    assert_eq!(difference("a\nb\nc\n", "a\nx\ny\nc\n"), "@ line 2\n-b\n+x\n+y\n");
    assert_eq!(difference("", "a\n"), "@ line 1\n+a\n");
    assert_eq!(difference("a\na\n", "a\n"), "@ line 2\n-a\n");
}
