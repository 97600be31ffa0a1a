#!/usr/bin/env bash
# Makes sure that the tools to build and test redlatch are there: redis-server, cargo and rustc, and cc, which links, and
# compiles the Lua for tests of scripts.
#
# As a command (scripts/setup.sh), it checks, installs what it may, and exits with 0, or with 2 and the missing names.
# Sourced, it only defines:
#
#   redlatch_setup      the same check; returns 2 when something is missing
#   redlatch_valgrind   true when valgrind works here; otherwise says in one line that its check is skipped
#
# Installs only on Debian and derivatives, only with apt-get, and only as root or with a sudo that needs no password. The
# package redis-server brings a system service. If this script installs the package, it keeps the service from starting, and
# disables it. An existing redis-server is left alone.
redlatch_root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
apt_lock_patience_s=120

redlatch_say() { echo "setup: $*" >&2; }

redlatch_setup() {
    local missing=()
    # A shell that was open when rustup ran lacks rustup's directory in its PATH.
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

# A server that the user names is only looked for, never installed.
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

# Rust is not installed from here, because Debian's is too old for the crate.
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

# Is version $1 at least version $2? Compares the first two numbers, as rust-version does.
redlatch_at_least() {
    local major minor rest wanted_major wanted_minor
    IFS=.- read -r major minor rest <<<"$1"
    IFS=.- read -r wanted_major wanted_minor rest <<<"$2"
    [ "$major" -gt "$wanted_major" ] || { [ "$major" -eq "$wanted_major" ] && [ "${minor:-0}" -ge "${wanted_minor:-0}" ]; }
}

# Installs redis-server without leaving its service running. A policy-rc.d that exits with 101 is Debian's way to forbid
# services to start; most containers have one. Elsewhere, ours exists during the installation.
redlatch_install_server() {
    local policy=/usr/sbin/policy-rc.d ours=no status=0
    redlatch_may_install || return 1
    if [ ! -e "$policy" ] && [ -d "${policy%/*}" ]; then
        if printf '#!/bin/sh\n# from scripts/setup.sh of redlatch, while redis-server is installed\nexit 101\n' |
            "${as_root[@]}" tee "$policy" >/dev/null && "${as_root[@]}" chmod 755 "$policy"; then
            ours=yes
        fi
    fi
    # In a subshell, so that a Ctrl-C does not leave the policy behind.
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

# May packages be installed here? Sets as_root to the command's prefix (env if none is needed).
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
    # A failing update (one dead mirror of several) may not matter; a failing installation does.
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
