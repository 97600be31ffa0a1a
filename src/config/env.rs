//! Settings from environment variables: the settings that all clients of a fleet share, and how to reach each
//! master. Also parses times.
//!
//! The command line uses [`builder`] too: each of its options stands for a variable.

use std::env;
use std::ffi::{OsStr, OsString};
use std::time::Duration;

use super::{Config, ConfigBuilder, Quarantine};
use crate::error::ConfigError;

/// URLs of the masters, separated by commas or blanks.
pub const MASTERS: &str = "REDLATCH_MASTERS";
/// See [`ConfigBuilder::max_ttl`].
pub const MAX_TTL: &str = "REDLATCH_MAX_TTL";
/// See [`ConfigBuilder::prefix`].
pub const PREFIX: &str = "REDLATCH_PREFIX";
/// See [`ConfigBuilder::drift_ppm`].
pub const DRIFT_PPM: &str = "REDLATCH_DRIFT_PPM";
/// See [`ConfigBuilder::quarantine`].
pub const QUARANTINE: &str = "REDLATCH_QUARANTINE";
/// See [`ConfigBuilder::answer_timeout`].
pub const ANSWER_TIMEOUT: &str = "REDLATCH_ANSWER_TIMEOUT";
/// See [`ConfigBuilder::connect_timeout`].
pub const CONNECT_TIMEOUT: &str = "REDLATCH_CONNECT_TIMEOUT";
/// File with the password for each URL without one. Read at each connect.
pub const PASSWORD_FILE: &str = "REDLATCH_PASSWORD_FILE";
/// A file: `Tls::ca`.
pub const TLS_CA: &str = "REDLATCH_TLS_CA";
/// A file: `Tls::client_certificate`.
pub const TLS_CERT: &str = "REDLATCH_TLS_CERT";
/// A file: `Tls::client_certificate`.
pub const TLS_KEY: &str = "REDLATCH_TLS_KEY";
/// See `Tls::server_name`.
pub const TLS_SERVER_NAME: &str = "REDLATCH_TLS_SERVER_NAME";

/// Applies a variable's text to the settings, or says what is accepted.
type Apply = fn(ConfigBuilder, &OsStr) -> Result<ConfigBuilder, String>;

/// All variables except TLS variables, which depend on each other.
const SETTINGS: [(&str, Apply); 8] = [
    (MASTERS, |builder, text| Ok(builder.masters(masters(text_of(text)?)?))),
    (MAX_TTL, |builder, text| Ok(builder.max_ttl(time_of(text)?))),
    (PREFIX, |builder, bytes| Ok(builder.prefix(bytes.as_encoded_bytes()))),
    (DRIFT_PPM, |builder, text| {
        let ppm = text_of(text)?.trim().parse().map_err(|_| "give a whole number such as 10000")?;
        Ok(builder.drift_ppm(ppm))
    }),
    (QUARANTINE, |builder, text| Ok(builder.quarantine(quarantine(text_of(text)?)?))),
    (ANSWER_TIMEOUT, |builder, text| Ok(builder.answer_timeout(time_of(text)?))),
    (CONNECT_TIMEOUT, |builder, text| Ok(builder.connect_timeout(time_of(text)?))),
    (PASSWORD_FILE, |builder, path| Ok(builder.password_file(path))),
];
const NO_MASTERS: &str = "no masters given; give the URLs of all of them, separated by commas";
const TLS: [&str; 4] = [TLS_CA, TLS_CERT, TLS_KEY, TLS_SERVER_NAME];

/// Returns the names of all variables.
pub fn variables() -> impl Iterator<Item = &'static str> {
    SETTINGS.iter().map(|(variable, _)| *variable).chain(TLS)
}

impl Config {
    /// Reads the settings from the environment. [`ConfigBuilder::from_env`] lists the variables.
    /// [`ConfigBuilder::build`] reports variables that conflict.
    ///
    /// # Errors
    /// [`ConfigError::Variable`] names the variable and says what is accepted.
    pub fn from_env() -> Result<Self, ConfigError> {
        ConfigBuilder::from_env()?.build()
    }
}

