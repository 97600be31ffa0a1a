//! Requests on their way to the links: gathered as long as they go to the same masters, then handed to each link as
//! one piece. Knows by which commands each ready master releases and extends.
//!
//! Every request but a handshake's goes through here, and what was gathered is handed over before anything for other
//! masters is taken, before a link's bytes are looked at and before it fails. So each link has its requests in the
//! order in which they were made, and an entry for each beside its bytes.

use super::claim::Claim;
use super::link::{Link, Owed};
use super::slab::Id;
use crate::limits;
use crate::lock::command::{self, Entry, ExtendBy, Fence, ReleaseBy, Script};
use crate::lock::{MasterId, MasterSet, Ttl};

/// With this much gathered it is handed over: with one more request usually below 4 KiB, up to which copies are cheap
/// (`scripts/instructions`), and surely still in the cache when it is copied for each link.
const GATHERED_SIZE_MAX: usize = 3584;

/// No request is smaller than this, so fewer than `GATHERED_SIZE_MAX / REQUEST_SIZE_MIN` are gathered.
const REQUEST_SIZE_MIN: usize = 16;

#[derive(Debug)]
pub(super) struct Broadcast {
    /// For whom requests are gathered, while there are any. Each of them has room for all that may be gathered.
    masters: MasterSet,
    bytes: Vec<u8>,
    owed: Vec<Owed>,
    /// Ready masters, silent ones too, by the command that releases there.
    release_groups: Vec<(ReleaseBy, MasterSet)>,
    /// The same for extending.
    extend_groups: Vec<(ExtendBy, MasterSet)>,
    /// Those that run the script which releases and tells who waits.
    tellers: MasterSet,
}

impl Broadcast {
    pub(super) const fn new() -> Self {
        Self {
            masters: MasterSet::EMPTY,
            bytes: Vec::new(),
            owed: Vec::new(),
            release_groups: Vec::new(),
            extend_groups: Vec::new(),
            tellers: MasterSet::EMPTY,
        }
    }

    /// Queues a request for `masters`; returns those that had room for it.
    #[inline]
    pub(super) fn send(
        &mut self,
        links: &mut [Link],
        masters: MasterSet,
        owed: Owed,
        encode: impl FnOnce(&mut Vec<u8>),
    ) -> MasterSet {
        if masters.is_empty() {
            return masters;
        }
        let is_gathering = self.masters == masters && self.bytes.len() < GATHERED_SIZE_MAX;
        let has_room = is_gathering || self.gather_for(links, masters);
        encode(&mut self.bytes);
        self.owed.push(owed);
        if has_room { masters } else { self.hand_over(links) }
    }

    /// Queues a release on those of `masters` that are ready; returns those that had room for it.
    #[inline]
    pub(super) fn send_release(
        &mut self,
        links: &mut [Link],
        masters: MasterSet,
        id: Id,
        claim: &Claim,
    ) -> MasterSet {
        let (mut sent, entry, tells) = (MasterSet::EMPTY, &claim.entry, claim.tells);
        for index in 0..self.release_groups.len() {
            let (by, group) = self.release_groups[index];
            let mut group = group.intersection(masters);
            if tells && claim.is_contended && !by.is_script() {
                // The script costs the master more and tells how many wait, so that not all of them come.
                let scripted = group.intersection(self.tellers);
                group = group.without(scripted);
                sent = sent.union(self.send(links, scripted, Owed::Release(id), |out| {
                    command::encode_release(out, ReleaseBy::EvalSha, entry, tells);
                }));
            }
            let group = self.send(links, group, Owed::Release(id), |out| {
                command::encode_release(out, by, entry, tells);
            });
            if tells && !by.is_script() {
                self.send(links, group, Owed::Told, |out| command::encode_telling(out, entry.key()));
            }
            sent = sent.union(group);
        }
        sent
    }

    /// The same for the release of a fenced lock, which each master does by the same script.
    #[cold]
    #[inline(never)]
    pub(super) fn send_fenced_release(
        &mut self,
        links: &mut [Link],
        masters: MasterSet,
        (id, tells): (Id, bool),
        entry: &Entry,
        fence: &Fence,
    ) -> MasterSet {
        let ready = self.ready();
        self.send(links, masters.intersection(ready), Owed::ReleaseFenced(id), |out| {
            command::encode_fenced_release(out, Script::Known, entry, fence, tells);
        })
    }

    /// The masters that are ready, silent ones too.
    pub(super) fn ready(&self) -> MasterSet {
        self.release_groups.iter().fold(MasterSet::EMPTY, |all, (_, group)| all.union(*group))
    }

    /// Queues a compare-and-delete on those of `masters` that are ready, for `owed`.
    #[cold]
    #[inline(never)]
    pub(super) fn send_deletion(
        &mut self,
        links: &mut [Link],
        masters: MasterSet,
        owed: Owed,
        entry: &Entry,
    ) {
        for index in 0..self.release_groups.len() {
            let (by, group) = self.release_groups[index];
            self.send(links, group.intersection(masters), owed, |out| {
                command::encode_release(out, by, entry, false);
            });
        }
    }

    /// The same for an extension to `ttl`.
    pub(super) fn send_extend(
        &mut self,
        links: &mut [Link],
        masters: MasterSet,
        (id, round): (Id, u32),
        entry: &Entry,
        ttl: Ttl,
    ) -> MasterSet {
        let mut sent = MasterSet::EMPTY;
        for index in 0..self.extend_groups.len() {
            let (by, group) = self.extend_groups[index];
            let group = group.intersection(masters);
            sent = sent.union(self.send(links, group, Owed::Extend(id, round), |out| {
                command::encode_extend(out, by, entry, ttl);
            }));
        }
        sent
    }

