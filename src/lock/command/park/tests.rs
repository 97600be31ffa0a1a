//! Bytes of the commands, and answers of every shape.

use std::time::Duration;

use super::*;
use crate::lock::command::scripts::{
    FENCED_RELEASE_SERVE, RELEASE_SERVE, SHARED_ACQUIRE_QUEUE, SHARED_RELEASE_SERVE,
};
use crate::lock::command::shared::encode_shared_acquire_queue;
use crate::lock::fencing::FencingToken;
use crate::lock::{Drift, NamedScript, Token};

const KEYS: [&[u8]; 3] = [b"p:\r\nname", b"p:redlatch:wait:\r\nname", b"p:redlatch:fence:\r\nname"];
const PARKED: Park<'static> = Park {
    id: b"\0\r\n123456789",
    round: 7,
    ticket_us: 1_800_000_000_000_000,
    at_us: 1_800_000_000_000_001,
    waited_us: 0,
    old_value: b"0123456789abcdefghij\tlabel",
    yields: true,
    kind: Kind::Plain,
    stay_ms: 3000,
    fresh_ms: 2500,
    grant_ms: 10_000,
    channel: b"p:redlatch:c:1",
    vote: *b"\0\r\nvotes",
    prefix_size: 2,
};

fn fence() -> Fence {
    let window = Window::new(Duration::from_secs(30));
    Fence { token: FencingToken::near(1_800_000_000_000), window, prefix_size: 2 }
}

fn entry() -> Entry {
    let mut entry = Entry::EMPTY;
    entry.set(b"p:", b"\r\nname", &Token::UNSET);
    entry
}

/// The bytes equal the general encoder's, by the digest and in full.
fn check(named: NamedScript, keys: &[&[u8]], args: &[&[u8]], write: impl Fn(&mut Vec<u8>, Script)) {
    for (script, [name, code]) in
        [(Script::Sha, ["EVALSHA", named.sha]), (Script::Text, ["EVAL", named.text])]
    {
        let (mut out, mut expected) = (Vec::new(), Vec::new());
        write(&mut out, script);
        let key_count = keys.len().to_string();
        let head = [name.as_bytes(), code.as_bytes(), key_count.as_bytes()];
        resp::encode_command(&mut expected, &[&head, keys, args].concat());
        assert_eq!(out.escape_ascii().to_string(), expected.escape_ascii().to_string());
    }
}

#[test]
fn a_park_has_all_of_a_round() {
    let value = [0; Token::SIZE];
    let check_park = |park: Park<'_>, args: [&[u8]; 6]| {
        let [round, at, yields, mode, stay, fenced] = args;
        let args: [&[u8]; 15] = [
            park.id,
            round,
            b"1800000000000000",
            at,
            b"0",
            b"0123456789abcdefghij\tlabel",
            yields,
            mode,
            stay,
            b"2500",
            b"10000",
            b"p:redlatch:c:1",
            &park.vote,
            fenced,
            &value,
        ];
        check(PARK, &KEYS, &args, |out, script| encode_park(out, script, &entry(), &park));
    };
    check_park(PARKED, [b"7", b"1800000000000001", b"1", b"p", b"3000", b""]);
    let park = Park { round: u32::MAX, at_us: 17, yields: false, stay_ms: 0, ..PARKED };
    let shared = Park { kind: Kind::Shared, ..park };
    check_park(shared, [b"99999999", b"17", b"0", b"r", b"0", b""]);
    let fenced = Park { kind: Kind::Fenced(fence()), ..park };
    let part = b"00018000000000000000150000000000090000";
    check_park(fenced, [b"99999999", b"17", b"0", b"f", b"0", part]);
}

