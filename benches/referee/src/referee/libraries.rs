//! The available libraries, and how to start a contender of each.

use std::path::Path;

/// A contender that takes no lock.
pub(crate) const NO_LOCK: &str = "no lock (control)";
/// redlatch without a quarantine for restarted masters.
pub(crate) const TRUSTING: &str = "redlatch with Trust (control)";

#[derive(Debug, Clone)]
pub(crate) struct Library {
    pub(crate) name: &'static str,
    pub(crate) command: String,
    /// Whether it counts a master only after observing its process for one maximum TTL.
    pub(crate) has_quarantine: bool,
}

/// Redlatch, the controls, and the libraries of each language whose runtime `benches/scripts/referee` has found.
pub(crate) fn all() -> Vec<Library> {
    let own = std::env::current_exe().expect("this program");
    let contender = own.with_file_name("contender");
    let others = concat!(env!("CARGO_MANIFEST_DIR"), "/others");
    let rust = |name: &'static str, word: &str| Library {
        name,
        command: format!("exec '{}' {word}", contender.display()),
        has_quarantine: word == "redlatch",
    };
    let script = |name: &'static str, runtime: &str, file: &str| {
        let runtime = std::env::var_os(runtime)?;
        let command = format!("exec '{}' '{others}/{file}'", Path::new(&runtime).display());
        Some(Library { name, command, has_quarantine: false })
    };
    let mut all = vec![
        rust("redlatch", "redlatch"),
        rust(TRUSTING, "redlatch-trust"),
        rust(NO_LOCK, "none"),
        rust("rslock 0.10.0", "rslock"),
        rust("redis-rs 1.8.1 by hand", "redis-rs"),
    ];
    all.extend(
        [
            script("node-redlock 5.0.0-beta.2", "REFEREE_NODE", "node-redlock.cjs"),
            script("redlock-universal 0.8.5", "REFEREE_NODE", "redlock-universal.cjs"),
            script("redis-semaphore 5.8.0", "REFEREE_NODE", "redis-semaphore.cjs"),
            script("pottery 3.0.1", "REFEREE_PYTHON", "pottery_lock.py"),
            script("redlock-py 1.0.8", "REFEREE_PYTHON", "redlock_py.py"),
        ]
        .into_iter()
        .flatten(),
    );
    all
}
