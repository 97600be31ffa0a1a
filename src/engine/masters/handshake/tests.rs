use super::*;
use rand::SeedableRng;
use rand::rngs::StdRng;

fn handshake(url: &str) -> (Handshake, Vec<(HandshakeStep, Vec<u8>)>) {
    let config = Config::builder().master(url).prefix("p:").build().expect("valid");
    let master = MasterId::new(0).expect("small");
    let login = config.masters[0].login.as_ref();
    Handshake::new(&config, master, login, &mut StdRng::seed_from_u64(1))
}

#[test]
fn login_and_database_come_first_and_the_nonce_last() {
    let steps = |url| handshake(url).1.into_iter().map(|(step, _)| step).collect::<Vec<_>>();
    let plain = steps("redis://h");
    assert_eq!((plain.first(), plain.last()), (Some(&HandshakeStep::Hello), Some(&HandshakeStep::Echo)));
    assert_eq!(
        steps("redis://me:pw@h/3")[..3],
        [HandshakeStep::Auth, HandshakeStep::Hello, HandshakeStep::Select]
    );
    let (_, commands) = handshake("redis://me:pw@h");
    assert_eq!(commands[0].1, b"*3\r\n$4\r\nAUTH\r\n$2\r\nme\r\n$2\r\npw\r\n");
    let (_, commands) = handshake("redis://:pw@h");
    assert_eq!(commands[0].1, b"*2\r\n$4\r\nAUTH\r\n$2\r\npw\r\n");
}

#[test]
fn only_the_right_echo_ends_the_handshake() {
    let (mut handshake, _) = handshake("redis://h");
    let nonce = handshake.nonce;
    assert!(handshake.handle_reply(HandshakeStep::Echo, &Reply::Bulk(b"0123456789abcdef")).is_err());
    assert!(handshake.handle_reply(HandshakeStep::Echo, &Reply::Simple(b"OK")).is_err());
    assert_eq!(handshake.handle_reply(HandshakeStep::Echo, &Reply::Bulk(&nonce)), Ok(true));
}

#[test]
fn only_refusals_of_needed_commands_end_the_handshake() {
    let (mut handshake, _) = handshake("redis://h");
    let noperm = Reply::Error(b"NOPERM no");
    // One command for each loaded script.
    for step in [
        HandshakeStep::SetName,
        HandshakeStep::LoadScript,
        HandshakeStep::LoadScript,
        HandshakeStep::InfoServer,
        HandshakeStep::TryDelIfEq,
    ] {
        assert_eq!(handshake.handle_reply(step, &noperm), Ok(false), "{step:?}");
    }
    assert_eq!(
        handshake.handle_reply(HandshakeStep::TryDelEx, &Reply::Error(b"ERR unknown command")),
        Ok(false)
    );
    let names: Vec<_> = handshake.learnt.refused.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["CLIENT SETNAME", "SCRIPT LOAD", "INFO server", "DELIFEQ"]);
    for step in [HandshakeStep::Auth, HandshakeStep::Select, HandshakeStep::Echo] {
        assert!(handshake.handle_reply(step, &noperm).is_err(), "{step:?}");
    }
}

#[test]
fn passing_errors_are_not_kept() {
    let steps: Vec<_> = handshake("redis://h/3").1.into_iter().map(|(step, _)| step).collect();
    for step in steps {
        for text in ["LOADING x", "BUSY x", "TRYAGAIN x", "MASTERDOWN x", "CLUSTERDOWN x", "BUSY"] {
            let (mut handshake, _) = handshake("redis://h/3");
            let reply = handshake.handle_reply(step, &Reply::Error(text.as_bytes()));
            assert!(reply.is_err_and(|why| why.contains(text)), "{step:?} {text}");
        }
        let (mut handshake, _) = handshake("redis://h/3");
        let reply = handshake.handle_reply(step, &Reply::Error(b"BUSYKEY x"));
        assert_eq!(reply.is_err(), step.must_succeed(), "{step:?}");
    }
}

