//! The last target of `cargo test`: says which targets that leaves out, since they start servers, and how to run
//! them. They have `test = false` in the manifests.

use std::fs;
use std::path::{Path, PathBuf};

fn main() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the workspace");
    let manifests = ["Cargo.toml", "src/cli/Cargo.toml", "src/testing/Cargo.toml"];
    let manifests = manifests.map(|path| fs::read_to_string(root.join(path)).expect("a manifest")).concat();
    let tables = manifests.split("[[test]]\n").filter(|table| table.contains("\ntest = false\n"));
    let names: Vec<&str> = tables.filter_map(|table| table.split('"').nth(1)).collect();
    let files = names.iter().flat_map(|name| files(&root.join("tests").join(name)));
    let count = |file: PathBuf| fs::read_to_string(file).map_or(0, |text| text.matches("#[test]").count());
    let count: usize = files.map(count).sum();
    println!(
        "\nNot run: {} targets with {count} tests that start Redis servers: {}.",
        names.len(),
        names.join(", ")
    );
    println!("scripts/test runs all; `cargo test --all-features --test {}` runs one of them.\n", names[0]);
}

/// The files of the target in this folder, or its only file.
fn files(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return vec![folder.with_extension("rs")] };
    entries
        .flatten()
        .flat_map(|entry| match entry.path().extension() {
            Some(_) => vec![entry.path()],
            None => files(&entry.path()),
        })
        .collect()
}
