//! Credentials that change: when the provider is asked, and the effects of its answers and of the server's.

use std::time::Duration;

use crate::rig::{Rig, id};
use redlatch::error::{CredentialsError, ProviderError};
use redlatch::status::{MasterState, Warning};
use redlatch::{ConfigBuilder, Credentials, Event, limits};

use crate::{defaults, granted, ms};

const MINUTE: Duration = Duration::from_secs(60);
/// Renewal time of credentials that last a minute.
const RENEWAL: Duration = Duration::from_secs(45);

/// The rig answers instead of a provider.
fn asking(builder: ConfigBuilder) -> ConfigBuilder {
    builder.credentials(|_| unreachable!("only an event loop asks")).on_event(|_| {})
}

fn sealed() -> CredentialsError {
    CredentialsError::Failed(ProviderError::new("sealed"))
}

fn credentials(password: &str) -> Credentials {
    Credentials::new(password).user("me").valid_for(MINUTE)
}

/// Three masters with this password; the provider has not answered.
fn unanswered(password: &str) -> Rig {
    let mut rig = Rig::unconnected(3, asking);
    rig.masters.iter_mut().for_each(|master| master.password = Some(password.to_owned()));
    rig.pump();
    rig
}

/// Like [`unanswered`], but connected.
fn connected(password: &str) -> Rig {
    let mut rig = unanswered(password);
    answer_all(&mut rig, password);
    rig
}

fn answer(rig: &mut Rig, master: usize, answer: Result<Credentials, CredentialsError>) {
    rig.engine.handle_credentials(rig.now, id(master), answer);
    rig.pump();
}

fn answer_all(rig: &mut Rig, password: &str) {
    while let Some(master) = rig.asked.pop_front() {
        answer(rig, master, Ok(credentials(password)));
    }
}

/// Passwords that a master has seen since the last call.
fn seen(rig: &mut Rig, master: usize) -> Vec<String> {
    let log = std::mem::take(&mut rig.masters[master].log);
    let logins = log.into_iter().filter(|words| words[0] == b"AUTH");
    logins.map(|mut words| String::from_utf8(words.pop().expect("a password")).expect("UTF-8")).collect()
}

fn state(rig: &Rig, master: usize) -> MasterState {
    rig.engine.master_status(rig.now, id(master)).state
}

fn errors(rig: &Rig, master: usize) -> Vec<CredentialsError> {
    let warnings = rig.engine.master_status(rig.now, id(master)).warnings.into_iter();
    warnings
        .filter_map(|warning| match warning {
            Warning::CredentialsFailed { error } => Some(error),
            _ => None,
        })
        .collect()
}

fn events(rig: &mut Rig) -> Vec<CredentialsError> {
    std::iter::from_fn(|| rig.engine.poll_event())
        .filter_map(|event| match event {
            Event::CredentialsFailed { error, .. } => Some(error),
            _ => None,
        })
        .collect()
}

// I142
#[test]
fn each_connect_asks_for_credentials_first() {
    let mut rig = Rig::unconnected(3, asking);
    rig.pump();
    assert_eq!(rig.asked, [0, 1, 2]);
    assert!(rig.masters.iter().all(|master| master.log.is_empty()), "connected without credentials");
    rig.asked.clear();
    rig.masters[0].password = Some("pw".to_owned());
    answer(&mut rig, 0, Ok(credentials("pw")));
    assert_eq!((state(&rig, 0), seen(&mut rig, 0)), (MasterState::Ready, vec!["pw".to_owned()]));
    assert_eq!(state(&rig, 1), MasterState::Connecting);
    rig.reset_conn(0);
    rig.run_for(limits::BACKOFF_MAX);
    assert!(rig.asked.contains(&0), "a reconnect does not ask");
}

// I142
#[test]
fn a_failing_provider_costs_its_master_only() {
    let mut rig = unanswered("pw");
    answer(&mut rig, 0, Err(CredentialsError::Panicked));
    // The question for master 1 stays open.
    answer(&mut rig, 2, Ok(credentials("pw")));
    rig.run_for(ms(1000));
    let why = |index| match state(&rig, index) {
        MasterState::Down(why) => why.to_string(),
        other => panic!("{other:?}"),
    };
    assert!(why(0).starts_with("the credentials provider panicked"), "{}", why(0));
    assert!(why(1).starts_with("the credentials provider gave no answer within 1s"), "{}", why(1));
    assert_eq!(events(&mut rig), [CredentialsError::Panicked], "a hang is the reason of the connect");
    // An open question is not repeated.
    let asked_of = |index: usize| rig.asked.iter().filter(|asked| **asked == index).count();
    assert_eq!([asked_of(0), asked_of(1)], [2, 1]);
    rig.run_for(ms(5000));
    assert_eq!(rig.asked.len(), 4, "{:?}", rig.asked);
    // The late answer serves the next attempt.
    answer(&mut rig, 1, Ok(credentials("pw")));
    rig.run_for(limits::BACKOFF_MAX);
    assert_eq!(state(&rig, 1), MasterState::Ready);
    rig.acquire("a", 10_000, 0);
    assert_eq!(granted(&mut rig).granted.iter().collect::<Vec<_>>(), [id(1), id(2)]);
}

