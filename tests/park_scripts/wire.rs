//! A RESP3 connection, whose replies and pushes the crate's decoder reads.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use redlatch::resp::{Decoded, Reply, decode, encode_command};

/// A reply that owns its bytes.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    Int(i64),
    Text(String),
    Error(String),
    Null,
    List(Vec<Value>),
    Push(Vec<Value>),
}

impl Value {
    fn new(reply: Reply<'_>) -> Value {
        let text = |bytes: &[u8]| bytes.escape_ascii().to_string();
        match reply {
            Reply::Integer(number) => Value::Int(number),
            Reply::Simple(bytes) | Reply::Bulk(bytes) | Reply::Double(bytes) => Value::Text(text(bytes)),
            Reply::Error(bytes) => Value::Error(text(bytes)),
            Reply::Null | Reply::NullBulk | Reply::NullArray => Value::Null,
            Reply::Array(items) | Reply::Map(items) => Value::List(items.iter().map(Value::new).collect()),
            Reply::Push(items) => Value::Push(items.iter().map(Value::new).collect()),
            other => panic!("no script answers {other:?}"),
        }
    }

    pub fn int(&self) -> i64 {
        match self {
            Value::Int(number) => *number,
            other => panic!("no number: {other:?}"),
        }
    }

    pub fn text(&self) -> &str {
        match self {
            Value::Text(text) => text,
            other => panic!("no text: {other:?}"),
        }
    }

    pub fn error(&self) -> &str {
        match self {
            Value::Error(text) => text,
            other => panic!("no error: {other:?}"),
        }
    }

    pub fn list(&self) -> &[Value] {
        match self {
            Value::List(items) => items,
            other => panic!("no list: {other:?}"),
        }
    }
}

pub struct Wire {
    stream: TcpStream,
    unread: Vec<u8>,
    messages: Vec<String>,
}

impl Wire {
    /// Connects and subscribes to these channels.
    pub fn open(addr: SocketAddr, channels: &[&str]) -> Wire {
        let stream = TcpStream::connect(addr).expect("the server accepts");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a time limit");
        let mut wire = Wire { stream, unread: Vec::new(), messages: Vec::new() };
        wire.call(&["HELLO", "3"]);
        for channel in channels {
            wire.send(&["SUBSCRIBE", channel]);
        }
        wire.call(&["PING"]);
        wire
    }

    fn send<A: AsRef<[u8]>>(&mut self, words: &[A]) {
        let words: Vec<&[u8]> = words.iter().map(AsRef::as_ref).collect();
        let mut out = Vec::new();
        encode_command(&mut out, &words);
        self.stream.write_all(&out).expect("the server reads");
    }

    /// Sends a command, and reads up to its reply. Keeps pushes that arrive before it.
    pub fn call<A: AsRef<[u8]>>(&mut self, words: &[A]) -> Value {
        self.send(words);
        loop {
            match self.read() {
                Value::Push(items) if items[0].text() == "message" => {
                    self.messages.push(items[2].text().to_owned());
                }
                Value::Push(_) => {}
                reply => return reply,
            }
        }
    }

    fn read(&mut self) -> Value {
        loop {
            if let Decoded::Complete { reply, size } = decode(&self.unread).expect("RESP") {
                let value = Value::new(reply);
                self.unread.drain(..size);
                return value;
            }
            let mut bytes = [0; 16_384];
            let size = self.stream.read(&mut bytes).expect("the server answers");
            assert!(size > 0, "the server closed the connection");
            self.unread.extend_from_slice(&bytes[..size]);
        }
    }

    /// All messages so far. A push comes before the reply to a later command.
    pub fn messages(&mut self) -> Vec<String> {
        self.call(&["PING"]);
        std::mem::take(&mut self.messages)
    }
}
