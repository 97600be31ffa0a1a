//! Peers that refuse or are refused, and the client's messages, on both connections of a master.

use redlatch::{Client, ConnectError, Pem, Redlock, Tls, TlsError};
use redlatch_support::{Certificates, Fleet, PATIENCE};

use crate::front::{Conduct, Front};
use crate::{TTL, expect_refusal, open, settings, start, start_as, tls_urls, trusting};

// I136
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

// I137
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
        expect_refusal(&client, &["it refused the client certificate (unknown ca)"]);
        let client = open(settings(&urls).tls(with("client.pem", "client.key")));
        client.lock("a").ttl(TTL).wait(PATIENCE).acquire().expect("free").release().expect("confirmed");
    }
}

// I137
#[test]
fn a_missing_common_cipher_is_named() {
    let certificates = Certificates::new();
    let args = ["--tls-auth-clients", "no", "--tls-protocols", "TLSv1.2", "--tls-ciphers", "AES128-SHA"];
    let mut fleet = start_as(1, "server", &args, &certificates);
    let client = open(settings(&tls_urls(&mut fleet)).tls(trusting(&certificates)));
    expect_refusal(&client, &["it has no TLS cipher or kind of key in common; enable ECDHE"]);
}

#[test]
fn a_wrong_scheme_is_named() {
    let (mut fleet, certificates) = start(1, "no");
    let plain_as_tls = fleet.master(0).url().replace("redis://", "rediss://");
    // A plaintext server answers a TLS record only if it contains a line feed. Otherwise the time limit ends
    // the attempt.
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

// I145
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
        (
            client(pem("client.pem"), pem("client.pem")),
            vec!["the client key".into(), "it holds a certificate".into()],
        ),
        (
            client(pem("client.key"), pem("client.key")),
            vec!["the client certificate".into(), "it holds a key".into()],
        ),
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

/// Test keys, which protect nothing, with a curve and a form that the client does not support.
const P521: &str = "-----BEGIN PRIVATE KEY-----\n\
MIHuAgEAMBAGByqGSM49AgEGBSuBBAAjBIHWMIHTAgEBBEIAR9Gvtr4EBXsZwzsu\n\
iiIBsweMkKWTf7fGvZkriyeZpWW+0FFdScRJqPwvERwNdChGQ6p/ouNAoFtu90z4\n\
R7qRyB2hgYkDgYYABAGFLDuQc5Egsy8s75LnC5jrfYaNF9BxGrvfeXXZ7SncLfOj\n\
055/K+gxPpN9srmD9msbEOxau3f+zAUEfenm+5dW3wGjpPssIE5yI+YGvb5grljw\n\
hk+bBMEFqbmvMmLyE6SD9j7Q8HtXFp7NU401KCjAf3EYgfoYyYV91f3FclSz4oar\n\
DA==\n\
-----END PRIVATE KEY-----\n";
const SECP256K1: &str = "-----BEGIN PRIVATE KEY-----\n\
MIGEAgEAMBAGByqGSM49AgEGBSuBBAAKBG0wawIBAQQgydAcHQorOXFPqT/+6588\n\
6qo3UJI56B1eB/2zXKBBSX+hRANCAARN5/UxlJM+sdx95aSfzEv18N/mThxY9typ\n\
V3shjwKg7w05ljpC1aeyYGMjCgviRQ4n5WvNrzUNxFK94W9Eqhd7\n\
-----END PRIVATE KEY-----\n";
const ED448: &str = "-----BEGIN PRIVATE KEY-----\n\
MEcCAQAwBQYDK2VxBDsEOXUh3cFImfESZ2lRNrWQaj9+BRc/8SIxaRlUFv7ewzbZ\n\
yCxe+abqzjmhZnJSiKi3J6735fQTKX79TA==\n\
-----END PRIVATE KEY-----\n";

#[test]
fn keys_that_cannot_be_used_are_named() {
    let certificates = Certificates::new();
    let takes = "give an RSA, P-256, P-384 or Ed25519 key in PEM form";
    let encrypted = P521.replace("PRIVATE KEY", "ENCRYPTED PRIVATE KEY");
    let encrypted_before = P521.replace("PRIVATE KEY", "EC PRIVATE KEY").replacen(
        "KEY-----\n",
        "KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,A74C\n\n",
        1,
    );
    let of_ssh = P521.replace("PRIVATE KEY", "OPENSSH PRIVATE KEY");
    for (key, said) in [
        (P521.as_bytes(), ["its curve P-521 is not supported", takes]),
        (SECP256K1.as_bytes(), ["its curve secp256k1 is not supported", takes]),
        (ED448.as_bytes(), ["its curve Ed448 is not supported", takes]),
        (encrypted.as_bytes(), ["it has a passphrase", "give a private key without one"]),
        (encrypted_before.as_bytes(), ["it has a passphrase", "give a private key without one"]),
        (of_ssh.as_bytes(), ["it is in the form of OpenSSH", "in PEM form"]),
        (&[0x30, 0x82, 0x01], ["it is in binary form", "in PEM form"]),
    ] {
        let certificate = Pem::File(certificates.path("client.pem"));
        let tls = Tls::new().client_certificate(certificate, Pem::Bytes(key.to_vec()));
        let config = settings(&["rediss://127.0.0.1:1"]).tls(tls).build().expect("valid settings");
        let text = Client::open(config).expect_err("an unusable key").to_string();
        assert!(said.iter().all(|said| text.contains(said)), "{said:?} is not in: {text}");
        let debug = ["General(", "Error", "{", "::"];
        assert!(!debug.iter().any(|it| text.contains(it)), "{text}");
    }
}

/// For example a key that lost its line feeds in an environment variable.
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