// I142
#[test]
fn credentials_are_renewed_before_they_end() {
    let mut rig = connected("pw");
    rig.acquire("a", 10_000, 0);
    granted(&mut rig);
    (0..3).for_each(|index| drop(seen(&mut rig, index)));
    rig.run_for(RENEWAL - ms(1));
    assert!(rig.asked.is_empty(), "too early");
    rig.run_for(ms(1));
    assert_eq!(rig.asked, [0, 1, 2]);
    rig.masters.iter_mut().for_each(|master| master.password = Some("next".to_owned()));
    answer_all(&mut rig, "next");
    assert_eq!(seen(&mut rig, 0), ["next"]);
    assert_eq!((rig.engine.owed_count(id(0)), errors(&rig, 0)), (0, vec![]));
    assert_eq!(rig.engine.stats(rig.now).reconnects(), 0);
    // The same password changes nothing, and is renewed again.
    rig.run_for(RENEWAL);
    answer_all(&mut rig, "next");
    assert!(seen(&mut rig, 0).is_empty(), "AUTH without need");
    rig.run_for(RENEWAL);
    assert_eq!(rig.asked, [0, 1, 2]);
}

// I141
#[test]
fn refused_credentials_are_a_warning_until_accepted() {
    let mut rig = connected("pw");
    (0..3).for_each(|index| drop(seen(&mut rig, index)));
    rig.run_for(RENEWAL);
    answer_all(&mut rig, "early");
    let refused = errors(&rig, 0);
    assert!(
        matches!(&refused[..], [CredentialsError::Refused { refusal }] if refusal.starts_with("WRONGPASS"))
    );
    assert_eq!(state(&rig, 0), MasterState::Ready);
    assert_eq!((events(&mut rig).len(), rig.engine.stats(rig.now).masters[0].credentials_failed), (3, 1));
    let health = format!("{:#} {:?}", rig.engine.health(rig.now), rig.engine);
    assert!(!health.contains("early") && !health.contains("101, 97, 114"), "{health}");
    // The server learns the password later, so the same login is sent again.
    rig.masters.iter_mut().for_each(|master| master.password = Some("early".to_owned()));
    rig.run_for(limits::CREDENTIALS_PAUSE_MIN * 2);
    assert_eq!(rig.asked.len(), 3, "no second try");
    answer_all(&mut rig, "early");
    assert_eq!((seen(&mut rig, 0), errors(&rig, 0)), (vec!["early".to_owned(); 2], vec![]));
    assert!(events(&mut rig).is_empty());
}

// I142
#[test]
fn provider_failure_at_connect_is_an_event() {
    let mut rig = Rig::unconnected(3, asking);
    rig.pump();
    answer(&mut rig, 0, Err(sealed()));
    assert_eq!(events(&mut rig), [sealed()]);
    // Reported once for consecutive equal reasons.
    rig.asked.clear();
    rig.run_for(limits::BACKOFF_MAX);
    assert!(rig.asked.contains(&0), "the next connect asks again");
    answer(&mut rig, 0, Err(sealed()));
    assert_eq!((events(&mut rig), errors(&rig, 0)), (vec![], vec![]));
}

// I142
#[test]
fn a_provider_that_fails_later_is_a_warning() {
    let mut rig = connected("pw");
    rig.run_for(RENEWAL);
    assert_eq!(rig.asked.len(), 3);
    rig.asked.clear();
    answer(&mut rig, 0, Err(sealed()));
    rig.run_for(ms(1000));
    assert_eq!(errors(&rig, 0), [sealed()]);
    assert_eq!(errors(&rig, 1), [CredentialsError::NoAnswer { limit: ms(1000) }]);
    assert_eq!(events(&mut rig).len(), 3);
    assert!((0..3).all(|index| state(&rig, index) == MasterState::Ready));
    // A failed question is repeated; a late answer counts.
    rig.run_for(limits::CREDENTIALS_PAUSE_MIN * 2);
    assert_eq!(rig.asked, [0]);
    answer_all(&mut rig, "pw");
    answer(&mut rig, 1, Ok(credentials("pw")));
    assert_eq!((errors(&rig, 0), errors(&rig, 1)), (vec![], vec![]));
}

