//! A master's address and login, in one line of text.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::error::UrlError;
use crate::limits;

/// Address and login of a master: `redis://[[user]:password@]host[:port][/db]`,
/// `unix://[[user]:password@]/path[?db=db]`, or the absolute path of a Unix socket. The default port is 6379.
/// User and password may be percent-encoded. An IPv6 host needs brackets; its zone follows `%25`. The scheme
/// may be in upper case. A user without a password needs `REDLATCH_PASSWORD_FILE`.
///
/// `rediss://` means TLS, and is an error without the cargo feature `tls`. `valkey://` means `redis://`, and
/// `valkeys://` means `rediss://`; messages show the latter forms.
///
/// Any other part (another query, a fragment, another scheme) is an error. Neither `Display` nor `Debug`
/// shows user or password.
///
/// ```
/// use redlatch::MasterUrl;
/// let url: MasterUrl = "redis://locker:s3cret@[::1]:7001/2".parse()?;
/// assert_eq!(url.to_string(), "redis://[::1]:7001/2");
/// assert!("redis://host?timeout=1".parse::<MasterUrl>().is_err());
/// # Ok::<(), redlatch::error::UrlError>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct MasterUrl {
    pub(crate) address: Address,
    pub(crate) login: Option<Login>,
    pub(crate) db: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Address {
    /// A host name, or an IP address without brackets, and a port.
    Tcp { host: String, port: u16 },
    /// As [`Address::Tcp`], over TLS.
    Tls { host: String, port: u16 },
    /// The path of a Unix socket.
    Unix { path: PathBuf },
}

impl Address {
    /// Whether both lead to the same server. A port belongs to one server, with or without TLS.
    pub(crate) fn is_same_server(&self, other: &Self) -> bool {
        match (self.tcp(), other.tcp()) {
            (Some(one), Some(other)) => one == other,
            _ => self == other,
        }
    }

    fn tcp(&self) -> Option<(&str, u16)> {
        match self {
            Self::Tcp { host, port } | Self::Tls { host, port } => Some((host, *port)),
            Self::Unix { .. } => None,
        }
    }

    pub(crate) const fn is_tls(&self) -> bool {
        matches!(self, Self::Tls { .. })
    }
}

/// Credentials for `AUTH`. `Debug` shows neither user nor password.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Login {
    /// `None` is the server's default user.
    pub(crate) user: Option<Vec<u8>>,
    /// Empty in a URL whose password is in a file.
    pub(crate) password: Vec<u8>,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Login")
    }
}

const PORT_DEFAULT: u16 = 6379;

impl FromStr for MasterUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let reason =
            |reason| if is_list(text) { "several URLs, which must be given one by one," } else { reason };
        parse(text).map_err(|why| UrlError { reason: reason(why), shown: redacted(text) })
    }
}

impl fmt::Display for MasterUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.address.is_tls() { "rediss" } else { "redis" };
        match &self.address {
            Address::Tcp { host, port } | Address::Tls { host, port } if host.contains(':') => {
                write!(f, "{scheme}://[{}]:{port}", host.replace('%', "%25"))?;
            }
            Address::Tcp { host, port } | Address::Tls { host, port } => {
                write!(f, "{scheme}://{host}:{port}")?
            }
            Address::Unix { path } => write!(f, "unix://{}", path.display())?,
        }
        match (&self.address, self.db) {
            (_, 0) => Ok(()),
            (Address::Unix { .. }, db) => write!(f, "?db={db}"),
            (_, db) => write!(f, "/{db}"),
        }
    }
}

impl fmt::Debug for MasterUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Whether a text seems to contain several URLs or hosts.
fn is_list(text: &str) -> bool {
    let behind = text.split_once("://").map_or(text, |(_, rest)| rest);
    let is_separator = |c: char| c == ',' || c == ';' || c.is_whitespace();
    behind.split(is_separator).skip(1).any(|part| part.contains("://") || part.starts_with('/'))
        || behind.rsplit_once('@').map_or(behind, |(_, place)| place).trim().contains(is_separator)
}