#[test]
fn lock_queue_and_fence_share_their_prefix() {
    let (value, entry, fence) = ([0; Token::SIZE].as_slice(), entry(), fence());
    let (token, half, life): (&[u8], &[u8], &[u8]) = (b"1800000000000", b"15000000", b"90000");
    check(UNPARK, &KEYS, &[b"17", value, b"", b"", b""], |out, script| {
        encode_unpark(out, script, &entry, Some(17), None, 2);
    });
    check(UNPARK, &KEYS, &[b"", value, token, half, life], |out, script| {
        encode_unpark(out, script, &entry, None, Some(&fence), 2);
    });
    check(SERVE, &KEYS, &[], |out, script| encode_serve(out, script, entry.key(), 2));
    let fenced: &[&[u8]] = &[value, token, half, half, life];
    for (release, kind, arguments) in [
        (RELEASE_SERVE, Kind::Plain, &[value][..]),
        (FENCED_RELEASE_SERVE, Kind::Fenced(fence), fenced),
        (SHARED_RELEASE_SERVE, Kind::Shared, &[value]),
    ] {
        check(release, &KEYS, arguments, |out, script| encode_release_serve(out, script, &entry, kind, 2));
    }
    let [lock, queue, _] = KEYS;
    check(SHARED_ACQUIRE_QUEUE, &[lock, queue], &[value, b"10000"], |out, script| {
        encode_shared_acquire_queue(out, script, &entry, 10_000, 2);
    });
    let (mut out, mut expected) = (Vec::new(), Vec::new());
    encode_force_unlock_serve(&mut out, entry.key(), 2);
    let head = [b"EVAL".as_slice(), FORCE_UNLOCK_SERVE.text.as_bytes(), b"3"];
    resp::encode_command(&mut expected, &[head, KEYS].concat());
    assert_eq!(out.escape_ascii().to_string(), expected.escape_ascii().to_string());
}

#[test]
fn a_swap_names_the_entry_that_goes() {
    let (old, mut new) = (entry(), Entry::EMPTY);
    let token = Token(*b"0123456789abcdefghij");
    new.set_key(old.key(), &token);
    new.add_label(&token, b"next");
    let ttl = Ttl::new(Duration::from_millis(700), Drift::DEFAULT, Duration::from_secs(60)).expect("valid");
    let ([lock, queue, _], value) = (KEYS, [0; Token::SIZE].as_slice());
    for (at_us, at) in [(Some(17), b"17".as_slice()), (None, b"")] {
        let args = [at, value, b"0123456789abcdefghij\tnext", b"700"];
        check(SWAP_PARKED, &[lock, queue], &args, |out, script| {
            encode_swap_parked(out, script, &old, &new, at_us, ttl, 2);
        });
    }
}

#[test]
fn a_channel_has_32_random_digits() {
    let mut channel = Vec::new();
    let random = [0, 1, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef, 0xff, 16, 0, 0, 0, 0, 0xa0];
    encode_channel(&mut channel, b"p:", &random);
    let name = b"p:redlatch:c:000123456789abcdefff1000000000a0";
    assert_eq!(channel.escape_ascii().to_string(), name.escape_ascii().to_string());
}

#[test]
fn the_longest_names_fit_a_request() {
    use crate::limits::{
        HOLDER_LABEL_SIZE_MAX, MAX_TTL_MAX, PREFIX_SIZE_MAX, REQUEST_SIZE_MAX, RESOURCE_SIZE_MAX,
    };
    let (mut entry, mut channel, mut out) = (Entry::EMPTY, Vec::new(), Vec::new());
    entry.set(&[b'p'; PREFIX_SIZE_MAX], &[b'n'; RESOURCE_SIZE_MAX], &Token::UNSET);
    entry.add_label(&Token::UNSET, &[b'l'; HOLDER_LABEL_SIZE_MAX]);
    encode_channel(&mut channel, &[b'p'; PREFIX_SIZE_MAX], &[0xff; 16]);
    let (window, prefix_size) = (Window::new(MAX_TTL_MAX), PREFIX_SIZE_MAX);
    let ms_max = u64::try_from(MAX_TTL_MAX.as_millis()).expect("small");
    let park = Park {
        round: u32::MAX,
        ticket_us: u64::MAX,
        at_us: u64::MAX,
        waited_us: u64::MAX,
        old_value: &[b'v'; Token::SIZE + 1 + HOLDER_LABEL_SIZE_MAX],
        kind: Kind::Fenced(Fence { token: FencingToken::near(u64::MAX), window, prefix_size }),
        stay_ms: ms_max,
        fresh_ms: ms_max,
        grant_ms: ms_max,
        channel: &channel,
        prefix_size,
        ..PARKED
    };
    encode_park(&mut out, Script::Text, &entry, &park);
    assert!(out.len() <= REQUEST_SIZE_MAX, "{} bytes", out.len());
}

