//! Where a master is, and how to log in there, from one line of text.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::error::UrlError;
use crate::limits;

/// Address of a master and its login: `redis://[[user]:password@]host[:port][/db]`,
/// `unix://[[user]:password@]/path`, or the bare absolute path of a Unix socket. The default port is 6379.
/// User and password may be percent-encoded; an IPv6 host stands in brackets.
///
/// `rediss://` is the same over TLS. It needs the cargo feature `tls`, and is an error without it.
/// `valkey://` means `redis://`, and `valkeys://` means `rediss://`; messages show them in that form.
///
/// Anything else (a query, a fragment, another scheme) is an error. Neither `Display` nor `Debug` shows user
/// or password.
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

/// Where to connect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Address {
    /// A host name or IP address without brackets, and a port.
    Tcp { host: String, port: u16 },
    /// The same, over TLS.
    Tls { host: String, port: u16 },
    /// The path of a Unix socket.
    Unix { path: PathBuf },
}

impl Address {
    /// Whether both lead to the same server. TLS or not, one port is one server.
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

    /// Whether its connections are encrypted.
    pub(crate) const fn is_tls(&self) -> bool {
        matches!(self, Self::Tls { .. })
    }
}

/// Credentials for `AUTH`. `Debug` shows nothing of them.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Login {
    /// `None` is the server's default user.
    pub(crate) user: Option<Vec<u8>>,
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
                write!(f, "{scheme}://[{host}]:{port}")?;
            }
            Address::Tcp { host, port } | Address::Tls { host, port } => {
                write!(f, "{scheme}://{host}:{port}")?
            }
            Address::Unix { path } => write!(f, "unix://{}", path.display())?,
        }
        if self.db == 0 { Ok(()) } else { write!(f, "/{}", self.db) }
    }
}

impl fmt::Debug for MasterUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Whether it looks like several URLs, or hosts, in one text.
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
    match scheme {
        "rediss" | "valkeys" if !cfg!(feature = "tls") => Err("TLS, which needs the cargo feature tls,"),
        "redis" | "valkey" | "rediss" | "valkeys" => {
            let (authority, db) = rest.split_once('/').unwrap_or((rest, ""));
            let (login, place) = split_login(authority)?;
            let (host, port) = parse_tcp(place)?;
            let address = match scheme {
                "rediss" | "valkeys" => Address::Tls { host, port },
                _ => Address::Tcp { host, port },
            };
            Ok(MasterUrl { address, login, db: parse_db(db)? })
        }
        "unix" => {
            let (authority, _) = rest.split_once('/').ok_or("no absolute path")?;
            let (login, place) = if authority.is_empty() { (None, rest) } else { split_login(rest)? };
            if !place.starts_with('/') || place.len() == 1 {
                return Err("no absolute path");
            }
            if place.contains(['?', '#']) {
                return Err("an unknown part");
            }
            Ok(MasterUrl { address: Address::Unix { path: place.into() }, login, db: 0 })
        }
        _ => Err("an unknown scheme"),
    }
}

fn split_login(authority: &str) -> Result<(Option<Login>, &str), &'static str> {
    let Some((login, place)) = authority.rsplit_once('@') else { return Ok((None, authority)) };
    let (user, password) = login.split_once(':').ok_or("a user without a password")?;
    let user = if user.is_empty() { None } else { Some(percent_decode(user)?) };
    let password = percent_decode(password)?;
    if password.is_empty() {
        return Err("an empty password");
    }
    if login.len() > limits::LOGIN_SIZE_MAX {
        return Err("a user and password that are too long");
    }
    Ok((Some(Login { user, password }), place))
}

fn parse_tcp(place: &str) -> Result<(String, u16), &'static str> {
    let (host, port) = if let Some(bracketed) = place.strip_prefix('[') {
        let (host, rest) = bracketed.split_once(']').ok_or("an unclosed bracket")?;
        host.parse::<std::net::Ipv6Addr>().map_err(|_| "no IPv6 address between the brackets")?;
        let port = if rest.is_empty() {
            None
        } else {
            Some(rest.strip_prefix(':').ok_or("text after the bracket")?)
        };
        (host, port)
    } else {
        match place.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (place, None),
        }
    };
    if host.is_empty() {
        return Err("no host");
    }
    if host.contains(['?', '#', '@', '%', '[', ']', '\\', ',', ';']) {
        return Err("an unknown part");
    }
    let port = match port {
        None => PORT_DEFAULT,
        Some(digits) => {
            parse_digits(digits).filter(|port| *port != 0).ok_or("a port that is not 1 to 65535")?
        }
    };
    Ok((host.to_owned(), port))
}

fn parse_db(text: &str) -> Result<u32, &'static str> {
    if text.is_empty() { Ok(0) } else { parse_digits(text).ok_or("a database that is not a number") }
}

/// Digits only: `FromStr` of the integers would take a sign as well.
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

/// The text up to its host: what stands behind it may be a password that is in the wrong place.
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
            "redis://me@h",
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
            "REDIS://h",
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
        let error = "rediss://h?ca=x".parse::<MasterUrl>().expect_err("a query").to_string();
        assert!(error.starts_with("an unknown part"), "{error}");
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
