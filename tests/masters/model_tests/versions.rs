//! RESP3: the model sends the same greeting, replies and messages as a server.

use std::net::SocketAddr;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use redlatch::resp::{self, Decoded, Reply};
use redlatch_support::{Fleet, valkey_9};

use super::commands::text_of;
use super::messages::Audience;

const TOKEN: &[u8] = b"0123456789abcdefghij";
const CHANNELS: [&[u8]; 2] = [b"a", b"\r\n"];
/// Connections that begin with `HELLO 3`. The others keep RESP2.
const NEW: [usize; 3] = [0, 1, 2];
const CONN_COUNT: usize = 5;
const STEPS: usize = 600;

/// A greeting without connection number, server version and modules.
fn masked(reply: &[u8]) -> String {
    let Ok(Decoded::Complete { reply: Reply::Map(fields) | Reply::Array(fields), .. }) = resp::decode(reply)
    else {
        return reply.escape_ascii().to_string();
    };
    let is_varied = |name: &Reply<'_>| matches!(name, Reply::Bulk(b"id" | b"version" | b"modules"));
    let shown = |(name, value): (Reply<'_>, Reply<'_>)| {
        if is_varied(&name) { format!("{name:?}") } else { format!("{name:?} {value:?}") }
    };
    let kind = char::from(reply[0]);
    format!("{kind}{}", fields.pairs().map(shown).collect::<Vec<_>>().join(", "))
}

/// Sends a greeting to both.
fn greet(audience: &mut Audience, conn: usize, words: &[&[u8]]) {
    let [server, model] = audience.exchange(conn, words).map(|reply| masked(&reply));
    let words: Vec<_> = words.iter().map(|word| word.escape_ascii().to_string()).collect();
    assert_eq!(server, model, "{words:?}, connection {conn}");
}

fn step(audience: &mut Audience, rng: &mut StdRng) {
    let channel = *CHANNELS.choose(rng).expect("not empty");
    let conn = rng.random_range(0..CONN_COUNT);
    let new = *NEW.choose(rng).expect("not empty");
    match rng.random_range(0..20) {
        0..2 => audience.say(conn, &[b"SUBSCRIBE", channel]),
        2 => audience.say(conn, &[b"SSUBSCRIBE", channel]),
        3 => audience.say(conn, &[b"SUBSCRIBE", channel, b"more"]),
        4 => audience.say(
            conn,
            &[[b"UNSUBSCRIBE".as_slice(), b"SUNSUBSCRIBE"].choose(rng).expect("not empty"), channel],
        ),
        5 => audience.say(conn, &[b"UNSUBSCRIBE", channel, b"more"]),
        6 => audience.say(conn, &[b"PUBLISH", channel, b"x"]),
        7 => audience.say(conn, &[b"SPUBLISH", channel, b"x"]),
        8 => audience.say(new, &[b"SET", b"k", TOKEN, b"NX", b"PX", b"3600000"]),
        9 => audience.say(new, &[b"GET", [b"k".as_slice(), b"none"].choose(rng).expect("not empty")]),
        10 => audience.say(new, &[b"DEL", b"k"]),
        11 => {
            let score =
                [b"1.5".as_slice(), b"-inf", b"+inf", b"1795446393560044", b"-3"][rng.random_range(0..5)];
            audience.say(new, &[b"ZADD", b"z", score, channel]);
        }
        12 => audience.say(new, &[b"ZSCORE", b"z", channel]),
        13 => audience.say(new, &[b"ZRANGE", b"z", b"0", b"-1", b"WITHSCORES"]),
        14 => audience.say(new, &[b"ZRANGEBYSCORE", b"z", b"-inf", b"100"]),
        15 => audience.say(new, &[b"ZRANK", b"z", b"none"]),
        16 => {
            audience.say(new, &[b"SET", channel, TOKEN]);
            let keys = [channel, b"queue", b"fence"];
            let call = [&[b"EVAL", text_of("release_serve"), b"3"], &keys[..], &[TOKEN]].concat();
            audience.say(new, &call);
        }
        17 => audience.say(new, &[b"ZSCORE", b"k", b"x"]),
        18 => greet(audience, conn, &[b"HELLO"]),
        _ => {
            let rest: &[&[&[u8]]] = &[
                &[b"3"],
                &[b"4"],
                &[b"x"],
                &[b"3", b"ZZ"],
                &[b"3", b"AUTH", b"default"],
                &[b"3", b"AUTH", b"default", b"any", b"SETNAME", b"me"],
                &[b"3", b"AUTH", b"nobody", b"any"],
                &[b"3", b"SETNAME", b"a b"],
                &[b"3", b"SETNAME"],
            ];
            let rest = rest.choose(rng).expect("not empty");
            greet(audience, new, &[&[b"HELLO".as_slice()], *rest].concat());
        }
    }
}

fn hold_against(addr: SocketAddr) {
    let mut audience = Audience::new(addr);
    NEW.into_iter().for_each(|conn| greet(&mut audience, conn, &[b"HELLO", b"3"]));
    let mut rng = StdRng::seed_from_u64(1);
    (0..STEPS).for_each(|_| step(&mut audience, &mut rng));
    // Nobody got any other message.
    (0..CONN_COUNT).for_each(|conn| audience.say(conn, &[b"SUBSCRIBE", b"the end"]));
    audience.say(0, &[b"PUBLISH", b"the end", b"x"]);
    assert!(audience.message_count > STEPS / 10, "only {} messages", audience.message_count);
}

#[test]
fn the_model_speaks_resp3_like_the_server() {
    let mut fleet = Fleet::start(1);
    hold_against(fleet.master(0).addr());
}

#[test]
fn the_model_speaks_resp3_like_valkey() {
    let Some(place) = valkey_9() else { return };
    let mut fleet = Fleet::start_at(vec![place]);
    hold_against(fleet.master(0).addr());
}

#[test]
fn the_models_info_in_resp3_is_a_servers() {
    let mut fleet = Fleet::start(1);
    let mut audience = Audience::new(fleet.master(0).addr());
    greet(&mut audience, 0, &[b"HELLO", b"3"]);
    for section in [b"server".as_slice(), b"replication", b"memory"] {
        let kinds = audience.exchange(0, &[b"INFO", section]).map(|reply| match resp::decode(&reply) {
            Ok(Decoded::Complete { reply: Reply::Verbatim { format, text }, .. }) => {
                (format, text.split(|&byte| byte == b'\n').next().map(<[u8]>::to_vec))
            }
            other => panic!("{other:?}"),
        });
        assert_eq!(kinds[0], kinds[1]);
    }
}

/// A new connection counts as new although its number was used before.
#[test]
fn a_new_connection_speaks_resp2() {
    let mut fleet = Fleet::start(1);
    let mut audience = Audience::new(fleet.master(0).addr());
    greet(&mut audience, 1, &[b"HELLO", b"3"]);
    audience.say(1, &[b"SUBSCRIBE", b"a"]);
    audience.reconnect(1);
    audience.say(1, &[b"GET", b"none"]);
    audience.say_until(0, &[b"PUBLISH", b"a", b"x"]);
    audience.say(1, &[b"SUBSCRIBE", b"a"]);
    audience.say(1, &[b"GET", b"none"]);
}
