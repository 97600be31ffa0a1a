//! The command line over TLS, with options, and with variables for them.

use std::process::Command;

use redlatch_support::{Certificates, Fleet};

use crate::harness::{PATIENT, expect, finish, redlatch};

/// Three masters that want a client certificate, and their URLs.
fn start() -> (Fleet, Certificates, Vec<String>) {
    let certificates = Certificates::new();
    let path = |file: &str| certificates.path(file).display().to_string();
    let (certificate, key, ca) = (path("named.pem"), path("named.key"), path("ca.pem"));
    let files = ["--tls-cert-file", &certificate, "--tls-key-file", &key, "--tls-ca-cert-file", &ca];
    let mut fleet = Fleet::start_with_tls(3, &[&files[..], &["--tls-auth-clients", "yes"]].concat());
    let urls = fleet.masters().map(|master| master.tls_url()).collect();
    (fleet, certificates, urls)
}

fn run(urls: &[String]) -> Command {
    let mut command = redlatch(urls);
    command.arg("run").args(PATIENT);
    command
}

#[test]
fn options_or_variables_lead_to_tls_masters() {
    let (_fleet, certificates, urls) = start();
    let path = |file: &str| certificates.path(file);
    let command = ["r", "--", "echo", "done"];
    let mut by_options = run(&urls);
    by_options.arg("--tls-ca").arg(path("ca.pem")).arg("--tls-cert").arg(path("client.pem"));
    by_options.arg("--tls-key").arg(path("client.key")).args(["--tls-server-name", "locks.example"]);
    let mut by_variables = run(&urls);
    by_variables.env("REDLATCH_TLS_CA", path("ca.pem")).env("REDLATCH_TLS_CERT", path("client.pem"));
    by_variables.env("REDLATCH_TLS_KEY", path("client.key")).env("REDLATCH_TLS_SERVER_NAME", "locks.example");
    for command in [by_options.args(command), by_variables.args(command)] {
        let finished = finish(command);
        expect(&finished, 0, &[]);
        assert_eq!(finished.stdout, "done\n");
    }
}

#[test]
fn the_systems_cas_are_trusted_by_default() {
    let (_fleet, certificates, urls) = start();
    let path = |file: &str| certificates.path(file);
    let mut command = run(&urls);
    command.args(["--tls-server-name", "locks.example", "--tls-cert"]).arg(path("client.pem"));
    command.arg("--tls-key").arg(path("client.key")).args(["r", "--", "true"]);
    expect(&finish(command.env("SSL_CERT_FILE", path("ca.pem"))), 0, &[]);
    let foreign = finish(command.env("SSL_CERT_FILE", path("other-ca.pem")));
    expect(
        &foreign,
        69,
        &["all 3 masters: not connected: its certificate comes from an unknown CA", "--tls-ca"],
    );
}

#[test]
fn a_refusal_names_masters_and_remedy() {
    let (_fleet, certificates, urls) = start();
    let mut command = run(&urls);
    command.arg("--tls-ca").arg(certificates.path("ca.pem")).args(["r", "--", "true"]);
    let said = [
        "all 3 masters: not connected: its certificate is for locks.example, not for 127.0.0.1",
        "--tls-server-name",
    ];
    expect(&finish(&mut command), 69, &said);
    let said = ["all 3 masters: not connected: it wants a client certificate", "--tls-cert, --tls-key"];
    expect(&finish(command.env("REDLATCH_TLS_SERVER_NAME", "locks.example")), 69, &said);
}

#[test]
fn unusable_tls_options_give_64() {
    let (url, tls) = ("redis://127.0.0.1:1", "rediss://127.0.0.1:1");
    let rows: &[(&[&str], &str)] = &[
        (&["run", "-m", url, "--tls-ca", "x", "r", "--", "true"], "no URL begins with rediss://"),
        (
            &["run", "-m", tls, "--tls-ca", "/none/ca.pem", "r", "--", "true"],
            "the CA /none/ca.pem cannot be read",
        ),
        (&["bench", "-m", tls, "--tls-ca", "/dev/null"], "the CA /dev/null is unusable: it holds none"),
        (&["run", "-m", tls, "--tls-cert", "x", "r", "--", "true"], "--tls-key"),
        (&["run", "-m", tls, "--tls-key", "x", "r", "--", "true"], "--tls-cert"),
        (
            &["inspect", "-m", tls, "--tls-server-name", "a b", "r"],
            "`a b` cannot be the name of a TLS server",
        ),
    ];
    for (args, named) in rows {
        expect(&finish(redlatch(&[]).env_remove("REDLATCH_MASTERS").args(*args)), 64, &[named]);
    }
}
