//! All scripts by name, for tests that run and break them.

use super::{fair, fenced, force, shared};

/// A script as masters get it.
#[derive(Debug, Clone, Copy)]
pub struct NamedScript {
    /// The name that tests know it by.
    pub name: &'static str,
    /// The Lua code.
    pub text: &'static str,
    /// SHA-1 of `text` in hexadecimal digits, by which `EVALSHA` calls it.
    pub sha: &'static str,
}

const fn named(name: &'static str, text: &'static str, sha: &'static str) -> NamedScript {
    NamedScript { name, text, sha }
}

/// Every script that an engine sends.
pub const SCRIPTS: [NamedScript; 13] = [
    named("release", super::RELEASE_SCRIPT, super::RELEASE_SHA),
    named("telling", super::TELLING_SCRIPT, super::TELLING_SHA),
    named("extend", super::EXTEND_SCRIPT, super::EXTEND_SHA),
    named("swap", super::SWAP_SCRIPT, super::SWAP_SHA),
    named("fenced acquire", fenced::FENCED_ACQUIRE_SCRIPT, fenced::ACQUIRE_SHA),
    named("fenced release", fenced::FENCED_RELEASE_SCRIPT, fenced::RELEASE_SHA),
    named("fenced telling", fenced::FENCED_TELLING_SCRIPT, fenced::TELLING_SHA),
    named("fair", fair::FAIR_SCRIPT, fair::FAIR_SHA),
    named("shared acquire", shared::ACQUIRE_SCRIPT, shared::ACQUIRE_SHA),
    named("shared extend", shared::EXTEND_SCRIPT, shared::EXTEND_SHA),
    named("shared release", shared::RELEASE_SCRIPT, shared::RELEASE_SHA),
    named("intent", shared::INTENT_SCRIPT, shared::INTENT_SHA),
    named("force", force::FORCE_SCRIPT, force::FORCE_SHA),
];
