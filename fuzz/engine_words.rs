//! Replies that masters may send, and the meaning of the commands and replies in `engine_net.rs`.

use redlatch::resp::{self, Decoded, Reply};

use super::model::script;

/// Replies, right or wrong, whole or partial, to any request or to none.
pub const REPLIES: [&[u8]; 24] = [
    b"+OK\r\n",
    b"$-1\r\n",
    b":1\r\n",
    b":0\r\n",
    b":-1\r\n",
    b":-2\r\n",
    b":700\r\n",
    b"-ERR x\r\n",
    b"-NOSCRIPT x\r\n",
    b"-LOADING x\r\n",
    b"*0\r\n",
    b"*-1\r\n",
    b"*1\r\n+OK\r\n",
    b"$2\r\nOK\r\n",
    b"$99999999999\r\n",
    b"$-2\r\n",
    b":99999999999999999999\r\n",
    b"+OK\r\n+OK\r\n",
    b"+OK\r\n?",
    b":1\r\n:1\r\n",
    b"+O",
    b"K\r\n",
    b"$1000\r\n",
    b":9223372036854775807\r\n",
];

/// Commands that a master may refuse, and its error.
pub const ERRORS: [(&str, &str); 8] = [
    ("SET", "OOM command not allowed"),
    ("EVALSHA", "NOSCRIPT No matching script"),
    ("EVALSHA", "NOPERM x"),
    ("EVAL", "BUSY x"),
    ("PTTL", "ERR x"),
    ("INFO", "NOPERM x"),
    ("CLIENT", "LOADING x"),
    ("ECHO", "ERR x"),
];

pub const TOKEN_SIZE: usize = 20;

/// A command that runs a script.
pub struct Call<'a> {
    pub is_digest: bool,
    pub name: &'static str,
    /// The lock's key.
    pub key: &'a [u8],
    /// Arguments after the keys.
    pub args: Vec<&'a [u8]>,
}

impl<'a> Call<'a> {
    pub fn of(args: &[&'a [u8]]) -> Option<Self> {
        let [by @ (b"EVALSHA" | b"EVAL"), word, count, key, rest @ ..] = args else { return None };
        let name = script(word).expect("no script of the client").name;
        let more_keys = usize::from(count[0] - b'1');
        Some(Self { is_digest: *by == b"EVALSHA", name, key, args: rest[more_keys..].to_vec() })
    }
}

/// Key, old and new token of a hand-over.
pub fn swap<'a>(args: &[&'a [u8]]) -> Option<[&'a [u8]; 3]> {
    match *args {
        [b"SET", key, new, b"IFEQ", old, b"PX", _] if old != new && new.len() == TOKEN_SIZE => {
            Some([key, old, new])
        }
        _ => None,
    }
}

/// Whether this grants a `SET` or a fenced lock.
pub fn is_grant(reply: &Reply<'_>) -> bool {
    *reply == Reply::Simple(b"OK")
}

/// Whether this grants a parked attempt.
pub fn is_parked_grant(reply: &Reply<'_>) -> bool {
    matches!(reply, Reply::Array(values) if values.iter().next() == Some(Reply::Integer(1)))
}

pub fn is_noscript(reply: &Reply<'_>) -> bool {
    matches!(reply, Reply::Error(text) if text.starts_with(b"NOSCRIPT"))
}

/// Payload of a push: `Some(None)` if the push is no message of a channel. `None` if `reply` is no push, or
/// is a channel's confirmation, which answers a request.
pub fn message<'a>(reply: &Reply<'a>) -> Option<Option<&'a [u8]>> {
    let Reply::Push(elements) = reply else { return None };
    match &elements.iter().collect::<Vec<_>>()[..] {
        [Reply::Bulk(b"subscribe" | b"ssubscribe"), Reply::Bulk(_), Reply::Integer(_)] => None,
        [Reply::Bulk(b"message" | b"smessage"), Reply::Bulk(_), Reply::Bulk(payload)] => Some(Some(payload)),
        _ => Some(None),
    }
}

pub fn bulk<'a>(reply: Reply<'a>) -> &'a [u8] {
    if let Reply::Bulk(bytes) = reply { bytes } else { panic!("a command has {reply:?}") }
}

pub fn first_size(commands: &[u8]) -> usize {
    if let Ok(Decoded::Complete { size, .. }) = resp::decode(commands) { size } else { 0 }
}

pub fn whole_commands(bytes: &[u8]) -> usize {
    let mut whole = 0;
    loop {
        match first_size(&bytes[whole..]) {
            0 => return whole,
            size => whole += size,
        }
    }
}