// I141
#[test]
fn a_connection_lost_during_auth_logs_in_anew() {
    let mut rig = connected("pw");
    (0..3).for_each(|index| drop(seen(&mut rig, index)));
    rig.run_for(RENEWAL);
    rig.stop_master(0);
    rig.masters.iter_mut().for_each(|master| master.password = Some("next".to_owned()));
    answer_all(&mut rig, "next");
    assert_eq!(rig.engine.owed_count(id(0)), 1);
    rig.break_conn(0);
    rig.resume_master(0);
    rig.run_for(limits::BACKOFF_MAX);
    assert_eq!((seen(&mut rig, 0), rig.asked.len()), (vec![], 1));
    answer_all(&mut rig, "next");
    assert_eq!((state(&rig, 0), seen(&mut rig, 0)), (MasterState::Ready, vec!["next".to_owned()]));
    assert_eq!(errors(&rig, 0), []);
}

// I141
#[test]
fn a_reply_to_auth_is_no_vote() {
    for refusal in [None, Some("WRONGPASS no")] {
        let mut rig = Rig::new(3, defaults);
        (0..3).for_each(|index| rig.stall_replies(index));
        rig.submit_acquire("a", 10_000, 0);
        for index in 0..3 {
            rig.masters[index].errors.extend(refusal.map(|text| ("AUTH".to_owned(), text.to_owned())));
            rig.masters[index].password = Some("pw".to_owned());
            rig.engine.handle_credentials(rig.now, id(index), Ok(Credentials::new("pw")));
        }
        rig.submit_acquire("a", 10_000, 0);
        rig.pump();
        rig.end_stalls();
        assert!(granted(&mut rig).granted.count() >= 2);
        assert!((0..3).all(|index| state(&rig, index) == MasterState::Ready));
        assert!(matches!(crate::denied(&mut rig), redlatch::AcquireError::Contended(_)));
        assert_eq!(errors(&rig, 0).len(), usize::from(refusal.is_some()));
    }
}

#[test]
fn a_waiter_stays_parked_under_new_credentials() {
    let mut rig = connected("pw");
    rig.masters.iter_mut().for_each(|master| master.put(b"b", b"other", None));
    rig.acquire("b", 10_000, 600_000);
    assert!(rig.asked.is_empty(), "there is no other connection");
    (0..3).for_each(|index| drop(seen(&mut rig, index)));
    rig.run_for(RENEWAL);
    rig.masters.iter_mut().for_each(|master| master.password = Some("next".to_owned()));
    answer_all(&mut rig, "next");
    assert_eq!((seen(&mut rig, 0), errors(&rig, 0)), (vec!["next".to_owned()], vec![]));
    assert_eq!(rig.masters[0].parked(rig.now, b"b").len(), 1, "the waiter left the queue");
}

// I145
#[test]
fn a_login_under_way_is_not_shown() {
    let mut rig = connected("pw");
    rig.masters.iter_mut().for_each(|master| master.put(b"b", b"other", None));
    rig.acquire("b", 10_000, 600_000);
    answer_all(&mut rig, "pw");
    rig.reset_conn(1);
    rig.run_for(limits::BACKOFF_MAX);
    let mut shown = String::new();
    for master in 0..3 {
        // One master gets the credentials in its handshake, and one has refused them before.
        rig.engine.handle_credentials(rig.now, id(master), Ok(credentials("s3cret")));
        shown += &format!("{:?} ", rig.engine);
    }
    rig.pump();
    shown += &format!("{:?} {:#}", rig.engine, rig.engine.health(rig.now));
    shown += &format!("{:?}", std::iter::from_fn(|| rig.engine.poll_event()).collect::<Vec<_>>());
    assert!(!shown.contains("s3cret") && !shown.contains("115, 51, 99"), "{shown}");
    assert!(shown.contains("CredentialsFailed") && shown.contains("Gathered"), "{shown}");
}

