//! States as bits, and a fingerprint of these bits, which stands for a state.
//!
//! States that differ only in the numbers of their masters have one fingerprint. So have states that differ
//! only in the names of their clients, where no client comes before another.

use crate::state::{
    Answer, Client, Command, Entry, Faults, Key, Link, MASTERS, Master, State, TOKENS_EACH, Token,
};

/// A place for each client.
type Naming<const C: usize> = [usize; C];

/// The ways to name clients that make no difference.
pub struct Namings<const C: usize>(Vec<Naming<C>>);

/// A fingerprint of each link. It has no client's name, for all tokens of a link are its client's own.
type Links<const C: usize> = [[u128; C]; MASTERS];

impl<const C: usize> Namings<C> {
    pub fn new(are_alike: bool) -> Self {
        let own = std::array::from_fn(|client| client);
        let mut all = vec![own];
        // Each further client takes every place.
        for last in 1..if are_alike { C } else { 0 } {
            let before = all.clone();
            for other in 0..last {
                all.extend(before.iter().map(|naming| {
                    let mut naming = *naming;
                    naming.swap(other, last);
                    naming
                }));
            }
        }
        Namings(all)
    }

    /// The fingerprint of a state that a step leads to. Most steps change one link.
    pub fn fingerprint_after(&self, state: &State<C>, before: &State<C>, links: &Links<C>) -> u128 {
        let of_link = |master: usize, client: usize| {
            let link = &state.masters[master].links[client];
            let is_as_before = *link == before.masters[master].links[client];
            if is_as_before { links[master][client] } else { fingerprint_of(link) }
        };
        let links = std::array::from_fn(|master| std::array::from_fn(|client| of_link(master, client)));
        let named = self.0.iter().map(|naming| whole(state, naming, &links));
        named.min().expect("clients have names")
    }

    pub fn fingerprint(&self, state: &State<C>) -> u128 {
        self.fingerprint_after(state, state, &links_of(state))
    }
}

pub fn links_of<const C: usize>(state: &State<C>) -> Links<C> {
    state.masters.each_ref().map(|master| master.links.each_ref().map(fingerprint_of))
}

fn fingerprint_of(link: &Link) -> u128 {
    let mut packed = Packed::default();
    packed.add_link(link);
    let mut hash = Fingerprint::default();
    packed.words[..=packed.bits / 64].iter().for_each(|word| hash.add(*word));
    hash.finish()
}

fn whole<const C: usize>(state: &State<C>, naming: &Naming<C>, links: &Links<C>) -> u128 {
    let mut columns: [u128; MASTERS] =
        std::array::from_fn(|master| column(&state.masters[master], naming, &links[master]));
    columns.sort_unstable();
    let mut clients = [0; C];
    for (client, place) in state.clients.iter().zip(naming) {
        clients[*place] = packed_client(client);
    }
    let mut hash = Fingerprint::default();
    clients.iter().for_each(|client| hash.add(*client));
    hash.add(packed_faults(&state.left));
    columns.iter().for_each(|column| hash.add_whole(*column));
    hash.finish()
}

/// A master with its links, whose clients are named anew.
fn column<const C: usize>(master: &Master<C>, naming: &Naming<C>, links: &[u128; C]) -> u128 {
    let key = |key: Option<Key>| match key {
        Some(Key { token, ttl }) => {
            (1 + naming[token.owner()] as u64) | number(Some(token)) << 2 | u64::from(ttl) << 5
        }
        None => 0,
    };
    let written = (0..C).map(|client| {
        let own = u64::from(master.written) >> (client * TOKENS_EACH) & ((1 << TOKENS_EACH) - 1);
        own << (naming[client] * TOKENS_EACH)
    });
    let flags = u64::from(master.is_silent) | u64::from(master.saved.is_some()) << 1;
    // Where clients are alike, none is the lowest.
    let times = u64::from(master.quarantine) | u64::from(master.lowest) << 3 | flags << 5;
    let mut hash = Fingerprint::default();
    hash.add(key(master.key) | times << 8 | written.sum::<u64>() << 16);
    let mut ordered = [0; C];
    (0..C).for_each(|client| ordered[naming[client]] = links[client]);
    ordered.iter().for_each(|link| hash.add_whole(*link));
    if let Some(saved) = &master.saved {
        let mut entries = [0; C];
        (0..C).for_each(|client| entries[naming[client]] = packed_entry(saved.entries[client]));
        entries.iter().for_each(|entry| hash.add(*entry));
        hash.add(key(saved.key));
    }
    hash.finish()
}

/// A token of a known client.
fn number(token: Option<Token>) -> u64 {
    token.map_or(0, |token| 1 + token.slot() as u64)
}

fn packed_entry(entry: Option<Entry>) -> u64 {
    let mut packed = Packed::default();
    packed.add_entry(entry);
    packed.words[0]
}

fn packed_client(client: &Client) -> u64 {
    let mut packed = Packed::default();
    packed.add(client.phase as u64, 2).add_token(client.token).add(u64::from(client.validity), 3);
    packed.add(u64::from(client.rounds), 4).add(u64::from(client.locks), 3);
    packed.add_flags(&[client.is_set, client.is_rung, client.is_forced]);
    packed.words[0]
}