fn parse(text: &str) -> Result<MasterUrl, &'static str> {
    if text.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Err("a space or control character");
    }
    if text.starts_with('/') {
        return Ok(MasterUrl { address: Address::Unix { path: text.into() }, login: None, db: 0 });
    }
    let (scheme, rest) = text.split_once("://").ok_or("no scheme")?;
    let scheme = scheme.to_ascii_lowercase();
    match &*scheme {
        "rediss" | "valkeys" if !cfg!(feature = "tls") => Err("TLS, which needs the cargo feature tls,"),
        "redis" | "valkey" | "rediss" | "valkeys" => {
            refuse_tail(rest)?;
            let (authority, db) = rest.split_once('/').unwrap_or((rest, ""));
            if db.contains('@') {
                return Err("a / in front of the host, which a password has as %2F,");
            }
            let (login, place) = split_login(authority)?;
            let (host, port) = parse_tcp(place)?;
            let address = match &*scheme {
                "rediss" | "valkeys" => Address::Tls { host, port },
                _ => Address::Tcp { host, port },
            };
            Ok(MasterUrl { address, login, db: parse_db(db)? })
        }
        "unix" => {
            let (authority, _) = rest.split_once('/').ok_or("no absolute path")?;
            let (rest, db) = match rest.split_once('?') {
                Some((rest, query)) => (rest, query.strip_prefix("db=").ok_or(QUERY)?),
                None => (rest, ""),
            };
            refuse_tail(rest)?;
            refuse_tail(db)?;
            let (login, place) = if authority.is_empty() { (None, rest) } else { split_login(rest)? };
            if !place.starts_with('/') || place.len() == 1 {
                return Err("no absolute path");
            }
            Ok(MasterUrl { address: Address::Unix { path: place.into() }, login, db: parse_db(db)? })
        }
        _ => Err("an unknown scheme"),
    }
}

/// Refuses a query or fragment after a master's host. In a password, both characters must be percent-encoded.
fn refuse_tail(rest: &str) -> Result<(), &'static str> {
    match rest.find(['?', '#']).and_then(|at| rest.get(at..)) {
        Some(tail) if tail.contains('@') => {
            Err("a ? or # in front of the host, which a password has as %3F or %23,")
        }
        Some(tail) if tail.starts_with('?') => Err(QUERY),
        Some(_) => Err("a fragment, which no master has,"),
        None => Ok(()),
    }
}

/// Settings come from options, variables or methods, not from a query.
const QUERY: &str = "a query, which only unix:// has, as ?db=1,";

fn split_login(authority: &str) -> Result<(Option<Login>, &str), &'static str> {
    let Some((login, place)) = authority.rsplit_once('@') else { return Ok((None, authority)) };
    let (user, password) = match login.split_once(':') {
        Some((_, "")) => return Err("an empty password"),
        Some((user, password)) => (user, password),
        None if login.is_empty() => return Err("an empty user"),
        // The password is in a file.
        None => (login, ""),
    };
    let user = if user.is_empty() { None } else { Some(percent_decode(user)?) };
    let password = percent_decode(password)?;
    if login.len() > limits::LOGIN_SIZE_MAX {
        return Err("a user and password that are too long");
    }
    Ok((Some(Login { user, password }), place))
}