// I145
#[test]
fn password_in_server_error_is_not_shown() {
    for (text, shown) in [("WRONGPASS s3cret is wrong", "WRONGPASS"), ("s3cret is wrong", "ERR")] {
        let mut rig = connected("pw");
        (0..2).for_each(|index| drop(rig.masters[index].errors.insert("AUTH".into(), text.into())));
        rig.reset_conn(1);
        rig.run_for(limits::BACKOFF_MAX);
        rig.asked.clear();
        (0..2).for_each(|index| answer(&mut rig, index, Ok(credentials("s3cret"))));
        assert_eq!(errors(&rig, 0), [CredentialsError::Refused { refusal: shown.into() }]);
        let MasterState::Down(why) = state(&rig, 1) else { panic!("{:?}", state(&rig, 1)) };
        assert!(why.starts_with(&format!("the login was refused: {shown}")), "{why}");
        assert!(!why.contains("s3cret") && !format!("{:?}", rig.engine).contains("s3cret"));
    }
}

// I142
#[test]
fn late_credentials_serve_the_next_connect() {
    let mut rig = unanswered("pw");
    rig.asked.clear();
    rig.now += ms(1000);
    // One turn finds both the answer and the end of the connection attempt.
    rig.engine.handle_credentials(rig.now, id(0), Ok(credentials("pw")));
    rig.engine.handle_timeout(rig.now);
    rig.run_for(limits::BACKOFF_MAX);
    assert_eq!((rig.asked.len(), state(&rig, 0)), (0, MasterState::Ready));
    // The credentials serve only one attempt.
    rig.reset_conn(0);
    rig.run_for(limits::BACKOFF_MAX);
    assert_eq!(rig.asked, [0]);
}

// I141
#[test]
fn refused_credentials_are_sent_again_whatever_failed_since() {
    let mut rig = connected("pw");
    rig.run_for(RENEWAL);
    answer_all(&mut rig, "early");
    rig.run_for(limits::CREDENTIALS_PAUSE_MIN * 2);
    while let Some(master) = rig.asked.pop_front() {
        answer(&mut rig, master, Err(sealed()));
    }
    assert_eq!(errors(&rig, 0), [sealed()]);
    rig.masters.iter_mut().for_each(|master| master.password = Some("early".to_owned()));
    rig.run_for(limits::CREDENTIALS_PAUSE_MAX);
    (0..3).for_each(|index| drop(seen(&mut rig, index)));
    answer_all(&mut rig, "early");
    assert_eq!((seen(&mut rig, 0), errors(&rig, 0)), (vec!["early".to_owned()], vec![]));
}

#[test]
fn long_failing_provider_is_asked_each_minute() {
    let mut rig = connected("pw");
    rig.run_for(RENEWAL);
    for round in 0..20 {
        assert!(rig.asked.contains(&0), "round {round}: not asked for a minute");
        rig.asked.clear();
        answer(&mut rig, 0, Err(sealed()));
        rig.run_for(limits::CREDENTIALS_PAUSE_MAX);
    }
}

#[test]
fn pause_doubles_after_each_failure() {
    let mut rig = connected("pw");
    rig.run_for(RENEWAL);
    let mut failed_at = vec![vec![]; 3];
    while failed_at.iter().any(|times| times.len() < 6) {
        while let Some(master) = rig.asked.pop_front() {
            failed_at[master].push(rig.now);
            answer(&mut rig, master, Err(sealed()));
        }
        rig.run_for(ms(10));
    }
    for times in failed_at {
        for (pair, longest) in times.windows(2).zip([2, 2, 4, 8, 16]) {
            let pause = pair[1] - pair[0];
            let bounds = limits::CREDENTIALS_PAUSE_MIN..=limits::CREDENTIALS_PAUSE_MIN * longest + ms(10);
            assert!(bounds.contains(&pause), "{pause:?} of {longest}");
        }
    }
}

// I141
#[test]
fn refused_login_is_resent_after_a_pause() {
    let mut rig = connected("pw");
    rig.masters.iter_mut().for_each(|master| master.password = Some("next".to_owned()));
    let mut refused_at = vec![];
    for _ in 0..600 {
        // The same credentials, whether they were asked for or not.
        answer(&mut rig, 0, Ok(credentials("wrong")));
        if rig.engine.stats(rig.now).masters[0].credentials_failed > refused_at.len() as u64 {
            refused_at.push(rig.now);
        }
        rig.run_for(ms(100));
    }
    let pauses: Vec<_> = refused_at.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!((1..20).contains(&pauses.len()), "{pauses:?}");
    assert!(pauses.iter().all(|pause| *pause >= limits::CREDENTIALS_PAUSE_MIN), "{pauses:?}");
    // Other credentials are sent at once.
    rig.masters.iter_mut().for_each(|master| master.password = Some("right".to_owned()));
    answer(&mut rig, 0, Ok(credentials("right")));
    assert_eq!(errors(&rig, 0), []);
}

