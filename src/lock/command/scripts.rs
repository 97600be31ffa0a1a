//! The scripts that masters run: one Lua file in `scripts/` for each purpose, stripped of comments and line
//! breaks when this crate is compiled.
//!
//! 1. A request names its script by the digest: `EVALSHA`.
//! 2. A master that does not know the digest answers `NOSCRIPT` and changes nothing. It gets the request
//!    again with the script in full: `EVAL`, which also makes the script known there.
//! 3. Later requests, above all a release, must not cost a second round trip, so their scripts are loaded in
//!    advance with `SCRIPT LOAD`. A plain lock's attempt is a `SET`, so the handshake loads the scripts that
//!    follow it (`PLAIN`). Another lock's attempt is a script; when a master does not know it, all scripts
//!    of that kind of lock are loaded (`FENCED`, `SHARED`, `PARKED`). The handshake loads none of
//!    these, because every connection would pay for kinds of locks that most clients never use.
//! 4. Repairs, forced unlocks, adoptions and releases by a handle are rare, so they send their scripts in
//!    full; a master that needs a repair has usually restarted without scripts. The short script for free
//!    slots is sent in full, too. `engine/script.rs` does points 2 and 3, the handshake its part of
//!    point 3.

use crate::resp;

// Parts of keys between the prefix and a lock's name. No lock's name may start with one.

/// Of the key of a lock's fence.
pub const FENCE_NAME: &[u8] = b"redlatch:fence:";

/// Of the key of a lock's wait queue.
pub const WAIT_NAME: &[u8] = b"redlatch:wait:";

/// Of the absent keys on which the handshake tries commands that must change nothing.
pub const PROBE_NAME: &[u8] = b"redlatch:probe:";

/// A script as sent to the masters.
#[derive(Debug, Clone, Copy)]
pub struct NamedScript {
    /// Name in tests.
    pub name: &'static str,
    /// The Lua code.
    pub text: &'static str,
    /// SHA-1 of `text` in hexadecimal digits, for `EVALSHA`.
    pub sha: &'static str,
    /// The encoded beginning of a call by the digest: `EVALSHA`, the digest, and the number of keys.
    head: &'static [u8],
    /// Number of keys.
    pub key_count: usize,
    argument_count: usize,
}

/// How a request names its script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Script {
    /// By its digest.
    Sha,
    /// In full.
    Text,
}

impl NamedScript {
    /// Encodes a call up to the keys. All keys and arguments must follow, each as a bulk string.
    #[inline]
    pub(super) fn encode_head(&self, out: &mut Vec<u8>, script: Script) {
        match script {
            Script::Sha => out.extend_from_slice(self.head),
            Script::Text => self.encode_whole_head(out),
        }
    }

    #[cold]
    fn encode_whole_head(&self, out: &mut Vec<u8>) {
        resp::encode_array_header(out, 3 + self.key_count + self.argument_count);
        resp::encode_bulk(out, b"EVAL");
        resp::encode_bulk(out, self.text.as_bytes());
        resp::encode_bulk(out, self.key_count.to_string().as_bytes());
    }

    /// `SCRIPT LOAD text`
    pub(crate) fn encode_load(&self, out: &mut Vec<u8>) {
        resp::encode_command(out, &[b"SCRIPT", b"LOAD", self.text.as_bytes()]);
    }
}

/// Declares scripts: name, files, number of keys and arguments, SHA-1.
macro_rules! scripts {
    ($($constant:ident: $name:literal from [$($file:literal),+], $keys:literal + $arguments:literal, $sha:literal;)+) => {
        $(pub(crate) const $constant: NamedScript = {
            const SOURCE: &str = concat!($(include_str!(concat!("scripts/", $file, ".lua"))),+);
            static TEXT: Bytes<{ SOURCE.len() }> = code(SOURCE);
            static HEAD: Bytes<HEAD_SIZE_MAX> = head($sha, $keys, $arguments);
            NamedScript {
                name: $name,
                text: match str::from_utf8(TEXT.as_slice()) {
                    Ok(text) => text,
                    Err(_) => panic!("it was a text before"),
                },
                sha: $sha,
                head: HEAD.as_slice(),
                key_count: $keys,
                argument_count: $arguments,
            }
        };)+

        /// Every script that an engine sends.
        pub const SCRIPTS: [NamedScript; [$($name),+].len()] = [$($constant),+];
    };
}

