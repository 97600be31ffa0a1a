//! Rules of style for messages of the library and the command line, as far as a program can check them.

/// Most words in a sentence of a message.
const SENTENCE_LENGTH_MAX: usize = 15;

/// Most digits of a time.
const TIME_DIGITS_MAX: usize = 3;

/// Words that messages must not use.
const IDIOM: [&str; 7] = ["told", "tell", "tells", "who", "whoever", "whom", "besides"];

/// The first rule that a message breaks.
///
/// A sentence ends at the end of a line, at a parenthesis, and at a period, colon, semicolon or question mark
/// followed by a blank. A quotation counts as one word.
pub fn broken_rule(message: &str) -> Option<String> {
    let outside: Vec<&str> = message.split('"').step_by(2).collect();
    let text = outside.join("quotation");
    let mut sentence = 0;
    for word in text.split(' ').flat_map(|word| word.split_inclusive('\n')) {
        let bare = word.trim_matches(|c: char| !c.is_alphanumeric());
        if bare.is_empty() {
            continue;
        }
        sentence = if word.starts_with('(') { 1 } else { sentence + 1 };
        if sentence > SENTENCE_LENGTH_MAX {
            return Some(format!("a sentence is too long at {word:?}"));
        }
        if IDIOM.contains(&bare.to_lowercase().as_str()) {
            return Some(format!("{word:?} is not a word for messages"));
        }
        if is_unrounded_time(bare) {
            return Some(format!("{word:?} is not rounded"));
        }
        if word.ends_with(['.', ':', ';', '?', ')', '\n']) {
            sentence = 0;
        }
    }
    None
}

/// Whether the word is a number with a time unit and too many digits.
fn is_unrounded_time(word: &str) -> bool {
    let units = ["ns", "µs", "ms", "s"];
    let Some(number) = units.iter().find_map(|unit| word.strip_suffix(unit)) else { return false };
    let is_number = number.starts_with(|c: char| c.is_ascii_digit())
        && number.chars().all(|c| c.is_ascii_digit() || c == '.');
    let decimals = number.split_once('.').map_or(0, |(_, decimals)| decimals.len());
    is_number && (decimals > 1 || number.chars().filter(char::is_ascii_digit).count() > TIME_DIGITS_MAX)
}

#[test]
fn broken_rules_are_found() {
    let words = |count: usize| vec!["a"; count].join(" ");
    let max = words(SENTENCE_LENGTH_MAX);
    for message in [
        format!("{max}: {max}; {max}. {max}\n{max} ({max}) {max}?"),
        "held for 4.4s, 300ms or 360s by \"who told 4.408173216s\"".to_owned(),
        "redis://10.0.0.1:6379, run_id 12345s6, teller".to_owned(),
    ] {
        assert_eq!(broken_rule(&message), None, "{message}");
    }
    for message in [
        format!("{max} b"),
        "the holder is not told".to_owned(),
        "3 are ahead who came first".to_owned(),
        "held for 4.408173216s".to_owned(),
        "held for 4408ms, or so".to_owned(),
    ] {
        assert!(broken_rule(&message).is_some(), "{message}");
    }
}