// I145
#[test]
fn no_part_of_a_repeated_password_is_shown() {
    let long = "s3cret".repeat(100);
    for password in ["s3\u{1}cret", &long] {
        let mut rig = connected("pw");
        rig.masters[0].errors.insert("AUTH".to_owned(), format!("WRONGPASS {password} is wrong"));
        answer(&mut rig, 0, Ok(credentials(password)));
        assert_eq!(errors(&rig, 0), [CredentialsError::Refused { refusal: "WRONGPASS".into() }]);
    }
    // Another login comes before this one is answered.
    let mut rig = connected("pw");
    rig.masters[0].errors.insert("AUTH".to_owned(), "WRONGPASS s3cret is wrong".to_owned());
    rig.stall_replies(0);
    answer(&mut rig, 0, Ok(credentials("s3cret")));
    answer(&mut rig, 0, Ok(credentials("pw")));
    rig.masters[0].errors.clear();
    rig.end_stalls();
    let shown =
        format!("{:?} {:?}", std::iter::from_fn(|| rig.engine.poll_event()).collect::<Vec<_>>(), rig.engine);
    assert!(shown.contains("WRONGPASS") && !shown.contains("s3cret"), "{shown}");
    assert_eq!((errors(&rig, 0), rig.engine.owed_count(id(0))), (vec![], 0));
}

// I141
#[test]
fn a_login_beyond_the_room_is_sent_later() {
    let mut rig = connected("pw");
    let password = "x".repeat(limits::LOGIN_SIZE_MAX - "me".len());
    seen(&mut rig, 0);
    let name = "n".repeat(limits::RESOURCE_SIZE_MAX - 8);
    let mut count = 0;
    while rig.engine.send_ready(id(0)).len() < limits::OUTBOX_SIZE_MAX - limits::LOGIN_SIZE_MAX {
        rig.submit_acquire(&format!("{name}{count}"), 10_000, 0);
        count += 1;
    }
    rig.engine.handle_credentials(rig.now, id(0), Ok(credentials(&password)));
    assert_eq!(errors(&rig, 0), []);
    assert!(rig.engine.next_timeout().is_none_or(|(at, _)| at > rig.now), "nothing is due meanwhile");
    rig.masters[0].password = Some(password.clone());
    rig.run_for(limits::CREDENTIALS_PAUSE_MIN);
    answer_all(&mut rig, &password);
    assert!(seen(&mut rig, 0) == [password], "the login was lost");
}

// I142
#[test]
fn an_unusable_answer_is_refused_by_the_engine() {
    let mut rig = unanswered("pw");
    let long = "x".repeat(limits::OUTBOX_SIZE_MAX);
    for (index, (password, why)) in
        [("", "an empty password"), (&long, "give at most 65536")].iter().enumerate()
    {
        answer(&mut rig, index, Ok(Credentials::new(*password)));
        let MasterState::Down(shown) = state(&rig, index) else { panic!("{:?}", state(&rig, index)) };
        assert!(shown.contains(why), "{shown}");
    }
}

// I142
#[test]
fn a_failed_renewal_in_a_handshake_is_repeated() {
    let mut rig = Rig::unconnected(1, |builder| asking(builder).connect_timeout(ms(5000)));
    rig.masters[0].password = Some("pw".to_owned());
    rig.pump();
    rig.asked.clear();
    rig.stop_master(0);
    answer(&mut rig, 0, Ok(credentials("pw").valid_for(limits::CREDENTIALS_PAUSE_MIN)));
    rig.run_for(limits::CREDENTIALS_PAUSE_MIN);
    assert_eq!((rig.asked.pop_front(), state(&rig, 0)), (Some(0), MasterState::Connecting));
    answer(&mut rig, 0, Err(sealed()));
    rig.resume_master(0);
    assert_eq!(state(&rig, 0), MasterState::Ready);
    rig.run_for(limits::CREDENTIALS_PAUSE_MIN * 2);
    assert!(rig.asked.contains(&0), "nothing renews the credentials");
}

#[test]
fn no_master_needs_a_provider() {
    let mut rig = Rig::new(3, defaults);
    rig.run_for(MINUTE);
    assert!(rig.asked.is_empty() && rig.engine.stats(rig.now).masters[0].credentials_failed == 0);
}