fn answer(reply: &[u8]) -> Result<ParkAnswer, WrongShape> {
    match resp::decode(reply) {
        Ok(resp::Decoded::Complete { reply, .. }) => park_answer(&reply),
        other => panic!("{other:?}"),
    }
}

/// An array of these words: quoted texts and numbers.
fn array(words: &str) -> Vec<u8> {
    let words: Vec<_> = words.split(' ').collect();
    let mut out = Vec::new();
    resp::encode_array_header(&mut out, words.len());
    for word in words {
        match word.strip_prefix('"') {
            Some(text) => resp::encode_bulk(&mut out, text.trim_end_matches('"').as_bytes()),
            None => out.extend_from_slice(format!(":{word}\r\n").as_bytes()),
        }
    }
    out
}

#[test]
fn each_answer_is_distinct_and_errors_no_refusal() {
    let seen = |ticket_us, has_more| Seen { ticket_us, now_us: 9, has_more };
    assert_eq!(answer(&array("1 5 9 0")), Ok(ParkAnswer::Granted(seen(5, false))));
    assert_eq!(answer(&array("1 -5 9 1")), Ok(ParkAnswer::Granted(seen(0, true))));
    assert_eq!(answer(&array("2 5 9 0")), Ok(ParkAnswer::Own(seen(5, false))));
    let (ms, state) = (Duration::from_millis, |refusal, fence| {
        Some(FenceState { refusal, fence, holder: HolderTtl::Unknown, time_us: 9 })
    });
    let label = |text: &str| Some(Arc::from(text));
    let long = format!("1 7 0 \"\t{}\" 0 0", "x".repeat(65));
    let rows = [
        ("1 7 0 \"\tworker\" 0 0", true, HolderTtl::Left(ms(7)), 0, label("worker"), None),
        ("0 0 3 \"\" 0 0", false, HolderTtl::Left(ms(0)), 3, None, None),
        ("1 -1 -1 \"worker\" 0 5", true, HolderTtl::Never, 0, None, None),
        ("0 -2 0 \"\" 1 5", false, HolderTtl::Gone, 0, None, state(Refusal::Stale, 5)),
        ("0 -2 0 \"\" 2 -5", false, HolderTtl::Gone, 0, None, state(Refusal::Past, 0)),
        ("0 -3 0 \"\t\" 3 0", false, HolderTtl::Unknown, 0, None, state(Refusal::Future, 0)),
        (&long, true, HolderTtl::Left(ms(7)), 0, None, None),
    ];
    for (words, is_first, holder, readers, label, refusal) in rows {
        let expected = Waiting { is_first, holder, readers, label, refusal, digest: 77 };
        let reply = array(&format!("0 5 9 1 {words} 77"));
        assert_eq!(answer(&reply), Ok(ParkAnswer::Waiting(seen(5, true), expected)), "{words}");
    }
    for text in ["NOSCRIPT x", "OOM x", "WRONGTYPE x", ""] {
        let reply = format!("-{text}\r\n");
        assert_eq!(answer(reply.as_bytes()), Ok(ParkAnswer::Failed(Failure::Replied(text.into()))));
    }
}

#[test]
fn answers_of_another_shape_are_refused() {
    for words in [
        "1 5 9",
        "1 5 9 2",
        "1 5 9 0 0",
        "2 5 9 0 0 0 0 \"\" 0 0 7",
        "3 5 9 0",
        "0 5 9 0",
        "\"1\" 5 9 0",
        "0 5 9 0 0 0 0 \"\" 0 0",
        "0 5 9 0 0 0 0 \"\" 0 0 7 0",
        "0 5 9 0 0 0 0 \"\" 0 0 -7",
        "0 5 9 0 2 0 0 \"\" 0 0 7",
        "0 5 9 0 0 0 0 \"\" 4 0 7",
        "0 5 9 0 0 0 0 0 0 0 7",
        "0 5 9 0 0 0 \"\" \"\" 0 0 7",
    ] {
        assert_eq!(answer(&array(words)), Err(WrongShape), "{words}");
    }
    for reply in
        [b"+OK\r\n".as_slice(), b":1\r\n", b"$1\r\n1\r\n", b"$-1\r\n", b"_\r\n", b"*-1\r\n", b"*0\r\n"]
    {
        assert_eq!(answer(reply), Err(WrongShape), "{}", reply.escape_ascii());
    }
    let push = [b">".as_slice(), &array("1 5 9 0")[1..]].concat();
    assert_eq!(answer(&push), Err(WrongShape), "a push is no reply");
}

