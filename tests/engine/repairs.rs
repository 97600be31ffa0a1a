//! Repairs of held locks that would do harm, and so are left out.

use redlatch::Options;

use crate::rig::Rig;
use crate::{defaults, granted, ms};

/// Whether a master was sent the `SET` of the lock.
fn is_set(rig: &Rig, index: usize) -> bool {
    rig.masters[index].log.iter().any(|words| words.starts_with(&[b"SET".to_vec(), b"a".to_vec()]))
}

/// The answer to an earlier command comes after an entry's stay, and proves that the master is alive.
// I73
#[test]
fn lock_is_not_restored_beside_a_pending_park() {
    let mut rig = Rig::new(3, |builder| builder.answer_timeout(ms(4000)));
    rig.masters.iter_mut().for_each(|master| master.load_scripts());
    rig.stall_replies(2);
    rig.acquire("b", 10_000, 0);
    granted(&mut rig);
    rig.run_for(ms(3900));
    rig.acquire_with("a", Options::new().ttl(ms(10_000)).wait(ms(60_000)).fair());
    granted(&mut rig);
    rig.run_for(ms(3300));
    rig.masters[2].log.clear();
    rig.deliver_some(2, b"+OK\r\n".len());
    assert!(!is_set(&rig, 2), "its park is carried out there, too");
    rig.end_stall(2);
    assert_eq!(rig.holder_count("a"), 3);
}

/// The extension to two seconds is under way over a connection that has ended.
// I104
#[test]
fn lock_is_not_restored_before_a_late_extension() {
    let mut rig = Rig::new(3, defaults);
    let lock = rig.acquire("a", 10_000, 0);
    granted(&mut rig);
    rig.stop_master(2);
    rig.extend(lock, 2000);
    let stray = rig.break_conn(2);
    rig.extend(lock, 10_000);
    rig.masters[2].load_keys(Default::default());
    rig.masters[2].log.clear();
    rig.resume_master(2);
    rig.run_for(ms(300));
    assert!(!rig.masters[2].log.is_empty() && !is_set(&rig, 2), "it would end behind two seconds");
    rig.carry_out(2, stray);
    rig.run_for(ms(3000));
    assert_eq!((rig.engine.margin(lock), rig.holder_count("a")), (0, 2));
}
