//! redlatch (skeleton)
pub mod resp;