impl ConfigBuilder {
    /// Returns a builder with the settings from the environment. The command line reads the same variables.
    ///
    /// | variable | setting |
    /// | --- | --- |
    /// | `REDLATCH_MASTERS` | URLs of all masters, separated by commas or blanks; required |
    /// | `REDLATCH_MAX_TTL` | [`ConfigBuilder::max_ttl`], such as `30s` or `5min` |
    /// | `REDLATCH_PREFIX` | [`ConfigBuilder::prefix`] |
    /// | `REDLATCH_DRIFT_PPM` | [`ConfigBuilder::drift_ppm`] |
    /// | `REDLATCH_QUARANTINE` | [`ConfigBuilder::quarantine`]: `uptime`, `strict` or `trust` |
    /// | `REDLATCH_ANSWER_TIMEOUT` | [`ConfigBuilder::answer_timeout`] |
    /// | `REDLATCH_CONNECT_TIMEOUT` | [`ConfigBuilder::connect_timeout`] |
    /// | `REDLATCH_PASSWORD_FILE` | file with the password for each URL without one; read at each connect |
    /// | `REDLATCH_TLS_CA`, `REDLATCH_TLS_CERT`, `REDLATCH_TLS_KEY` | files of `Tls`, with the feature `tls` |
    /// | `REDLATCH_TLS_SERVER_NAME` | `Tls::server_name`, with the feature `tls` |
    ///
    /// An empty variable counts as unset. Later calls of a builder method replace a variable's value, except
    /// [`ConfigBuilder::master`] and [`ConfigBuilder::masters`], which add masters.
    ///
    /// ```no_run
    /// let builder = redlatch::ConfigBuilder::from_env()?;
    /// let client = builder.client_name("billing").connect()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ConfigError::Variable`] names the variable and says what is accepted.
    /// [`ConfigError::UnknownVariable`] names a variable that differs from a known one by one or two letters.
    #[expect(clippy::disallowed_methods, reason = "reads the environment")]
    pub fn from_env() -> Result<Self, ConfigError> {
        check_names(env::vars_os().map(|(name, _)| name))?;
        builder(env::var_os)
    }
}

/// Returns a builder with the settings that `lookup` returns for the [`variables`]. An empty text counts as
/// unset.
///
/// # Errors
/// [`ConfigError::Variable`] names the variable and says what is accepted.
pub fn builder(lookup: impl Fn(&'static str) -> Option<OsString>) -> Result<ConfigBuilder, ConfigError> {
    let lookup = |variable| lookup(variable).filter(|text| !text.is_empty());
    let mut builder = Config::builder();
    for (variable, apply) in SETTINGS {
        let refused = |reason| ConfigError::Variable { variable, reason };
        match lookup(variable) {
            Some(text) => {
                check(variable, &text, apply).map_err(refused)?;
                builder = apply(builder, &text).map_err(refused)?;
            }
            None if variable == MASTERS => return Err(refused(NO_MASTERS.to_owned())),
            None => {}
        }
    }
    tls(builder, lookup)
}

/// Refuses a name that nearly matches a setting's: its value would be ignored.
///
/// # Errors
/// [`ConfigError::UnknownVariable`] names both.
pub fn check_names(names: impl IntoIterator<Item = OsString>) -> Result<(), ConfigError> {
    let names: Vec<String> = names.into_iter().filter_map(|name| name.into_string().ok()).collect();
    // For a drill's hook, `REDLATCH_MASTER` is the URL of one master.
    let is_hook = names.iter().any(|name| name == "REDLATCH_FAULT");
    let is_known = |name: &str| variables().any(|known| known == name) || EXPORTED.contains(&name);
    let others = names.iter().filter(|name| {
        let is_of_kubernetes = name.contains("_SERVICE_") || name.contains("_PORT");
        name.starts_with("REDLATCH_") && !is_known(name) && !is_of_kubernetes
    });
    for name in others.filter(|name| !(is_hook && *name == "REDLATCH_MASTER")) {
        if let Some(known) = variables().find(|known| distance(name, known) <= NEAR) {
            return Err(ConfigError::UnknownVariable { name: name.clone(), known });
        }
    }
    Ok(())
}

/// Largest number of differing letters that counts as a misspelling.
const NEAR: usize = 2;

/// Variables that `redlatch run` and `elect` set for their command.
const EXPORTED: [&str; 6] = [
    "REDLATCH_RESOURCE",
    "REDLATCH_TOKEN",
    "REDLATCH_FENCING_TOKEN",
    "REDLATCH_SLOT",
    "REDLATCH_TTL_MS",
    "REDLATCH_VALID_MS",
];

/// Number of letters to insert, delete or replace.
fn distance(one: &str, other: &str) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (place, letter) in (1..).zip(one.bytes()) {
        let mut diagonal = std::mem::replace(&mut row[0], place);
        for (column, other) in (1..).zip(other.bytes()) {
            let replaced = diagonal + usize::from(letter != other);
            diagonal = row[column];
            row[column] = replaced.min(row[column].min(row[column - 1]) + 1);
        }
    }
    row[other.len()]
}

