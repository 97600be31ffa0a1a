#!/usr/bin/env bash
# Makes sure that what redlatch is built and tested with is there: redis-server, cargo and rustc, and cc, which links and
# compiles the Lua that the tests run scripts with.
#
# Called (scripts/setup.sh) it checks, installs what it may, and exits 0, or 2 with the names of what is missing.
# Sourced it only defines:
#
#   redlatch_setup      the same check; returns 2 when something is missing
#   redlatch_valgrind   true when valgrind works here; otherwise says in one line that its check is skipped
#
# Installs only on Debian and its children, only with apt-get, and only as root or where sudo asks for no password.
# The package redis-server brings a system service; when this script is what installs the package, it keeps the service
# from starting and turns it off. A redis-server that was there before is left as it is.
redlatch_root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
apt_lock_patience_s=120

redlatch_say() { echo "setup: $*" >&2; }

redlatch_setup() {
    local missing=()
    # rustup's directory is not in the PATH of a shell that was open when rustup ran.
    if ! command -v cargo >/dev/null 2>&1 && [ -x "${HOME:-}/.cargo/bin/cargo" ]; then
        PATH="$HOME/.cargo/bin:$PATH"
        export PATH
    fi
    redlatch_check_server || missing+=("redis-server: install it with the system's packages (Debian and Ubuntu: \
apt-get install redis-server; Fedora: dnf install redis; macOS: brew install redis), or name another server in REDLATCH_SERVER")
    redlatch_check_cc || missing+=("cc: a C compiler, which rustc also links with (Debian and Ubuntu: \
apt-get install gcc libc6-dev; Fedora: dnf install gcc; macOS: xcode-select --install)")
    redlatch_check_rust || missing+=("$rust_missing")
    if [ "${#missing[@]}" -gt 0 ]; then
        redlatch_say "missing on this machine:"
        printf '    %s\n' "${missing[@]}" >&2
        return 2
    fi
}

# A server of the user's choice is never installed, only looked for.
redlatch_check_server() {
    local words=()
    read -r -a words <<<"${REDLATCH_SERVER:-redis-server}"
    if command -v "${words[0]}" >/dev/null 2>&1; then return 0; fi
    if [ -n "${REDLATCH_SERVER:-}" ]; then
        redlatch_say "REDLATCH_SERVER names ${words[0]}, which is not there"
        return 1
    fi
    redlatch_install_server && hash -r && command -v redis-server >/dev/null 2>&1
}

redlatch_check_cc() {
    if command -v cc >/dev/null 2>&1; then return 0; fi
    redlatch_apt_install gcc libc6-dev && hash -r && command -v cc >/dev/null 2>&1
}

# Rust is not installed from here: Debian's own is older than what the crate needs.
redlatch_check_rust() {
    local wanted found tool
    wanted=$(sed -n 's/^rust-version *= *"\([0-9.]*\)".*/\1/p' "$redlatch_root/Cargo.toml")
    for tool in cargo rustc; do
        if ! found=$("$tool" --version 2>/dev/null); then
            rust_missing="$tool: Rust ${wanted:-stable} or newer, from https://rustup.rs"
            return 1
        fi
        found=${found#"$tool "}
        found=${found%% *}
        if ! redlatch_at_least "$found" "${wanted:-0}"; then
            rust_missing="$tool ${wanted} or newer: this one is $found; rustup update stable brings it"
            return 1
        fi
    done
}

# Is version $1 at least version $2? Compares the numbers before the second dot, which is what rust-version promises.
redlatch_at_least() {
    local major minor rest wanted_major wanted_minor
    IFS=.- read -r major minor rest <<<"$1"
    IFS=.- read -r wanted_major wanted_minor rest <<<"$2"
    [ "$major" -gt "$wanted_major" ] || { [ "$major" -eq "$wanted_major" ] && [ "${minor:-0}" -ge "${wanted_minor:-0}" ]; }
}

# Installs redis-server without leaving its service running. A policy-rc.d that says 101 is Debian's own way to forbid
# services to start; containers mostly have one. Where there is none, ours is there while the package is installed.
redlatch_install_server() {
    local policy=/usr/sbin/policy-rc.d ours=no status=0
    redlatch_may_install || return 1
    if [ ! -e "$policy" ] && [ -d "${policy%/*}" ]; then
        if printf '#!/bin/sh\n# from scripts/setup.sh of redlatch, while redis-server is installed\nexit 101\n' |
            "${as_root[@]}" tee "$policy" >/dev/null && "${as_root[@]}" chmod 755 "$policy"; then
            ours=yes
        fi
    fi
    # In a subshell: a Ctrl-C must not leave the policy behind.
    (
        if [ "$ours" = yes ]; then trap '"${as_root[@]}" rm -f "$policy"' EXIT; fi
        trap 'exit 130' INT TERM HUP
        redlatch_apt_install redis-server
    ) || status=$?
    if [ "$status" -ne 0 ]; then return "$status"; fi
    if [ -d /run/systemd/system ]; then
        "${as_root[@]}" systemctl disable --now redis-server >/dev/null 2>&1 || true
    else
        "${as_root[@]}" service redis-server stop >/dev/null 2>&1 || true
        "${as_root[@]}" update-rc.d redis-server disable >/dev/null 2>&1 || true
    fi
    redlatch_say "installed redis-server; its system service is off"
}

# May packages be installed here? Sets as_root to what must stand before a command for that (env stands for nothing).
redlatch_may_install() {
    [ -e /etc/debian_version ] && command -v apt-get >/dev/null 2>&1 || return 1
    if [ "$(id -u)" -eq 0 ]; then
        as_root=(env)
    elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
        as_root=(sudo -n env)
    else
        return 1
    fi
}

redlatch_apt_install() {
    local log apt
    redlatch_may_install || return 1
    log=$(mktemp)
    apt=("${as_root[@]}" DEBIAN_FRONTEND=noninteractive apt-get -q -o "DPkg::Lock::Timeout=$apt_lock_patience_s")
    redlatch_say "installing $* (apt-get)"
    # A failing update (one dead mirror of several) need not matter; a failing install does.
    "${apt[@]}" update >"$log" 2>&1 </dev/null || true
    if "${apt[@]}" install -y --no-install-recommends "$@" >>"$log" 2>&1 </dev/null; then
        rm -f -- "$log"
        return 0
    fi
    redlatch_say "apt-get could not install $*; the end of what it said:"
    tail -n 8 -- "$log" | sed 's/^/    /' >&2
    rm -f -- "$log"
    return 1
}

redlatch_valgrind() {
    if ! command -v valgrind >/dev/null 2>&1; then
        redlatch_apt_install valgrind || true
        hash -r
    fi
    if valgrind --tool=none true >/dev/null 2>&1; then return 0; fi
    redlatch_say "skipped: no working valgrind here, so instructions are not counted"
    return 1
}

if [ "${BASH_SOURCE[0]}" = "$0" ]; then
    set -euo pipefail
    redlatch_setup
fi
