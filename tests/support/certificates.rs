//! Certificates for one test: a new CA, certificates that it signed, and invalid ones. Dropping the value
//! removes the files.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};

/// A directory with these files, each name as `NAME.pem` and `NAME.key`:
///
/// | name | certificate |
/// | --- | --- |
/// | `ca`, `other-ca` | two authorities |
/// | `server` | for 127.0.0.1 and localhost |
/// | `named` | for locks.example alone |
/// | `expired`, `early` | as `server`, outside their dates |
/// | `soon` | as `server`, ends in three days |
/// | `foreign` | as `server`, from `other-ca` |
/// | `client`, `foreign-client` | for clients, from `ca` and from `other-ca` |
pub struct Certificates {
    dir: PathBuf,
}

const LOCAL: &[&str] = &["127.0.0.1", "localhost"];

impl Certificates {
    #[expect(clippy::new_without_default, reason = "it writes files")]
    pub fn new() -> Self {
        use std::hash::BuildHasher;
        let random = std::hash::RandomState::new().hash_one(0);
        let dir = std::env::temp_dir().join(format!("redlatch-tls-{}-{random:08x}", std::process::id()));
        fs::create_dir(&dir).unwrap_or_else(|error| panic!("cannot create {}: {error}", dir.display()));
        let own = Self { dir };
        let (ca, other) = (own.authority("ca"), own.authority("other-ca"));
        let soon = SystemTime::now() + Duration::from_secs(3 * 24 * 3600);
        let years = |first, last| (date_time_ymd(first, 1, 1), date_time_ymd(last, 1, 1));
        for (name, issuer, names, (first, last)) in [
            ("server", &ca, LOCAL, years(2000, 4000)),
            ("named", &ca, &["locks.example"], years(2000, 4000)),
            ("expired", &ca, LOCAL, years(2000, 2001)),
            ("early", &ca, LOCAL, years(3999, 4000)),
            ("soon", &ca, LOCAL, (date_time_ymd(2000, 1, 1), soon.into())),
            ("foreign", &other, LOCAL, years(2000, 4000)),
            ("client", &ca, &["client"], years(2000, 4000)),
            ("foreign-client", &other, &["client"], years(2000, 4000)),
        ] {
            let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
            let mut params = CertificateParams::new(names).expect("valid names");
            (params.not_before, params.not_after) = (first, last);
            params.distinguished_name.push(DnType::CommonName, name);
            let key = KeyPair::generate().expect("randomness");
            let certificate = params.signed_by(&key, issuer).expect("a valid certificate");
            own.write(name, &certificate.pem(), &key);
        }
        own
    }

    pub fn path(&self, file: &str) -> PathBuf {
        self.dir.join(file)
    }

    pub fn read(&self, file: &str) -> Vec<u8> {
        fs::read(self.path(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    fn authority(&self, name: &str) -> Issuer<'static, KeyPair> {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().expect("randomness");
        let certificate = params.self_signed(&key).expect("a valid certificate");
        self.write(name, &certificate.pem(), &key);
        Issuer::new(params, key)
    }

    fn write(&self, name: &str, certificate: &str, key: &KeyPair) {
        fs::write(self.path(&format!("{name}.pem")), certificate).expect("a directory of its own");
        fs::write(self.path(&format!("{name}.key")), key.serialize_pem()).expect("a directory of its own");
    }
}

impl Drop for Certificates {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.dir).ok();
    }
}