fn packed_faults(left: &Faults) -> u64 {
    let all = [left.breaks, left.restarts, left.saves, left.crashes, left.cancels, left.forces];
    let more = [left.stays, left.full, left.rejections, left.repairs];
    all.iter().chain(&more).fold(0, |sum, count| sum << 3 | u64::from(*count))
}

/// A link has 5 + 5 commands of 10 bits at most, 5 answers of 9, 6 owed ends of 8, and 35 bits more.
const WORDS: usize = 5;

/// Bits of one link. Lengths stand before what they count, so no two links have the same bits.
#[derive(Default)]
struct Packed {
    words: [u64; WORDS],
    bits: usize,
}

impl Packed {
    fn add_link(&mut self, link: &Link) {
        self.add(link.connection as u64, 2).add_entry(link.entry);
        let flags = [link.is_of_old_process, link.has_old, link.is_repaired, link.has_voted, link.is_void];
        self.add_flags(&flags).add_flags(&[
            link.is_quarantined,
            link.is_restored,
            link.is_entry_lost,
            link.is_left,
        ]);
        self.add_token(link.last).add_token(link.awaited).add_token(link.before).add(link.doubt as u64, 2);
        for commands in [&link.commands, &link.late] {
            self.add(commands.len() as u64, 3);
            commands.iter().for_each(|command| self.add_command(command));
        }
        self.add(link.answers.len() as u64, 3);
        link.answers.iter().for_each(|answer| self.add_answer(answer));
        self.add(link.owed.len() as u64, 3);
        for owed in link.owed.iter() {
            let end = (owed.end as u64) << 2 | owed.doubt as u64;
            self.add_token(Some(owed.token)).add(end, 4).add_flags(&[owed.is_sent]);
        }
    }

    fn add_command(&mut self, command: &Command) {
        let (kind, token) = match *command {
            Command::Serve => (0, None),
            Command::Set(token) => (1, Some(token)),
            Command::Park { token, .. } => (2, Some(token)),
            Command::Unpark(token) => (3, Some(token)),
            Command::Release(token) => (4, Some(token)),
            Command::NativeRelease(token) => (5, Some(token)),
            Command::Repair(token) => (6, Some(token)),
        };
        self.add(kind, 3).add_token(token);
        if let Command::Park { old, yields, .. } = *command {
            self.add_token(old).add_flags(&[yields]);
        }
    }

    fn add_answer(&mut self, answer: &Answer) {
        let (kind, token) = match *answer {
            Answer::Granted(token) => (0, token),
            Answer::Waiting(token) => (1, token),
            Answer::Vote(token) => (2, token),
            Answer::Ring(token) => (3, token),
            Answer::Ended { token, .. } => (4, token),
            Answer::Rejected { token, .. } => (5, token),
        };
        self.add(kind, 3).add_token(Some(token));
        match *answer {
            Answer::Ended { settles, .. } => _ = self.add(settles as u64, 2),
            Answer::Rejected { old, .. } => _ = self.add_token(old),
            _ => {}
        }
    }

    fn add_entry(&mut self, entry: Option<Entry>) {
        self.add_token(entry.map(|entry| entry.token));
        if let Some(entry) = entry {
            self.add(entry.stay as u64, 2).add_flags(&[entry.is_of_old_channel]);
        }
    }

    fn add_token(&mut self, token: Option<Token>) -> &mut Self {
        self.add(number(token), 3)
    }

    fn add_flags(&mut self, flags: &[bool]) -> &mut Self {
        let bits = flags.iter().fold(0, |sum, flag| sum << 1 | u64::from(*flag));
        self.add(bits, flags.len())
    }

    fn add(&mut self, value: u64, width: usize) -> &mut Self {
        let (word, from) = (self.bits / 64, self.bits % 64);
        self.words[word] |= value << from;
        if from + width > 64 {
            self.words[word + 1] |= value >> (64 - from);
        }
        self.bits += width;
        self
    }
}

/// Two independent sums of 64 bits.
struct Fingerprint {
    high: u64,
    low: u64,
}

impl Default for Fingerprint {
    fn default() -> Self {
        Fingerprint { high: 0x0123_4567_89ab_cdef, low: 0xfedc_ba98_7654_3210 }
    }
}

impl Fingerprint {
    fn add(&mut self, word: u64) {
        self.high = (self.high.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let word = word.wrapping_add(0x632b_e59b_d9b4_e019);
        self.low = (self.low.rotate_left(29) ^ word).wrapping_mul(0xd6e8_feb8_6659_fd93);
    }

    fn add_whole(&mut self, number: u128) {
        self.add(u64::try_from(number >> 64).expect("half of it"));
        self.add(u64::try_from(number & u128::from(u64::MAX)).expect("half of it"));
    }

    fn finish(self) -> u128 {
        let (high, low) = (self.high ^ self.high >> 29, self.low ^ self.low >> 31);
        u128::from(high) << 64 | u128::from(low)
    }
}