/// Checks the bounds of one setting alone, so that an error names its variable.
fn check(variable: &str, text: &OsStr, apply: Apply) -> Result<(), String> {
    let alone = apply(Config::builder(), text)?;
    // The password may come from a file.
    let alone = match variable {
        MASTERS => alone.password_file(""),
        _ => alone.master("redis://localhost"),
    };
    alone.build().map(drop).map_err(|error| error.to_string())
}

fn text_of(text: &OsStr) -> Result<&str, String> {
    text.to_str().ok_or_else(|| "it is no text in UTF-8".to_owned())
}

fn time_of(text: &OsStr) -> Result<Duration, String> {
    parse_time(text.to_str().unwrap_or_default()).map_err(|_| TIME_ADVICE.to_owned())
}

fn quarantine(text: &str) -> Result<Quarantine, String> {
    match text.trim() {
        "uptime" => Ok(Quarantine::Uptime),
        "strict" => Ok(Quarantine::Strict),
        "trust" => Ok(Quarantine::Trust),
        _ => Err("give uptime, strict or trust".to_owned()),
    }
}

/// Splits a list of URLs. Shows no text that is no URL: it may be half a password.
fn masters(list: &str) -> Result<Vec<&str>, String> {
    let urls = list.split(|c: char| c == ',' || c.is_whitespace()).filter(|url| !url.is_empty());
    let urls: Vec<&str> = urls.collect();
    match urls.iter().position(|url| !url.contains("://") && !url.starts_with('/')) {
        Some(index) => Err(format!(
            "master {} does not begin with redis://, rediss:// or unix://; separate masters by commas, and write %2C \
             for a comma in a password",
            index + 1
        )),
        None if urls.is_empty() => Err(NO_MASTERS.to_owned()),
        None => Ok(urls),
    }
}

