//! A master that replaces another one in a fleet, without the other's locks.

use redlatch::Quarantine;
use redlatch::status::MasterState;

use crate::ms;
use crate::record::{RECORD, prefixed};
use crate::rig::{Rig, id};

/// Record of a master that joins a fleet of one.
fn joining_record() -> String {
    let label = "0123456789abcdef";
    let settings = "observed max_ttl_ms=10000 drift_ppm=10000";
    format!("redlatch:fleet:1 {settings} own={label} of={label}-{label} joining")
}

/// Its client had the new list before the record existed.
#[test]
fn a_master_that_joins_meanwhile_is_watched_anew() {
    let record = joining_record();
    for quarantine in [Quarantine::Uptime, Quarantine::Strict, Quarantine::Trust] {
        let mut rig = Rig::new(1, |builder| prefixed(builder).quarantine(quarantine));
        rig.run_for(ms(59_000));
        rig.masters[0].put(RECORD, record.as_bytes(), None);
        let state = |rig: &Rig| rig.engine.master_status(rig.now, id(0)).state;
        assert_eq!(state(&rig), MasterState::Ready, "{quarantine:?}");
        rig.run_for(ms(2_000));
        assert!(matches!(state(&rig), MasterState::Quarantined(_)), "{quarantine:?}");
        rig.run_for(ms(10_102));
        assert_eq!(state(&rig), MasterState::Ready, "{quarantine:?}");
    }
}
