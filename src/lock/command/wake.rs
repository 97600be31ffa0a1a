//! Waking few of many waiters: each waiter subscribes to the channel of a group beside the lock's own
//! channel, and a release can notify two groups only.
//!
//! A message on the lock's own channel is for all waiters. A message on the channel of a group is for that
//! group alone, and no other master publishes this release.

use super::entry::{Entry, encode_decimal, encode_decimal_bulk, encode_joined, key_bytes};
use super::scripts::{RELEASE_WAKE, Script};
use crate::limits;
use crate::lock::Token;
use crate::resp;

/// Part of a group's channel between the prefix and the lock's name. No lock may have a name that starts like
/// this, so that no lock's own channel is one of a group.
pub(crate) const WAKE_NAME: &[u8] = b"redlatch:wake:";

/// Compare and delete; notifies group 0, and two of the others that have members. The token is random, and so
/// is the group with which the search for them begins.
pub(crate) fn encode_release_wake(out: &mut Vec<u8>, script: Script, entry: &Entry, prefix_size: usize) {
    let (key, value) = entry.parts();
    // Behind the header; a label may follow it.
    let token = value.iter().position(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    let last = value.get(token + Token::SIZE - 1).copied().unwrap_or_default();
    let group_count = u64::from(limits::WAKE_GROUP_COUNT);
    RELEASE_WAKE.encode_head(out, script);
    out.extend_from_slice(&entry.bytes);
    let (prefix, name) = key_bytes(key).split_at_checked(prefix_size).unwrap_or_default();
    encode_joined(out, &[prefix, WAKE_NAME, name, b":"]);
    encode_decimal_bulk(out, u64::from(last) % group_count);
    encode_decimal_bulk(out, group_count);
}

/// The channel of a group as an encoded bulk string, with a key from [`Entry::key`].
pub(crate) fn encode_group_channel(out: &mut Vec<u8>, key: &[u8], prefix_size: usize, group: u32) {
    let (prefix, name) = key_bytes(key).split_at_checked(prefix_size).unwrap_or_default();
    let mut number = Vec::new();
    encode_decimal(&mut number, u64::from(group));
    encode_joined(out, &[prefix, WAKE_NAME, name, b":", &number]);
}

/// `SUBSCRIBE channel ...`, with channels as encoded bulk strings: to be notified when the lock is released.
pub(crate) fn encode_subscribe(out: &mut Vec<u8>, channels: &[&[u8]]) {
    encode_with(out, b"SUBSCRIBE", channels);
}

/// `UNSUBSCRIBE channel ...`
pub(crate) fn encode_unsubscribe(out: &mut Vec<u8>, channels: &[&[u8]]) {
    encode_with(out, b"UNSUBSCRIBE", channels);
}

fn encode_with(out: &mut Vec<u8>, name: &[u8], channels: &[&[u8]]) {
    resp::encode_array_header(out, 1 + channels.len());
    resp::encode_bulk(out, name);
    channels.iter().for_each(|channel| out.extend_from_slice(channel));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_release_names_the_channels_of_groups() {
        let (mut entry, mut out, mut channel) = (Entry::EMPTY, Vec::new(), Vec::new());
        entry.set(b"p:", b"a:1", &Token(*b"0123456789abcdefghi\x21"));
        encode_release_wake(&mut out, Script::Sha, &entry, 2);
        let mut expected = Vec::new();
        let (sha, token) = (RELEASE_WAKE.sha.as_bytes(), b"0123456789abcdefghi!".as_slice());
        resp::encode_command(
            &mut expected,
            &[b"EVALSHA", sha, b"1", b"p:a:1", token, b"p:redlatch:wake:a:1:", b"1", b"16"],
        );
        assert_eq!(out.escape_ascii().to_string(), expected.escape_ascii().to_string());
        // A label changes nothing about the group.
        entry.add_label(&Token(*b"0123456789abcdefghi\x21"), b"host:1:job");
        out.clear();
        encode_release_wake(&mut out, Script::Sha, &entry, 2);
        let shown = out.escape_ascii().to_string();
        assert!(shown.ends_with("a:1:\\r\\n$1\\r\\n1\\r\\n$2\\r\\n16\\r\\n"), "{shown}");
        encode_group_channel(&mut channel, entry.key(), 2, 32);
        assert_eq!(channel, b"$22\r\np:redlatch:wake:a:1:32\r\n");
    }
}
