//! The codec through its public interface: every short input, and a seeded run of the fuzz targets'
//! properties.
//!
//! The seeds are fixed, so a failure repeats in every run. `scripts/fuzz` searches further.

#[path = "../fuzz/properties.rs"]
mod properties;

use properties::{
    Tree, agrees_with_redis_protocol, decoding_is_sound, grown_reply_round_trips, round_trips,
    splits_like_one_piece,
};
use redlatch::resp::{Decoded, Reply, decode};

/// Characters that make a random input likely to be RESP.
const ALPHABET: &[u8] = b"+-:$*0123456789\r\n\r\n\r\nOK\0\xff_#t,.e(!=%~>|";

/// SplitMix64 (Steele, Lea and Flood, 2014): the same numbers in every version.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(bound.max(1)).unwrap()).unwrap()
    }

    fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[0]
    }

    fn tree(&mut self) -> Tree {
        Tree::grow(&mut || self.byte())
    }

    fn pick(&mut self, bytes: &[u8]) -> u8 {
        bytes[self.below(bytes.len())]
    }

    /// A stream of valid replies, of replies with some bytes changed, or of noise.
    fn stream(&mut self) -> Vec<u8> {
        let mut stream = Vec::new();
        if self.below(3) == 0 {
            stream = (0..self.below(40)).map(|_| self.pick(ALPHABET)).collect();
            return stream;
        }
        for _ in 0..1 + self.below(4) {
            self.tree().encode(&mut stream);
        }
        for _ in 0..self.below(4) {
            let at = self.below(stream.len());
            match self.below(4) {
                0 => stream[at] = self.pick(ALPHABET),
                1 => stream.insert(at, self.pick(ALPHABET)),
                2 => stream.truncate(at + 1),
                _ => drop(stream.remove(at)),
            }
            if stream.is_empty() {
                break;
            }
        }
        stream
    }
}

#[test]
fn random_streams_are_decoded_soundly() {
    let mut random = Random(1);
    for _ in 0..8_000 {
        decoding_is_sound(&random.stream());
    }
}

#[test]
fn random_streams_are_the_same_in_pieces() {
    let mut random = Random(2);
    for round in 0..2_500 {
        let stream = random.stream();
        let piece_max = [1, 2, 7, 64, 1024][round % 5];
        splits_like_one_piece(&stream, |_| 1 + random.below(piece_max));
    }
}

#[test]
fn random_replies_survive_the_round_trip() {
    let mut random = Random(3);
    for _ in 0..8_000 {
        round_trips(&random.tree());
    }
}

#[test]
fn redis_protocol_agrees_on_random_streams() {
    let mut random = Random(4);
    for _ in 0..8_000 {
        agrees_with_redis_protocol(&random.stream());
    }
}

/// Saved inputs of the fuzz targets, each for its own target.
#[test]
fn saved_fuzz_inputs_pass() {
    for (target, check) in [
        ("decode", decoding_is_sound as fn(&[u8])),
        ("decode", grown_reply_round_trips),
        ("decode_split", |input| splits_like_one_piece(input, |_| 1)),
        ("decode_differential", agrees_with_redis_protocol),
    ] {
        let folder = format!("{}/fuzz/corpus/{target}", env!("CARGO_MANIFEST_DIR"));
        // A package from the registry lacks them.
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        for entry in entries {
            check(&std::fs::read(entry.unwrap().path()).unwrap());
        }
    }
}

/// All strings of up to six relevant bytes, each against the oracle and against the string without the last
/// byte.
#[test]
fn every_short_input_is_decoded_as_by_the_oracle() {
    for alphabet in [b"+-:$*01\r\nO", b"_#|(%~>1\r\n", b"+-:|*01\r\nt", b",-.einf1\r\n"] {
        for size in 0..=6 {
            for number in 0..10usize.pow(size) {
                let mut input = [0; 6];
                let input = &mut input[..usize::try_from(size).unwrap()];
                let mut digits = number;
                for byte in input.iter_mut() {
                    *byte = alphabet[digits % 10];
                    digits /= 10;
                }
                decoding_is_sound(input);
                nothing_known_changes(input);
            }
        }
    }
}

/// A further byte changes no complete reply, no error, and nothing below the announced size.
fn nothing_known_changes(input: &[u8]) {
    let Some((_, before)) = input.split_last() else { return };
    let decoded = decode(input);
    match decode(before) {
        Ok(Decoded::Partial { size_min }) if input.len() < size_min => {
            assert_eq!(decoded, Ok(Decoded::Partial { size_min }), "{}", input.escape_ascii());
        }
        Ok(Decoded::Partial { .. }) => {}
        known => assert_eq!(decoded, known, "{}", input.escape_ascii()),
    }
}

/// An incomplete reply can always be completed, so no error comes later than possible.
#[test]
fn every_beginning_of_a_reply_can_be_completed() {
    let mut beginnings = vec![Vec::new()];
    let mut completed = 0;
    while let Some(beginning) = beginnings.pop() {
        if !matches!(decode(&beginning), Ok(Decoded::Partial { .. })) {
            continue;
        }
        completed += usize::from(complete_somehow(beginning.clone()) > 0);
        if beginning.len() < 4 {
            let bytes = b"+-:$*01\r\nO_#t,.einaf(!=%~>|";
            beginnings.extend(bytes.iter().map(|byte| [&beginning[..], &[*byte]].concat()));
        }
    }
    assert!(completed > 20_000, "only {completed} beginnings were found");
}

/// Completes an incomplete reply with the first accepted bytes. Returns its size.
fn complete_somehow(mut input: Vec<u8>) -> usize {
    loop {
        let size_min = match decode(&input) {
            Ok(Decoded::Complete { size, .. }) => return size,
            Ok(Decoded::Partial { size_min }) => size_min,
            Err(error) => panic!("{}: {error}", input.escape_ascii()),
        };
        // Before the last announced byte, any byte will do.
        input.resize(size_min - 1, b'0');
        let fits = b"\r\n:1tnfa".iter().find(|&&byte| decode(&[&input[..], &[byte]].concat()).is_ok());
        input.push(*fits.unwrap_or_else(|| panic!("{} has no future", input.escape_ascii())));
    }
}

#[test]
fn elements_know_how_many_are_left() {
    let Ok(Decoded::Complete { reply: Reply::Array(array), .. }) = decode(b"*2\r\n:1\r\n:2\r\n") else {
        panic!("a whole array");
    };
    let mut elements = array.iter();
    for left in [2, 1, 0] {
        assert_eq!(elements.len(), left);
        elements.next();
    }
}
