//! Messages of errors about handles.

use super::*;

fn boxed(vote: Vote) -> Box<Report> {
    Box::new(all(Round::Acquire, vote))
}

fn other_prefix() -> ForeignHandle {
    let resource = "orders:42".into();
    ForeignHandle::OtherPrefix { resource, prefix: "a:".into(), own: "".into() }
}

#[rustfmt::skip]
pub(super) fn samples() -> Vec<Sample> {
    let stopped = || Arc::from("it was drained");
    let name = || Bytes::from("orders:42");
    let refused = || boxed(Vote::Refused { holder: HolderTtl::Unknown });
    table! {
        ParseHandleError {
            Malformed => ParseHandleError::Malformed, "have its holder write it anew";
            NewerVersion { .. } => ParseHandleError::NewerVersion { version: 2 }, "the handle has version 2, of a newer redlatch; upgrade this program";
        }
        ForeignHandle {
            OtherMasters { .. } => ForeignHandle::OtherMasters { resource: name() }, "the handle of lock \"orders:42\" is for other masters, or other URLs of them; give this client the same";
            OtherPrefix { .. } => other_prefix(), "the handle of lock \"orders:42\" has the prefix \"a:\", this client has \"\"; use one prefix";
        }
        AdoptError {
            Gone(_) => AdoptError::Gone(refused()), "the handle of lock \"orders:42\" was used, or the lock has ended; acquire it anew";
            TooOld { .. } => AdoptError::TooOld { resource: name(), ago: LONG }, "the handle of lock \"orders:42\" ended 4.4s ago by this machine's clock";
            NotPassed { .. } => AdoptError::NotPassed { resource: name() }, "still holds the lock; this handle only releases it";
            Foreign(_) => AdoptError::Foreign(other_prefix()), "use one prefix";
            NoQuorum(_) => AdoptError::NoQuorum(boxed(Vote::Failed(Failure::Silent))), "no quorum of masters to adopt lock \"orders:42\"; repair what they report, then retry before its end";
            Expired(_) => AdoptError::Expired(boxed(Vote::Granted)), "lock \"orders:42\" expired while it was adopted; use a longer TTL";
            Overloaded => AdoptError::Overloaded, "retry later";
            Input(_) => AdoptError::Input(InputError::ResourceEmpty), "at least one byte";
            Stopped(_) => AdoptError::Stopped(stopped()), "the client cannot be used";
        }
        ReleaseHandleError {
            Foreign(_) => ReleaseHandleError::Foreign(other_prefix()), "use one prefix";
            Unconfirmed(_) => ReleaseHandleError::Unconfirmed(all(Round::Release, Vote::Pending)), "the release of lock \"orders:42\" is not confirmed; it ends with its TTL";
            Overloaded => ReleaseHandleError::Overloaded, "retry later";
            Input(_) => ReleaseHandleError::Input(InputError::ResourceEmpty), "at least one byte";
            Stopped(_) => ReleaseHandleError::Stopped(stopped()), "the client cannot be used";
        }
    }
}
