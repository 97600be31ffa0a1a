//! Texts of all findings.

use redlatch_support::{assert_golden, broken_rule};

use super::*;

/// Finding of a master that refuses scripts, with or without a native release.
fn no_scripts(has_native: bool) -> Problem {
    let found = findings(Quarantine::Uptime, "", |it| {
        it.rights.scripts_refusal = Some("NOPERM this user has no permissions".into());
        it.rights.denied = vec!["eval", "set"];
    });
    let found = found.into_iter().find(|it| it.problem.code() == "no-scripts").expect("it is found");
    let Problem::NoScripts { refusal, advice, .. } = found.problem else { unreachable!("by its code") };
    Problem::NoScripts { refusal, has_native, advice }
}

/// All kinds of problems, with the texts of their variants.
#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn all_findings_keep_the_rules_of_writing() {
    let (left, user) = (Duration::from_nanos(4_408_173_216), Box::<str>::from("locker"));
    let mut problems = vec![
        Problem::Unreachable {
            why: "no connection within 1s; check name service, address and firewall".to_owned(),
        },
        Problem::LoginRefused { why: "the login was refused: WRONGPASS".to_owned() },
        Problem::NoQuorum { granting: 1, count: 3, needed: 2 },
        Problem::TooFewMasters { count: 1 },
        Problem::TooFewMasters { count: 2 },
        Problem::EvenCount { count: 4 },
        Problem::SameServer { run_id: "abc".into() },
        Problem::SameHost { address: [127, 0, 0, 1].into() },
        Problem::ClockOffset { offset: left, limit: left },
        Problem::ClockRate { ppm: -1500, error_ppm: 20, allowed_ppm: 10_000 },
        Problem::SlowRoundTrip { p99: left, limit: left },
        Problem::Replica,
        Problem::OldVersion { version: "4.0".into() },
        Problem::ClusterWithoutHashTag { prefix: "{lock}:".to_owned() },
        Problem::ClusterNode,
        Problem::WritesRefused { refusal: "MISCONF Redis is configured to save".to_owned() },
        Problem::EvictingPolicy { policy: "allkeys-lru".into() },
        Problem::EvictedKeys { count: 7 },
        Problem::MemoryNearLimit { percent: 91 },
        Problem::NoMemoryLimit,
        Problem::DiskFailing,
        Problem::TrustUnverified,
        Problem::TrustJustified,
        Problem::RestartForgets,
        Problem::ShortBacklogTtl { ttl: left, needed: left },
        Problem::Quarantined { left, is_new: false },
        Problem::Quarantined { left, is_new: true },
        Problem::Unobserved { needed: left, is_new: false },
        no_scripts(false),
        no_scripts(true),
        Problem::OddAnswer { commands: vec!["set", "eval"], answer: "ERR unsupported command".to_owned() },
        Problem::PatternSubscribers { count: 2 },
        Problem::NativeDenied { right: "+delifeq", user: user.clone() },
        Problem::CertificateExpires { left },
        Problem::CertificateExpires { left: Duration::ZERO },
        Problem::NotTested { server: "dragonfly df-v1.40.1".into() },
        Problem::Unreported { fields: "run_id, role".to_owned() },
        Problem::FleetDiffers { difference: FleetDifference::MaxTtl { recorded: left, ours: 2 * left } },
        Problem::NoFleetRecord { why: Unusable::Damaged },
        Problem::NearPrefix { prefix: "lok:".to_owned() },
    ];
    problems.extend([None, Some("everysec"), Some("no"), Some("always")].map(trust_unsynced));
    for feature in Feature::ALL {
        let (feature, effect) = (feature.name(), feature.without());
        problems.push(Problem::MissingCommands { feature, effect, commands: vec!["eval"] });
        problems.push(Problem::MissingRights {
            feature,
            effect,
            rights: vec!["+get".to_owned()],
            user: user.clone(),
        });
    }
    let mut codes: Vec<_> = problems.iter().map(Problem::code).collect();
    codes.dedup();
    let mut page = String::new();
    for problem in problems {
        let finding = Finding { severity: Severity::Note, masters: Vec::new(), problem };
        page += &format!("{}\n", finding.problem.code());
        for text in [finding.to_string(), finding.why(), finding.advice()] {
            assert_eq!(broken_rule(&text), None, "{text}");
            page += &format!("    {text}\n");
        }
    }
    assert_golden("findings", &page);
    codes.sort_unstable();
    codes.dedup();
    let page = include_str!("../../../../../docs/errors.md");
    for code in &codes {
        assert!(page.contains(&format!("`{code}`")), "docs/errors.md does not list {code}");
    }
    assert_eq!(codes.len(), 39);
}
