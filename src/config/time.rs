//! Times as people write them.

use std::time::Duration;

/// Advice for a text that is no time.
pub(super) const ADVICE: &str = "give a time such as 500ms, 30s, 5min or 2h 30min";

/// Parses times such as `500ms`, `30s`, `1h 30min` or `0`: numbers with units from `ns` to `years`, which are
/// added up. A unit may be written in full.
///
/// # Errors
/// Advice, if the text is no time, or is longer than a [`Duration`] can be.
pub fn parse_time(text: &str) -> Result<Duration, &'static str> {
    if text.trim() == "0" {
        return Ok(Duration::ZERO);
    }
    let mut rest = text.trim();
    let mut sum = None;
    while !rest.is_empty() {
        let (number, behind) = split_at(rest, |c: char| !c.is_ascii_digit());
        let (unit, behind) = split_at(behind.trim_start(), |c: char| !c.is_ascii_alphabetic());
        let part = number.parse().ok().and_then(|number| of_unit(number, unit)).ok_or(ADVICE)?;
        sum = Some(sum.unwrap_or(Duration::ZERO).checked_add(part).ok_or(ADVICE)?);
        rest = behind.trim_start();
    }
    sum.ok_or(ADVICE)
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
            assert_eq!(parse_time(text), Err(ADVICE), "{text:?}");
        }
    }
}
