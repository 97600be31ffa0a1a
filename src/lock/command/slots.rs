//! The look for free slots of a pool. It is no vote: a slot that is free is taken by an attempt for its lock.

use super::answer::{WrongShape, failure};
use super::entry::{encode_decimal_bulk, encode_joined};
use super::scripts::{FREE_SLOTS, Script};
use crate::limits;
use crate::lock::vote::Failure;
use crate::pool::{SLOT_NAME, parse_number};
use crate::resp::{self, Reply};

/// Asks which of the `count` slots of a pool are free, from the slot `from` on and around.
pub(crate) fn encode_free_slots(out: &mut Vec<u8>, prefix: &[u8], pool: &[u8], count: u32, from: u32) {
    FREE_SLOTS.encode_head(out, Script::Text);
    encode_joined(out, &[prefix, SLOT_NAME]);
    resp::encode_bulk(out, pool);
    encode_decimal_bulk(out, count.into());
    encode_decimal_bulk(out, from.into());
}

/// The slots in a reply to [`encode_free_slots`]; or the error.
pub(crate) fn free_slots(reply: &Reply<'_>) -> Result<Result<Vec<u32>, Failure>, WrongShape> {
    match reply {
        Reply::Bulk(text) => {
            let slots = text.split_inclusive(|byte| *byte == b' ').map(|slot| slot.strip_suffix(b" "));
            let slots = slots.map(|slot| parse_number(slot?)).take(limits::FREE_SLOTS_MAX + 1);
            let slots = slots.collect::<Option<Vec<_>>>();
            slots.filter(|slots| slots.len() <= limits::FREE_SLOTS_MAX).map(Ok).ok_or(WrongShape)
        }
        Reply::Error(text) => Ok(Err(failure(text))),
        _ => Err(WrongShape),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_names_pool_number_and_first_slot() {
        let (mut out, mut expected) = (Vec::new(), Vec::new());
        encode_free_slots(&mut out, b"p:", b"\r\npool", 16, 7);
        let words: [&[u8]; 7] =
            [b"EVAL", FREE_SLOTS.text.as_bytes(), b"1", b"p:redlatch:slot:", b"\r\npool", b"16", b"7"];
        resp::encode_command(&mut expected, &words);
        assert_eq!(out.escape_ascii().to_string(), expected.escape_ascii().to_string());
    }

    #[test]
    fn only_a_list_of_few_slots_is_taken() {
        let slots = |text: &str| free_slots(&Reply::Bulk(text.as_bytes()));
        assert_eq!(slots(""), Ok(Ok(Vec::new())));
        assert_eq!(slots("15 0 1023 "), Ok(Ok(vec![15, 0, 1023])));
        let failed = Failure::Replied("OOM x".into());
        assert_eq!(free_slots(&Reply::Error(b"OOM x")), Ok(Err(failed)));
        for text in ["1024 ", "-1 ", "1  2 ", "+1 ", "01 ", "x ", " 1 ", "1", "0 1 2 3 4 "] {
            assert_eq!(slots(text), Err(WrongShape), "{text:?}");
        }
        assert_eq!(free_slots(&Reply::Integer(1)), Err(WrongShape));
    }
}
