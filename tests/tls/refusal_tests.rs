//! Peers that are refused, or refuse: what the client says, on both connections of a master.

use redlatch::{Client, ConnectError, Pem, Redlock, Tls, TlsError};

use crate::certificates::Certificates;
use crate::fleet::Fleet;
use crate::front::{Conduct, Front};
use crate::{PATIENCE, TTL, expect_refusal, open, settings, start, start_as, tls_urls, trusting};

#[test]
fn bad_server_certificates_are_refused_by_name() {
    let certificates = Certificates::new();
    for (name, said) in [
        ("named", &["its certificate is for locks.example, not for 127.0.0.1", "--tls-server-name"][..]),
        ("expired", &["its certificate has expired; renew it"]),
        ("early", &["its certificate is not valid yet; check the clocks"]),
        ("foreign", &["its certificate comes from an unknown CA", "--tls-ca"]),
    ] {
        let mut fleet = start_as(1, name, &["--tls-auth-clients", "no"], &certificates);
        let client = open(settings(&tls_urls(&mut fleet)).tls(trusting(&certificates)));
        expect_refusal(&client, said);
        assert_eq!(fleet.master(0).key_count(), "0");
    }
}

#[test]
fn a_missing_or_foreign_client_certificate_is_named() {
    let certificates = Certificates::new();
    let pem = |file| Pem::File(certificates.path(file));
    for version in ["TLSv1.2", "TLSv1.3"] {
        let args = ["--tls-auth-clients", "yes", "--tls-protocols", version];
        let mut fleet = start_as(1, "server", &args, &certificates);
        let urls = tls_urls(&mut fleet);
        let client = open(settings(&urls).tls(trusting(&certificates)));
        expect_refusal(&client, &["it wants a client certificate", "--tls-cert, --tls-key"]);
        let with = |certificate, key| trusting(&certificates).client_certificate(pem(certificate), pem(key));
        let client = open(settings(&urls).tls(with("foreign-client.pem", "foreign-client.key")));
        expect_refusal(&client, &["it refused the client certificate (UnknownCA)"]);
        let client = open(settings(&urls).tls(with("client.pem", "client.key")));
        client.lock("a").ttl(TTL).wait(PATIENCE).acquire().expect("free").release().expect("confirmed");
    }
}

#[test]
fn a_missing_common_cipher_is_named() {
    let certificates = Certificates::new();
    let args = ["--tls-auth-clients", "no", "--tls-protocols", "TLSv1.2", "--tls-ciphers", "AES128-SHA"];
    let mut fleet = start_as(1, "server", &args, &certificates);
    let client = open(settings(&tls_urls(&mut fleet)).tls(trusting(&certificates)));
    expect_refusal(&client, &["it has no TLS cipher in common; enable ECDHE"]);
}

#[test]
fn a_wrong_scheme_is_named() {
    let (mut fleet, certificates) = start(1, "no");
    let plain_as_tls = fleet.master(0).url().replace("redis://", "rediss://");
    // A plaintext server answers a record only if that has a line feed in it: else the time ends the attempt.
    let limit = std::time::Duration::from_millis(300);
    let client = open(settings(&[plain_as_tls]).tls(trusting(&certificates)).connect_timeout(limit));
    expect_refusal(&client, &["check"]);
    let tls_as_plain = fleet.master(0).tls_url().replace("rediss://", "redis://");
    let client = open(settings(&[tls_as_plain]));
    crate::await_down(&client, &["before its first reply; if it wants TLS, write rediss://"]);
    let error = client.lock("a").ttl(TTL).try_acquire().map(drop).expect_err("no master").to_string();
    assert!(error.contains("write rediss://"), "{error}");
}

#[test]
fn an_answer_without_tls_is_named() {
    let (certificates, fleet) = (Certificates::new(), Fleet::start(1));
    let front = Front::start(fleet.addrs()[0], &certificates, &[Conduct::Garbage]);
    let client = open(settings(&[front.url()]).tls(trusting(&certificates)));
    expect_refusal(&client, &["it does not answer in TLS; check the port"]);
}