#[test]
fn accepted_credentials_reset_the_failure_count() {
    let mut rig = connected("pw");
    let fail = |rig: &mut Rig, count: usize| {
        for _ in 0..count {
            while rig.asked.is_empty() {
                rig.run_for(ms(100));
            }
            while let Some(master) = rig.asked.pop_front() {
                answer(rig, master, Err(sealed()));
            }
        }
    };
    fail(&mut rig, 20);
    while rig.asked.len() < 3 {
        rig.run_for(ms(100));
    }
    answer_all(&mut rig, "pw");
    assert_eq!(errors(&rig, 0), []);
    rig.run_for(RENEWAL);
    assert_eq!(rig.asked.len(), 3);
    while let Some(master) = rig.asked.pop_front() {
        answer(&mut rig, master, Err(sealed()));
    }
    rig.run_for(limits::CREDENTIALS_PAUSE_MIN * 2);
    assert_eq!(rig.asked.len(), 3, "the pause is that after many failures");
}

#[test]
fn a_provider_that_hangs_has_failed_once() {
    let mut rig = connected("pw");
    rig.run_for(RENEWAL);
    assert_eq!(rig.asked, [0, 1, 2]);
    rig.run_for(MINUTE);
    let stats = rig.engine.stats(rig.now);
    assert!(stats.masters.iter().all(|master| master.credentials_failed == 1), "{stats:?}");
    assert_eq!(rig.asked, [0, 1, 2], "it is not asked again");
}

/// Nothing else renews credentials without an end.
#[test]
fn same_refused_login_is_repeated() {
    let mut rig = connected("pw");
    (0..3).for_each(|index| drop(seen(&mut rig, index)));
    for _ in 0..2 {
        answer(&mut rig, 0, Ok(Credentials::new("early").user("me")));
    }
    assert_eq!((seen(&mut rig, 0), errors(&rig, 0).len()), (vec!["early".to_owned()], 1));
    rig.masters[0].password = Some("early".to_owned());
    rig.run_for(limits::CREDENTIALS_PAUSE_MIN * 2);
    assert_eq!(rig.asked, [0]);
    rig.asked.clear();
    answer(&mut rig, 0, Ok(Credentials::new("early").user("me")));
    assert_eq!((seen(&mut rig, 0), errors(&rig, 0)), (vec!["early".to_owned()], vec![]));
}

/// Some pause between connection attempts exceeds the credentials' lifetime.
#[test]
fn credentials_that_end_between_connects_serve_none() {
    let mut rig = unanswered("pw");
    for _ in 0..8 {
        answer(&mut rig, 0, Err(CredentialsError::Panicked));
        rig.run_for(limits::BACKOFF_MAX);
    }
    answer(&mut rig, 0, Err(CredentialsError::Panicked));
    let is_long = |rig: &mut Rig| {
        answer(rig, 0, Ok(Credentials::new("pw").user("me").valid_for(ms(1))));
        seen(rig, 0);
        rig.run_for(limits::CREDENTIALS_PAUSE_MIN);
        let is_connected = !seen(rig, 0).is_empty();
        if is_connected {
            rig.reset_conn(0);
        }
        !is_connected
    };
    assert!((0..100).any(|_| is_long(&mut rig)));
    rig.asked.clear();
    rig.run_for(limits::BACKOFF_MAX);
    assert_eq!((seen(&mut rig, 0).len(), rig.asked.pop_front()), (0, Some(0)));
}

#[test]
fn credentials_that_come_between_connects_serve_the_next() {
    let mut rig = connected("pw");
    rig.reset_conn(0);
    assert!(matches!(state(&rig, 0), MasterState::Down(_)));
    answer(&mut rig, 0, Ok(credentials("pw")));
    rig.run_for(limits::BACKOFF_MAX);
    assert_eq!((rig.asked.len(), state(&rig, 0)), (0, MasterState::Ready));
}

/// The server refused the earlier credentials, which would be sent again.
#[test]
fn other_credentials_are_not_renewed_before_their_time() {
    let mut rig = connected("pw");
    rig.run_for(RENEWAL);
    answer_all(&mut rig, "early");
    rig.masters.iter_mut().for_each(|master| master.password = Some("next".to_owned()));
    (0..3).for_each(|index| answer(&mut rig, index, Ok(credentials("next"))));
    assert_eq!(errors(&rig, 0), []);
    rig.run_for(limits::CREDENTIALS_PAUSE_MIN * 2);
    assert!(rig.asked.is_empty(), "{:?}", rig.asked);
}
