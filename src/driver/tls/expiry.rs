//! Expiry of a certificate, read from its DER bytes.
//!
//! ```text
//!  Certificate ─ SEQUENCE ─ tbsCertificate ─ SEQUENCE: [0] version?, serial, algorithm, issuer, validity, …
//!                                                      validity ─ SEQUENCE: notBefore, notAfter
//! ```

use std::time::Duration;

const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// Expiry since the Unix epoch; `None` if earlier, or for malformed bytes.
pub(super) fn not_after(certificate: &[u8]) -> Option<Duration> {
    let (certificate, _) = content(certificate, SEQUENCE)?;
    let (body, _) = content(certificate, SEQUENCE)?;
    let body = if body.first() == Some(&VERSION) { element(body)?.2 } else { body };
    // Skips serial number, algorithm and issuer.
    let validity = (0..3).try_fold(body, |rest, _| Some(element(rest)?.2))?;
    let (validity, _) = content(validity, SEQUENCE)?;
    let (_, _, rest) = element(validity)?;
    let (kind, text, _) = element(rest)?;
    since_epoch(kind, text)
}

/// Content of the first element if it has this type, and the remaining bytes.
fn content(bytes: &[u8], wanted: u8) -> Option<(&[u8], &[u8])> {
    let (kind, content, rest) = element(bytes)?;
    (kind == wanted).then_some((content, rest))
}