    /// The same for a swap of one lock's token for another's, with the `ttl` of that.
    pub(super) fn send_swap(
        &mut self,
        links: &mut [Link],
        masters: MasterSet,
        owed: Owed,
        (old, new): (&Entry, &Entry),
        ttl: Ttl,
    ) -> MasterSet {
        let mut sent = MasterSet::EMPTY;
        for index in 0..self.extend_groups.len() {
            let (by, group) = self.extend_groups[index];
            let group = group.intersection(masters);
            sent = sent.union(self.send(links, group, owed, |out| {
                command::encode_swap(out, by, old, new, ttl);
            }));
        }
        sent
    }

    /// Starts to gather for `masters`. False if one of them might not have room.
    #[inline(never)]
    fn gather_for(&mut self, links: &mut [Link], masters: MasterSet) -> bool {
        self.flush(links);
        self.masters = masters;
        let size_max = GATHERED_SIZE_MAX + limits::REQUEST_SIZE_MAX;
        let count_max = GATHERED_SIZE_MAX / REQUEST_SIZE_MIN + 1;
        links.iter().all(|link| !masters.contains(link.master) || link.wire.has_room(size_max, count_max))
    }

    /// Hands over what was gathered.
    #[inline]
    pub(super) fn flush(&mut self, links: &mut [Link]) {
        if !self.masters.is_empty() {
            self.hand_over(links);
        }
    }

    /// The same; returns those of the masters that had room for it.
    #[inline(never)]
    fn hand_over(&mut self, links: &mut [Link]) -> MasterSet {
        let mut taken = self.masters;
        for link in links {
            if taken.contains(link.master) && link.wire.request(&self.bytes, &self.owed).is_err() {
                taken.remove(link.master);
            }
        }
        assert!(taken == self.masters || self.owed.len() == 1, "no room for what was gathered");
        self.bytes.clear();
        self.owed.clear();
        self.masters = MasterSet::EMPTY;
        taken
    }

    /// A link is ready and can be sent to.
    pub(super) fn add_ready(&mut self, link: &Link) {
        join(&mut self.release_groups, link.release_by, link.master);
        join(&mut self.extend_groups, link.extend_by, link.master);
        if link.learnt.has_telling {
            self.tellers.insert(link.master);
        }
    }

    /// A link is about to fail: what was gathered for it must not reach its next connection.
    pub(super) fn remove(&mut self, links: &mut [Link], master: MasterId) {
        self.flush(links);
        leave(&mut self.release_groups, master);
        leave(&mut self.extend_groups, master);
        self.tellers.remove(master);
    }

    /// How many requests are gathered for a master.
    pub(super) const fn owed_count(&self, master: MasterId) -> usize {
        if self.masters.contains(master) { self.owed.len() } else { 0 }
    }
}

/// Puts a master into the group of its command.
fn join<B: PartialEq>(groups: &mut Vec<(B, MasterSet)>, by: B, master: MasterId) {
    match groups.iter_mut().find(|(other, _)| *other == by) {
        Some((_, group)) => group.insert(master),
        None => groups.push((by, MasterSet::only(master))),
    }
}

/// Takes a master out of its group, and the group out if nobody is left in it.
fn leave<B>(groups: &mut Vec<(B, MasterSet)>, master: MasterId) {
    groups.retain_mut(|(_, group)| {
        group.remove(master);
        !group.is_empty()
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    fn links(count: usize) -> Vec<Link> {
        let now = Instant::now();
        (0..count).filter_map(MasterId::new).map(|master| Link::new(master, now)).collect()
    }

    fn set(bits: usize) -> MasterSet {
        (0..3).filter(|index| bits >> index & 1 == 1).filter_map(MasterId::new).collect()
    }

    #[test]
    fn each_link_has_its_requests_in_the_order_of_the_calls() {
        let (mut links, mut broadcast) = (links(3), Broadcast::new());
        let mut expected = vec![Vec::new(); 3];
        for round in 0..2000_usize {
            let masters = set(round * 7 / 40);
            let bytes = format!("request {round:>9}");
            let sent = broadcast.send(&mut links, masters, Owed::Holder(Id::NOBODY), |out| {
                out.extend_from_slice(bytes.as_bytes());
            });
            assert_eq!(sent, masters);
            masters.iter().for_each(|master| expected[master.index()].extend_from_slice(bytes.as_bytes()));
            for link in &links {
                let count = link.wire.owed_count() + broadcast.owed_count(link.master);
                assert_eq!(count * "request 123456789".len(), expected[link.master.index()].len());
            }
        }
        broadcast.flush(&mut links);
        assert!(links.iter().zip(&expected).all(|(link, bytes)| link.wire.send_ready() == bytes));
    }

    #[test]
    fn a_master_with_a_full_queue_is_left_out_and_the_others_are_not() {
        let (mut links, mut broadcast) = (links(3), Broadcast::new());
        let owed = [Owed::Holder(Id::NOBODY)];
        let nearly_full = vec![0; limits::OUTBOX_SIZE_MAX - 30];
        links[1].wire.request(&nearly_full, &owed).expect("room");
        let mut send = |masters| broadcast.send(&mut links, masters, owed[0], |out| out.extend([0; 20]));
        assert_eq!((send(set(0b111)), send(set(0b111))), (set(0b111), set(0b101)));
        assert_eq!((send(set(0b010)), send(set(0b101))), (set(0b000), set(0b101)));
        broadcast.flush(&mut links);
        let counts: Vec<usize> = links.iter().map(|link| link.wire.owed_count()).collect();
        assert_eq!(counts, [3, 2, 3]);
    }
}
