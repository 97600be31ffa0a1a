//! A network namespace, joined to this one with one cable that can be pulled: a partition made by the kernel.

use std::net::Ipv4Addr;

use redlatch_support::{Place, command};

/// Owns the namespace and the cable, and removes both on drop. End the processes in it first.
pub(crate) struct Netns {
    name: String,
    cable: String,
    host: Ipv4Addr,
}

impl Netns {
    /// Creates a namespace; the error says why this machine cannot. `index` distinguishes namespaces of one
    /// process.
    pub(crate) fn new(index: u8) -> Result<Self, String> {
        let pid = std::process::id();
        // From the address range for network benchmarks (RFC 2544): four addresses for each cable.
        let base = u32::from(Ipv4Addr::new(198, 18, 0, 0)) + (pid % 8192) * 16 + u32::from(index % 4) * 4;
        let (near, host) = (Ipv4Addr::from(base + 1), Ipv4Addr::from(base + 2));
        let namespace =
            Self { name: format!("redlatch-{pid}-{index}"), cable: format!("rl{pid}-{index}"), host };
        let Self { name, cable, .. } = &namespace;
        ip(&format!("netns add {name}"))?;
        ip(&format!("link add {cable} type veth peer name eth0 netns {name}"))?;
        ip(&format!("addr add {near}/30 dev {cable}"))?;
        ip(&format!("link set {cable} up"))?;
        ip(&format!("-n {name} addr add {host}/30 dev eth0"))?;
        ip(&format!("-n {name} link set lo up"))?;
        ip(&format!("-n {name} link set eth0 up"))?;
        ip(&format!("netns exec {name} true"))?;
        Ok(namespace)
    }

    /// Place for a server in the namespace, reachable from here.
    pub(crate) fn place(&self) -> Place {
        let mut words: Vec<String> = ["ip", "netns", "exec", &self.name].map(str::to_owned).to_vec();
        words.extend(Place::default().words);
        words.extend(["--protected-mode", "no"].map(str::to_owned));
        Place { words, host: self.host.into() }
    }

    /// Plugs the cable in, or pulls it at the far end, so that this end keeps the address's only route.
    pub(crate) fn connect(&self, connected: bool) {
        let state = if connected { "up" } else { "down" };
        ip(&format!("-n {} link set eth0 {state}", self.name)).expect("it could be set up before");
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        // Errors are fine: `new` may have failed half-way.
        ip(&format!("link del {}", self.cable)).ok();
        ip(&format!("netns del {}", self.name)).ok();
    }
}

fn ip(args: &str) -> Result<(), String> {
    let output = command("ip").args(args.split(' ')).output().map_err(|error| format!("ip: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("ip {args}: {}", String::from_utf8_lossy(&output.stderr).trim()))
}