#[test]
fn unusable_files_are_named() {
    let certificates = Certificates::new();
    let path = |file: &str| certificates.path(file);
    std::fs::write(path("empty.pem"), "no certificate\n").expect("a directory of its own");
    std::fs::write(path("broken.pem"), "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
        .expect("a directory of its own");
    let pem = |file: &str| Pem::File(path(file));
    let client = |certificate, key| Tls::new().ca(pem("ca.pem")).client_certificate(certificate, key);
    let shown = |file: &str| path(file).display().to_string();
    for (tls, said) in [
        (
            Tls::new().ca(pem("none.pem")),
            vec!["the CA ".to_owned() + &shown("none.pem"), "cannot be read".into()],
        ),
        (
            Tls::new().ca(pem("empty.pem")),
            vec!["the CA ".to_owned() + &shown("empty.pem"), "it holds none".into()],
        ),
        (Tls::new().ca(pem("ca.key")), vec![shown("ca.key"), "give a certificate in PEM form".into()]),
        (Tls::new().ca(pem("broken.pem")), vec![shown("broken.pem"), "is unusable".into()]),
        (Tls::new().ca(Pem::Bytes(b"s3cret".to_vec())), vec!["the CA (given as bytes) is unusable".into()]),
        (
            client(pem("none.pem"), pem("client.key")),
            vec!["the client certificate".into(), shown("none.pem")],
        ),
        (client(pem("client.pem"), pem("none.key")), vec!["the client key".into(), shown("none.key")]),
        (client(pem("client.pem"), pem("client.pem")), vec!["the client key".into(), "it holds none".into()]),
        (client(pem("broken.pem"), pem("client.key")), vec![shown("broken.pem")]),
        (
            client(pem("client.pem"), pem("server.key")),
            vec![
                format!("the client key {} does not fit", shown("server.key")),
                format!("the client certificate {};", shown("client.pem")),
            ],
        ),
    ] {
        let config = settings(&["rediss://127.0.0.1:1"]).tls(tls.clone()).build().expect("valid settings");
        let errors = [Client::open(config.clone()).err(), Redlock::open(config).err()];
        for error in errors.map(|error| error.expect("a bad file")) {
            assert!(
                matches!(
                    &error,
                    ConnectError::Tls(
                        TlsError::Unreadable { .. }
                            | TlsError::Unusable { .. }
                            | TlsError::KeyMismatch { .. }
                    )
                ),
                "{error:?}"
            );
            let text = error.to_string();
            assert!(said.iter().all(|said| text.contains(said)), "{said:?} is not in: {text}");
            assert!(!text.contains("s3cret"), "{text}");
        }
    }
}

/// As a key that has lost its line feeds in an environment variable.
#[test]
fn no_part_of_a_broken_key_is_shown() {
    let certificates = Certificates::new();
    let path = |file: &str| certificates.path(file);
    let key = std::fs::read_to_string(path("client.key")).expect("a key");
    let secret: String = key.lines().filter(|line| !line.starts_with('-')).collect();
    let in_one_line = key.replace('\n', "");
    let decimals = |text: &str| format!("{:?}", text.as_bytes()).trim_matches(['[', ']']).to_owned();
    for broken in [in_one_line.clone(), in_one_line + "';", key.replacen("KEY-----\n", "KEY-----", 1)] {
        let pem = || Pem::Bytes(broken.clone().into_bytes());
        let with_key = Tls::new().client_certificate(Pem::File(path("client.pem")), pem());
        let with_certificate = Tls::new().client_certificate(pem(), pem());
        for tls in [with_key, with_certificate, Tls::new().ca(pem())] {
            let config = settings(&["rediss://127.0.0.1:1"]).tls(tls).build().expect("valid settings");
            let error = Client::open(config).expect_err("no usable key");
            for text in [error.to_string(), format!("{error:?}")] {
                let piece = &secret[20..30];
                assert!(!text.contains(piece) && !text.contains(&decimals(piece)), "{text}");
            }
        }
    }
}