#[test]
fn odd_answers_to_optional_steps_are_noted() {
    let steps: Vec<_> = handshake("redis://h/3").1.into_iter().map(|(step, _)| step).collect();
    for step in steps.into_iter().filter(|step| !step.must_succeed()) {
        for odd in [Reply::Simple(b"QUEUED"), Reply::Bulk(b"x"), Reply::Integer(7), Reply::NullBulk] {
            let is_bulk = matches!(odd, Reply::Bulk(_) | Reply::NullBulk);
            let fits = match step {
                HandshakeStep::ReadMark | HandshakeStep::ReadRecord => is_bulk,
                HandshakeStep::TryPublish | HandshakeStep::TryShardedPublish => odd == Reply::Integer(7),
                HandshakeStep::TrySetIfEq => odd == Reply::NullBulk,
                HandshakeStep::LoadScript
                | HandshakeStep::InfoServer
                | HandshakeStep::InfoReplication
                | HandshakeStep::InfoMemory => odd == Reply::Bulk(b"x"),
                _ => false,
            };
            let (mut handshake, _) = handshake("redis://h/3");
            assert_eq!(handshake.handle_reply(step, &odd), Ok(false), "{step:?} {odd:?}");
            let noted: Vec<_> = handshake.learnt.refused.iter().map(|(name, _)| *name).collect();
            assert_eq!(noted, [step.name()][usize::from(fits)..], "{step:?} {odd:?}");
            // No reply counts as an answer: the master cannot park, and has no optional command.
            let Learnt { has_del_if_eq, has_del_ex, has_set_if_eq, .. } = handshake.learnt;
            assert!(!handshake.learnt.parks() && !has_del_if_eq && !has_del_ex);
            assert_eq!(has_set_if_eq, fits && step == HandshakeStep::TrySetIfEq);
        }
    }
    let (mut handshake, _) = handshake("redis://h");
    let Ok(resp::Decoded::Complete { reply, .. }) = resp::decode(b"%0\r\n") else { panic!("a map") };
    assert_eq!(handshake.handle_reply(HandshakeStep::Hello, &reply), Ok(false));
    assert!(handshake.learnt.parks());
    assert_eq!(handshake.handle_reply(HandshakeStep::TryQueue, &Reply::Integer(1)), Ok(false));
    assert!(!handshake.learnt.parks(), "a queue that nobody has is not empty");
}

#[test]
fn info_fields_are_found_on_their_own_line_only() {
    let info = b"# Server\r\nredis_version:7.0.15\r\nxrun_id:no\r\nrun_id:abc\r\nempty:\r\nlast:1";
    assert_eq!(info_field(info, "run_id"), Some(b"abc".as_slice()));
    assert_eq!(info_field(info, "last"), Some(b"1".as_slice()));
    assert_eq!(info_field(info, "empty"), None);
    assert_eq!(info_field(info, "uptime_in_seconds"), None);
    assert_eq!(parse_seconds(b"7201"), Some(Duration::from_secs(7201)));
    assert_eq!(parse_seconds(b"-1"), None);
}

#[test]
fn only_a_second_offset_shows_a_promotion() {
    let of = |replid: &str, replid2: &str, offset: &str| {
        let info = format!(
            "role:master\r\nmaster_replid:{replid}\r\nmaster_replid2:{replid2}\r\nsecond_repl_offset:{offset}\r\n"
        );
        Replication::of_info(info.as_bytes()).promotion
    };
    assert_eq!((of("a", "0", "-1"), of("b", "0", "-1")), (None, None), "a first replica");
    let promoted = of("b", "a", "15");
    assert!(promoted.is_some());
    // Each promotion draws a new first id, even after following the same master to the same offset.
    for other in [of("c", "a", "15"), of("b", "c", "15"), of("b", "a", "16")] {
        assert!(other.is_some() && other != promoted);
    }
    assert_eq!(Replication::of_info(b"role:master\r\n").promotion, None);
    assert!(Replication::of_info(b"role:slave\r\n").is_replica());
}

#[test]
fn a_refused_trial_shows_a_replica_without_info() {
    let (mut handshake, _) = handshake("redis://h");
    let (no_info, refusal) = (Reply::Error(b"NOPERM"), Reply::Error(b"READONLY You can't write"));
    assert_eq!(handshake.handle_reply(HandshakeStep::InfoReplication, &no_info), Ok(false));
    assert_eq!(handshake.handle_reply(HandshakeStep::TryDelIfEq, &refusal), Ok(false));
    assert!(handshake.learnt.replication.is_replica());
}

#[test]
fn no_uptime_is_too_long() {
    let uptime = parse_seconds(b"18446744073709551615");
    assert!(Learnt { uptime, ..Learnt::default() }.run_time_max() >= uptime);
}
