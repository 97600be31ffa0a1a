//! The search for free slots of a pool. It is no vote: a free slot is taken by an attempt for its lock.

use super::answer::{WrongShape, failure};
use super::entry::{encode_decimal_bulk, encode_joined};
use super::scripts::{FREE_SLOTS, Script};
use crate::limits;
use crate::lock::vote::Failure;
use crate::pool::SLOT_NAME;
use crate::resp::{self, Reply};

/// Asks which of a pool's `count` slots are free, beginning with the slot `from` and wrapping around.
pub(crate) fn encode_free_slots(out: &mut Vec<u8>, prefix: &[u8], pool: &[u8], count: u32, from: u32) {
    FREE_SLOTS.encode_head(out, Script::Text);
    encode_joined(out, &[prefix, SLOT_NAME]);
    resp::encode_bulk(out, pool);
    encode_decimal_bulk(out, count.into());
    encode_decimal_bulk(out, from.into());
}

/// State of a slot on one master: [`FREE`], or the first bytes of its holder's value.
pub(crate) type SlotMark = [u8; 4];

/// Mark of a free slot. One token in 2³² begins with these bytes; its slot is then tried without success.
pub(crate) const FREE: SlotMark = *b"....";

/// The marks in a reply to [`encode_free_slots`], in the order asked for; or the error.
pub(crate) fn slot_marks(reply: &Reply<'_>) -> Result<Result<Vec<SlotMark>, Failure>, WrongShape> {
    match reply {
        Reply::Bulk(text) => {
            let (marks, rest) = text.as_chunks();
            let is_list = rest.is_empty() && marks.len() <= limits::SLOT_COUNT_MAX as usize;
            if is_list { Ok(Ok(marks.to_vec())) } else { Err(WrongShape) }
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
    fn only_marks_of_slots_are_taken() {
        let marks = |text: &str| slot_marks(&Reply::Bulk(text.as_bytes()));
        assert_eq!(marks("....a\r\n....."), Ok(Ok(vec![FREE, *b"a\r\n.", FREE])));
        assert_eq!(marks(&"abcd".repeat(1024)).map(|marks| marks.map(|it| it.len())), Ok(Ok(1024)));
        let failed = Failure::Replied("OOM x".into());
        assert_eq!(slot_marks(&Reply::Error(b"OOM x")), Ok(Err(failed)));
        for text in ["abc", "....a", &"abcd".repeat(1025)] {
            assert_eq!(marks(text), Err(WrongShape), "{text:?}");
        }
        assert_eq!(slot_marks(&Reply::Integer(1)), Err(WrongShape));
    }
}