fn parse_tcp(place: &str) -> Result<(String, u16), &'static str> {
    let (host, port) = if let Some(bracketed) = place.strip_prefix('[') {
        let (host, rest) = bracketed.split_once(']').ok_or("an unclosed bracket")?;
        let (address, zone) = match host.split_once('%') {
            Some((address, zone)) => (address, Some(zone.strip_prefix("25").unwrap_or(zone))),
            None => (host, None),
        };
        address.parse::<std::net::Ipv6Addr>().map_err(|_| "no IPv6 address between the brackets")?;
        let is_zone = |zone: &str| {
            !zone.is_empty()
                && zone.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte))
        };
        if !zone.is_none_or(is_zone) {
            return Err("a zone that is no name of an interface");
        }
        let host = zone.map_or_else(|| address.to_owned(), |zone| format!("{address}%{zone}"));
        let port = if rest.is_empty() {
            None
        } else {
            Some(rest.strip_prefix(':').ok_or("text after the bracket")?)
        };
        (host, port)
    } else {
        let (host, port) = match place.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (place, None),
        };
        if host.contains(['@', '%', '[', ']', '\\', ',', ';']) {
            return Err("an unknown part");
        }
        (host.to_owned(), port)
    };
    if host.is_empty() {
        return Err("no host");
    }
    let port = match port {
        None => PORT_DEFAULT,
        Some(digits) => {
            parse_digits(digits).filter(|port| *port != 0).ok_or("a port that is not 1 to 65535")?
        }
    };
    Ok((host, port))
}

fn parse_db(text: &str) -> Result<u32, &'static str> {
    if text.is_empty() { Ok(0) } else { parse_digits(text).ok_or("a database that is not a number") }
}

/// Accepts digits only; the parsers of integers also accept a sign.
fn parse_digits<N: FromStr>(text: &str) -> Option<N> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse().ok() } else { None }
}

fn percent_decode(text: &str) -> Result<Vec<u8>, &'static str> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            decoded.push(byte);
            continue;
        }
        let digits =
            [bytes.next(), bytes.next()].map(|digit| digit.and_then(|digit| char::from(digit).to_digit(16)));
        let [Some(high), Some(low)] = digits else { return Err("a % without two hexadecimal digits") };
        decoded.push(u8::try_from(high * 16 + low).unwrap_or_default());
    }
    Ok(decoded)
}