scripts! {
    RELEASE: "release" from ["release"], 1 + 1, "842d718010740f97c63e1cfc063e72a6b0487fb9";
    EXTEND: "extend" from ["extend"], 1 + 2, "b21458d0a3a9d5056462f2073617b88a6da3b591";
    SWAP: "swap" from ["swap"], 1 + 3, "1b7711219df5c949b193483054bc4cf6c4f92836";
    FENCED_ACQUIRE: "fenced_acquire" from ["fenced_acquire"], 2 + 6, "3ff6ee94e61a10aabe172ad7e7a42d184f847141";
    SHARED_EXTEND: "shared_extend" from ["shared_extend"], 1 + 2, "e399f87becb35b6d1dced2120999f71b7c300009";
    SHARED_ACQUIRE_QUEUE: "shared_acquire_queue" from ["queue", "shared_acquire_queue"], 2 + 2, "1034dfabad0fde19a09e45f9685efce9f0620a54";
    PARK: "park" from ["queue", "key", "serve", "park"], 3 + 15, "b9911f0f52d2aac9e065b76e374fe38e2848d433";
    UNPARK: "unpark" from ["queue", "key", "fence", "serve", "unpark"], 3 + 5, "b0f6a593f2c6d00698c1f7b1c9c04467166d801a";
    SERVE: "serve" from ["queue", "key", "serve", "serve_bare"], 3 + 0, "27d3752e80ccd6bb616f378150f21b21b8947e21";
    RELEASE_SERVE: "release_serve" from ["queue", "key", "serve", "release_serve"], 3 + 1, "0e5413d4300fb0bb42db8874a7db16d71c67e5d4";
    FENCED_RELEASE_SERVE: "fenced_release_serve" from ["queue", "key", "fence", "serve", "fenced_release_serve"], 3 + 5, "5cdc6b1bab82193c7e19fac7b90777a6f6f2c991";
    SHARED_RELEASE_SERVE: "shared_release_serve" from ["queue", "key", "serve", "shared_release_serve"], 3 + 1, "2dd8d9c1d1c702180d48277d4c3a5078983aa2fe";
    FORCE_UNLOCK_SERVE: "force_unlock_serve" from ["queue", "key", "serve", "force_unlock_serve"], 3 + 0, "75bb995f8ec24c7e15f38c1cb701447373867ad3";
    FREE_SLOTS: "free_slots" from ["free_slots"], 1 + 3, "d15529addbfd8b199ad80278fc305fcb5be56c47";
    SWAP_PARKED: "swap_parked" from ["queue", "swap_parked"], 2 + 4, "22194a981f175da5c702603f86c1b62a7b51d043";
    ADOPT: "adopt" from ["key", "adopt"], 2 + 4, "fdb3d900c148c3fe8dfa95dde919c4a7aaefcc09";
}

/// The scripts that may follow an attempt for a plain lock.
pub(crate) const PLAIN: [NamedScript; 4] = [RELEASE, EXTEND, SWAP, RELEASE_SERVE];

/// The attempt for a fenced lock, and the scripts that may follow it.
pub(crate) const FENCED: [NamedScript; 2] = [FENCED_ACQUIRE, FENCED_RELEASE_SERVE];
/// The park of a round, and the scripts that may follow it.
pub(crate) const PARKED: [NamedScript; 4] = [PARK, UNPARK, SERVE, SWAP_PARKED];
/// The attempt of a reader, and the scripts that may follow it.
pub(crate) const SHARED: [NamedScript; 3] = [SHARED_ACQUIRE_QUEUE, SHARED_EXTEND, SHARED_RELEASE_SERVE];

/// A byte buffer of fixed capacity for constants.
struct Bytes<const N: usize> {
    bytes: [u8; N],
    size: usize,
}

impl<const N: usize> Bytes<N> {
    const fn new() -> Self {
        Self { bytes: [0; N], size: 0 }
    }

    const fn push(&mut self, bytes: &[u8]) {
        let mut at = 0;
        while at < bytes.len() {
            self.bytes[self.size] = bytes[at];
            self.size += 1;
            at += 1;
        }
    }

    const fn as_slice(&self) -> &[u8] {
        self.bytes.split_at(self.size).0
    }
}

