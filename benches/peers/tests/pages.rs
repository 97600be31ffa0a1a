//! The pages quote the last run's figures, and nobody has edited them.

use std::fs;
use std::path::Path;

use redlatch_peers::family::Results;
use redlatch_peers::report;

/// Files that `benches/scripts/bench --render` reads and writes.
const FILES: [&str; 7] = [
    "README.md",
    "docs/compare.svg",
    "docs/dev/peers.md",
    "docs/dev/peers.svg",
    "docs/dev/speed.md",
    "benches/peers/results/family.json",
    "benches/peers/results/peers.json",
];

#[test]
fn the_pages_have_the_stored_figures() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let copy = std::env::temp_dir().join(format!("redlatch-pages-{}", std::process::id()));
    for file in FILES {
        fs::create_dir_all(copy.join(file).parent().expect("a folder")).expect("a folder");
        fs::copy(root.join(file), copy.join(file)).expect("a file of the repository");
    }
    report::render(&copy).expect("tables of each kind of work");
    Results::render(&copy).expect("tables of waiting, fairness and renewal");
    let same = |file: &&str| fs::read(root.join(file)).ok() == fs::read(copy.join(file)).ok();
    let changed: Vec<&str> = FILES.into_iter().filter(|file| !same(file)).collect();
    let _ = fs::remove_dir_all(&copy);
    assert!(changed.is_empty(), "benches/scripts/bench --render writes them anew: {changed:?}");
}