#[test]
fn a_look_answers_with_a_digest() {
    for (number, has_more, digest) in
        [(0, false, 0), (1, false, 0), (4, true, 0), (5, true, 0), (0x7ff_fff8, false, 0xff_ffff)]
    {
        assert_eq!(looked(&Reply::Integer(number)), Ok(Looked { has_more, digest }));
    }
    assert_eq!(looked(&Reply::Error(b"OOM x")), Ok(Looked::default()));
    for reply in [Reply::Integer(2), Reply::Integer(-8), Reply::Integer(1 << 35), Reply::Null] {
        assert_eq!(looked(&reply), Err(WrongShape), "{reply:?}");
    }
}

#[test]
fn a_release_answers_if_it_served() {
    let rows = [
        (0, ReleaseAnswer::Absent, false),
        (1, ReleaseAnswer::Deleted, false),
        (2, ReleaseAnswer::Deleted, false),
        (4, ReleaseAnswer::Absent, true),
        (5, ReleaseAnswer::Deleted, true),
        (6, ReleaseAnswer::Deleted, true),
    ];
    for (number, answer, has_more) in rows {
        let reply = Reply::Integer(number);
        assert_eq!(served_release_answer(&reply), Ok((answer.clone(), has_more)));
        assert_eq!(served_forced_answer(&reply), Ok((answer, has_more)));
    }
    let failed = || Failure::Replied("WRONGTYPE x".into());
    let wrong_type = Reply::Error(b"WRONGTYPE x");
    assert_eq!(served_release_answer(&wrong_type), Ok((ReleaseAnswer::Absent, false)));
    let forced = Ok((ReleaseAnswer::Failed(failed()), false));
    assert_eq!(served_forced_answer(&wrong_type), forced);
    let noscript = served_release_answer(&Reply::Error(b"NOSCRIPT x"));
    assert!(matches!(noscript, Ok((ReleaseAnswer::Failed(_), _))), "{noscript:?}");
    for reply in [Reply::Integer(3), Reply::Integer(7), Reply::Integer(-1), Reply::NullBulk] {
        assert_eq!(served_release_answer(&reply), Err(WrongShape), "{reply:?}");
    }
}

#[test]
fn only_pushes_are_messages() {
    fn check(bytes: &[u8], expected: Option<Message>) {
        let Ok(resp::Decoded::Complete { reply, .. }) = resp::decode(bytes) else { panic!("a whole reply") };
        assert_eq!(message(&reply), expected, "{}", bytes.escape_ascii());
    }
    let vote = *b"\0\r\nvotes";
    let says = |payload: &[u8]| {
        let mut out = b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n".to_vec();
        resp::encode_bulk(&mut out, payload);
        out
    };
    check(&says(b"\0\r\nvotes"), Some(Message::Vote(vote)));
    check(&says(b"\0\r\nvotesr"), Some(Message::Ring(vote)));
    check(b">3\r\n$8\r\nsmessage\r\n$1\r\nc\r\n$8\r\n\0\r\nvotes\r\n", Some(Message::Vote(vote)));
    for payload in [b"".as_slice(), b"\0\r\nvote", b"\0\r\nvotesx", b"\0\r\nvotesrr"] {
        check(&says(payload), Some(Message::Other));
    }
    check(b">3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n", Some(Message::Subscribed));
    check(b">3\r\n$10\r\nssubscribe\r\n$1\r\nc\r\n:1\r\n", Some(Message::Subscribed));
    let others: [&[u8]; 5] = [
        b">3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n$1\r\n1\r\n",
        b">3\r\n$11\r\nunsubscribe\r\n$1\r\nc\r\n:0\r\n",
        b">4\r\n$7\r\nmessage\r\n$1\r\nc\r\n$8\r\n12345678\r\n:1\r\n",
        b">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\na\r\n",
        b">1\r\n:1\r\n",
    ];
    others.iter().for_each(|it| check(it, Some(Message::Other)));
    check(b"*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$8\r\n12345678\r\n", None);
    check(b":1\r\n", None);
}