#[cfg(feature = "tls")]
fn tls(
    builder: ConfigBuilder,
    lookup: impl Fn(&'static str) -> Option<OsString>,
) -> Result<ConfigBuilder, ConfigError> {
    use super::{Pem, Tls};
    let [ca, certificate, key, name] = TLS.map(lookup);
    if ca.is_none() && certificate.is_none() && key.is_none() && name.is_none() {
        return Ok(builder);
    }
    let file = |path: OsString| Pem::File(path.into());
    let mut tls = Tls::new();
    if let Some(ca) = ca {
        tls = tls.ca(file(ca));
    }
    let missing = |variable, other| {
        Err(ConfigError::Variable {
            variable,
            reason: format!("give the file; {other} is of no use without it"),
        })
    };
    match (certificate, key) {
        (Some(certificate), Some(key)) => tls = tls.client_certificate(file(certificate), file(key)),
        (Some(_), None) => return missing(TLS_KEY, TLS_CERT),
        (None, Some(_)) => return missing(TLS_CERT, TLS_KEY),
        (None, None) => {}
    }
    if let Some(name) = name {
        let refused = |reason| ConfigError::Variable { variable: TLS_SERVER_NAME, reason };
        tls = tls.server_name(text_of(&name).map_err(refused)?);
    }
    Ok(builder.tls(tls))
}

/// Refuses TLS variables rather than connect without TLS.
#[cfg(not(feature = "tls"))]
fn tls(
    builder: ConfigBuilder,
    lookup: impl Fn(&'static str) -> Option<OsString>,
) -> Result<ConfigBuilder, ConfigError> {
    match TLS.into_iter().find(|variable| lookup(variable).is_some()) {
        Some(variable) => {
            let reason = "it needs the cargo feature tls".to_owned();
            Err(ConfigError::Variable { variable, reason })
        }
        None => Ok(builder),
    }
}

const TIME_ADVICE: &str = "give a time such as 500ms, 30s, 5min or 2h 30min";

/// Parses times such as `500ms`, `30s`, `1h 30min` or `0`: a sum of numbers with units from `ns` to `years`.
/// A unit may be written in full.
///
/// # Errors
/// Advice, if the text is no time, or exceeds the longest [`Duration`].
pub fn parse_time(text: &str) -> Result<Duration, &'static str> {
    if text.trim() == "0" {
        return Ok(Duration::ZERO);
    }
    let mut rest = text.trim();
    let mut sum = None;
    while !rest.is_empty() {
        let (number, behind) = split_at(rest, |c: char| !c.is_ascii_digit());
        let (unit, behind) = split_at(behind.trim_start(), |c: char| !c.is_ascii_alphabetic());
        let part = number.parse().ok().and_then(|number| of_unit(number, unit)).ok_or(TIME_ADVICE)?;
        sum = Some(sum.unwrap_or(Duration::ZERO).checked_add(part).ok_or(TIME_ADVICE)?);
        rest = behind.trim_start();
    }
    sum.ok_or(TIME_ADVICE)
}

fn split_at(text: &str, is_end: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(is_end).unwrap_or(text.len()))
}