/// Converts a Lua file to one line without comments.
const fn code<const N: usize>(source: &str) -> Bytes<N> {
    let source = source.as_bytes();
    let mut code = Bytes::new();
    let (mut in_comment, mut in_string, mut is_parted) = (false, false, false);
    let mut at = 0;
    while at < source.len() {
        let byte = source[at];
        if byte == b'\n' {
            assert!(!in_string, "a string ends in its line");
            in_comment = false;
        } else if byte == b'-' && !in_string && at + 1 < source.len() && source[at + 1] == b'-' {
            in_comment = true;
        }
        if in_comment || (!in_string && byte.is_ascii_whitespace()) {
            is_parted = true;
        } else {
            if is_parted && code.size > 0 {
                code.push(b" ");
            }
            is_parted = false;
            in_string ^= byte == b'\'';
            code.push(&[byte]);
        }
        at += 1;
    }
    code
}

const HEAD_SIZE_MAX: usize = "*10\r\n$7\r\nEVALSHA\r\n$40\r\n\r\n$1\r\n1\r\n".len() + 40;

/// Encodes the head of a call by the digest.
const fn head(sha: &str, key_count: u8, argument_count: u8) -> Bytes<HEAD_SIZE_MAX> {
    let mut head = Bytes::new();
    let count = 3 + key_count + argument_count;
    head.push(b"*");
    if count >= 10 {
        head.push(&[b'0' + count / 10]);
    }
    head.push(&[b'0' + count % 10]);
    head.push(b"\r\n$7\r\nEVALSHA\r\n$40\r\n");
    head.push(sha.as_bytes());
    head.push(b"\r\n$1\r\n");
    head.push(&[b'0' + key_count]);
    head.push(b"\r\n");
    head
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_script_has_the_digest_of_its_text() {
        let digest = |it: &NamedScript| sha1_smol::Sha1::from(it.text).digest().to_string();
        let wrong: Vec<_> = SCRIPTS.iter().filter(|it| it.sha != digest(it)).collect();
        let right = wrong.iter().map(|it| format!("\n{}: {}", it.name, digest(it)));
        assert!(wrong.is_empty(), "the right digests are{}", right.collect::<String>());
    }

    #[test]
    fn each_script_names_all_of_its_keys_and_arguments() {
        for it in SCRIPTS {
            for (array, count) in [("KEYS", it.key_count), ("ARGV", it.argument_count)] {
                let named = |place: usize| it.text.contains(&format!("{array}[{place}]"));
                assert!((1..=count).all(named) && !named(count + 1), "{}: {count} {array}", it.name);
            }
        }
    }

    #[test]
    fn comments_and_line_breaks_are_not_sent() {
        let stripped: Bytes<100> =
            code("-- a 'b'\n\nlocal c = 'd  --e' -- f\n  if c  then\n\treturn c - 1\nend\n");
        assert_eq!(str::from_utf8(stripped.as_slice()), Ok("local c = 'd  --e' if c then return c - 1 end"));
        for it in SCRIPTS {
            assert!(!it.text.contains("--") && !it.text.contains('\n'), "{}: {}", it.name, it.text);
            // The compiler of these files supports no other quotes.
            assert!(!it.text.contains('"') && !it.text.contains("[["), "{}: {}", it.name, it.text);
        }
    }

    #[test]
    fn calls_by_digest_and_whole_differ_in_nothing_else() {
        for it in SCRIPTS {
            let (mut known, mut whole, mut expected) = (Vec::new(), Vec::new(), Vec::new());
            it.encode_head(&mut known, Script::Sha);
            it.encode_head(&mut whole, Script::Text);
            let key_count = it.key_count.to_string();
            let filler = vec![b"".as_slice(); it.key_count + it.argument_count];
            for (out, words) in [(known, ["EVALSHA", it.sha]), (whole, ["EVAL", it.text])] {
                let words = words.map(str::as_bytes);
                let mut command = out.clone();
                filler.iter().for_each(|it| resp::encode_bulk(&mut command, it));
                expected.clear();
                resp::encode_command(&mut expected, &[&words[..], &[key_count.as_bytes()], &filler].concat());
                assert_eq!(command.escape_ascii().to_string(), expected.escape_ascii().to_string());
            }
        }
    }
}