/// The first element: its type, its content, and the remaining bytes.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&kind, rest) = bytes.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (size, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        0x81..=0x84 => {
            let (digits, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            let size = digits.iter().fold(0_usize, |size, digit| (size << 8) | usize::from(*digit));
            (size, rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(size)?;
    Some((kind, content, rest))
}

/// Parses `YYMMDDHHMMSSZ` or `YYYYMMDDHHMMSSZ`, as RFC 5280 requires.
fn since_epoch(kind: u8, text: &[u8]) -> Option<Duration> {
    let digits = text.strip_suffix(b"Z")?;
    if !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number =
        |digits: &[u8]| digits.iter().fold(0_u64, |number, digit| number * 10 + u64::from(digit - b'0'));
    let (year, rest) = match kind {
        UTC_TIME if digits.len() == 12 => {
            let year = number(&digits[..2]);
            (if year < 50 { 2000 + year } else { 1900 + year }, &digits[2..])
        }
        GENERALIZED_TIME if digits.len() == 14 => (number(&digits[..4]), &digits[4..]),
        _ => return None,
    };
    let [month, day, hour, minute, second] = [0, 2, 4, 6, 8].map(|at| number(&rest[at..at + 2]));
    if year < 1970 || !(1..=12).contains(&month) || !(1..=31).contains(&day) || hour > 23 || minute > 59 {
        return None;
    }
    // Years begin in March, so that the leap day comes last.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days_of_years = year * 365 + year / 4 - year / 100 + year / 400;
    let days = days_of_years + (month * 153 + 2) / 5 + day - 1;
    /// Days from 1 March of year 0 to the Unix epoch.
    const EPOCH: u64 = 719_468;
    Some(Duration::from_secs((days.checked_sub(EPOCH)? * 24 + hour) * 3600 + minute * 60 + second))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    fn certificate(year: i32, month: u8, day: u8) -> Vec<u8> {
        let mut params = CertificateParams::new(vec!["h".to_owned()]).expect("a valid name");
        params.not_after = date_time_ymd(year, month, day);
        let key = KeyPair::generate().expect("randomness");
        params.self_signed(&key).expect("a certificate").der().to_vec()
    }

    #[test]
    fn the_end_of_a_certificate_is_read() {
        for ((year, month, day), seconds) in [
            ((1999, 12, 31), 946_598_400),
            ((2024, 2, 29), 1_709_164_800),
            ((2024, 3, 1), 1_709_251_200),
            ((2049, 12, 31), 2_524_521_600),
            ((2050, 1, 1), 2_524_608_000),
            ((4000, 1, 1), 64_060_588_800),
        ] {
            let end = not_after(&certificate(year, month, day));
            assert_eq!(end, Some(Duration::from_secs(seconds)), "{year}-{month}-{day}");
        }
    }

    #[test]
    fn times_are_read_to_the_second() {
        for (kind, text, seconds) in [
            (GENERALIZED_TIME, "19700101000000Z", Some(0)),
            (GENERALIZED_TIME, "19700101000001Z", Some(1)),
            (GENERALIZED_TIME, "19691231235959Z", None),
            (GENERALIZED_TIME, "20001231235958Z", Some(978_307_198)),
            (GENERALIZED_TIME, "20240229123456Z", Some(1_709_210_096)),
            (GENERALIZED_TIME, "21000301000000Z", Some(4_107_542_400)),
            (GENERALIZED_TIME, "23991130071901Z", Some(13_566_727_141)),
            (UTC_TIME, "491231235959Z", Some(2_524_607_999)),
            (UTC_TIME, "700101000000Z", Some(0)),
            (UTC_TIME, "991231235959Z", Some(946_684_799)),
            (UTC_TIME, "500101000000Z", None),
            // Other forms, or out of range.
            (GENERALIZED_TIME, "700101000000Z", None),
            (UTC_TIME, "19700101000000Z", None),
            (SEQUENCE, "19700101000000Z", None),
            (GENERALIZED_TIME, "19700101000000", None),
            (GENERALIZED_TIME, "1970010100000xZ", None),
            (GENERALIZED_TIME, "20240001000000Z", None),
            (GENERALIZED_TIME, "20241301000000Z", None),
            (GENERALIZED_TIME, "20241231000000Z", Some(1_735_603_200)),
            (GENERALIZED_TIME, "20240100000000Z", None),
            (GENERALIZED_TIME, "20240132000000Z", None),
            (GENERALIZED_TIME, "20240101230000Z", Some(1_704_150_000)),
            (GENERALIZED_TIME, "20240101240000Z", None),
            (GENERALIZED_TIME, "20240101005900Z", Some(1_704_070_740)),
            (GENERALIZED_TIME, "20240101006000Z", None),
        ] {
            let expected = seconds.map(Duration::from_secs);
            assert_eq!(since_epoch(kind, text.as_bytes()), expected, "{kind:#x} {text}");
        }
    }

    #[test]
    fn elements_have_lengths_of_up_to_four_bytes() {
        let long = vec![7; 300];
        for (size, content) in [
            (&[0x00][..], &[][..]),
            (&[0x7f], &long[..127]),
            (&[0x81, 0x80], &long[..128]),
            (&[0x82, 0x01, 0x2c], &long),
            (&[0x83, 0, 0x01, 0x2c], &long),
            (&[0x84, 0, 0, 0x01, 0x2c], &long),
        ] {
            let bytes = [&[SEQUENCE], size, content, b"rest"].concat();
            assert_eq!(element(&bytes), Some((SEQUENCE, content, b"rest".as_slice())), "{size:?}");
            assert_eq!(super::content(&bytes, SEQUENCE), Some((content, b"rest".as_slice())), "{size:?}");
            assert_eq!(super::content(&bytes, UTC_TIME), None);
            // The last byte of the content, or of its length, is missing.
            assert_eq!(element(&bytes[..bytes.len() - 5]), None, "{size:?}");
        }
        assert_eq!(element(&[SEQUENCE, 0x80, 1]), None);
        assert_eq!(element(&[SEQUENCE, 0x85, 0, 0, 0, 0, 1, 7]), None);
    }

    #[test]
    fn a_cut_or_changed_certificate_does_not_panic() {
        let whole = certificate(2049, 12, 31);
        for size in 0..whole.len() {
            not_after(&whole[..size]);
        }
        for (at, byte) in
            (0..whole.len()).flat_map(|at| [0, 1, 0x30, 0x7f, 0x81, 0x84, 0xff].map(|byte| (at, byte)))
        {
            let mut changed = whole.clone();
            changed[at] = byte;
            not_after(&changed);
        }
        assert_eq!(since_epoch(UTC_TIME, b"241301000000Z"), None);
        assert_eq!(since_epoch(UTC_TIME, b"2412010000Z"), None);
    }
}