/// The text up to its host. The rest may be a misplaced password.
fn redacted(text: &str) -> String {
    let (scheme, rest) = text.split_once("://").map_or(("", text), |(scheme, rest)| (scheme, rest));
    let (hidden, place) = rest.rsplit_once('@').map_or(("", rest), |(_, place)| ("…@", place));
    let host_end = match place.find(']') {
        Some(bracket) if place.starts_with('[') => bracket + 1,
        _ => place.find([':', '/', '?', '#']).unwrap_or(place.len()),
    };
    let (host, tail) = place.split_at(host_end);
    let separator = if text.contains("://") { "://" } else { "" };
    format!("{scheme}{separator}{hidden}{host}{}", if tail.is_empty() { "" } else { "…" })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16) -> Address {
        Address::Tcp { host: host.to_owned(), port }
    }

    #[test]
    fn every_documented_form_is_read() {
        let login = |user: Option<&str>, password: &str| {
            Some(Login { user: user.map(|user| user.into()), password: password.into() })
        };
        let unix = |path: &str| Address::Unix { path: path.into() };
        for (text, address, login, db) in [
            ("redis://h", tcp("h", 6379), None, 0),
            ("redis://h/", tcp("h", 6379), None, 0),
            ("redis://10.0.0.1:7000/15", tcp("10.0.0.1", 7000), None, 15),
            ("redis://[::1]", tcp("::1", 6379), None, 0),
            ("redis://[fe80::2]:65535/1", tcp("fe80::2", 65535), None, 1),
            ("redis://:pw@h:1", tcp("h", 1), login(None, "pw"), 0),
            ("redis://me:p%40%2Fw%3a@h", tcp("h", 6379), login(Some("me"), "p@/w:"), 0),
            ("redis://me:a:b@h", tcp("h", 6379), login(Some("me"), "a:b"), 0),
            ("unix:///run/redis.sock", unix("/run/redis.sock"), None, 0),
            ("unix://me:pw@/run/redis.sock", unix("/run/redis.sock"), login(Some("me"), "pw"), 0),
            ("/run/redis@1.sock", unix("/run/redis@1.sock"), None, 0),
            ("unix:///run/redis@1.sock", unix("/run/redis@1.sock"), None, 0),
            ("valkey://me:pw@h:1/2", tcp("h", 1), login(Some("me"), "pw"), 2),
            ("unix:///run/redis.sock?db=2", unix("/run/redis.sock"), None, 2),
            ("unix://me:pw@/run/redis.sock?db=0", unix("/run/redis.sock"), login(Some("me"), "pw"), 0),
            ("redis://[fe80::1%25eth0]:1", tcp("fe80::1%eth0", 1), None, 0),
            ("redis://[fe80::1%eth0.1]/2", tcp("fe80::1%eth0.1", 6379), None, 2),
            ("REDIS://h", tcp("h", 6379), None, 0),
            ("Unix:///run/x", unix("/run/x"), None, 0),
            ("redis://me@h", tcp("h", 6379), login(Some("me"), ""), 0),
        ] {
            assert!(text.parse() == Ok(MasterUrl { address, login, db }), "{text}");
        }
    }

    #[test]
    fn unknown_parts_are_refused() {
        for text in [
            "",
            "h",
            "h:6379",
            "redis:",
            "redis://",
            "redis:///1",
            "redis://:6379",
            "redis://h:",
            "redis://h:0",
            "redis://h:65536",
            "redis://h:+1",
            "redis://h:1:2",
            "redis://h/x",
            "redis://h/-1",
            "redis://h/1/2",
            "redis://h?db=1",
            "redis://h/1?x",
            "redis://h#f",
            "redis://[::1",
            "redis://[::1]1",
            "redis://[h]",
            "redis://@h",
            "redis://me:@h",
            "redis://me:%4@h",
            "redis://me:%zz@h",
            "redis://me:%1g@h",
            "redis://h h",
            "redis://h,i",
            "redis://h,redis://i",
            "http://h",
            "redis+tls://h",
            "unixs:///run/x",
            "unix:///run/x?db=x",
            "unix:///run/x?db=1#f",
            "unix:///run/x?timeout=1",
            "redis://[fe80::1%25]",
            "redis://[fe80::1%25e/0]",
            "redis://[fe80::1%25e h]",
            "unix://",
            "unix:///",
            "unix://run/x",
            "redis://h/4294967296",
            "redis://h\r\nx",
            "redis://h\u{7}",
        ] {
            assert!(text.parse::<MasterUrl>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn parts_that_no_master_has_are_named() {
        for (text, said) in [
            ("redis://h:6379?timeout=1", "a query, which only unix:// has"),
            ("redis://h/1?x", "a query"),
            ("rediss://h?ca=x", if cfg!(feature = "tls") { "a query" } else { "TLS, which needs" }),
            ("unix:///run/x?timeout=1", "a query"),
            ("redis://h#f", "a fragment"),
            ("redis://h:1/2#f", "a fragment"),
            ("redis://me:s3/cret@h", "a / in front of the host, which a password has as %2F"),
            ("redis://me:s3?cret@h", "a ? or # in front of the host"),
            ("redis://me:s3#cret@h:1", "a ? or # in front of the host"),
            ("redis://h:x", "a port that is not 1 to 65535"),
            ("redis://h/x", "a database that is not a number"),
            ("redis://[fe80::1%25]", "a zone that is no name of an interface"),
        ] {
            let error = text.parse::<MasterUrl>().expect_err(text).to_string();
            assert!(error.starts_with(said) && !error.contains("s3"), "{text}: {error}");
        }
    }

    #[test]
    fn a_url_is_shown_as_it_can_be_written() {
        for (text, shown) in [
            ("UNIX:///run/x?db=2", "unix:///run/x?db=2"),
            ("/run/x", "unix:///run/x"),
            ("redis://me:pw@[fe80::1%eth0]", "redis://[fe80::1%25eth0]:6379"),
            ("redis://h/2", "redis://h:6379/2"),
        ] {
            let url: MasterUrl = text.parse().expect(text);
            assert_eq!(url.to_string(), shown);
            assert_eq!(shown.parse::<MasterUrl>().expect(shown).address, url.address);
        }
    }

    #[test]
    fn user_and_password_together_have_a_limit() {
        let long = "x".repeat(limits::LOGIN_SIZE_MAX - "a:".len());
        for (login, is_read) in [
            (format!("a:{long}"), true),
            (format!("a:{long}x"), false),
            (format!("{long}:a"), true),
            (format!("{long}x:a"), false),
        ] {
            let url = format!("redis://{login}@h").parse::<MasterUrl>();
            assert_eq!(url.is_ok(), is_read, "{} bytes", login.len());
        }
    }

    #[cfg(feature = "tls")]
    #[test]
    fn tls_urls_are_read_and_shown() {
        for (text, host, port, shown) in [
            ("rediss://h", "h", 6379, "rediss://h:6379"),
            ("rediss://:s3cret@10.0.0.1:7000/15", "10.0.0.1", 7000, "rediss://10.0.0.1:7000/15"),
            ("valkeys://[::1]", "::1", 6379, "rediss://[::1]:6379"),
        ] {
            let url: MasterUrl = text.parse().expect(text);
            assert_eq!(url.address, Address::Tls { host: host.to_owned(), port }, "{text}");
            assert_eq!(url.to_string(), shown);
        }
    }

    #[cfg(not(feature = "tls"))]
    #[test]
    fn tls_urls_name_the_missing_feature() {
        for text in ["rediss://h", "valkeys://h"] {
            let error = text.parse::<MasterUrl>().expect_err("no TLS here").to_string();
            assert!(error.starts_with("TLS, which needs the cargo feature tls,"), "{error}");
        }
    }

    #[test]
    fn the_same_place_is_the_same_server() {
        let url = |text: &str| text.parse::<MasterUrl>().expect(text);
        for (one, other, is_same) in [
            ("redis://h", "redis://me:s3cret@h:6379/1", true),
            ("redis://h", "redis://h:7000", false),
            ("unix:///a", "unix:///a", true),
            ("unix:///a", "unix:///b", false),
            ("unix:///a", "redis://a", false),
        ] {
            assert_eq!(url(one).address.is_same_server(&url(other).address), is_same, "{one} {other}");
        }
    }

    #[test]
    fn a_list_in_one_text_is_named() {
        for text in [
            "redis://a,redis://b",
            "redis://a:1,redis://b:2",
            "redis://a, redis://b",
            "redis://a redis://b",
            "redis://a;redis://b",
            "redis://a,b,c",
            "redis://me:s3cret@a,redis://me:s3cret@b",
            "/run/a.sock,/run/b.sock x",
            "redis://me:s3cret@h,/run/redis@1.sock",
        ] {
            let error = text.parse::<MasterUrl>().expect_err(text).to_string();
            assert!(error.starts_with("several URLs"), "{error}");
            assert!(!error.contains("s3cret"), "{error}");
        }
        let other = "redis://me:a,b@h:x".parse::<MasterUrl>().expect_err("a wrong port").to_string();
        assert!(other.starts_with("a port"), "{other}");
    }

    #[test]
    fn neither_errors_nor_debug_output_show_the_login() {
        for text in [
            "redis://me:s3cret@h:x",
            "redis://me:s3/cret@h",
            "redis://me:s3%cret@h",
            "x://me:s3cret@h",
            "redis://me:s3cret",
            "redis://:s3cret",
            "redis://h:6379?password=s3cret",
            "unix:///sock?password=s3cret",
            "redis://h:s3cret]",
        ] {
            let error = text.parse::<MasterUrl>().expect_err(text).to_string();
            assert!(!error.contains("s3") && !error.contains("cret") && !error.contains("me:"), "{error}");
        }
        assert_eq!(redacted("redis://me:s3cret@[::1]x"), "redis://…@[::1]…", "the host is named");
        let url: MasterUrl = "redis://me:s3cret@h".parse().expect("valid");
        assert!(!format!("{url} {url:?}").contains("s3cret"));
    }
}