fn of_unit(number: u64, unit: &str) -> Option<Duration> {
    let seconds = match unit {
        "ns" | "nsec" => return Some(Duration::from_nanos(number)),
        "us" | "usec" => return Some(Duration::from_micros(number)),
        "ms" | "msec" => return Some(Duration::from_millis(number)),
        "s" | "sec" | "secs" | "second" | "seconds" => 1,
        "m" | "min" | "mins" | "minute" | "minutes" => 60,
        "h" | "hr" | "hrs" | "hour" | "hours" => 3600,
        "d" | "day" | "days" => 86_400,
        "w" | "week" | "weeks" => 7 * 86_400,
        // 365.25 days.
        "y" | "year" | "years" => 31_557_600,
        _ => return None,
    };
    number.checked_mul(seconds).map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&'static str, &str)]) -> Result<Config, ConfigError> {
        let lookup =
            |name| variables.iter().find(|(it, _)| *it == name).map(|(_, text)| OsString::from(text));
        builder(lookup)?.build()
    }

    // I146
    #[test]
    fn each_variable_sets_its_setting() {
        let config = read(&[
            (MASTERS, "redis://a,valkey://b:7000/1,unix:///run/c,/run/d"),
            (MAX_TTL, "1min"),
            (PREFIX, "lock:"),
            (DRIFT_PPM, "20000"),
            (QUARANTINE, "strict"),
            (ANSWER_TIMEOUT, "300ms"),
            (CONNECT_TIMEOUT, "2s"),
        ])
        .expect("valid settings");
        assert_eq!(config.master_count(), 4);
        assert_eq!((config.max_ttl, &config.prefix[..]), (Duration::from_secs(60), &b"lock:"[..]));
        assert_eq!(config.quarantine_time(), Duration::from_millis(61_202));
        assert_eq!(config.quarantine(), Quarantine::Strict);
        assert_eq!(config.answer_timeout, Some(Duration::from_millis(300)));
        assert_eq!(config.connect_timeout, Duration::from_secs(2));
    }

    #[test]
    fn a_nearly_known_variable_is_refused() {
        let check = |names: &[&str]| check_names(names.iter().map(OsString::from));
        for (name, known) in [
            ("REDLATCH_MASTER", MASTERS),
            ("REDLATCH_MASTRES", MASTERS),
            ("REDLATCH_PERFIX", PREFIX),
            ("REDLATCH_MAXTTL", MAX_TTL),
            ("REDLATCH_TLS_CERTS", TLS_CERT),
            ("REDLATCH_PASSWORDFILE", PASSWORD_FILE),
            ("REDLATCH_QUARANTNE", QUARANTINE),
        ] {
            let refused = Err(ConfigError::UnknownVariable { name: name.to_owned(), known });
            assert_eq!(check(&["PATH", name]), refused);
        }
        let all: Vec<&str> = variables().collect();
        assert_eq!(check(&all), Ok(()));
        assert_eq!(check(&EXPORTED), Ok(()));
        for other in [
            "REDLATCH_PORT",
            "REDLATCH_PREFI_PORT",
            "REDLATCH_MASTERS_SERVICE_HOST",
            "REDLATCH_MASTERS_PORT_6379_TCP",
            "REDLATCH_TEST_PIDS",
            "REDLATCH_SERVER",
            "MY_REDLATCH_MASTER",
            "REDLATCH",
        ] {
            assert_eq!(check(&[other]), Ok(()), "{other}");
        }
        // A drill's hook may use the command line.
        assert_eq!(check(&["REDLATCH_FAULT", "REDLATCH_MASTER", "REDLATCH_MASTER_NUMBER"]), Ok(()));
        assert_eq!([distance("", "ab"), distance("abc", "bca"), distance("a", "a")], [2, 2, 0]);
    }

    /// The test runs itself again with these variables.
    #[test]
    fn the_environment_is_read() {
        const CHILD: &str = "REDLATCH_TEST_FROM_ENV";
        if env::var_os(CHILD).is_some() {
            let config = Config::from_env().expect("valid settings");
            return assert_eq!((config.master_count(), &config.prefix[..]), (2, &b"lock:"[..]));
        }
        let ran = std::process::Command::new(env::current_exe().expect("this program"))
            .args(["--exact", "config::env::tests::the_environment_is_read"])
            .envs([(CHILD, "1"), (MASTERS, "redis://a, redis://b"), (PREFIX, "lock:")])
            .output()
            .expect("it starts");
        let said = String::from_utf8_lossy(&ran.stdout);
        assert!(ran.status.success() && said.contains("1 passed"), "{said}");
    }

    #[test]
    fn unset_and_empty_variables_leave_the_defaults() {
        let empty: Vec<_> = variables().filter(|name| *name != MASTERS).map(|name| (name, "")).collect();
        for rest in [&[][..], &empty] {
            let config = read(&[&[(MASTERS, "redis://a")][..], rest].concat()).expect("valid settings");
            let default = Config::builder().master("redis://a").build().expect("valid settings");
            assert_eq!(format!("{config:?}"), format!("{default:?}"));
        }
    }

    #[test]
    fn blanks_and_trailing_commas_in_the_list_are_ignored() {
        for list in [
            "redis://a,redis://b",
            "redis://a, redis://b,",
            " redis://a ,\n redis://b ,\n",
            "redis://a redis://b",
            ",,redis://a,,redis://b",
        ] {
            assert_eq!(read(&[(MASTERS, list)]).map(|config| config.master_count()), Ok(2), "{list:?}");
        }
    }

    // I146
    #[test]
    fn bad_values_name_the_variable_and_what_is_accepted() {
        let url = (MASTERS, "redis://a");
        for (variables, said) in [
            (&[][..], "REDLATCH_MASTERS: no masters given; give the URLs"),
            (&[(MASTERS, " , ")], "REDLATCH_MASTERS: no masters given; give the URLs"),
            (&[(MASTERS, "redis://a,b")], "REDLATCH_MASTERS: master 2 does not begin with redis://"),
            (&[(MASTERS, "redis://a,http://b")], "REDLATCH_MASTERS: master 2: an unknown scheme"),
            (&[(MASTERS, "redis://a,redis://a/1")], "REDLATCH_MASTERS: master 2 is the same server"),
            (&[url, (MAX_TTL, "30")], "REDLATCH_MAX_TTL: give a time such as"),
            (&[url, (MAX_TTL, "8days")], "REDLATCH_MAX_TTL: max_ttl is"),
            (&[url, (DRIFT_PPM, "1%")], "REDLATCH_DRIFT_PPM: give a whole number"),
            (&[url, (DRIFT_PPM, "500001")], "REDLATCH_DRIFT_PPM: "),
            (&[url, (QUARANTINE, "none")], "REDLATCH_QUARANTINE: give uptime, strict or trust"),
            (&[url, (ANSWER_TIMEOUT, "0")], "REDLATCH_ANSWER_TIMEOUT: answer_timeout is"),
            (&[url, (CONNECT_TIMEOUT, "soon")], "REDLATCH_CONNECT_TIMEOUT: give a time"),
            (&[url, (PREFIX, &"x".repeat(257))], "REDLATCH_PREFIX: the prefix has 257 bytes"),
        ] {
            let error = read(variables).expect_err(said).to_string();
            assert!(error.starts_with(said), "{error}");
        }
    }

    // I146
    #[test]
    fn no_variables_error_shows_a_password() {
        for list in
            ["redis://me:s3c,ret@h,redis://i", "redis://me:s3cret@h:x", "me:s3cret@h", "redis://me:s3cret h"]
        {
            let error = read(&[(MASTERS, list)]).expect_err(list).to_string();
            assert!(!error.contains("s3c") && !error.contains("ret@"), "{error}");
        }
        let misplaced = "redis://me:s3cret@h";
        for variable in variables().filter(|name| ![MASTERS, PREFIX, PASSWORD_FILE].contains(name)) {
            let read = read(&[(MASTERS, "redis://a"), (variable, misplaced)]);
            let error = read.expect_err(variable).to_string();
            assert!(!error.contains("s3cret"), "{error}");
        }
    }

    #[cfg(feature = "tls")]
    #[test]
    fn a_certificate_without_key_is_refused() {
        let url = (MASTERS, "rediss://a");
        for (given, missing) in [(TLS_CERT, TLS_KEY), (TLS_KEY, TLS_CERT)] {
            let error = read(&[url, (given, "/a.pem")]).expect_err("half of it").to_string();
            assert_eq!(error, format!("{missing}: give the file; {given} is of no use without it"));
        }
        assert!(read(&[url, (TLS_CERT, "/a.pem"), (TLS_KEY, "/a.key"), (TLS_CA, "/ca.pem")]).is_ok());
    }

    #[cfg(not(feature = "tls"))]
    #[test]
    fn tls_variables_name_the_missing_feature() {
        let error = read(&[(MASTERS, "redis://a"), (TLS_CA, "/ca.pem")]).expect_err("no TLS here");
        assert_eq!(error.to_string(), "REDLATCH_TLS_CA: it needs the cargo feature tls");
    }

    #[test]
    fn each_variable_is_in_the_operators_table() {
        let page = include_str!("../../docs/set-up.md");
        for variable in variables() {
            assert!(page.contains(&format!("| `{variable}` |")), "{variable} has no row in docs/set-up.md");
        }
    }

    #[test]
    fn times_have_a_number_and_a_unit() {
        for (text, ms) in [
            ("0", 0),
            ("0s", 0),
            ("500ms", 500),
            ("30s", 30_000),
            ("1min", 60_000),
            ("1h 30min", 5_400_000),
            ("1h30m", 5_400_000),
            (" 2 minutes ", 120_000),
            ("1day 1hour 1sec", 90_001_000),
            ("2weeks", 1_209_600_000),
            ("1y", 31_557_600_000),
            ("1500us", 1),
        ] {
            assert_eq!(parse_time(text).map(|time| time.as_millis()), Ok(ms), "{text:?}");
        }
    }

    #[test]
    fn other_texts_are_no_times() {
        for text in [
            "",
            " ",
            "10",
            "s",
            "-1s",
            "1.5s",
            "soon",
            "1s 2",
            "1 s2",
            "1parsec",
            "1M",
            "+1s",
            "forever",
            "1S",
            "1é",
            "99999999999999999999s",
            "18446744073709551615min",
            "18446744073709551615s 18446744073709551615s",
        ] {
            assert_eq!(parse_time(text), Err(TIME_ADVICE), "{text:?}");
        }
    }
}
